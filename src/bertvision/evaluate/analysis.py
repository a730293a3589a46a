"""The papers' analyses of span predictions: who is right on what, where, how surely, and who agrees with whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.squad import Record, normalize, question_word
from bertvision.evaluate.calibration import auroc, calibration_error, null_probability, reliability
from bertvision.evaluate.spans import SpanPredictions
from bertvision.evaluate.squad import f1

NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one member did on Q questions under its threshold, in the order of the records.

    answers: Q given answers, "" = no answer. second: Q answers that would have come next. exact, f1: (Q,) 0 to 1.
    spans_f1: (Q,) that of the best span, "no answer" or not. no_answer: (Q,) no-answer scores; doubt: (Q,) by how much
    they are above the threshold.
    """

    answers: list[str]
    second: list[str]
    exact: NDArray[np.bool_]
    f1: NDArray[np.float64]
    spans_f1: NDArray[np.float64]
    second_exact: NDArray[np.bool_]
    no_answer: NDArray[np.float64]
    doubt: NDArray[np.float64]


def judge(records: Sequence[Record], predictions: SpanPredictions, threshold: float) -> Verdict:
    """The verdict on predictions for `records` (by id)."""
    place = {key: row for row, key in enumerate(predictions.ids)}
    rows = [place[record.id] for record in records]
    doubt = predictions.no_answer[rows] - threshold
    ranked = [
        two_best(predictions.texts[row], predictions.scores[row], float(unsure)) for row, unsure in zip(rows, doubt)
    ]
    answers, second = [pair[0] for pair in ranked], [pair[1] for pair in ranked]
    spans = [predictions.texts[row][0] for row in rows]
    return Verdict(
        answers,
        second,
        np.array([_exact(record, text) for record, text in zip(records, answers)], bool),
        np.array([_f1(record, text) for record, text in zip(records, answers)], np.float64),
        np.array([_f1(record, text) for record, text in zip(records, spans)], np.float64),
        np.array([_exact(record, text) for record, text in zip(records, second)], bool),
        predictions.no_answer[rows],
        doubt,
    )


def two_best(texts: Sequence[str], scores: Sequence[float], doubt: float) -> tuple[str, str]:
    """The answer given and the one that would come next; "no answer" ("") competes with the spans.

    texts, scores: (K,) spans, best first, score -inf where there are fewer. doubt: by how much "no answer" beats the
    best span. Spans that differ only in case, articles or punctuation are one answer. Without a second it is "".
    """
    spans = [(float(score), text) for text, score in zip(texts, scores) if np.isfinite(score)]
    null = (spans[0][0] if spans else 0.0) + doubt
    at = 0 if doubt > 0 else max(1, sum(score > null for score, _ in spans))  # the null's place among them
    ranked = [text for _, text in spans[:at]] + [""] + [text for _, text in spans[at:]]
    first = ranked[0]
    following = (text for text in ranked[1:] if normalize(text) != normalize(first))
    return first, next(following, "")


def describe(records: Sequence[Record], verdict: Verdict, others: Sequence[Verdict]) -> dict[str, Any]:
    """What is told of one member; shares between 0 and 1, F1 in percent. others: those it could be alone against."""
    has = np.array([record.has_answer for record in records], bool)
    wrong = ~verdict.exact
    alone = verdict.exact & ~np.any([other.exact for other in others] or [np.zeros_like(wrong)], axis=0)
    words = context_words(records)
    empty = np.array([not text for text in verdict.answers], bool)
    curve = reliability(null_probability(verdict.no_answer), ~has)
    asked = [question_word(record.question) for record in records]
    lengths = [len(record.answers[0].split()) if record.answers else 0 for record in records]
    return {
        "has_answer": share(verdict.exact[has]),
        "no_answer": share(verdict.exact[~has]),
        "wrong_predicted_empty": share(empty[has & wrong]),
        "second_right": share(verdict.second_exact[wrong]),
        "only_right": {
            "questions": int(alone.sum()),
            "context_words": round(float(words[alone].mean()), 1) if alone.any() else None,
        },
        "by_question_word": sorted(by_group(asked, verdict.f1), key=lambda row: -row["questions"]),
        "by_answer_length": by_group([answer_length(length) for length in lengths], verdict.f1),
        "by_context_length": by_group(context_lengths(words), verdict.f1),
        "reliability": curve,
        "calibration_error": calibration_error(curve),
        "auroc": auroc(verdict.no_answer, ~has),
    }


def by_group(labels: Sequence[str], scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Mean score, as a percentage, of the questions of each group: [{"group", "questions", "f1"}], by their number."""
    names, index, counts = np.unique(np.array(labels, str), return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=scores, minlength=len(names))
    rows = [
        {"group": str(name), "questions": int(count), "f1": float(100 * total / count)}
        for name, count, total in zip(names, counts, sums)
    ]
    return sorted(rows, key=lambda row: _number(str(row["group"])))


def answer_length(words: int) -> str:
    """The group of a gold answer of so many words; 0 = none."""
    if words <= 2:
        return (NO_ANSWER, "1 word", "2 words")[words]
    return "3–4 words" if words <= 4 else "5–8 words" if words <= 8 else "9 words and more"


def context_words(records: Sequence[Record]) -> NDArray[np.int64]:
    """(Q,) words of each context."""
    known: dict[str, int] = {}
    for record in records:
        if record.context not in known:
            known[record.context] = len(record.context.split())
    return np.array([known[record.context] for record in records], np.int64)


def context_lengths(words: NDArray[np.int64]) -> list[str]:
    """The group of each context by its words: about a quarter of the questions each."""
    edges = np.unique(np.percentile(words, [25, 50, 75]))
    where = np.searchsorted(edges, words, side="left")  # a length at a cut belongs below it
    names = {}
    for number in np.unique(where).tolist():
        inside = words[where == number]
        low, high = int(inside.min()), int(inside.max())
        names[number] = f"{low}–{high} words" if low < high else f"{low} words"
    return [names[number] for number in where.tolist()]


def agreement(answers: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """{"members": names, "matrix": share of questions on which two members say the same}, by normalised answers."""
    names = list(answers)
    numbers: dict[str, int] = {}
    coded = np.array(
        [[numbers.setdefault(normalize(text), len(numbers)) for text in answers[name]] for name in names]
    )  # (M, Q)
    return {"members": names, "matrix": [[float(np.mean(one == other)) for other in coded] for one in coded]}


def share(flags: NDArray[np.bool_]) -> float | None:
    """The share that is true; None of nothing."""
    return float(flags.mean()) if flags.size else None


def _number(group: str) -> int:
    """The number a group's name begins with; 0 for "no answer"."""
    number = group.split()[0].split("–")[0]
    return int(number) if number.isdecimal() else 0


def _exact(record: Record, text: str) -> bool:
    return normalize(text) in _golds(record)


def _f1(record: Record, text: str) -> float:
    return float(max(f1(gold, text) for gold in _golds(record)))


def _golds(record: Record) -> list[str]:
    """As in the official metric: answers that normalise to nothing do not count, and without any "" is right."""
    return [text for text in map(normalize, record.answers) if text] or [""]
