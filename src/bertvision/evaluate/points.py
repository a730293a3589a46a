"""Per-example numbers from which every metric can be computed again, for any choice of examples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Points:
    """values: (Q, k) numbers of each example. metrics: name -> the metric of any choice of rows, in percent.

    A metric that is a plain mean is a `bootstrap.Mean`, which resampling makes short work of.
    """

    values: NDArray[np.float64]
    metrics: Mapping[str, Callable[[NDArray[np.float64]], float]]
