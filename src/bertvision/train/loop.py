"""The one training loop. It can be killed at any step and resumes with the same results, bit for bit."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from bertvision.backbone.cpu_kernels import training_kernels
from bertvision.backbone.flops import NO_FLOPS, Flops, added
from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan, by_length, collate
from bertvision.data.windows import Windows
from bertvision.evaluate.score import total_flops
from bertvision.files import load_tensors, remove, save_tensors
from bertvision.recipe import BankRecipe, Training
from bertvision.runtime import CPU, Runtime, Timed
from bertvision.states.store import Source
from bertvision.train.learner import Learner, Task, fetch_losses
from bertvision.train.progress import Journal

SNAPSHOT_SHARE = 20  # the next snapshot is written this many times the last one's duration later, at the earliest


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of training in a run, and its files: DIRECTORY/NAME.*

    identity: what the result depends on beside the seed; a snapshot that was made for another identity is not used.
    stage: its name in the journal.
    """

    directory: Path
    name: str
    seed: int
    identity: str
    snapshot_seconds: float
    journal: Journal
    stage: str = "training"

    @property
    def result(self) -> Path:
        """Where a bank is saved."""
        return self.directory / f"{self.name}.safetensors"

    @property
    def snapshot(self) -> Path:
        """The file that holds everything needed to resume."""
        return self.directory / f"{self.name}.snapshot.safetensors"

    @property
    def states(self) -> Path:
        """The directory of the states it trains on, where they are stored."""
        return self.directory / f"{self.name}.states"

    def clear(self) -> None:
        """Removes what the training needed and its result does not; a kill may have left it."""
        self.snapshot.unlink(missing_ok=True)
        remove(self.states)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a training. batches: all batches of the training.

    at_step(step): called when `step` batches are done, before any snapshot of that step. marks: steps after which
    something is saved; before that, as at the end, the loss of every learner is checked.
    """

    task: Task
    batches: BatchPlan
    job: Job
    at_step: Callable[[int], None] = lambda step: None
    marks: Collection[int] = ()


class Feed(Timed):
    """Batches of a set of windows, with their states.

    moves: whether training changes what the source gives. work: FLOPs per window of giving it.
    seconds, flops: spent so far, earlier runs included; None: not known.
    """

    def __init__(
        self,
        windows: Windows,
        source: Source,
        pad: int,
        moves: bool = False,
        seconds: float = 0.0,
        work: Flops | None = NO_FLOPS,
        flops: int | None = 0,
    ) -> None:
        super().__init__(seconds)
        self.windows, self.source, self.pad, self.moves = windows, source, pad, moves
        self.work, self.flops = work, flops

    def __call__(self, index: NDArray[np.int64], runtime: Runtime = CPU) -> tuple[Batch, States]:
        """The batch of the windows in `index`."""
        self.flops = added(self.flops, self.work, self.windows.lengths[index])
        with self.timed(runtime):
            batch = runtime.to(collate(self.windows, index, self.pad))
            return batch, self.source(batch)

    def charge(self, other: "Feed") -> None:
        """Takes over what another feed has spent."""
        self.seconds += other.seconds
        self.flops = total_flops([self.flops, other.flops])
        other.seconds, other.flops = 0.0, 0


def plan_batches(
    windows: Windows, training: Training, seed: int, counted: NDArray[np.int64] | None = None
) -> BatchPlan:
    """All batches of a training. counted: (N,) tokens of each window that are read; None: all of them."""
    sizes: Any = {"batch_size": training.batch_size, "batch_tokens": training.batch_tokens}
    return BatchPlan(windows.lengths, counted=counted, epochs=training.epochs, **sizes, seed=seed)


def fit(learners: Sequence[Learner], feed: Feed, plan: Plan, runtime: Runtime = CPU) -> None:
    """Trains the learners on the same states, to the end of the plan or until all have stopped; resumes from the
    snapshot if there is one.

    Of several processes, each does a part of every step where training moves the states, else trains some learners.
    """
    batches, job = plan.batches, plan.job
    own_learners = learners if feed.moves else runtime.mine(learners)
    first_step = _restore(learners, feed, plan)
    tokens = [int(feed.windows.lengths[index].sum()) for index in batches.batches]
    marks = {*plan.marks, len(batches)}
    saved, pause = time.monotonic(), job.snapshot_seconds
    with (
        runtime.deterministic(job.journal.note),
        training_kernels(runtime),
        job.journal.stage(job.stage, sum(tokens), sum(tokens[:first_step])) as progress,
    ):
        for step in range(first_step, len(batches)):
            with reporting(own_learners, job.journal):
                _step(own_learners, feed, plan, step, step + 1 in marks, runtime)
                if step + 1 in marks or (step + 1) % runtime.fetch_steps == 0:
                    fetch_losses(own_learners)
            progress.advance(tokens[step], _status(own_learners, step + 1, len(batches)))
            plan.at_step(step + 1)
            busy = not all(learner.resting for learner in own_learners)
            due = runtime.is_main and time.monotonic() - saved >= pause and step + 1 < len(batches)
            busy, due = runtime.any([busy, due])  # all fetch losses at the same steps, and so drop the same heads
            if not busy:
                break
            if due:
                began = time.monotonic()
                _save(learners, own_learners, feed, plan, step + 1, runtime)
                saved = time.monotonic()
                pause = max(job.snapshot_seconds, SNAPSHOT_SHARE * (saved - began)) if job.snapshot_seconds else 0


def _step(learners: Sequence[Learner], feed: Feed, plan: Plan, step: int, judge: bool, runtime: Runtime) -> None:
    """One step of all learners. judge: whether the losses after it are checked at once."""
    index, seed, batch_and_states = plan.batches[step], plan.job.seed, None
    _count(learners, feed.windows, index)

    def compute_states() -> tuple[Batch, States]:
        with runtime.seed(seed, "backbone", step):  # the backbone's dropout
            return feed(index, runtime)

    if feed.moves and runtime.accumulate > 1:
        from bertvision.train.micro_batches import learn_in_parts

        learn_in_parts(learners, feed, plan.task, index, step, seed, runtime)
    else:
        batch_and_states = compute_states()
        _learn(learners, batch_and_states[1], batch_and_states[0], plan.task, step, runtime)
    if judge:
        if batch_and_states is None or feed.moves:
            batch_and_states = None  # frees those from before the update: two batches would need twice the memory
            with torch.no_grad():
                batch_and_states = compute_states()
        for learner in learners:
            learner.judge(batch_and_states[1], batch_and_states[0], plan.task, step + 1, runtime)


def _learn(learners: Sequence[Learner], states: States, batch: Batch, task: Task, step: int, runtime: Runtime) -> None:
    """Every learner learns from its share of a batch."""
    for share, same_share in groupby(learners, key=lambda learner: learner.share):
        share_states, share_batch = (states, batch) if share is None else share.of(states, batch)
        for learner in same_share:
            learner.learn(share_states, share_batch, task, step, runtime)
        del share_states, share_batch  # before the rows of the next share are copied


def _count(learners: Sequence[Learner], windows: Windows, index: NDArray[np.int64]) -> None:
    """Adds the FLOPs of a step to every learner that still learns."""
    for learner in learners:
        if not learner.resting:
            read = index if learner.share is None else index[learner.share.contains[index]]
            learner.flops = added(learner.flops, learner.work.train, windows.lengths[read])


@contextmanager
def reporting(learners: Sequence[Learner], journal: Journal) -> Iterator[None]:
    """Notes in the journal which learners stop within the block, and why."""
    before = [learner for learner in learners if not learner.resting]
    yield
    for learner in before:
        if learner.resting:
            how = "is dropped" if learner.stopped else "stops early"
            journal.note(f"{learner.name} {how}: {learner.stopped or learner.finished}")


def _status(learners: Sequence[Learner], step: int, steps: int) -> dict[str, object]:
    """Step, losses and learning rates, for the log."""
    learning = [learner for learner in learners if not learner.resting]
    losses = {learner.name: round(learner.loss, 4) for learner in learning}
    rates = {learner.name: float(f"{learner.rate:.4g}") for learner in learning}
    return {"step": step, "of": steps, "loss": losses, "learning_rate": rates}


def _save(
    learners: Sequence[Learner], own: Sequence[Learner], feed: Feed, plan: Plan, step: int, runtime: Runtime
) -> None:
    """Writes a snapshot. own: the learners that this process trains."""
    with reporting(own, plan.job.journal):
        fetch_losses(own)
    if not feed.moves:
        gather_learners(learners, runtime)
    if runtime.is_main:
        tensors, notes = _packed(learners)
        spent = {"feed_seconds": feed.seconds, "feed_flops": feed.flops}
        about = {"step": step, "identity": plan.job.identity, **spent, "learners": notes}
        save_tensors(plan.job.snapshot, tensors, about)


def gather_learners(learners: Sequence[Learner], runtime: Runtime) -> None:
    """Brings the learners that other processes train up to date in the main process."""
    if runtime.world == 1:
        return
    tensors, notes = _packed(runtime.mine(learners))
    plain = {key: value.cpu().contiguous() for key, value in tensors.items()}
    contents, told = runtime.gather(save(plain)), runtime.gather(json.dumps(notes).encode())
    for rank, (content, text) in enumerate(zip(contents, told)):
        if rank:
            _unpack(learners[rank :: runtime.world], load(content), json.loads(text))


def _packed(learners: Sequence[Learner]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Everything that steps change in learners: tensors, by number and name, and plain values."""
    tensors = {
        f"{number}.{key}": value for number, learner in enumerate(learners) for key, value in learner.state().items()
    }
    return tensors, [learner.notes() for learner in learners]


def _unpack(learners: Sequence[Learner], tensors: Mapping[str, Tensor], notes: Sequence[Mapping[str, Any]]) -> None:
    """Restores learners from what `_packed` returned."""
    for number, learner in enumerate(learners):
        prefix = f"{number}."
        own_tensors = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        learner.restore(own_tensors, notes[number])


def _restore(learners: Sequence[Learner], feed: Feed, plan: Plan) -> int:
    """Restores the snapshot, if there is one that fits; the number of steps already done."""
    if not plan.job.snapshot.exists():
        return 0
    tensors, about = load_tensors(plan.job.snapshot, "snapshot")
    if about.get("identity") != plan.job.identity:
        plan.job.journal.note(f"{plan.job.snapshot.name} belongs to other data or settings and is not used")
        return 0
    _unpack(learners, tensors, about["learners"])
    feed.seconds, feed.flops = about["feed_seconds"], about.get("feed_flops")
    plan.job.journal.note(f"going on at step {about['step']} of {len(plan.batches)}")
    return int(about["step"])


Prune = Callable[[int, Mapping[str, float]], Mapping[str, str]]  # step, {learner: loss on tune} -> {name: why it stops}


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Checks learners on the tune set, all in one pass of its feed.

    recipe: `patience`, the checks without improvement after which a learner stops, and the size of batches.
    prune: called with the losses of every check, it may stop learners that do worse than others.
    """

    task: Task
    feed: Feed
    learners: Sequence[Learner]
    recipe: BankRecipe
    journal: Journal
    prune: Prune | None = None
    runtime: Runtime = CPU

    def check(self, step: int) -> None:
        """Checks every learner that still learns."""
        with reporting(self.learners, self.journal):
            fetch_losses(self.learners)
        learning = [learner for learner in self.learners if not learner.resting]
        with reporting(learning, self.journal):
            losses = self._losses(learning)
            for learner in learning:
                learner.check(losses[learner.name], step, self.recipe.patience)
            if self.prune is not None:
                pruned = self.prune(
                    step, {learner.name: losses[learner.name] for learner in learning if not learner.stopped}
                )
                for learner in learning:
                    if not learner.resting:
                        learner.finished = pruned.get(learner.name, "")

    @torch.no_grad()
    def _losses(self, learners: Sequence[Learner]) -> dict[str, float]:
        """The mean loss of each learner over all windows, in eval mode."""
        windows = self.feed.windows
        batches = by_length(windows.lengths, self.recipe.batch_tokens) if learners else []
        batch_losses: list[list[Tensor]] = [[] for _ in learners]  # by learner and batch
        for learner in learners:
            learner.head.eval()
        for index in batches:
            batch, states = self.feed(index, self.runtime)
            for learner, losses in zip(learners, batch_losses):
                with learner.timed(self.runtime):
                    losses.append(self.task.loss(learner.head.logits(states), batch))
                learner.flops = added(learner.flops, learner.work.forward, windows.lengths[index])
            del states  # before the next batch's are made
        for learner in learners:
            learner.head.train()
        if not batches:
            return {learner.name: 0.0 for learner in learners}
        sizes = [len(index) for index in batches]
        values = torch.stack([torch.stack(losses) for losses in batch_losses]).cpu().tolist()  # fetched at once
        totals = [sum(map(mul, losses, sizes)) for losses in values]
        return {learner.name: total / max(1, len(windows)) for learner, total in zip(learners, totals)}


def check_steps(plan: BatchPlan, epochs: float, checks: int) -> set[int]:
    """The steps after which there is a check: `checks` times per epoch, and at the end."""
    return {plan.steps_at(number / checks) for number in range(1, int(epochs * checks) + 1)} | {len(plan)}
