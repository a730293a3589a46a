"""A learner: a head being trained, and the backbone under it if that moves too. Its whole state fits into tensors."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.recipe import Training
from bertvision.train.optim import Group, make_optimizer, make_schedule


class Task(Protocol):
    """The part of a task that training needs."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...


def fold(*parts: object) -> int:
    """A seed from anything printable. Each draw of random numbers has a seed of its own, so nothing has to be
    remembered between steps and nobody's draws disturb another's."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


class Learner:
    """Trains one head. With `backbone`, the states it is given carry gradients and the backbone moves along.

    rate: learning rate of the head. backbone: its parameters that move, by name; groups: the same ones with a
    learning rate each. seconds: time spent learning so far. stopped: why it no longer learns, or "".
    """

    def __init__(
        self,
        name: str,
        head: Head,
        training: Training,
        *,
        steps: int,
        seed: int,
        rate: float,
        backbone: Mapping[str, nn.Parameter] | None = None,
        groups: Sequence[Group] = (),
    ) -> None:
        self.name, self.head, self.clip, self.seed = name, head, training.clip, seed
        self.joint = backbone is not None
        self.named = {f"head.{key}": p for key, p in head.named_parameters()}
        self.named |= {f"backbone.{key}": p for key, p in (backbone or {}).items()}
        self.optimizer = make_optimizer([(rate, dict(head.named_parameters())), *groups], training)
        self.schedule = make_schedule(training, steps)
        self.seconds = 0.0
        self.loss = math.nan
        self.stopped = ""

    def learn(self, states: States, batch: Batch, task: Task, step: int) -> None:
        """One optimiser step on one batch; none, ever again, once loss or gradient are no longer finite."""
        if self.stopped:
            return
        began = time.perf_counter()
        loss = self._loss(states, batch, task, step)
        if math.isfinite(self.loss):
            self._update(loss, step)
        else:
            self._stop("loss", self.loss, step)
        self.seconds += time.perf_counter() - began

    @torch.no_grad()
    def judge(self, states: States, batch: Batch, task: Task, step: int) -> None:
        """Stops if the loss is not finite, without learning: the last update has no step after it to show its harm."""
        if not self.stopped and not math.isfinite(float(self._loss(states, batch, task, step))):
            self._stop("loss", self.loss, step)

    def _loss(self, states: States, batch: Batch, task: Task, step: int) -> Tensor:
        torch.manual_seed(fold(self.seed, self.name, step))  # the head's own dropout
        loss = task.loss(self.head(states if self.joint else states.detach()), batch)
        self.loss = loss.item()
        return loss

    def _update(self, loss: Tensor, step: int) -> None:
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.named.values() if p.grad is not None])
        if norm.isfinite():
            if self.clip:
                nn.utils.clip_grads_with_norm_(self.named.values(), self.clip, norm)
            factor = self.schedule(step)
            for group in self.optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            self.optimizer.step()
        else:
            self._stop("gradient", norm.item(), step)
        self.optimizer.zero_grad()

    def _stop(self, what: str, value: float, step: int) -> None:
        self.stopped = f"its {what} became {value} at step {step}; a lower learning rate may help"
        if self.joint:
            raise UserError(f"finetune: {self.stopped}")

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: parameters, buffers, the optimiser's moments."""
        tensors = {f"now.{key}": value.detach() for key, value in self._values().items()}
        for key, parameter in self.named.items():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}.{key}"] = value
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        values = self._values()
        for full, value in tensors.items():
            kind, _, key = full.partition(".")
            if kind == "now":
                values[key].data.copy_(value)
            else:
                self.optimizer.state[self.named[key]][kind] = value.clone()

    def _values(self) -> dict[str, Tensor]:
        return self.named | {f"head.{key}": buffer for key, buffer in self.head.named_buffers()}
