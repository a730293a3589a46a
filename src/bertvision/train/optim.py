"""Optimisers and learning-rate schedules, from a recipe's `Training`."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from bertvision.recipe import Training

Group = tuple[float, Mapping[str, nn.Parameter]]  # (peak learning rate, {name: parameter})


def make_optimizer(groups: Iterable[Group], training: Training) -> torch.optim.Optimizer:
    """Adam or AdamW over groups with a learning rate each. Biases and vectors (LayerNorms) are never decayed.

    Every group keeps its peak rate as `peak`; a schedule's factor times it is the rate of a step.
    """
    parts = []
    for rate, named in groups:
        for decayed in (True, False):
            chosen = [parameter for name, parameter in named.items() if _decays(name, parameter) is decayed]
            if chosen:
                decay = training.weight_decay if decayed else 0.0
                parts.append({"params": chosen, "lr": rate, "peak": rate, "weight_decay": decay})
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
    return kind(parts, fused=True)


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and name.rpartition(".")[2] != "bias"  # a bias per layer is a matrix, but still a bias


def make_schedule(training: Training, steps: int) -> Callable[[int], float]:
    """The factor of the learning rate at step 0 … steps - 1: up in equal steps during the warm-up, then down to 0."""
    warm = round(training.warmup * steps) if training.warmup < 1 else int(training.warmup)

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / (warm + 1)
        done = (step - warm) / max(1, steps - warm)  # 0 … 1
        return SHAPES[training.schedule](min(done, 1.0), training.restarts)

    return factor


def _restarts(done: float, restarts: int) -> float:
    within = round(done * restarts, 9) % 1.0  # rounded, for a cosine begins where the last one ends, not a hair before
    return 0.5 * (1 + math.cos(math.pi * within)) if done < 1 else 0.0


SHAPES: dict[str, Callable[[float, int], float]] = {
    "constant": lambda done, restarts: 1.0,
    "linear": lambda done, restarts: 1.0 - done,
    "cosine": lambda done, restarts: 0.5 * (1 + math.cos(math.pi * done)),
    "restarts": _restarts,
}
