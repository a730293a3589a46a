"""Early stop: a few times per epoch every head is looked at on the tune set, and the best it ever was is kept."""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from bertvision.data.batches import BatchPlan, by_length, collate
from bertvision.data.windows import Windows
from bertvision.states.store import Source
from bertvision.train.learner import Learner, Task
from bertvision.train.progress import Journal

Prune = Callable[[int, Mapping[str, float]], Mapping[str, str]]  # step, {learner: loss on tune} -> {who goes: why}


class EarlyStop:
    """Checks learners on `windows`, all in one pass of the source.

    patience: checks without improvement after which a learner stops; 0 = it does not. prune: told the losses of every
    check, it may have learners stop that do worse than others. batch_tokens: most tokens in a batch.
    """

    def __init__(
        self,
        task: Task,
        windows: Windows,
        source: Source,
        learners: Sequence[Learner],
        *,
        pad: int,
        patience: int,
        batch_tokens: int,
        journal: Journal,
        prune: Prune | None = None,
    ) -> None:
        self.task, self.windows, self.source, self.learners = task, windows, source, learners
        self.pad, self.patience, self.journal, self.prune = pad, patience, journal, prune
        self.batches = by_length(windows.lengths, batch_tokens)

    def check(self, step: int) -> float:
        """Looks at every learner that still learns; the seconds that the source took."""
        learning = [learner for learner in self.learners if not learner.resting]
        losses, seconds = self._losses(learning)
        for learner, loss in zip(learning, losses):
            learner.check(loss, step, self.patience)
            if learner.stopped:
                self.journal.note(f"{learner.name} is dropped: {learner.stopped}")
            elif learner.finished:
                self.journal.note(f"{learner.name} stops early: {learner.finished}")
        if self.prune is not None:
            going = {one.name: loss for one, loss in zip(learning, losses) if not one.stopped}
            pruned = self.prune(step, going)
            for learner in learning:
                if learner.name in pruned and not learner.resting:
                    learner.finished = pruned[learner.name]
                    self.journal.note(f"{learner.name} is pruned: {learner.finished}")
        return seconds

    def take_best(self) -> dict[str, dict[str, float]]:
        """Makes every learner what it was at its best, where that was kept; {name: the step and the loss of that}."""
        for learner in self.learners:
            learner.take_best()
        seen = [learner for learner in self.learners if learner.best.step >= 0]
        return {learner.name: {"step": learner.best.step, "loss": learner.best.loss} for learner in seen}

    @torch.no_grad()
    def _losses(self, learners: Sequence[Learner]) -> tuple[list[float], float]:
        """The mean loss of each learner over all windows, in eval mode; and the seconds of the source."""
        sums, seconds = [0.0] * len(learners), 0.0
        for learner in learners:
            learner.head.eval()
        for index in self.batches:
            began = time.perf_counter()
            batch = collate(self.windows, index, self.pad)
            states = self.source(batch)
            seconds += time.perf_counter() - began
            for place, learner in enumerate(learners):
                began = time.perf_counter()
                sums[place] += self.task.loss(learner.head.logits(states), batch).item() * len(index)
                learner.seconds += time.perf_counter() - began
            del states  # before the next batch's are made beside them
        for learner in learners:
            learner.head.train()
        return [total / max(1, len(self.windows)) for total in sums], seconds


def check_steps(plan: BatchPlan, epochs: float, checks: int) -> set[int]:
    """The steps after which there is a check: `checks` times per epoch, and at the end."""
    return {plan.steps_at(number / checks) for number in range(1, int(epochs * checks) + 1)} | {len(plan)}
