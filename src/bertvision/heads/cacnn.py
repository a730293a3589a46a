"""`cacnn`: Hulburd's context-aware CNN. The sequence itself makes the filters that it is then read with."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from bertvision.backbone.states import States
from bertvision.heads.base import Count, Head, Impossible, Odd, register

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


@register("cacnn")
class ContextCNN(Head):
    """logits = W [h_t; GELU(f * h)_t] + b, filters f made for each example from its own last-layer states h.

    (1) m = GELU(K * h), a convolution of size k over the tokens; (2) c = max_t m_t, the context; (3) f = (P c + p),
    `generated` filters of k x H; (4) f * h, convolved with the same states; (5) concatenated with h and read out.
    context = false: no c; K has H filters, the real tokens' maps m are averaged in generated * k equal parts, and
    each k consecutive averages are one filter. In both, f is divided by sqrt(k H). Sequences end where the mask ends.
    Parameters, F = filters, G = generated: F * (k H + 1) + (F + 1) * G k H, or H * (k H + 1) without context;
    and outputs * (H + G + 1).
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
        filters: Count = FILTERS,
        generated: Count = 16,
        kernel: Odd = 3,
    ) -> None:
        super().__init__()
        if not context and filters != FILTERS:
            raise Impossible("filters", "only with context = true; without it, they are as many as the width")
        self.generated, self.kernel = generated, kernel
        maps = filters if context else width
        bound = 1 / math.sqrt(kernel * width)
        self.weight = nn.Parameter(torch.empty(kernel * maps, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(maps))
        self.project = nn.Linear(filters, generated * kernel * width) if context else None
        self.readout = nn.Linear(width + generated, outputs)

    def forward(self, states: States) -> Tensor:
        last = states.layers[:, -1].masked_fill(~states.mask.unsqueeze(-1), 0)  # (B, S, H)
        maps = gelu(slide(linear(last, self.weight).unflatten(2, (self.kernel, -1))) + self.bias)  # (B, S, F or H)
        filters = self.filters(maps, states.mask)  # (B, k * G, H)
        products = torch.bmm(last, filters.mT).unflatten(2, (self.kernel, -1))  # (B, S, k, G)
        found = gelu(slide(products))  # (B, S, G)
        return self.readout(torch.cat([last, found], dim=-1))

    def filters(self, maps: Tensor, mask: Tensor) -> Tensor:
        """Each example's own filters: (B, k * G, H), piece by piece."""
        width = self.weight.shape[1]
        if self.project is None:
            parts = parts_mean(maps, mask, self.generated * self.kernel)  # (B, G * k, H), k neighbours make a filter
            pieces = parts.unflatten(1, (self.generated, self.kernel)).transpose(1, 2).flatten(1, 2)
        else:
            context = maps.masked_fill(~mask.unsqueeze(-1), -math.inf).amax(dim=1)  # (B, F)
            pieces = self.project(context).unflatten(1, (-1, width))
        return pieces / math.sqrt(self.kernel * width)
