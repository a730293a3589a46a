"""Rows of windows, without padding."""

import numpy as np
import torch

from bertvision.evaluate.ragged import Ragged, rows_of


def test_ragged_rows_find_their_place():
    starts = np.array([0, 2, 3, 6])
    assert rows_of(starts, np.array([2, 0])).tolist() == [3, 4, 5, 0, 1]
    ragged = Ragged(starts, 1)
    ragged.add(np.array([2, 0]), torch.tensor([[3.0], [4], [5], [0], [1]]))
    ragged.add(np.array([1]), torch.tensor([[0.1]]))
    assert torch.equal(ragged.values[:, 0], torch.tensor([0, 1, 0.1, 3, 4, 5]))  # not a bit is lost
