"""Logits -> labels: one per example, whatever number of windows it has; their scores, and what they are worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.evaluate import metrics
from bertvision.evaluate.bootstrap import Mean
from bertvision.evaluate.points import Points


@dataclass(frozen=True, slots=True)
class LabelPredictions:
    """ids: Q examples. labels: C names. probabilities: (Q, C)."""

    ids: list[str]
    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]

    @property
    def chosen(self) -> NDArray[np.int64]:
        """(Q,) the number of the likeliest label."""
        return self.probabilities.argmax(axis=1)

    def values(self) -> list[str]:
        """The likeliest label of each example."""
        return [self.labels[number] for number in self.chosen.tolist()]

    def to_json(self) -> dict[str, Any]:
        """{id: {label, probabilities: {label: probability}}}"""
        shares = (dict(zip(self.labels, row)) for row in np.round(self.probabilities, 6).tolist())
        return {key: {"label": label, "probabilities": p} for key, label, p in zip(self.ids, self.values(), shares)}

    @classmethod
    def from_json(cls, rows: Mapping[str, Any], where: str = "predictions") -> "LabelPredictions":
        """Reads what `to_json` gave."""
        try:
            labels = tuple(next(iter(rows.values()))["probabilities"]) if rows else ()
            found = [[float(row["probabilities"][label]) for label in labels] for row in rows.values()]
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise UserError(f"{where}: not a predictions file of this program ({error!r})") from None
        return cls(list(rows), labels, np.array(found).reshape(len(rows), len(labels)))


class LabelCollector:
    """Takes logits (B, C) of windows in any order. An example is what its window says that is likeliest to bear the
    first label: a question is answerable if any of its windows holds the answer. Others have one window alone."""

    def __init__(self, ids: Sequence[str], windows: Windows, labels: tuple[str, ...]) -> None:
        self.ids, self.windows, self.labels = list(ids), windows, labels
        self.probabilities = np.zeros((len(windows), len(labels)))

    def add(self, index: NDArray[np.int64], logits: Tensor) -> None:
        self.probabilities[index] = logits.double().softmax(dim=1).cpu().numpy()

    def finish(self) -> LabelPredictions:
        order = np.lexsort((self.probabilities[:, 0], self.windows.example))
        last = np.searchsorted(self.windows.example[order], np.arange(len(self.ids)), side="right") - 1
        return LabelPredictions(self.ids, self.labels, self.probabilities[order[last]])


def label_points(gold: NDArray[np.int64], predictions: LabelPredictions, names: Sequence[str]) -> Points:
    """values: (Q, 3) gold label, predicted label, whether they are the same; with the named metrics."""
    classes = len(predictions.labels)
    values = np.stack([gold, predictions.chosen, gold == predictions.chosen], axis=1).astype(np.float64)
    known: dict[str, Callable[[NDArray[np.float64]], float]] = {
        "accuracy": Mean(2),
        "f1": lambda rows: metrics.f1(rows[:, 0], rows[:, 1], classes),
        "matthews": lambda rows: metrics.matthews(rows[:, 0], rows[:, 1], classes),
    }
    return Points(values, {name: known[name] for name in names})


def label_scores(gold: NDArray[np.int64], predictions: LabelPredictions, names: Sequence[str]) -> dict[str, Any]:
    """The named metrics in percent, `total`, and a `note` where a score says less than it seems."""
    points = label_points(gold, predictions, names)
    found: dict[str, Any] = {name: metric(points.values) for name, metric in points.metrics.items()}
    return found | {"total": len(gold)} | _note(gold, predictions)


def _note(gold: NDArray[np.int64], predictions: LabelPredictions) -> dict[str, str]:
    said, there = np.unique(predictions.chosen), np.unique(gold)
    if len(said) == 1:
        return {
            "note": f"always says {predictions.labels[said[0]]!r}, which is right for {np.mean(gold == said[0]):.1%}"
        }
    if len(there) == 1:
        return {"note": f"every example is {predictions.labels[there[0]]!r}: a correlation has no meaning and is 0"}
    return {}
