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
    """The sum of gradients that come in rising order, as a binary tree: (0 + 1) + (2 + 3). A branch without any is left
    out. It holds no more of them than the tree has levels."""

    def __init__(self) -> None:
        self.branches: list[tuple[int, int, Gradient]] = []  # level and place of each, the lowest last

    def add(self, leaf: int, gradient: Gradient) -> None:
        while self.branches and leaf >> self._level + 1 != self._place >> 1:
            self._close()
        self.branches.append((0, leaf, gradient))

    def sum(self) -> Gradient:
        """Of all of them; empty if there were none."""
        while len(self.branches) > 1:
            self._close()
        return self.branches[0][2] if self.branches else []

    @property
    def _level(self) -> int:
        return self.branches[-1][0]

    @property
    def _place(self) -> int:
        return self.branches[-1][1]

    def _close(self) -> None:
        """Nothing more comes into the lowest branch: it is added to its neighbour, if that has anything."""
        level, place, gradient = self.branches.pop()
        if self.branches and self._level == level:
            gradient = _added(self.branches.pop()[2], gradient)
        self.branches.append((level + 1, place >> 1, gradient))


def _added(one: Gradient, other: Gradient) -> Gradient:
    return [b if a is None else a if b is None else a.add_(b) for a, b in zip(one, other, strict=True)]


def _over_processes(own: Gradient, rows: Sequence[int], learner: Learner, runtime: Runtime) -> Gradient:
    """The sum over all processes. rows: of every micro-batch, by which all know whose branches are empty."""
    if runtime.world == 1:
        return own
    like = [*learner.named.values(), torch.zeros((), device=runtime.device)]  # the loss comes last
    learner.moved = learner.moved or runtime.any([one is not None for one in own] or [False] * len(like))
    plain = [torch.zeros_like(one) if value is None else value for one, value in zip(like, own or [None] * len(like))]
    touched = [_touched(value, runtime) for value in plain]
    sent = [value if places is None else value[places] for value, places in zip(plain, touched)]
    flat = torch.cat([value.flatten() for value in sent])
    size = len(branch(runtime))
    filled = [any(rows[first : first + size]) for first in range(0, size * runtime.world, size)]
    flat = runtime.tree_sum(flat, filled) if runtime.reduce == "exact" else runtime.all_reduce(flat)
    pieces = [piece.view_as(one) for piece, one in zip(flat.split([one.numel() for one in sent]), sent)]
    whole = [
        piece if places is None else value.zero_().index_copy_(0, places, piece)
        for piece, places, value in zip(pieces, touched, plain)
    ]
    return [value if moved else None for value, moved in zip(whole, learner.moved)]


def _touched(gradient: Tensor, runtime: Runtime) -> Tensor | None:
    """The rows of a tall matrix that are not zero in every process: no others are sent. None for all of them."""
    if gradient.ndim != 2 or len(gradient) <= TALL * gradient.shape[1]:
        return None
    return runtime.all_reduce(gradient.any(dim=1).to(torch.int32)).nonzero().flatten()
