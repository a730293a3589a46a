"""A share of the training set: which rows of a batch a learner of that share sees, and when it has enough of them."""

import dataclasses

import numpy as np
import torch

from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan, nested_fraction
from bertvision.data.windows import Windows


class Share:
    """A nested part of the examples, with all their windows, within a plan that serves the whole set.

    seen: (N,) windows that belong to it. updates: {step: (number of the update made then, windows it is made of)}: as
    soon as `batch_size` windows have come together, and after the last of them all.
    """

    def __init__(self, windows: Windows, plan: BatchPlan, fraction: float, *, batch_size: int, seed: int) -> None:
        examples = int(windows.example.max(initial=-1)) + 1
        self.seen = np.isin(windows.example, nested_fraction(examples, fraction, seed))
        self.updates: dict[int, tuple[int, int]] = {}
        counts = [int(self.seen[index].sum()) for index in plan.batches]
        last = max((step for step, count in enumerate(counts) if count), default=-1)
        gathered = 0
        for step, count in enumerate(counts[: last + 1]):
            gathered += count
            if gathered >= batch_size or step == last:
                self.updates[step] = len(self.updates), gathered
                gathered = 0

    def of(self, states: States, batch: Batch) -> tuple[States, Batch]:
        """The rows of a batch that belong to this share, perhaps none."""
        rows = np.flatnonzero(self.seen[batch.index])
        if len(rows) == len(batch.index):
            return states, batch
        at = torch.from_numpy(rows)
        part = dataclasses.replace(
            batch,
            index=batch.index[rows],
            ids=batch.ids[at],
            types=batch.types[at],
            mask=batch.mask[at],
            targets=batch.targets[at],
        )
        return States(states.layers.detach()[at], states.mask[at], states.numbers), part
