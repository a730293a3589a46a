"""The analyses of labels and scores: what is taken for what, who agrees with whom, and the mistakes worth a look."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.evaluate import metrics
from bertvision.evaluate.calibration import auroc, calibration_error, reliability
from bertvision.evaluate.labels import LabelPredictions
from bertvision.evaluate.mistakes import Sort, disputes, take_turns
from bertvision.evaluate.scores import ScorePredictions


def describe_labels(gold: NDArray, predictions: LabelPredictions) -> dict[str, Any]:
    """Of one member: accuracy (percent), confusion (rows gold, columns predicted), and how sure it is when right.

    gold: (Q,) numbers of labels. Of two labels also the AUROC of the second.
    """
    chosen: NDArray = predictions.chosen
    right = chosen == gold
    curve = reliability(predictions.probabilities.max(axis=1), right)
    counts = metrics.confusion(gold, chosen, len(predictions.labels)).astype(int)
    found: dict[str, Any] = {
        "accuracy": metrics.accuracy(gold, chosen),
        "confusion": {"labels": list(predictions.labels), "matrix": counts.tolist()},
        "reliability": curve,
        "calibration_error": calibration_error(curve),
    }
    if len(predictions.labels) == 2:
        found["auroc"] = auroc(predictions.probabilities[:, 1], gold == 1)
    return found


def describe_scores(gold: NDArray, predictions: ScorePredictions) -> dict[str, Any]:
    """Of one member: both correlations (percent), and how far off it is on average and in which direction."""
    off = predictions.numbers - gold
    return {
        "pearson": metrics.pearson(gold, predictions.numbers),
        "spearman": metrics.spearman(gold, predictions.numbers),
        "absolute_error": float(np.abs(off).mean()),
        "bias": float(off.mean()),
    }


def label_agreement(members: Mapping[str, LabelPredictions]) -> dict[str, Any]:
    """{"members", "matrix": the share of examples on which two members say the same}"""
    chosen = [one.chosen for one in members.values()]
    return {"members": list(members), "matrix": [[float(np.mean(a == b)) for b in chosen] for a in chosen]}


def score_agreement(members: Mapping[str, ScorePredictions]) -> dict[str, Any]:
    """{"members", "matrix": Pearson's correlation of two members' scores}"""
    numbers = [one.numbers for one in members.values()]
    return {"members": list(members), "matrix": [[metrics.pearson(a, b) / 100 for b in numbers] for a in numbers]}


def label_mistakes(
    records: Sequence[Any], gold: NDArray, members: Mapping[str, LabelPredictions], most: int = 50
) -> list[dict[str, Any]]:
    """At most `most` examples that some member gets wrong, taken in turn from each sort of mistake."""
    names, labels = list(members), next(iter(members.values())).labels
    right = np.array([one.chosen == gold for one in members.values()])  # (M, Q)
    sure = np.array([one.probabilities.max(axis=1) for one in members.values()]).min(axis=0)
    wrong = ~right.any(axis=0)
    sorts: list[Sort] = [
        ("all members are wrong, and sure", wrong, sure),
        ("all members are wrong, and unsure", wrong, -sure),
    ]
    sorts += disputes(right, sure)
    said = {name: one.values() for name, one in members.items()}
    return [
        _entry(records[row], [labels[gold[row]]], {name: values[row] for name, values in said.items()})
        | {"why": why.format(right=names[right[:, row].argmax()], wrong=names[right[:, row].argmin()])}
        for row, why in take_turns(sorts, most)
    ]


def score_mistakes(
    records: Sequence[Any], gold: NDArray, members: Mapping[str, ScorePredictions], most: int = 50
) -> list[dict[str, Any]]:
    """At most `most` examples: those on which all members are farthest off, and those on which they differ most."""
    off = np.array([one.numbers - gold for one in members.values()])  # (M, Q)
    sorts: list[Sort] = [
        ("all members score it far too high", (off > 0).all(axis=0), off.min(axis=0)),
        ("all members score it far too low", (off < 0).all(axis=0), -off.max(axis=0)),
    ]
    if len(members) > 1:
        apart = np.ptp(off, axis=0)
        sorts.append(("members differ most", apart > 0, apart))
    return [
        _entry(records[row], [f"{gold[row]:g}"], {name: f"{one.numbers[row]:.2f}" for name, one in members.items()})
        | {"why": why}
        for row, why in take_turns(sorts, most)
    ]


def _entry(record: Any, gold: list[str], answers: dict[str, str]) -> dict[str, Any]:
    """An entry of `errors`; of a text or a pair, the first stands in the place of the question."""
    texts = getattr(record, "texts", None) or (record.question, record.context)
    question, context = (*texts, "")[:2]
    return {"id": record.id, "question": question, "context": context, "gold": gold, "answers": answers}
