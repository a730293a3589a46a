"""What members said about every window, kept small: fp16, one window after the other, no padding."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOWEST = -60000.0  # fp16 ends at -65504; a probability of e^-60000 is none


class Ragged:
    """Rows of numbers for N windows that come in any order. starts: (N + 1,) where the rows of each window begin."""

    def __init__(self, starts: NDArray[np.int64], columns: int) -> None:
        self.starts = starts
        self.values = torch.zeros(int(starts[-1]), columns, dtype=torch.float16)

    def add(self, index: NDArray[np.int64], rows: Tensor) -> None:
        """Puts the rows of the windows `index`, (rows of all of them, columns), in their place."""
        self.values[torch.from_numpy(rows_of(self.starts, index))] = rows.clamp(min=LOWEST).to("cpu", torch.float16)


def rows_of(starts: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that the windows `index` own, window by window."""
    lengths = starts[index + 1] - starts[index]
    shift = starts[index] - (np.cumsum(lengths) - lengths)  # from a row's number in the batch to that in the whole
    return np.repeat(shift, lengths) + np.arange(int(lengths.sum()))
