"""How good a reader is on real questions, and what each engine costs: torch, ONNX, ONNX in int8.

python bench/engines.py READER DATA.json [--questions N] [--rounds R] [--json]

Scores are taken twice over: the threshold is chosen on every second article and used on the others, and the other way
round, so that no question is scored at a threshold it had a part in. Intervals hold 95 % of 1,000 resamples of the
questions. Speed: all engines answer the same questions in turns; a ratio is the median of the rounds' ratios.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import resample_counts
from bertvision.evaluate.calibration import choose_threshold
from bertvision.evaluate.squad import answerable, question_scores
from bertvision.serve.export import export
from bertvision.serve.measure import predict
from bertvision.serve.reader import Reader
from bertvision.tasks.decode import SpanPredictions
from side_by_side import Race

ASKED = 64  # questions in a round of the race
ENGINES = ("torch", "onnx fp32", "onnx int8")


def predictions(reader: Reader, articles: Sequence[dict[str, Any]]) -> SpanPredictions:
    """What a reader finds for all questions, before any threshold."""
    questions = records(articles)
    return replace(predict(reader, questions, counter()), ids=[question.id for question in questions])


def counter() -> Any:
    """Says on a terminal how far a pass is."""
    shows = sys.stderr.isatty()
    return lambda done, total: shows and print(f"\r{done / total:4.0%}", end="", file=sys.stderr)


def scores(found: SpanPredictions, articles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """{metric: (value, low, high)} at thresholds of the other half, and with "no answer" switched off (`spans`)."""
    best, has = question_scores(articles, found.best()), answerable(articles)
    ids = list(best)
    null = found.no_answer_scores()
    halves = {qa["id"]: number % 2 for number, a in enumerate(articles) for p in a["paragraphs"] for qa in p["qas"]}
    half, answered = np.array([halves[id_] for id_ in ids]), np.array([has[id_] for id_ in ids])
    unsure, raw = np.array([null[id_] for id_ in ids]), np.array([best[id_] for id_ in ids])  # (Q,), (Q, 2): EM, F1
    given = raw.copy()
    for one in (0, 1):
        other = half != one
        threshold, _ = choose_threshold(raw[other, 1], 1.0 - answered[other], unsure[other])
        silent = (half == one) & (unsure > threshold)
        given[silent] = (~answered[silent])[:, None]
    rows = np.ones(len(ids), dtype=bool)
    columns = {
        "EM": (given[:, 0], rows),
        "F1": (given[:, 1], rows),
        "HasAns F1": (given[:, 1], answered),
        "NoAns F1": (given[:, 1], ~answered),
        "spans F1": (raw[:, 1], answered),
    }
    counts = np.concatenate(list(resample_counts(len(ids), 1000, 0)))  # (draws, Q)
    result = {}
    for name, (values, among) in columns.items():
        with np.errstate(invalid="ignore"):  # 0 / 0: a resample without any question that counts
            drawn = counts[:, among] @ values[among] / counts[:, among].sum(axis=1)
        low, high = np.nanpercentile(drawn, [2.5, 97.5])
        result[name] = tuple(round(100 * float(number), 2) for number in (values[among].mean(), low, high))
    return result


def measure(name: str, articles: Sequence[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """{engine: scores, size of its file, share of answers equal to torch's, speed against torch}"""
    readers = {"torch": Reader.from_pretrained(name, engine="torch")}
    found: dict[str, Any] = {engine: {} for engine in ENGINES}
    with tempfile.TemporaryDirectory() as scratch:
        for engine in ENGINES[1:]:
            graph = export(readers["torch"], Path(scratch) / engine, int8=engine.endswith("int8"))
            found[engine]["MB"] = round(graph.stat().st_size / 1e6, 1)
            readers[engine] = Reader.from_pretrained(graph.parent, engine="onnx")
        kept = {engine: predictions(reader, articles) for engine, reader in readers.items()}
        pairs = [(one.question, one.context) for one in records(articles)[:ASKED]]
        race = Race(*(lambda one=one: one.answers(pairs) for one in readers.values()), rounds=rounds)
    for place, engine in enumerate(ENGINES):
        same = np.all(kept[engine].chars[:, 0] == kept["torch"].chars[:, 0], axis=-1)
        found[engine] |= {
            **scores(kept[engine], articles),
            "same best span as torch": f"{int(same.sum()):,} of {len(same):,}",
            "questions per second": round(len(pairs) / race.seconds(place), 1),
            "times as fast as torch": round(1 / race.ratio(place), 2),
        }
    return found


def first_questions(articles: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """About `count` questions, the same share of every paragraph: all articles stay."""
    total = sum(len(p["qas"]) for a in articles for p in a["paragraphs"])
    step = max(1, round(total / count)) if count else 1
    return [
        {**a, "paragraphs": [{**p, "qas": p["qas"][number % step :: step]} for number, p in enumerate(a["paragraphs"])]}
        for a in articles
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", help="a directory, or the name of a reader that comes with the package")
    parser.add_argument("data", help="a SQuAD 2.0 file that it was not trained on, or another source of data")
    parser.add_argument("--questions", type=int, default=0, help="about this many of them; all if not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    try:
        articles = first_questions(load_articles(given.data), given.questions)
        if len(articles) < 2:
            raise UserError(f"{given.data}: a threshold for every article from others needs at least two articles")
        found = measure(given.reader, articles, given.rounds)
    except UserError as error:
        sys.exit(str(error))
    if given.json:
        print(json.dumps(found | {"threads": torch.get_num_threads()}))
        return
    for engine, about in found.items():
        print(f"{engine}; {torch.get_num_threads()} threads")
        for key, value in about.items():
            print(f"  {key:24} {'{} ({} to {})'.format(*value) if isinstance(value, tuple) else value}")


if __name__ == "__main__":
    main()
