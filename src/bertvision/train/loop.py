"""The one training loop. It can be killed at any step and resumes with the same results, bit for bit."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan, by_length, collate
from bertvision.data.windows import Windows
from bertvision.files import load_tensors, remove, save_tensors
from bertvision.recipe import BankRecipe, Training
from bertvision.runtime import CPU, Runtime
from bertvision.states.store import Source
from bertvision.train.learner import Learner, Task
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
    """What `fit` does. batches: all batches of the training.

    at_step(step): called when `step` batches are done, before any snapshot of that step. marks: steps after which
    something is saved; before that, as at the end, the loss of every learner is checked.
    """

    task: Task
    batches: BatchPlan
    job: Job
    at_step: Callable[[int], None] = lambda step: None
    marks: Collection[int] = ()


@dataclass(slots=True)
class Feed:
    """Batches of a set of windows, with their states.

    moves: whether training changes what the source gives. seconds: time spent so far, earlier runs included.
    """

    windows: Windows
    source: Source
    pad: int
    moves: bool = False
    seconds: float = 0.0

    def __call__(self, index: NDArray[np.int64], runtime: Runtime = CPU) -> tuple[Batch, States]:
        """The batch of the windows in `index`."""
        began = runtime.clock()
        batch = runtime.to(collate(self.windows, index, self.pad))
        states = self.source(batch)
        self.seconds += runtime.clock() - began
        return batch, states


def plan_batches(windows: Windows, training: Training, seed: int) -> BatchPlan:
    """All batches of a training."""
    return BatchPlan(
        windows.lengths,
        epochs=training.epochs,
        batch_size=training.batch_size,
        batch_tokens=training.batch_tokens,
        seed=seed,
    )


def fit(learners: Sequence[Learner], feed: Feed, plan: Plan, runtime: Runtime = CPU) -> None:
    """Trains the learners on the same states, to the end of the plan or until all have stopped; resumes from the
    snapshot if there is one."""
    batches, job, task = plan.batches, plan.job, plan.task
    done = _restore(learners, feed, plan)
    tokens = [int(feed.windows.lengths[index].sum()) for index in batches.batches]
    marks = {*plan.marks, len(batches)}
    saved, pause = time.monotonic(), job.snapshot_seconds

    def next_states() -> tuple[Batch, States]:
        with runtime.seed(job.seed, "backbone", step):  # the backbone's dropout
            return feed(batches[step], runtime)

    with job.journal.stage(job.stage, sum(tokens), sum(tokens[:done])) as progress:
        for step in range(done, len(batches)):
            with reporting(learners, job.journal):
                batch, states = next_states()
                _learn(learners, states, batch, task, step, runtime)
                if step + 1 in marks:
                    if feed.moves:
                        del states  # those of before the update: two batches of states would need twice the memory
                        with torch.no_grad():
                            batch, states = next_states()
                    for learner in learners:
                        learner.judge(states, batch, task, step + 1, runtime)
                del states
            progress.advance(tokens[step], _status(learners, step + 1, len(batches)))
            plan.at_step(step + 1)
            if all(learner.resting for learner in learners):
                break
            if time.monotonic() - saved >= pause and step + 1 < len(batches):
                began = time.monotonic()
                _save(learners, feed, plan, step + 1)
                saved = time.monotonic()
                pause = max(job.snapshot_seconds, SNAPSHOT_SHARE * (saved - began)) if job.snapshot_seconds else 0


def _learn(learners: Sequence[Learner], states: States, batch: Batch, task: Task, step: int, runtime: Runtime) -> None:
    for share, same in groupby(learners, key=lambda learner: learner.share):
        own, part = (states, batch) if share is None else share.of(states, batch)
        for learner in same:
            learner.learn(own, part, task, step, runtime)
        del own, part  # before the rows of the next share are copied


@contextmanager
def reporting(learners: Sequence[Learner], journal: Journal) -> Iterator[None]:
    """Notes which learners stopped within, and why."""
    before = [learner for learner in learners if not learner.resting]
    yield
    for learner in before:
        if learner.resting:
            how = "is dropped" if learner.stopped else "stops early"
            journal.note(f"{learner.name} {how}: {learner.stopped or learner.finished}")


def _status(learners: Sequence[Learner], step: int, steps: int) -> dict[str, object]:
    learning = [learner for learner in learners if not learner.resting]
    losses = {learner.name: round(learner.loss, 4) for learner in learning}
    rates = {learner.name: float(f"{learner.rate:.4g}") for learner in learning}
    return {"step": step, "of": steps, "loss": losses, "learning_rate": rates}


def _save(learners: Sequence[Learner], feed: Feed, plan: Plan, step: int) -> None:
    tensors = {f"{place}.{key}": v for place, one in enumerate(learners) for key, v in one.state().items()}
    notes = [learner.notes() for learner in learners]
    about = {"step": step, "identity": plan.job.identity, "feed_seconds": feed.seconds, "learners": notes}
    save_tensors(plan.job.snapshot, tensors, about)


def _restore(learners: Sequence[Learner], feed: Feed, plan: Plan) -> int:
    """The number of steps already done."""
    if not plan.job.snapshot.exists():
        return 0
    tensors, about = load_tensors(plan.job.snapshot, "snapshot")
    if about.get("identity") != plan.job.identity:
        plan.job.journal.note(f"{plan.job.snapshot.name} belongs to other data or settings and is not used")
        return 0
    for place, learner in enumerate(learners):
        prefix = f"{place}."
        own = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
        learner.restore(own, about["learners"][place])
    feed.seconds = about["feed_seconds"]
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

    def check(self, step: int) -> float:
        """Checks every learner that still learns; the seconds of the feed."""
        before = self.feed.seconds
        learning = [learner for learner in self.learners if not learner.resting]
        with reporting(learning, self.journal):
            losses = self._losses(learning)
            for learner in learning:
                learner.check(losses[learner.name], step, self.recipe.patience)
            if self.prune is not None:
                pruned = self.prune(step, {one.name: losses[one.name] for one in learning if not one.stopped})
                for learner in learning:
                    if not learner.resting:
                        learner.finished = pruned.get(learner.name, "")
        return self.feed.seconds - before

    def take_best(self) -> dict[str, dict[str, float]]:
        """Restores the best values of every learner, where they were kept; {name: the step and the loss of that}."""
        for learner in self.learners:
            learner.take_best()
        seen = [learner for learner in self.learners if learner.best.step >= 0]
        return {learner.name: {"step": learner.best.step, "loss": learner.best.loss} for learner in seen}

    @torch.no_grad()
    def _losses(self, learners: Sequence[Learner]) -> dict[str, float]:
        """The mean loss of each learner over all windows, in eval mode."""
        windows, clock = self.feed.windows, self.runtime.clock
        sums = {learner.name: 0.0 for learner in learners}
        for learner in learners:
            learner.head.eval()
        for index in by_length(windows.lengths, self.recipe.batch_tokens):
            batch, states = self.feed(index, self.runtime)
            for learner in learners:
                began = clock()
                sums[learner.name] += self.task.loss(learner.head.logits(states), batch).item() * len(index)
                learner.seconds += clock() - began
            del states  # before the next batch's are made
        for learner in learners:
            learner.head.train()
        return {name: total / max(1, len(windows)) for name, total in sums.items()}


def check_steps(plan: BatchPlan, epochs: float, checks: int) -> set[int]:
    """The steps after which there is a check: `checks` times per epoch, and at the end."""
    return {plan.steps_at(number / checks) for number in range(1, int(epochs * checks) + 1)} | {len(plan)}
