"""Edge probing (Tenney et al. 2019): at which layer of an encoder a task is solved, from scores of probes."""

from collections.abc import Sequence
from itertools import pairwise


def gains_of_layers(scores: Sequence[float]) -> list[float]:
    """What each layer from 1 on adds: the score of the layers 0 ... l minus that of 0 ... l - 1."""
    return [after - before for before, after in pairwise(scores)]


def expected_layer(scores: Sequence[float]) -> float | None:
    """The mean layer, weighted by what each adds: sum_l l gain_l / sum_l gain_l; None where they add nothing.

    scores: of probes that read the layers 0 ... l, for l = 0, 1, ... in order.
    """
    gains = gains_of_layers(scores)
    total = sum(gains)
    return sum(layer * gain for layer, gain in enumerate(gains, 1)) / total if total > 0 else None
