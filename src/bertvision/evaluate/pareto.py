"""Scores against costs: the Pareto front, Hulburd's efficiency, and the checkpoint that cost the same."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAME = 0.02  # a checkpoint whose cost differs by no more than this share counts as one of equal cost


def pareto_front(cost: Sequence[float], score: Sequence[float]) -> NDArray[np.bool_]:
    """(n,) whether no other of the n points costs no more and scores no less, being better in one of the two.

    Equal points stand or fall together. A point with an unknown (NaN) cost or score is not on the front.
    """
    costs, scores = np.asarray(cost, np.float64), np.asarray(score, np.float64)
    front = np.zeros(len(costs), bool)
    known = np.flatnonzero(np.isfinite(costs) & np.isfinite(scores))
    best = -math.inf  # the highest score at any lower cost
    order = known[np.lexsort((-scores[known], costs[known]))]  # cheapest first; of equal cost the best first
    for group in np.split(order, np.flatnonzero(np.diff(costs[order])) + 1):
        if len(group) and scores[group[0]] > best:
            best = scores[group[0]]
            front[group[scores[group] == best]] = True
    return front


def efficiency(f1: float, parameters: int) -> float | None:
    """Hulburd's figure (F1 - 50) / log10(trained parameters), F1 in percent.

    None for fewer than two parameters, where the logarithm is not positive.
    """
    return (f1 - 50) / math.log10(parameters) if parameters > 1 else None


class EqualCost(NamedTuple):
    """The backbone at the cost of a member. weights: of the checkpoints whose scores are interpolated, by epoch.

    epoch: the epochs of tuning with that cost, None if unknown. how: whether a checkpoint has that cost, lies on either
    side of it, or is the last one, tuned for less than that.
    """

    weights: dict[float, float]
    epoch: float | None
    how: Literal["exact", "interpolated", "beyond"]


def equal_cost(tuned: Mapping[float, float], cost: float) -> EqualCost:
    """The backbone that cost as much as a member. tuned: epoch of a checkpoint -> cost of tuning up to it.

    cost: at least that of the checkpoint the member was trained on.
    """
    epochs = sorted(tuned)
    nearest = min(epochs, key=lambda epoch: abs(tuned[epoch] - cost))
    if abs(tuned[nearest] - cost) <= SAME * cost:
        return EqualCost({nearest: 1.0}, nearest, "exact")
    below, above = ([e for e in epochs if (tuned[e] > cost) == higher] for higher in (False, True))
    if not above:
        last = epochs[-1]
        return EqualCost({last: 1.0}, last * cost / tuned[last] if tuned[last] > 0 else None, "beyond")
    low, high = below[-1], above[0]
    share = (cost - tuned[low]) / (tuned[high] - tuned[low])
    return EqualCost({low: 1 - share, high: share}, low + share * (high - low), "interpolated")
