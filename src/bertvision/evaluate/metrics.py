"""The metrics of labels and scores, in percent. Every one is defined for every input: what has no meaning is 0.

gold, predicted: (n,) numbers of labels, or scores.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
ROUNDING = 1e-12  # a spread below this share of the values is rounding: they are all the same


def accuracy(gold: Numbers, predicted: Numbers) -> float:
    """The share of labels that are right."""
    return 100.0 * float(np.mean(gold == predicted)) if len(gold) else 0.0


def f1(gold: Numbers, predicted: Numbers, classes: int = 2) -> float:
    """Of two labels, F1 of the second; of more, the mean of the F1 of those that occur in either."""
    counts = confusion(gold, predicted, classes)
    right, possible = counts.diagonal(), counts.sum(axis=0) + counts.sum(axis=1)  # (C,) true positives; 2 TP + FP + FN
    per_class = np.divide(200.0 * right, possible, out=np.zeros(classes), where=possible > 0)
    occurring = possible > 0
    if classes == 2:
        return float(per_class[1])
    return float(per_class[occurring].mean()) if occurring.any() else 0.0


def matthews(gold: Numbers, predicted: Numbers, classes: int = 2) -> float:
    """Matthews' correlation of any number of labels; 0 where either side is constant."""
    counts = confusion(gold, predicted, classes)
    truth, guess, total = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    covariance = counts.trace() * total - truth @ guess
    spread = (total**2 - truth @ truth) * (total**2 - guess @ guess)
    return 100.0 * float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """Pearson's correlation; 0 where either side is constant."""
    sides = [np.asarray(side, dtype=np.float64) for side in (gold, predicted)]
    if not len(gold) or any(is_constant(side) for side in sides):
        return 0.0
    a, b = (side - side.mean() for side in sides)
    return 100.0 * float(np.clip((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)), -1.0, 1.0))


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """Pearson's correlation of the ranks, equals sharing one; 0 where either side is constant."""
    return pearson(ranks(gold), ranks(predicted))


def ranks(values: Numbers) -> Numbers:
    """(n,) ranks from 1, the mean of their ranks for those that are equal."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[index]


def confusion(gold: Numbers, predicted: Numbers, classes: int) -> Numbers:
    """(C, C) how often a label (row) was taken for another (column)."""
    cells = np.asarray(gold, np.int64) * classes + np.asarray(predicted, np.int64)
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes).astype(np.float64)


def is_constant(values: Numbers) -> bool:
    """Whether all values are the same, but for rounding."""
    return bool(np.ptp(values) <= ROUNDING * np.abs(values).max()) if len(values) else True
