"""How far a no-answer score can be trusted: as a probability (reliability), and as an order (AUROC)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit


def null_probability(no_answer: ArrayLike) -> NDArray[np.float64]:
    """No-answer scores (Q,) as the probability that there is none: the softmax over the null and the best span."""
    return expit(np.asarray(no_answer, np.float64))


def reliability(probability: ArrayLike, happened: ArrayLike, bins: int = 10) -> list[dict[str, Any]]:
    """Of each of `bins` equal ranges of probability that holds any: {"confidence", "observed", "questions"}.

    confidence: the mean probability given, observed: the share that happened. Equal for a calibrated score.
    """
    given, seen = np.asarray(probability, np.float64), np.asarray(happened, np.float64)
    where = np.minimum((given * bins).astype(int), bins - 1)  # 1.0 belongs to the last range
    return [
        {
            "confidence": float(given[where == number].mean()),
            "observed": float(seen[where == number].mean()),
            "questions": int((where == number).sum()),
        }
        for number in range(bins)
        if (where == number).any()
    ]


def calibration_error(curve: Sequence[dict[str, Any]]) -> float | None:
    """Expected calibration error of a reliability curve: the mean distance of confidence and observed, by questions."""
    total = sum(point["questions"] for point in curve)
    apart = (abs(point["confidence"] - point["observed"]) * point["questions"] for point in curve)
    return sum(apart) / total if total else None


def auroc(score: ArrayLike, happened: ArrayLike) -> float | None:
    """The chance that what happened has a higher score than what did not, ties counted half. None if all are alike."""
    positive = np.asarray(happened, bool)
    wins, losses = int(positive.sum()), int((~positive).sum())
    if not wins or not losses:
        return None
    from scipy.stats import rankdata  # slow to import

    ranks = rankdata(np.asarray(score, np.float64))  # from 1, ties share the mean of theirs
    return float((ranks[positive].sum() - wins * (wins + 1) / 2) / (wins * losses))
