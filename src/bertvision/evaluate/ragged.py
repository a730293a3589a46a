"""The logits of every window, one window after the other, without padding."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Ragged:
    """Rows of numbers for N windows that come in any order. starts: (N + 1,) where the rows of each window begin.

    fp32, so that what is computed from them later is what was computed at once: 4 bytes per number. Spans take 8 bytes
    per token and member: about 17 MB for 12,000 windows of 175 tokens.
    """

    def __init__(self, starts: NDArray[np.int64], columns: int) -> None:
        self.starts = starts
        self.values = torch.zeros(int(starts[-1]), columns, dtype=torch.float32)

    def add(self, index: NDArray[np.int64], rows: Tensor) -> None:
        """Puts the rows of the windows `index`, (rows of all of them, columns), in their place."""
        self.values[torch.from_numpy(rows_of(self.starts, index))] = rows.to("cpu", torch.float32)


def rows_of(starts: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that the windows `index` own, window by window."""
    lengths = starts[index + 1] - starts[index]
    shift = starts[index] - (np.cumsum(lengths) - lengths)  # from a row's number in the batch to that in the whole
    return np.repeat(shift, lengths) + np.arange(int(lengths.sum()))
