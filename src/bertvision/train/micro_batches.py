"""A step of tuning in micro-batches, which several processes may share: the same bits however many there are."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.errors import UserError
from bertvision.runtime import Runtime
from bertvision.train.learner import Gradient, Learner, Task
from bertvision.train.loop import Feed

TALL = 4  # a matrix with more rows than this per column, such as word embeddings: a step touches few of its rows


def check_parts(runtime: Runtime) -> None:
    """UserError unless the processes can share the micro-batches of a step."""
    world, parts = runtime.world, runtime.accumulate
    if parts < world:
        way_out = f"set runtime.accumulate to {world} or more; the result depends on it, and not on the processes"
        raise UserError(f"runtime.accumulate: {world} processes share the {parts} micro-batches of a step; {way_out}")
    if world & (world - 1) and runtime.reduce == "exact":
        raise UserError(f"torchrun: {world} processes; give 2, 4, 8, ..., or set runtime.reduce to fast")


def learn_in_parts(
    learners: Sequence[Learner],
    feed: Feed,
    task: Task,
    index: NDArray[np.int64],
    step: int,
    seed: int,
    runtime: Runtime,
) -> None:
    """One step of all learners on the windows in `index`.

    Window i belongs to micro-batch i mod `accumulate`; its dropout comes from (seed, step, micro-batch). Gradients, of
    a mean over all windows, are added as a binary tree over the micro-batches, of which a process has one branch.
    """
    parts = [index[part :: runtime.accumulate] for part in range(runtime.accumulate)]
    learning = [learner for learner in learners if not learner.resting]
    rows = [[learner.window_count(windows) for windows in parts] for learner in learning]
    sums = [Tree() for _ in learning]
    for part in branch(runtime):
        if part >= len(parts) or not len(parts[part]):
            continue
        with runtime.seed(seed, "backbone", step, part):
            batch, states = feed(parts[part], runtime)
        for learner, own, total in zip(learning, rows, sums):
            if own[part]:
                weight = own[part] / (len(index) if learner.share is None else 1)
                total.add(part, learner.gradient(states, batch, task, (step, part), weight, runtime))
        del batch, states
    for learner, own, total in zip(learning, rows, sums):
        if any(own):
            learner.apply_gradient(_over_processes(total.sum(), own, learner, runtime), sum(own), step)


def branch(runtime: Runtime) -> range:
    """The micro-batches of this process: one branch of the tree over all, which may end beyond the last of them."""
    leaves = 1 << (runtime.accumulate - 1).bit_length()
    size = leaves // runtime.world if runtime.reduce == "exact" else -(-runtime.accumulate // runtime.world)
    return range(runtime.rank * size, (runtime.rank + 1) * size)


class Tree:
    """The sum of gradients that come in rising order, as a binary tree: (0 + 1) + (2 + 3).

    A branch without gradients is left out. No more gradients are held than the tree has levels.
    """

    def __init__(self) -> None:
        self.branches: list[tuple[int, int, Gradient]] = []  # level and position of each, the lowest last

    def add(self, leaf: int, gradient: Gradient) -> None:
        while self.branches and leaf >> self._level + 1 != self._position >> 1:
            self._close()
        self.branches.append((0, leaf, gradient))

    def sum(self) -> Gradient:
        """The sum of all gradients; empty if there were none."""
        while len(self.branches) > 1:
            self._close()
        return self.branches[0][2] if self.branches else []

    @property
    def _level(self) -> int:
        return self.branches[-1][0]

    @property
    def _position(self) -> int:
        return self.branches[-1][1]

    def _close(self) -> None:
        """Completes the lowest branch, and adds it to its neighbour if that has a gradient."""
        level, position, gradient = self.branches.pop()
        if self.branches and self._level == level:
            gradient = _added(self.branches.pop()[2], gradient)
        self.branches.append((level + 1, position >> 1, gradient))


def _added(first: Gradient, second: Gradient) -> Gradient:
    """The sum of two gradients, computed in the first; None counts as zero."""
    pairs = zip(first, second, strict=True)
    return [right if left is None else left if right is None else left.add_(right) for left, right in pairs]


def _over_processes(own: Gradient, rows: Sequence[int], learner: Learner, runtime: Runtime) -> Gradient:
    """The sum of a gradient over all processes. rows: windows of each micro-batch, which show whose branch is empty."""
    if runtime.world == 1:
        return own
    parameters = [*learner.named.values(), torch.zeros((), device=runtime.device)]  # the loss comes last
    own = own or [None] * len(parameters)
    learner.moved = learner.moved or runtime.any([gradient is not None for gradient in own])
    gradients = [torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, own)]
    touched = [_touched_rows(gradient, runtime) for gradient in gradients]
    sent = [gradient if index is None else gradient[index] for gradient, index in zip(gradients, touched)]
    flat = torch.cat([tensor.flatten() for tensor in sent])
    size = len(branch(runtime))
    filled = [any(rows[first : first + size]) for first in range(0, size * runtime.world, size)]
    flat = runtime.tree_sum(flat, filled) if runtime.reduce == "exact" else runtime.all_reduce(flat)
    total: Gradient = []
    pieces = flat.split([tensor.numel() for tensor in sent])
    for gradient, index, tensor, piece, moved in zip(gradients, touched, sent, pieces, learner.moved):
        piece = piece.view_as(tensor)
        summed = piece if index is None else gradient.zero_().index_copy_(0, index, piece)
        total.append(summed if moved else None)
    return total


def _touched_rows(gradient: Tensor, runtime: Runtime) -> Tensor | None:
    """The rows of a tall matrix that are not zero in every process: no others are sent. None for all of them."""
    if gradient.ndim != 2 or len(gradient) <= TALL * gradient.shape[1]:
        return None
    return runtime.all_reduce(gradient.any(dim=1).to(torch.int32)).nonzero().flatten()
