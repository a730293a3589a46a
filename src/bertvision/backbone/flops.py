"""Floating-point operations of encoders and heads: counted from the products they compute, without computing them.

A module is run on torch's meta device, which knows shapes and no numbers, and every matrix product and convolution
is counted by torch's own formulas, forwards and backwards, whatever an architecture is made of. Of one window of n
tokens all of them are c + l n + s n²: linear maps grow with n, attention with n². Three lengths give the coefficients.

Left out: what is no product (norms, activations, softmax, optimiser steps), padding, and what a fused attention kernel
computes twice. A multiplication and the addition after it are two operations.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import are_separable, layer_count, only_blocks
from bertvision.backbone.states import POOLED, Reads, States, numbered

LENGTHS = (16, 32, 64)  # tokens of the windows that are counted

RunResult = tuple[Tensor, list[Tensor]]  # a result, and what beside the parameters gets a gradient from it
Run = Callable[[Any, int, int], RunResult]  # of a module, on so many windows of so many tokens
PLAIN = (bool, int, float, str, tuple)
_counted_work: dict[tuple[object, ...], "Work"] = {}


@dataclass(frozen=True, slots=True)
class Flops:
    """FLOPs of a window of n tokens: constant + linear n + square n². Calling it gives those of many windows."""

    constant: Fraction = Fraction(0)
    linear: Fraction = Fraction(0)
    square: Fraction = Fraction(0)

    def __call__(self, lengths: NDArray[np.int64]) -> int:
        """lengths: (windows,) in tokens."""
        tokens, squares = int(lengths.sum()), int((lengths.astype(np.int64) ** 2).sum())
        return round(self.constant * len(lengths) + self.linear * tokens + self.square * squares)

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(self.constant + other.constant, self.linear + other.linear, self.square + other.square)

    def __sub__(self, other: "Flops") -> "Flops":
        return Flops(self.constant - other.constant, self.linear - other.linear, self.square - other.square)


NO_FLOPS = Flops()


@dataclass(frozen=True, slots=True)
class Work:
    """forward: of a prediction. train: of a step of training, forward and backward; per window. None: not countable."""

    forward: Flops | None = NO_FLOPS
    train: Flops | None = NO_FLOPS


NO_WORK = Work()


def added(total: int | None, flops: Flops | None, lengths: NDArray[np.int64]) -> int | None:
    """A total with the FLOPs of more windows; None as soon as a part of it is not known."""
    return None if total is None or flops is None else total + flops(lengths)


def encoder_work(model: PreTrainedModel, reads: Reads = "all", below: int | None = None) -> Work:
    """Of an encoder, tuned as its parameters' `requires_grad` say, with heads above it that read some of its layers.

    below: of its embeddings and so many blocks alone, as where the frozen part is stored.
    """
    numbers = numbered(reads, layer_count(model))
    if numbers[0] > POOLED:
        numbers = numbers[-1:]  # reading lower layers, too, takes nothing
    stops = below is None and POOLED not in numbers and are_separable(model)
    part = slice(max(1, numbers[-1]) if stops else below)  # blocks above the highest layer do not run

    def run(copied: Any, windows: int, tokens: int) -> RunResult:
        ids = torch.ones(windows, tokens, dtype=torch.long, device=copied.device)
        with only_blocks(copied, part):
            output = copied(input_ids=ids, output_hidden_states=True)
        if below is not None:
            return output.last_hidden_state, []
        last = output.last_hidden_state
        seen = dict(enumerate([*output.hidden_states[:-1], last]))
        if (pooled := getattr(output, "pooler_output", None)) is not None:
            seen[POOLED] = pooled.unsqueeze(1).expand_as(last)
        return torch.stack([seen[number] for number in numbers]), []

    longest = int(getattr(model.config, "max_position_embeddings", 0) or LENGTHS[-1]) - 2  # RoBERTa counts from 2
    return _work(model, run, longest, numbers, below)


def head_work(head: nn.Module, layers: int, width: int, *, joint: bool = False) -> Work:
    """Of a head on the states of an encoder. joint: whether gradients go on to the encoder's states.

    head: a module with `reads` and `logits(states)`.
    """
    numbers = numbered(head.reads, layers)  # type: ignore[arg-type]

    def run(copied: Any, windows: int, tokens: int) -> RunResult:
        device = next((p.device for p in copied.parameters()), torch.device("meta"))
        hidden = torch.zeros(windows, len(numbers), tokens, width, device=device, requires_grad=joint)
        mask = torch.ones(windows, tokens, dtype=torch.bool, device=device)
        states = States(hidden, mask, numbers)
        return copied.logits(states), [hidden] if joint else []

    return _work(head, run, getattr(head, "places", 0) or LENGTHS[-1], layers, width, joint)


def _work(module: nn.Module, run: Run, longest: int, *also: object) -> Work:
    """Counted on the meta device, once per process and kind of module. A module that looks at its numbers is counted
    with the weights it has: DeBERTa; it projects its positions once per batch, which no window is charged for."""
    lengths = [length * min(LENGTHS[-1], longest) // LENGTHS[-1] for length in LENGTHS]
    key = _signature(module), *also
    if key not in _counted_work:
        _counted_work[key] = _on_meta(module, run, lengths) or _on_own(module, run, lengths) or Work(None, None)
    return _counted_work[key]


def _on_meta(module: nn.Module, run: Run, lengths: list[int]) -> Work | None:
    copied = _copy(module, "meta")
    try:
        flop_counts = [_counted(copied, run, 1, length) for length in lengths]
    except (RuntimeError, NotImplementedError):
        return None
    return Work(*(_through(lengths, list(counts)) for counts in zip(*flop_counts, strict=True)))


def _on_own(module: nn.Module, run: Run, lengths: list[int]) -> Work | None:
    copied = _copy(module, None)
    try:
        flop_counts = [[_counted(copied, run, windows, length) for windows in (1, 2)] for length in lengths]
    except (RuntimeError, NotImplementedError):
        return None
    single, double = (np.array([counts[index] for counts in flop_counts]) for index in (0, 1))
    return Work(*(_through(lengths, counts.tolist()) for counts in (double - single).T))


def _signature(module: nn.Module) -> str:
    """The same for modules that compute the same: what they are made of, their plain attributes, what trains."""
    plain = [
        sorted((key, value) for key, value in vars(part).items() if type(value) in PLAIN and key != "training")
        for part in module.modules()
    ]
    tensors = [(name, *parameter.shape, parameter.requires_grad) for name, parameter in module.named_parameters()]
    return f"{getattr(module, 'config', '')} {module!r} {plain} {tensors}"


def _copy(module: nn.Module, device: str | None) -> nn.Module:
    """A copy in eval mode, so that it draws no random numbers; its tensors are empty ones, or the module's own."""
    tensors = chain(module.parameters(), module.buffers())
    copies: dict[int, Any] = {id(tensor): _empty(tensor, device) if device else tensor for tensor in tensors}
    return copy.deepcopy(module, copies).eval()


def _empty(tensor: Tensor, device: str) -> Tensor:
    empty = torch.empty_like(tensor, device=device)
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _counted(module: nn.Module, run: Run, windows: int, tokens: int) -> tuple[int, int]:
    """FLOPs forward, and forward and backward."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), _Counter() as counter:  # fused kernels are not counted
        result, leaves = run(module, windows, tokens)
        forward = counter.flops
        if result.requires_grad:
            leaves = [*leaves, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
            torch.autograd.grad(result.sum(), leaves, allow_unused=True)  # no parameter keeps a gradient
    return forward, counter.flops


class _Counter(TorchDispatchMode):
    """Adds up the FLOPs of what runs inside; torch's FlopCounterMode keeps them by module too, at five times the cost
    and not for `autograd.grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _through(lengths: list[int], counts: list[int]) -> Flops:
    """The parabola through three points."""
    (a, b, c), (x, y, z) = lengths, counts
    first, second = Fraction(y - x, b - a), Fraction(z - y, c - b)
    square = (second - first) / (c - a)
    linear = first - square * (a + b)
    return Flops(x - linear * a - square * a * a, linear, square)
