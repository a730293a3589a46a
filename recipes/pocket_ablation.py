"""Writes the training files of recipes/pocket-ablation.toml: python recipes/pocket_ablation.py DATA FOLDER

DATA holds squad2/train-recovered.json. Each question there has an `origin`: `copy` came with its paragraph, `joined`
was put to a paragraph that was found by its answer and its words. Some paragraphs are tokenised (a space before every
comma), many of those in lower case. Every file has 1,000 answerable questions of one kind and a number of unanswerable
ones; a larger number holds the smaller. The same bytes every time.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

ANSWERABLE = 1000
UNANSWERABLE = 500
FILES = {  # name: kind of the answerable questions, number of unanswerable ones
    "copy": ("copy", UNANSWERABLE),
    "joined": ("joined", UNANSWERABLE),
    "tokenised": ("tokenised", UNANSWERABLE),
    "unanswerable-0": ("copy", 0),
    "unanswerable-1000": ("copy", 1000),
    "unanswerable-2000": ("copy", 2000),
}


def questions_by_kind(file: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """{kind: (paragraph, question) pairs in random order}. `unanswerable` questions are of plain paragraphs alone."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for article in json.loads(file.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            tokenised = " , " in context or context == context.lower()
            for qa in paragraph["qas"]:
                kind = "unanswerable" if qa["is_impossible"] else qa["origin"]
                if tokenised:
                    kind = "tokenised" if kind == "copy" else "left out"
                found.setdefault(kind, []).append((context, qa))
    rng = random.Random(20261118)
    for pairs in found.values():
        rng.shuffle(pairs)
    return found


def write(file: Path, pairs: list[tuple[str, dict[str, Any]]]) -> None:
    paragraphs: dict[str, list[dict[str, Any]]] = {}
    for context, qa in pairs:
        paragraphs.setdefault(context, []).append(qa)
    article = {"title": file.stem, "paragraphs": [{"context": key, "qas": qas} for key, qas in paragraphs.items()]}
    file.write_text(json.dumps({"version": "v2.0", "data": [article]}), encoding="utf-8")


if __name__ == "__main__":
    kinds = questions_by_kind(Path(sys.argv[1]) / "squad2" / "train-recovered.json")
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, count) in FILES.items():
        write(folder / f"{name}.json", kinds[kind][:ANSWERABLE] + kinds["unanswerable"][:count])
