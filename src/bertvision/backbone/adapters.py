"""Houlsby adapters: a small bottleneck after the attention and after the feed-forward part of every block."""

import math

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import projections
from bertvision.errors import UserError

# How far an untrained adapter may move its input, relative to it. Not 0: both matrices get a gradient from step one.
START = 1e-6
MARK = ".adapter."


class Adapter(nn.Module):
    """x + up(GELU(down(x))), down: H -> A, up: A -> H, both with bias. 2 * H * A + H + A parameters.

    Almost the identity at the start. (..., H) -> (..., H).
    """

    def __init__(self, width: int, size: int, like: Tensor) -> None:
        super().__init__()
        # without the usual random fill: it would draw from the global generator
        self.down = nn.utils.skip_init(nn.Linear, width, size, device=like.device, dtype=like.dtype)
        self.up = nn.utils.skip_init(nn.Linear, size, width, device=like.device, dtype=like.dtype)

    def reset(self, generator: torch.Generator) -> None:
        """Starting values, drawn from `generator` alone."""
        for dense, spread in ((self.down, 1.0), (self.up, START)):
            normal = torch.empty(dense.weight.shape)  # drawn on the CPU: the same numbers on every device
            nn.init.trunc_normal_(normal, a=-2.0, b=2.0, generator=generator)
            with torch.no_grad():
                dense.weight.copy_(normal * (spread / math.sqrt(dense.in_features)))
                dense.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(nn.functional.gelu(self.down(x)))  # (..., H) -> (..., A) -> (..., H)


class Adapted(nn.Linear):
    """A linear map with an adapter behind it, in place of the map alone.

    It takes over the map's parameters under their old names, so a state dict of the plain encoder still fits; the new
    tensors are called `adapter.*`. Dropout, the residual addition and the LayerNorm all follow after it.
    """

    def __init__(self, plain: nn.Linear, size: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.adapter = Adapter(plain.out_features, size, like=plain.weight)
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.adapter(super().forward(x))


def insert(model: PreTrainedModel, size: int, seed: int | None = 0) -> None:
    """Puts two adapters of `size` into every block of `model`, in place. ALBERT's shared block gets one shared pair.

    seed: of their starting values; None leaves them unset, for whoever is about to fill them.
    """
    if size < 1:
        raise UserError(f"adapters: a size of {size} is impossible; give 1 or more, for example 64")
    if adapter_size(model):
        raise UserError(
            f"adapters: the model already has adapters of size {adapter_size(model)}; start from a plain one"
        )
    generator = torch.Generator().manual_seed(seed or 0)
    for block in projections(model):
        for name in (block.attention, block.feedforward):
            adapted = Adapted(model.get_submodule(name), size)  # type: ignore[arg-type]
            if seed is not None and adapted.weight.device.type != "meta":
                adapted.adapter.reset(generator)
            model.set_submodule(name, adapted)


def adapter_size(model: nn.Module) -> int:
    """The size of the adapters in `model`, 0 if there are none."""
    return next((part.down.out_features for part in model.modules() if isinstance(part, Adapter)), 0)
