"""Writes the training files of pocket: python recipes/pocket_data.py DATA FIRST.json SECOND.json THIRD.json

DATA holds squad2/train-recovered.json (about two fifths of SQuAD 2.0's training set) and squadshifts/*.json. Nothing of
the development set is used, nor of SQuADShifts' Reddit part. The same bytes every time.

FIRST, for recipes/pocket.toml: all paragraphs of the training set that have unanswerable questions, with all their
questions; 4,000 questions of its other paragraphs; 1,500 each of new Wikipedia articles and of product reviews, with
half as many unanswerable ones made of them.
SECOND, for recipes/pocket-second.toml: the paragraphs with unanswerable questions again; 2,500 questions of the others,
1,500 of new Wikipedia articles and 2,500 of product reviews, none of which FIRST has, with 0.3 times as many
unanswerable ones made of the last two.
THIRD, for recipes/pocket-third.toml: half of the paragraphs with unanswerable questions once more; 4,000 questions of
the others, 1,000 of new Wikipedia articles and 1,500 of product reviews, none of which FIRST or SECOND has, with half
as many unanswerable ones made of the last two.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.data.augment import add_negatives

PER_PARAGRAPH = (3, 2)


@dataclass(frozen=True)
class Amounts:
    """How many questions of each kind a file takes."""

    seed: int
    plain: int
    wiki: int
    reviews: int
    negatives: float
    both: float = 1.0
    """Share of the paragraphs with unanswerable questions."""


FIRST = Amounts(20261118, plain=4000, wiki=1500, reviews=1500, negatives=0.5)
SECOND = Amounts(20261119, plain=2500, wiki=1500, reviews=2500, negatives=0.3)
THIRD = Amounts(20261120, plain=4000, wiki=1000, reviews=1500, negatives=0.5, both=0.5)


def build(folder: Path, amounts: Amounts, used: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """The articles of a training file. used: ids that come again only where a paragraph has unanswerable questions."""
    rng = random.Random(amounts.seed)
    both, plain = [], []
    for article in _articles(folder / "squad2" / "train-recovered.json"):
        for paragraph in article["paragraphs"]:
            holder = both if any(qa["is_impossible"] for qa in paragraph["qas"]) else plain
            holder.append({"context": paragraph["context"], "qas": paragraph["qas"]})
    if amounts.both < 1:
        both = rng.sample(both, round(amounts.both * len(both)))
    rng.shuffle(plain)
    extra: list[dict[str, Any]] = []
    count = 0
    for paragraph in plain:
        if count >= amounts.plain:
            break
        # those whose paragraph was found by search are sometimes wrong
        copied = [qa for qa in paragraph["qas"] if qa.get("origin") == "copy" and qa["id"] not in used]
        if qas := copied[: PER_PARAGRAPH[0]]:
            extra.append({"context": paragraph["context"], "qas": qas})
            count += len(qas)
    wiki = _drawn(folder, "new_wiki", amounts.wiki, rng, used)
    reviews = _drawn(folder, "amazon_reviews", amounts.reviews, rng, used)
    one = [{"title": "amazon_reviews", "paragraphs": [each for article in reviews for each in article["paragraphs"]]}]
    return [
        {"title": "both", "paragraphs": both},
        {"title": "plain", "paragraphs": extra},
        *add_negatives(wiki, amounts.negatives),
        *add_negatives(one, amounts.negatives),
    ]


def _drawn(folder: Path, name: str, wanted: int, rng: random.Random, used: frozenset[str]) -> list[dict[str, Any]]:
    """Two questions each of paragraphs drawn at random from another kind of text, one answer each."""
    articles = _articles(folder / "squadshifts" / f"{name}.json")
    paragraphs = [(number, each) for number, article in enumerate(articles) for each in article["paragraphs"]]
    rng.shuffle(paragraphs)
    chosen: dict[int, list[dict[str, Any]]] = {}
    count = 0
    for number, paragraph in paragraphs:
        if count >= wanted:
            break
        free = [qa for qa in paragraph["qas"] if qa["id"] not in used]
        qas = rng.sample(free, min(PER_PARAGRAPH[1], len(free)))
        if not qas:
            continue
        qas = [{**qa, "answers": qa["answers"][:1]} for qa in qas]
        chosen.setdefault(number, []).append({"context": paragraph["context"], "qas": qas})
        count += len(qas)
    return [{"title": f"{name} {number}", "paragraphs": found} for number, found in sorted(chosen.items())]


def _articles(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["data"]


if __name__ == "__main__":
    used: frozenset[str] = frozenset()
    for file, amounts in zip(sys.argv[2:], (FIRST, SECOND, THIRD), strict=False):
        articles = build(Path(sys.argv[1]), amounts, used)
        Path(file).write_text(json.dumps({"version": "v2.0", "data": articles}), encoding="utf-8")
        used |= frozenset(qa["id"] for article in articles for part in article["paragraphs"] for qa in part["qas"])
