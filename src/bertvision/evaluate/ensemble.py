"""Ensembles: log-probabilities of members -> those of a committee, and the greedy choice of who sits on it."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

How = Literal["max", "mean", "product"]
HOWS: tuple[How, ...] = ("max", "mean", "product")
GREEDY = "greedy ensemble"  # the member whose parts and weights `greedy_selection` has chosen
MOST = 50  # rounds of greedy selection; it stops by itself long before


def combine(members: Iterable[tuple[Tensor, float]], how: How) -> Tensor:
    """Members' log-probabilities of one shape (...,), each with its weight -> the ensemble's, fp32 and not normalised.

    max: the highest probability any member gives; its weight only says whether a member takes part.
    mean: the weighted mean of the probabilities. product: the product of the probabilities, each to the power of its
    weight, which with weights that sum to 1 is the geometric mean.
    Takes one member at a time, so that no more than two need to be in memory.
    """
    joined: Tensor | None = None
    total = 0.0
    for logs, weight in members:
        if not weight > 0:
            raise ValueError(f"a member of an ensemble needs a positive weight, not {weight}")
        total += weight
        logs = logs.float()
        term = logs if how == "max" else logs * weight if how == "product" else logs + math.log(weight)
        joined = term if joined is None else JOIN[how](joined, term)
    if joined is None:
        raise ValueError("an ensemble needs at least one member")
    return joined - math.log(total) if how == "mean" else joined / total if how == "product" else joined


JOIN: dict[How, Callable[[Tensor, Tensor], Tensor]] = {
    "max": torch.maximum,
    "mean": torch.logaddexp,
    "product": torch.add,
}


def greedy_selection(
    candidates: Sequence[str], score: Callable[[dict[str, float]], float], *, repeats: bool = True
) -> tuple[dict[str, float], float]:
    """Forward selection with replacement: (weights, which sum to 1; their score on the set they are chosen on).

    Begins with the best single candidate and adds, time and again, the one that helps most; ends when none helps. So
    it is never worse there than the best single. score: weights -> what is to be high. repeats: whether a member can
    be added again, which for a mean gives it more weight. Of equal candidates the first wins.
    """
    if not candidates:
        raise ValueError("there is nothing to select from")
    chosen: Counter[str] = Counter()
    best = -math.inf
    for _ in range(MOST):
        open_to = [name for name in candidates if (repeats and chosen != Counter([name])) or name not in chosen]
        found = [(score(_shares(chosen + Counter([name]))), name) for name in open_to]
        if not found:
            break
        top, name = max(found, key=lambda pair: pair[0])
        if not top > best:
            break
        best = top
        chosen[name] += 1
    return _shares(chosen), best


def _shares(chosen: Counter[str]) -> dict[str, float]:
    return {name: count / chosen.total() for name, count in chosen.items()}
