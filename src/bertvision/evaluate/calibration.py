"""The no-answer score: choosing its threshold, turning it into a probability, and how far it can be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from numpy.typing import ArrayLike, NDArray

from bertvision.schema import LARGEST, STRICT, Number

SATURATED = 50.0  # no-answer scores beyond it say no more


def choose_threshold(
    answered: Sequence[float], emptied: Sequence[float], no_answer_scores: Sequence[float]
) -> tuple[float, float]:
    """(threshold, mean score under it) that is best for these questions, n of each, in the same order.

    answered: (n,) a question's score if its prediction stands; emptied: (n,) its score if "no answer" is said instead,
    which it is where its no-answer score is above the threshold. Any real scale will do: probabilities or
    differences of logits. The threshold lies halfway between the two scores that it parts, so that it depends on
    neither; of equally good ones the lowest wins, and equal scores always stay on the same side.
    """
    order = np.argsort(no_answer_scores, kind="stable")
    unsure = np.asarray(no_answer_scores, dtype=np.float64)[order]  # (n,)
    if not unsure.size or not np.isfinite(unsure).all():
        raise ValueError("a threshold needs at least one no-answer score, and all of them finite")
    gain = (np.asarray(answered, dtype=np.float64) - np.asarray(emptied, dtype=np.float64))[order]
    totals = np.sum(emptied, dtype=np.float64) + np.concatenate([[0.0], np.cumsum(gain)])  # (n + 1,): first k stand

    cuts = np.concatenate([[True], unsure[1:] > unsure[:-1], [True]])  # (n + 1,): can a threshold stand after the k-th?
    best = int(np.flatnonzero(cuts)[np.argmax(totals[cuts])])
    return _between(unsure, best), float(totals[best] / unsure.size)


def _between(unsure: np.ndarray, kept: int) -> float:
    """A threshold that lets the first `kept` of the sorted scores stand and no other."""
    if kept == 0:
        return float(np.nextafter(unsure[0], -np.inf))
    lower = float(unsure[kept - 1])
    if kept == unsure.size:
        return lower
    upper = float(unsure[kept])
    middle = lower + (upper - lower) / 2
    return middle if lower <= middle < upper else lower  # between neighbouring floats there is no middle


def null_probability(no_answer: ArrayLike) -> NDArray[np.float64]:
    """No-answer scores (Q,) as the probability that there is none: the softmax over the null and the best span."""
    from scipy.special import expit  # slow to import

    return expit(np.asarray(no_answer, np.float64))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The probability that a question has no answer, from its no-answer score s: 1 / (1 + exp(-slope s - intercept)).

    answerable: the share of questions with an answer for which that holds.
    """

    __pydantic_config__ = STRICT
    slope: Annotated[float, Interval(gt=0, le=LARGEST)]
    intercept: Number
    answerable: Annotated[float, Interval(gt=0, lt=1)]

    def probability(self, no_answer: float) -> float:
        return float(_logistic(self.slope * no_answer + self.intercept))

    def assuming(self, answerable: float) -> "Calibration":
        """The same for another share of questions with an answer, by Bayes' rule: the odds change by one factor."""
        return Calibration(self.slope, self.intercept + _log_odds(self.answerable) - _log_odds(answerable), answerable)

    def move(self, threshold: float, to: "Calibration") -> float:
        """The threshold that has the same probability under `to` as `threshold` has here."""
        return threshold + (self.intercept - to.intercept) / self.slope


def fit_calibration(no_answer: ArrayLike, has_answer: ArrayLike) -> Calibration | None:
    """The logistic curve of greatest likelihood on questions (Q,), `has_answer` marks the answerable ones.

    Targets are smoothed as Platt's, so that questions that the score separates leave the slope finite. None if all
    are alike, or if unanswerable questions do not have higher scores.
    """
    unanswerable = ~np.asarray(has_answer, bool)
    without, total = int(unanswerable.sum()), len(unanswerable)
    if not 0 < without < total:
        return None
    scores = np.clip(np.asarray(no_answer, np.float64), -SATURATED, SATURATED)
    inputs = np.stack([scores, np.ones(total)], axis=1)  # (Q, 2)
    targets = np.where(unanswerable, (without + 1) / (without + 2), 1 / (total - without + 2))
    curve = np.zeros(2)
    for _ in range(100):  # Newton's method; converges in about ten steps
        probabilities = _logistic(inputs @ curve)
        gradient = inputs.T @ (probabilities - targets)
        curvature = (inputs * (probabilities * (1 - probabilities) + 1e-9)[:, None]).T @ inputs
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        while _cross_entropy(inputs @ (curve - step), targets) > _cross_entropy(inputs @ curve, targets) + 1e-9:
            step = step / 2
        curve = curve - step
        if np.abs(step).max() < 1e-9:
            break
    slope, intercept = map(float, curve)
    return Calibration(slope, intercept, 1 - without / total) if slope > 1e-6 else None


def _logistic(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))


def _cross_entropy(x: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    return float((np.logaddexp(0.0, x) - targets * x).sum())


def _log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def reliability(probability: ArrayLike, happened: ArrayLike, bins: int = 10) -> list[dict[str, Any]]:
    """Of each of `bins` equal ranges of probability that holds any: {"confidence", "observed", "questions"}.

    confidence: the mean probability given, observed: the share that happened. Equal for a calibrated score.
    """
    probabilities, seen = np.asarray(probability, np.float64), np.asarray(happened, np.float64)
    bin_of = np.minimum((probabilities * bins).astype(int), bins - 1)  # 1.0 belongs to the last range
    return [
        {
            "confidence": float(probabilities[bin_of == index].mean()),
            "observed": float(seen[bin_of == index].mean()),
            "questions": int((bin_of == index).sum()),
        }
        for index in range(bins)
        if (bin_of == index).any()
    ]


def calibration_error(curve: Sequence[dict[str, Any]]) -> float | None:
    """Expected calibration error of a reliability curve: the mean distance of confidence and observed, by questions."""
    total = sum(point["questions"] for point in curve)
    distances = (abs(point["confidence"] - point["observed"]) * point["questions"] for point in curve)
    return sum(distances) / total if total else None


def auroc(score: ArrayLike, happened: ArrayLike) -> float | None:
    """The chance that what happened has a higher score than what did not, ties counted half. None if all are alike."""
    positive = np.asarray(happened, bool)
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return None
    scores = np.asarray(score, np.float64)
    others = np.sort(scores[~positive])
    below, not_above = (np.searchsorted(others, scores[positive], side) for side in ("left", "right"))
    return float((below + not_above).sum() / 2 / (wins * losses))
