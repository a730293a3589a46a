"""Logits -> scores: a number for a text or a pair, on the scale of the data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertvision.errors import UserError
from bertvision.evaluate import metrics
from bertvision.evaluate.points import Points

KNOWN: dict[str, Callable[..., float]] = {"pearson": metrics.pearson, "spearman": metrics.spearman}


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of the training scores, low to high. The logits run from -1 to 1 over it, and may leave it."""

    low: float
    high: float

    def to_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values - self.low) / (self.high - self.low) * 2 - 1

    def from_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values + 1) / 2 * (self.high - self.low) + self.low


@dataclass(frozen=True, slots=True)
class ScorePredictions:
    """ids: Q examples. numbers: (Q,) the score of each."""

    ids: list[str]
    numbers: NDArray[np.float64]

    def values(self) -> list[float]:
        """The score of each example."""
        return self.numbers.tolist()

    def to_json(self) -> dict[str, Any]:
        """{id: {score}}"""
        return {key: {"score": round(value, 6)} for key, value in zip(self.ids, self.values())}

    @classmethod
    def from_json(cls, rows: Mapping[str, Any], where: str = "predictions") -> "ScorePredictions":
        """Reads what `to_json` gave."""
        try:
            return cls(list(rows), np.array([float(row["score"]) for row in rows.values()]))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise UserError(f"{where}: not a predictions file of this program ({error!r})") from None


class ScoreCollector:
    """Takes logits (B, 1) of windows in any order; every example is one window."""

    def __init__(self, ids: Sequence[str], scale: Scale) -> None:
        self.ids, self.scale = list(ids), scale
        self.numbers = np.zeros(len(ids))

    def add(self, index: NDArray[np.int64], logits: Tensor) -> None:
        self.numbers[index] = self.scale.from_unit(logits[:, 0].double().cpu().numpy())

    def finish(self) -> ScorePredictions:
        return ScorePredictions(self.ids, self.numbers)


def score_points(gold: NDArray[np.float64], predictions: ScorePredictions, names: Sequence[str]) -> Points:
    """values: (Q, 2) gold and predicted score; with the named metrics."""
    values = np.stack([gold, predictions.numbers], axis=1)
    return Points(values, {name: _of_columns(KNOWN[name]) for name in names})


def _of_columns(metric: Callable[..., float]) -> Callable[[NDArray[np.float64]], float]:
    return lambda chosen: metric(chosen[:, 0], chosen[:, 1])


def score_scores(gold: NDArray[np.float64], predictions: ScorePredictions, names: Sequence[str]) -> dict[str, Any]:
    """The named metrics in percent, `total`, and a `note` where a correlation has no meaning."""
    points = score_points(gold, predictions, names)
    found: dict[str, Any] = {name: metric(points.values) for name, metric in points.metrics.items()}
    constant = [
        what for what, side in (("gold", gold), ("predicted", predictions.numbers)) if metrics.is_constant(side)
    ]
    if constant:
        found["note"] = f"all {' and all '.join(constant)} scores are the same: a correlation has no meaning and is 0"
    return found | {"total": len(gold)}
