"""The one training loop: batches in, states from a feed, learners learn. It can be killed at any step and resumed."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import torch

from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan, collate
from bertvision.data.windows import Windows
from bertvision.files import load_tensors, save_tensors
from bertvision.recipe import Training
from bertvision.runtime import CPU, Runtime
from bertvision.train.learner import Learner, Task
from bertvision.train.progress import Journal

Feed = Callable[[Batch], States]
SNAPSHOT_SHARE = 20  # a snapshot is not begun before this many times the last one's duration has passed


def plan_batches(windows: Windows, training: Training, seed: int) -> BatchPlan:
    """All batches of a training."""
    return BatchPlan(
        windows.lengths,
        epochs=training.epochs,
        batch_size=training.batch_size,
        batch_tokens=training.batch_tokens,
        seed=seed,
    )


class Loop:
    """Runs the learners over a plan of batches, all of them on the same states.

    feed: batch -> States. snapshot: the file that holds everything needed to go on; identity: what must be equal
    for it to be used. at_step(step) is called when `step` batches are done, before any snapshot of that step.
    marks: the steps after which something is kept: learners are looked at before that, as they are at the end.
    moving: whether learning changes what the feed gives; if not, such a look costs no pass.
    feed_seconds: time spent in the feed so far, earlier runs included.
    """

    def __init__(
        self,
        task: Task,
        windows: Windows,
        plan: BatchPlan,
        learners: Sequence[Learner],
        feed: Feed,
        *,
        pad: int,
        seed: int,
        snapshot: Path,
        identity: str,
        snapshot_seconds: float,
        journal: Journal,
        at_step: Callable[[int], None] = lambda step: None,
        marks: Collection[int] = (),
        moving: bool = False,
        runtime: Runtime = CPU,
    ) -> None:
        self.runtime = runtime
        self.task, self.windows, self.plan, self.learners, self.feed = task, windows, plan, learners, feed
        self.pad, self.seed, self.journal, self.at_step = pad, seed, journal, at_step
        self.marks = {*marks, len(plan)}
        self.moving = moving
        self.snapshot, self.identity, self.snapshot_seconds = snapshot, identity, snapshot_seconds
        self.feed_seconds = 0.0

    def run(self, stage: str) -> None:
        """Trains to the end of the plan, or until no learner goes on; from the snapshot if there is one."""
        done = self._restore()
        lengths = self.windows.lengths
        tokens = [int(lengths[index].sum()) for index in self.plan.batches]
        saved, pause = time.monotonic(), self.snapshot_seconds
        with self.journal.stage(stage, sum(tokens), sum(tokens[:done])) as progress:
            for step in range(done, len(self.plan)):
                batch, states = self._states(step)
                self._learn(batch, states, step)
                if step + 1 in self.marks:
                    if self.moving:
                        del states  # those of before the update, before new ones stand beside them
                        with torch.no_grad():
                            batch, states = self._states(step)
                    self._judge(batch, states, step)
                del states  # before the next batch's stand beside them
                progress.advance(tokens[step], self._status(step + 1))
                self.at_step(step + 1)
                if all(learner.resting for learner in self.learners):
                    break
                if time.monotonic() - saved >= pause and step + 1 < len(self.plan):
                    began = time.monotonic()
                    self._save(step + 1)
                    saved = time.monotonic()
                    pause = max(self.snapshot_seconds, SNAPSHOT_SHARE * (saved - began)) if self.snapshot_seconds else 0

    def _learn(self, batch: Batch, states: States, step: int) -> None:
        for share, learners in groupby(self.learners, key=lambda learner: learner.share):
            own, part = (states, batch) if share is None else share.of(states, batch)
            for learner in learners:
                with self._telling(learner):
                    learner.learn(own, part, self.task, step)
            del own, part  # before the next share's rows are copied beside them

    @torch.no_grad()
    def _judge(self, batch: Batch, states: States, step: int) -> None:
        """Looks at a batch just learnt from: what that update has done must show before anything is kept."""
        for learner in self.learners:
            with self._telling(learner):
                learner.judge(states, batch, self.task, step + 1)

    def _states(self, step: int) -> tuple[Batch, States]:
        batch = collate(self.windows, self.plan[step], self.pad)
        began = self.runtime.clock()
        with self.runtime.seed(self.seed, "backbone", step):  # the backbone's dropout
            states = self.feed(self.runtime.to(batch))
        self.feed_seconds += self.runtime.clock() - began
        return batch, states

    @contextmanager
    def _telling(self, learner: Learner) -> Iterator[None]:
        before = learner.stopped
        yield
        if learner.stopped != before:
            self.journal.note(f"{learner.name} is dropped: {learner.stopped}")

    def _status(self, step: int) -> dict[str, object]:
        learning = [learner for learner in self.learners if not learner.resting]
        losses = {learner.name: round(learner.loss, 4) for learner in learning}
        rates = {learner.name: float(f"{learner.rate:.4g}") for learner in learning}
        return {"step": step, "of": len(self.plan), "loss": losses, "learning_rate": rates}

    def _save(self, step: int) -> None:
        tensors = {f"{place}.{key}": v for place, one in enumerate(self.learners) for key, v in one.state().items()}
        about = {
            "step": step,
            "identity": self.identity,
            "feed_seconds": self.feed_seconds,
            "learners": [learner.notes() for learner in self.learners],
        }
        save_tensors(self.snapshot, tensors, about)

    def _restore(self) -> int:
        """The number of steps already done."""
        if not self.snapshot.exists():
            return 0
        tensors, about = load_tensors(self.snapshot, "snapshot")
        if about.get("identity") != self.identity:
            self.journal.note(f"{self.snapshot.name} belongs to other data or settings and is not used")
            return 0
        for place, learner in enumerate(self.learners):
            prefix = f"{place}."
            own = {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}
            learner.restore(own, about["learners"][place])
        self.feed_seconds = about["feed_seconds"]
        self.journal.note(f"going on at step {about['step']} of {len(self.plan)}")
        return about["step"]
