"""A learner: a head being trained, and the backbone under it if that moves too. Its whole state fits into tensors."""

import hashlib
import math
import time
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.recipe import Training
from bertvision.train.optim import make_optimizer, make_schedule


class Task(Protocol):
    """The part of a task that training needs."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...


def fold(*parts: object) -> int:
    """A seed from anything printable. Each draw of random numbers has a seed of its own, so nothing has to be
    remembered between steps and nobody's draws disturb another's."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


class Learner:
    """Trains one head. With `backbone`, the states it is given carry gradients and the backbone moves along.

    rates: learning rate of the head, of the backbone, and of what tuning added to it (adapters).
    seconds: time spent learning so far; stopped: why it no longer learns, or "".
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
        groups: list[tuple[float, Mapping[str, nn.Parameter]]] | None = None,
    ) -> None:
        self.name, self.head, self.clip, self.seed = name, head, training.clip, seed
        self.backbone = dict(backbone or {})
        self.named = {f"head.{key}": p for key, p in head.named_parameters()}
        self.named |= {f"backbone.{key}": p for key, p in self.backbone.items()}
        self.optimizer = make_optimizer([(rate, dict(head.named_parameters())), *(groups or [])], training)
        self.schedule = make_schedule(training, steps)
        self.seconds = 0.0
        self.loss = math.nan
        self.stopped = ""

    def learn(self, states: States, batch: Batch, task: Task, step: int) -> None:
        """One optimiser step on one batch."""
        if self.stopped:
            return
        began = time.perf_counter()
        torch.manual_seed(fold(self.seed, self.name, step))  # the head's own dropout
        loss = task.loss(self.head(states if self.backbone else states.detach()), batch)
        self.loss = loss.item()
        if math.isfinite(self.loss):
            self._update(loss, step)
        else:
            self.stopped = f"its loss became {self.loss} at step {step}; a lower learning rate may help"
            self.optimizer.zero_grad()
            if self.backbone:
                raise UserError(f"finetune: {self.stopped}")
        self.seconds += time.perf_counter() - began

    def _update(self, loss: Tensor, step: int) -> None:
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.named.values(), self.clip)
        factor = self.schedule(step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name: parameters, buffers, the optimiser's moments."""
        tensors = {f"now.{key}": p.detach() for key, p in self.named.items()}
        tensors |= {f"now.head.{key}": b for key, b in self.head.named_buffers()}
        for key, parameter in self.named.items():
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}.{key}"] = value
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave."""
        own = self.named | {f"head.{key}": b for key, b in self.head.named_buffers()}
        for full, value in tensors.items():
            kind, _, key = full.partition(".")
            if kind == "now":
                own[key].data.copy_(value)
            else:
                self.optimizer.state[self.named[key]][kind] = value.clone()
