"""`compress`: BERTVision's "adapter pooler". Every layer is squeezed to a few numbers, and all are read at once."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from bertvision.backbone.states import States
from bertvision.heads.base import CACHE, Count, Head, Impossible, in_slices, register
from bertvision.heads.pool import LayerPool


class Squeeze(nn.Module):
    """GELU(D x + b), H -> A on every (token, layer) vector: one D for all layers (shared) or one per layer.

    (B, L, S, H) -> (B, L, S, A). Parameters: (shared ? 1 : L) * (H + 1) * A.
    """

    def __init__(self, layers: int, width: int, size: int, shared: bool = True) -> None:
        super().__init__()
        copies = 1 if shared else layers
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(copies, size, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(copies, 1, size).uniform_(-bound, bound))

    def forward(self, layers: Tensor) -> Tensor:
        if len(self.weight) == 1:
            return gelu(linear(layers, self.weight[0], self.bias[0, 0]))  # one flat product: (B * L * S, H) x (H, A)
        return gelu(torch.matmul(layers, self.weight.mT).add_(self.bias))


@register("compress")
class Compress(Head):
    """Compression: logits = W [GELU(D h_0); ...; GELU(D h_L-1)] + b, D: H -> size.

    shared: one D for all layers, or one per layer. skip: the last layer's states are concatenated before W.
    pool_first: D is applied once, to the mix of all layers (weights = "learned" or "mean", see `pool`). beside: that
    mix is concatenated before W. tokens (labels, score): "cls" reads [CLS]; "all" reads every real token and takes the
    mean before W.
    Parameters: (shared ? 1 : L) * (H + 1) * A + outputs * (L * A + (skip + beside) * H + 1), L = 1 with pool_first;
    plus L + 1 for a learned mix, with pool_first or beside.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        size: Count = 386,
        shared: bool = True,
        skip: bool = False,
        pool_first: bool = False,
        beside: bool = False,
        weights: Literal["learned", "mean"] = "learned",
        tokens: Literal["cls", "all"] = "cls",
        positions: Literal["all", "cls"] = "all",
    ) -> None:
        super().__init__()
        if tokens == "all" and positions == "all":
            raise Impossible("tokens", "every token is read already; leave it out")
        if weights == "mean" and not (pool_first or beside):
            raise Impossible("weights", "there is no mix of layers without pool_first or beside")
        self.skip, self.pool_first, self.beside = skip, pool_first, beside
        if tokens == "all":
            self.reduce = "mean"  # W is linear: the mean of the logits is W of the mean of the features
        self.pool = LayerPool(layers, weights) if pool_first or beside else None
        seen = 1 if pool_first else layers
        self.squeeze = Squeeze(seen, width, size, shared)
        self.readout = nn.Linear(seen * size + (skip + beside) * width, outputs)

    def forward(self, states: States) -> Tensor:
        layers = states.layers  # (B, L, S, H)
        pooled = None if self.pool is None else self.pool(layers)  # (B, S, H)
        squeezed = pooled.unsqueeze(1) if self.pool_first and pooled is not None else layers  # (B, 1 or L, S, H)
        by_layer, rest = self._readout_parts()
        _, depth, tokens, _ = squeezed.shape

        def read_squeezed(part: Tensor) -> Tensor:
            return torch.matmul(self.squeeze(part), by_layer).sum(dim=1)  # (b, L, S, outputs) -> (b, S, outputs)

        # One example at a time where each layer has its own D: a larger batch would make a copy of all D per example.
        floats = depth * tokens * self.squeeze.weight.shape[1] if len(self.squeeze.weight) == 1 else CACHE
        logits = in_slices(read_squeezed, floats, squeezed) + self.readout.bias
        beside = [layers[:, -1]] if self.skip else []
        if self.beside and pooled is not None:
            beside.append(pooled)
        for one, weight in zip(beside, rest, strict=True):
            logits = logits + linear(one, weight)
        return logits

    def layer_weights(self) -> Tensor | None:
        """The norm of what W reads from each layer, as shares; the learned mix with pool_first."""
        if self.pool_first and self.pool is not None:
            return self.pool.layer_weights()
        norms = self._readout_parts()[0].detach().flatten(1).norm(dim=1)  # (L,)
        return norms / norms.sum()

    def _readout_parts(self) -> tuple[Tensor, list[Tensor]]:
        """W as it is applied: (L, A, outputs) for the squeezed layers, and (outputs, H) for each state beside them.

        Reading layer by layer and adding up spares a transposed copy of all squeezed states.
        """
        total = self.readout.in_features
        _, size, width = self.squeeze.weight.shape
        extra = (self.skip + self.beside) * width
        squeezed, rest = self.readout.weight.split([total - extra, extra], dim=1)
        by_layer = squeezed.unflatten(1, (-1, size)).permute(1, 2, 0)  # (L, A, outputs)
        return by_layer, list(rest.split(width, dim=1)) if extra else []
