"""A learner: one head in training, with its optimiser, learning-rate schedule and share of the training set."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertvision.backbone.flops import NO_WORK
from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan, nested_fraction
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.heads import Head
from bertvision.recipe import BankRecipe, Training
from bertvision.runtime import CPU, Runtime, Timed

Gradient = list[Tensor | None]  # one for each parameter, None where the loss does not depend on it; the loss comes last


class Task(Protocol):
    """The part of a task that training needs."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...


class Learner(Timed):
    """Trains one head. With `backbone`, the states it is given carry gradients and the backbone is trained too.

    training: its learning rate is the head's. steps: of the plan. share: the part of the training set it sees, if not
    all; it then makes an update, and its schedule a step, whenever enough windows have been gathered. backbone: the
    parameters to train, by name, each with its learning rate.
    work: FLOPs per window, with the backbone's where that is trained; to be set where they are to be counted.
    seconds, flops: spent so far; None: not known. stopped: why it was dropped, or "".
    finished: why it stopped early, or "".
    """

    def __init__(
        self,
        name: str,
        head: Head,
        training: Training,
        *,
        steps: int,
        seed: int,
        share: "Share | None" = None,
        backbone: Mapping[str, tuple[nn.Parameter, float]] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.head, self.clip, self.seed, self.share = name, head, training.clip, seed, share
        self.joint = backbone is not None
        self.in_bf16 = isinstance(training, BankRecipe) and training.precision == "bf16"
        trained = {f"head.{key}": (p, training.learning_rate) for key, p in head.named_parameters()}
        trained |= {f"backbone.{key}": parameter_and_rate for key, parameter_and_rate in (backbone or {}).items()}
        self.named = {key: parameter for key, (parameter, _) in trained.items()}
        self.optimizer = make_optimizer(trained, training)
        self.schedule = make_schedule(training, steps if share is None else len(share.updates))
        self.work, self.flops = NO_WORK, cast(int | None, 0)
        self.loss = math.nan
        self.observations: list[Observation] = []  # not fetched from the device yet
        self._not_finite: Tensor | None = None  # on the device: 1 from the first value on that is not finite
        self.stopped = self.finished = ""
        self.best = Best()
        self.moved: list[bool] = []  # which of `named`, and the loss, ever have a gradient; where processes share steps

    @property
    def rate(self) -> float:
        """The learning rate of its head at the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def resting(self) -> bool:
        """Whether it has stopped for good."""
        return bool(self.stopped or self.finished)

    def learn(self, states: States, batch: Batch, task: Task, step: int, runtime: Runtime = CPU) -> None:
        """Learns from one batch, in its share of it; its values never change again once loss or gradient are not
        finite. `fetch_losses` then finds out."""
        if self.resting or not len(batch.index):
            return
        with self.timed(runtime):
            loss = self._loss(states, batch, task, (step,), runtime)
            self._observe("loss", loss, step)
            (loss if self.share is None else loss * len(batch.index)).backward()  # of a share the sum over windows
            self._update(step)

    def window_count(self, index: NDArray[np.int64]) -> int:
        """How many of these windows it learns from."""
        return len(index) if self.share is None else int(self.share.contains[index].sum())

    def gradient(
        self, states: States, batch: Batch, task: Task, part: tuple[int, int], weight: float, runtime: Runtime = CPU
    ) -> "Gradient":
        """The gradient of a micro-batch's loss times `weight`; nothing is changed. part: the step, and which of it.
        Of a backbone it can be asked once: that ends the graph of the states."""
        with self.timed(runtime):
            if self.share is not None:
                states, batch = self.share.of(states, batch)
            loss = self._loss(states, batch, task, part, runtime) * weight
            return [*torch.autograd.grad(loss, [*self.named.values()], allow_unused=True), loss.detach()]

    def apply_gradient(self, gradient: "Gradient", rows: int, step: int) -> None:
        """Learns from the results of `gradient`, summed over the micro-batches of a step, which hold `rows` windows."""
        *gradients, loss = gradient
        assert loss is not None
        self._observe("loss", loss if self.share is None else loss / rows, step)
        for parameter, value in zip(self.named.values(), gradients, strict=True):
            if value is not None:
                accumulated = parameter.grad
                parameter.grad = value if self.share is None else value + (0 if accumulated is None else accumulated)
        self._update(step)

    @torch.no_grad()
    def judge(self, states: States, batch: Batch, task: Task, step: int, runtime: Runtime = CPU) -> None:
        """Computes the loss alone. Checks the last update, which no later step would reveal."""
        if not self.resting:
            self._observe("loss", self._loss(states, batch, task, (step,), runtime), step)

    def receive(self, observation: "Observation", value: float) -> None:
        """Receives a value from the device; stops if it is not finite."""
        if observation.what == "loss":
            self.loss = value
        if not self.resting and not math.isfinite(value):
            self._stop(observation.what, value, observation.step)

    def check(self, loss: float, step: int, patience: int) -> None:
        """Takes its loss on the tune set: keeps its values if it is the lowest yet, and stops after `patience` checks
        that were not. A check without an update since the last one is not counted. 0: it never stops for that."""
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
        """Restores its values at the lowest loss on the tune set, if there was a check."""
        current = self._values()
        for key, value in self.best.values.items():
            current[key].data.copy_(value)

    def _loss(self, states: States, batch: Batch, task: Task, part: tuple[int, ...], runtime: Runtime) -> Tensor:
        with runtime.seed(self.seed, self.name, *part):  # the head's own dropout
            with runtime.autocast() if self.in_bf16 else nullcontext():
                logits = self.head.logits(states if self.joint else states.detach())
            return task.loss(logits.float(), batch)

    def _observe(self, what: str, value: Tensor, step: int) -> Tensor:
        """Notes a loss or a gradient's norm, without waiting for it; 1 if anything so far was not finite."""
        value = value.detach()
        broken = (~value.isfinite()).float()
        self._not_finite = broken if self._not_finite is None else torch.maximum(self._not_finite, broken)
        self.observations.append(Observation(what, step, value))
        return self._not_finite

    def _update(self, step: int) -> None:
        """Makes the update that is due at this step, if one is."""
        number = step
        if self.share is not None:
            if step not in self.share.updates:
                return
            number, windows = self.share.updates[step]
            for parameter in self.named.values():
                if parameter.grad is not None:
                    parameter.grad /= windows
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if gradients:
            # An update that the fused kernels leave out by themselves, so that nobody waits to decide it.
            self.optimizer.found_inf = self._observe("gradient", norm, step)  # type: ignore[attr-defined]
        if self.clip:
            nn.utils.clip_grads_with_norm_(self.named.values(), self.clip, norm)
        factor = self.schedule(number)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.step()
        self.best.moved = True
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
        spent = {"seconds": self.seconds, "flops": self.flops}
        return {**spent, "stopped": self.stopped, "finished": self.finished, "best": best}

    def restore(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Restores what `state` and `notes` returned."""
        self.seconds, self.stopped, self.finished = notes["seconds"], notes["stopped"], notes["finished"]
        self.flops = notes.get("flops")
        self.best = Best(**notes["best"])
        current = self._values()
        for name, value in tensors.items():
            kind, _, key = name.partition(".")
            if kind == "now":
                current[key].data.copy_(value)
            elif kind == "best":
                self.best.values[key] = _copied(value, current[key])
            elif kind == "grad":
                self.named[key].grad = _copied(value, current[key])
            else:
                self.optimizer.state[self.named[key]][kind] = _copied(value, current[key])

    def _values(self) -> dict[str, Tensor]:
        return self.named | {f"head.{key}": buffer for key, buffer in self.head.named_buffers()}


def _copied(value: Tensor, like: Tensor) -> Tensor:
    """A copy of a tensor from a file, where `like` lies."""
    return value.to(like.device, copy=True)


@dataclass(frozen=True, slots=True)
class Observation:
    """A value of a step that may still be on the device: a "loss", or the norm of a "gradient"."""

    what: str
    step: int
    value: Tensor


def fetch_losses(learners: Sequence[Learner]) -> None:
    """Fetches the observations of learners since the last time, all at once, and stops those whose loss or gradient
    was not finite, at the step it happened."""
    waiting = [(learner, observation) for learner in learners for observation in learner.observations]
    if waiting:
        for (learner, observation), value in zip(
            waiting, torch.stack([observation.value for _, observation in waiting]).cpu().tolist()
        ):
            learner.receive(observation, value)
    for learner in learners:
        learner.observations.clear()


@dataclass(slots=True)
class Best:
    """A learner's lowest loss on the tune set, the step of it (-1 = no check yet) and the learner's values then.

    misses: checks since then. moved: whether there was an update since the last check.
    """

    loss: float = 0.0
    step: int = -1
    misses: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    moved: bool = False


class Share:
    """A nested part of the examples, with all their windows, within a plan for the whole set.

    contains: (N,) bool, the windows that belong to it. updates: {step: (number of the update made then, windows it is
    made of)}: as soon as `batch_size` windows have been gathered, and after the last of them.
    """

    def __init__(self, windows: Windows, plan: BatchPlan, fraction: float, *, batch_size: int, seed: int) -> None:
        examples = int(windows.example.max(initial=-1)) + 1
        self.contains = np.isin(windows.example, nested_fraction(examples, fraction, seed))
        self.updates: dict[int, tuple[int, int]] = {}
        counts = [int(self.contains[index].sum()) for index in plan.batches]
        last = max((step for step, count in enumerate(counts) if count), default=-1)
        gathered = 0
        for step, count in enumerate(counts[: last + 1]):
            gathered += count
            if gathered >= batch_size or step == last:
                self.updates[step] = len(self.updates), gathered
                gathered = 0

    def of(self, states: States, batch: Batch) -> tuple[States, Batch]:
        """The rows of a batch that belong to this share, perhaps none."""
        rows = np.flatnonzero(self.contains[batch.index])
        if len(rows) == len(batch.index):
            return states, batch
        indices = torch.from_numpy(rows).to(states.layers.device)
        tensors = {key: getattr(batch, key)[indices] for key in ("ids", "types", "mask", "targets")}
        second = None if batch.second is None else batch.second[indices]
        share_batch = dataclasses.replace(batch, index=batch.index[rows], full=None, second=second, **tensors)
        return States(states.layers.detach()[indices], states.mask[indices], states.numbers), share_batch


def make_optimizer(trained: Mapping[str, tuple[nn.Parameter, float]], training: Training) -> torch.optim.Optimizer:
    """Adam or AdamW over parameters with a learning rate each. Biases and vectors (LayerNorms) are never decayed.

    Every group keeps its peak rate as `peak`; a schedule's factor times it is the rate of a step.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, (parameter, rate) in trained.items():
        decays = parameter.ndim > 1 and name.rpartition(".")[2] != "bias"  # a bias per layer is a matrix too
        groups.setdefault((rate, decays), []).append(parameter)
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    return kind(
        [
            {"params": chosen, "lr": rate, "peak": rate, "weight_decay": training.weight_decay if decays else 0.0}
            for (rate, decays), chosen in groups.items()
        ],
        fused=True,
    )


def make_schedule(training: Training, steps: int) -> Callable[[int], float]:
    """The factor of the learning rate at step 0 … steps - 1: up in equal steps during the warm-up, then down to 0."""
    warmup_steps = round(training.warmup * steps) if training.warmup < 1 else int(training.warmup)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        done = (step - warmup_steps) / max(1, steps - warmup_steps)  # 0 … 1
        return SHAPES[training.schedule](min(done, 1.0), training.restarts)

    return factor


def _restarts(done: float, restarts: int) -> float:
    position = round(done * restarts, 9) % 1.0  # rounded: a cosine begins exactly where the last one ends
    return 0.5 * (1 + math.cos(math.pi * position)) if done < 1 else 0.0


SHAPES: dict[str, Callable[[float, int], float]] = {
    "constant": lambda done, restarts: 1.0,
    "linear": lambda done, restarts: 1.0 - done,
    "cosine": lambda done, restarts: 0.5 * (1 + math.cos(math.pi * done)),
    "restarts": _restarts,
}
