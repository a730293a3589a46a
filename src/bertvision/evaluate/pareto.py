"""What a score is worth for its price: the front of members that none beats in both, and one figure for each."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
