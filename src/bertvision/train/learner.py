"""A learner: a head being trained, and the backbone under it if that moves too. Its whole state fits into tensors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.recipe import Training
from bertvision.runtime import CPU, Runtime
from bertvision.train.optim import Group, make_optimizer, make_schedule
from bertvision.train.share import Share


class Task(Protocol):
    """The part of a task that training needs."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...


class Learner:
    """Trains one head. With `backbone`, the states it is given carry gradients and the backbone moves along.

    steps: of the plan it learns by. rate: learning rate of the head. share: the part of the training set it sees, if
    not all; it then makes an update, and its schedule a step, whenever enough windows have come together. backbone: its
    parameters that move, by name; groups: the same ones with a learning rate each.
    seconds: time spent learning so far. stopped: why it was dropped, or "". finished: why it learns no more, or "".
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
        share: Share | None = None,
        backbone: Mapping[str, nn.Parameter] | None = None,
        groups: Sequence[Group] = (),
        runtime: Runtime = CPU,
    ) -> None:
        self.runtime = runtime
        self.name, self.head, self.clip, self.seed, self.share = name, head, training.clip, seed, share
        self.joint = backbone is not None
        self.named = {f"head.{key}": p for key, p in head.named_parameters()}
        self.named |= {f"backbone.{key}": p for key, p in (backbone or {}).items()}
        self.optimizer = make_optimizer([(rate, dict(head.named_parameters())), *groups], training)
        self.schedule = make_schedule(training, steps if share is None else len(share.updates))
        self.seconds = 0.0
        self.loss = math.nan
        self.stopped = self.finished = ""
        self.best = Best()

    @property
    def rate(self) -> float:
        """The learning rate of its head at the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def resting(self) -> bool:
        """Whether it will not learn again."""
        return bool(self.stopped or self.finished)

    def learn(self, states: States, batch: Batch, task: Task, step: int) -> None:
        """Learns from one batch, in its share of it; never again once loss or gradient are no longer finite."""
        if self.resting or not len(batch.index):
            return
        began = self.runtime.clock()
        loss = self._loss(states, batch, task, step)
        if math.isfinite(self.loss):
            number = self._gather(loss, batch, step)
            if number is not None:
                self._update(number, step)
        else:
            self._stop("loss", self.loss, step)
        self.seconds += self.runtime.clock() - began

    @torch.no_grad()
    def judge(self, states: States, batch: Batch, task: Task, step: int) -> None:
        """Stops if the loss is not finite, without learning: the last update has no step after it to show its harm."""
        if not self.resting and not math.isfinite(float(self._loss(states, batch, task, step))):
            self._stop("loss", self.loss, step)

    def check(self, loss: float, step: int, patience: int) -> None:
        """Takes note of its loss on the tune set: keeps itself if it is better than ever, and stops after `patience`
        checks that were not. A check without an update since the last one says nothing and is not counted.
        Without a patience it goes on as it is, as long as the loss is finite."""
        if not math.isfinite(loss):
            self._stop("loss on tune", loss, step)
        elif not patience:
            return
        elif self.best.step < 0 or loss < self.best.loss:
            self.best = Best(loss, step, 0, {key: value.detach().clone() for key, value in self._values().items()})
        elif self.best.moved:
            self.best.misses += 1
            if self.best.misses >= patience:
                self.finished = f"no better on tune at step {step} than {self.best.loss:.4f} at step {self.best.step}"
        self.best.moved = False

    def take_best(self) -> None:
        """Becomes again what was best on the tune set, if that was ever looked at."""
        values = self._values()
        for key, value in self.best.values.items():
            values[key].data.copy_(value)

    def _loss(self, states: States, batch: Batch, task: Task, step: int) -> Tensor:
        with self.runtime.seed(self.seed, self.name, step):  # the head's own dropout
            loss = task.loss(self.head.logits(states if self.joint else states.detach()), batch)
        self.loss = loss.item()
        return loss

    def _gather(self, loss: Tensor, batch: Batch, step: int) -> int | None:
        """Adds the gradient of a batch; the number of the update that is due with it, if one is."""
        if self.share is None:
            loss.backward()
            return step
        (loss * len(batch.index)).backward()  # a sum over windows, until it is known of how many the mean is to be
        if step not in self.share.updates:
            return None
        number, windows = self.share.updates[step]
        for parameter in self.named.values():
            if parameter.grad is not None:
                parameter.grad /= windows
        return number

    def _update(self, number: int, step: int) -> None:
        norm = nn.utils.get_total_norm([p.grad for p in self.named.values() if p.grad is not None])
        if norm.isfinite():
            if self.clip:
                nn.utils.clip_grads_with_norm_(self.named.values(), self.clip, norm)
            factor = self.schedule(number)
            for group in self.optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            self.optimizer.step()
            self.best.moved = True
        else:
            self._stop("gradient", norm.item(), step)
        self.optimizer.zero_grad()

    def _stop(self, what: str, value: float, step: int) -> None:
        self.stopped = f"its {what} became {value} at step {step}; a lower learning rate may help"
        if self.joint:
            raise UserError(f"finetune: {self.stopped}")

    def state(self) -> dict[str, Tensor]:
        """All tensors that a step changes, by name: parameters, buffers, moments, gathered gradients, the best."""
        tensors = {f"now.{key}": value.detach() for key, value in self._values().items()}
        tensors |= {f"best.{key}": value for key, value in self.best.values.items()}
        for key, parameter in self.named.items():
            if parameter.grad is not None:
                tensors[f"grad.{key}"] = parameter.grad
            for moment, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}.{key}"] = value
        return tensors

    def notes(self) -> dict[str, Any]:
        """All plain values that a step changes."""
        best = {"loss": self.best.loss, "step": self.best.step, "misses": self.best.misses, "moved": self.best.moved}
        return {"seconds": self.seconds, "stopped": self.stopped, "finished": self.finished, "best": best}

    def restore(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Takes back what `state` and `notes` gave."""
        self.seconds, self.stopped, self.finished = notes["seconds"], notes["stopped"], notes["finished"]
        self.best = Best(**notes["best"])
        values = self._values()
        for full, value in tensors.items():
            kind, _, key = full.partition(".")
            if kind == "now":
                values[key].data.copy_(value)
            elif kind == "best":
                self.best.values[key] = value.clone()
            elif kind == "grad":
                self.named[key].grad = value.clone()
            else:
                self.optimizer.state[self.named[key]][kind] = value.clone()

    def _values(self) -> dict[str, Tensor]:
        return self.named | {f"head.{key}": buffer for key, buffer in self.head.named_buffers()}


@dataclass(slots=True)
class Best:
    """How a learner did best on the tune set: the loss, after which step (-1 = never looked at), its values then.

    misses: checks since then. moved: whether there was an update since the last check.
    """

    loss: float = 0.0
    step: int = -1
    misses: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    moved: bool = False
