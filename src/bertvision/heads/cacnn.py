"""`cacnn`: Hulburd's context-aware CNN. The sequence itself makes the filters that it is then read with."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from bertvision.backbone.states import States
from bertvision.heads.head import Count, Head, Impossible, Odd, register

FILTERS = 64


def slide(products: Tensor) -> Tensor:
    """The sum that makes products a convolution: y_t = sum_j products[t + j - k // 2, j], nothing beyond the ends.

    products: (B, S, k, F), token t times the j-th piece of each filter. Returns (B, S, F). Multiplying first and
    shifting the few results is cheaper than copying each token's neighbourhood.
    """
    tokens, size = products.shape[1:3]
    padded = pad(products, (0, 0, 0, 0, size // 2, size // 2))
    shifted = [padded[:, j : j + tokens, j] for j in range(size)]
    return torch.stack(shifted).sum(dim=0)


def parts_mean(maps: Tensor, mask: Tensor, parts: int) -> Tensor:
    """The mean of each of `parts` equal parts of the real tokens: (B, S, F) -> (B, parts, F). mask: (B, S).

    Part i of n tokens holds those from floor(i n / parts) to ceil((i + 1) n / parts): at least one, however small n is.
    """
    length = mask.sum(dim=1)[:, None, None]  # (B, 1, 1)
    part = torch.arange(parts, device=maps.device)[:, None]  # (parts, 1)
    first, last = part * length // parts, -(-(part + 1) * length // parts)  # (B, parts, 1)
    token = torch.arange(maps.shape[1], device=maps.device)
    held = ((token >= first) & (token < last)).to(maps.dtype)  # (B, parts, S)
    return torch.bmm(held / held.sum(dim=2, keepdim=True), maps)


def tiled_rows(maps: Tensor, mask: Tensor, rows: int) -> Tensor:
    """The maps of the real tokens, from the first again after the last: (B, S, F) -> (B, rows, F). mask: (B, S)."""
    token = torch.arange(rows, device=maps.device) % mask.sum(dim=1, keepdim=True)  # (B, rows)
    return maps.gather(1, token.unsqueeze(-1).expand(-1, -1, maps.shape[2]))


@register("cacnn")
class ContextCNN(Head):
    """logits = W GELU(f * h)_t + b, `generated` filters f made for each example from its own last-layer states h.

    (1) m = GELU(K * h), a convolution of size k over the tokens, `filters` maps; (2) c = max_t m_t, the context;
    (3) a second convolution of size k along c; fill = "concat": its results, as many as needed, are concatenated to
    filters of k x H, "tile": one result per filter is repeated to that size, "dense": a dense layer in place of the
    convolution; (4) f * h, convolved with the same states; (5) these feature maps alone are read out; readout = true
    puts h_t beside them. context = false: no c; the maps m of the real tokens are concatenated, tiled where they are
    too few, and split into filters; fill = "mean" averages them instead, with H maps, in generated * k equal parts. In
    all, f is divided by sqrt(k H). Sequences end where the mask ends.
    Parameters, F = filters, G = generated: F * (k H + 1) + outputs * (G + readout * H + 1), and with context
    G * ceil(k H / F) * (k + 1) (concat), G * (k + 1) (tile) or (F + 1) * G k H (dense); F = H with "mean".
    """

    needs_tokens = True
    reads = "last"

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        context: bool = True,
        fill: Literal["concat", "tile", "dense", "mean"] = "concat",
        filters: Count = FILTERS,
        generated: Count = 16,
        kernel: Odd = 3,
        readout: bool = False,
    ) -> None:
        super().__init__()
        if fill not in (("concat", "tile", "dense") if context else ("concat", "mean")):
            raise Impossible("fill", f"{fill!r} is for context = {str(not context).lower()}")
        if fill == "mean" and filters != FILTERS:
            raise Impossible("filters", 'fill = "mean" has as many as the width')
        self.generated, self.kernel, self.fill, self.context, self.beside = generated, kernel, fill, context, readout
        maps = width if fill == "mean" else filters
        bound = 1 / math.sqrt(kernel * width)
        self.weight = nn.Parameter(torch.empty(kernel * maps, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(maps))
        self.project: nn.Module | None = None
        if context:
            results = generated * (1 if fill == "tile" else -(-kernel * width // filters))
            dense = fill == "dense"
            self.project = (
                nn.Linear(filters, generated * kernel * width)
                if dense
                else nn.Conv1d(1, results, kernel, padding=kernel // 2)
            )
        self.readout = nn.Linear(generated + (width if readout else 0), outputs)

    @classmethod
    def as_in_0_1(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"fill": "dense" if spec.get("context", True) else "mean", "readout": True, **spec}

    def forward(self, states: States) -> Tensor:
        last = states.layers[:, -1].masked_fill(~states.mask.unsqueeze(-1), 0)  # (B, S, H)
        maps = gelu(slide(linear(last, self.weight).unflatten(2, (self.kernel, -1))) + self.bias)  # (B, S, F)
        filters = self.filters(maps, states.mask)  # (B, k * G, H)
        products = torch.bmm(last, filters.mT).unflatten(2, (self.kernel, -1))  # (B, S, k, G)
        generated_maps = gelu(slide(products))  # (B, S, G)
        return self.readout(torch.cat([last, generated_maps], dim=-1) if self.beside else generated_maps)

    def filters(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Each example's own filters: (B, k * G, H), piece by piece."""
        width = self.weight.shape[1]
        size = self.kernel * width
        scale = math.sqrt(size)
        if self.fill == "mean":
            made = parts_mean(maps, mask, self.generated * self.kernel)  # (B, G * k, H), k neighbours make a filter
        elif not self.context:
            rows = -(-self.generated * size // maps.shape[2])
            made = tiled_rows(maps, mask, rows).flatten(1)[:, : self.generated * size]  # (B, G * k * H)
        else:
            context = maps.masked_fill(~mask.unsqueeze(-1), -math.inf).amax(dim=1)  # (B, F)
            if self.fill == "dense":
                return self.project(context).unflatten(1, (-1, width)) / scale  # type: ignore[misc]
            results = self.project(context.unsqueeze(1))  # type: ignore[misc]  # (B, G or G * parts, F)
            by_filter = results.unflatten(1, (self.generated, -1)).flatten(2)  # (B, G, F or at least k * H)
            times = -(-size // by_filter.shape[2])
            made = by_filter.repeat(1, 1, times)[:, :, :size]  # (B, G, k * H)
        by_piece = made.reshape(-1, self.generated, self.kernel, width).transpose(1, 2)  # (B, k, G, H)
        return by_piece.flatten(1, 2) / scale
