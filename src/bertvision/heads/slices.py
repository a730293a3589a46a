"""Large batches in slices: what a head makes on the way from states to logits stays in the processor's cache."""

from collections.abc import Callable

import torch
from torch import Tensor

# Floats made per slice, 8 MB. Half and double are as good; a whole batch at once is up to 1.4 times slower.
CACHE = 2**21


def eager_on_cpu(tensor: Tensor) -> bool:
    """Whether a CPU is about to work on `tensor`, rather than a GPU, or a graph being captured for export."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def in_slices(function: Callable[..., Tensor], floats: int, *inputs: Tensor) -> Tensor:
    """function(*inputs), a few examples at a time where that is faster, on a CPU.

    inputs: tensors with the batch in front, as `function` takes them. Its result has the batch in front too.
    floats: how many numbers `function` holds per example while it works.
    """
    examples = max(1, CACHE // floats)
    if not eager_on_cpu(inputs[0]) or inputs[0].shape[0] <= examples:
        return function(*inputs)
    return torch.cat([function(*part) for part in zip(*(tensor.split(examples) for tensor in inputs), strict=True)])
