"""`compress`: BERTVision's "adapter pooler". Every layer is squeezed to a few numbers, and all are read at once."""

import math

import torch
from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.heads.pool import LayerPool
from bertvision.heads.registry import Head, register


class Squeeze(nn.Module):
    """GELU(W x + b), H -> A on every (token, layer) vector: one W for all layers (shared) or one per layer.

    (B, L, S, H) -> (B, S, L * A).
    """

    def __init__(self, layers: int, width: int, size: int, shared: bool) -> None:
        super().__init__()
        copies = 1 if shared else layers
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(copies, width, size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(copies, 1, size).uniform_(-bound, bound))

    def forward(self, layers: Tensor) -> Tensor:
        squeezed = nn.functional.gelu(torch.matmul(layers, self.weight) + self.bias)  # (B, L, S, A)
        return squeezed.transpose(1, 2).flatten(2)  # (B, S, L * A)


@register("compress")
class Compress(Head):
    """Compression: logits = W [GELU(D h_0); ...; GELU(D h_L-1)] + b, D: H -> size.

    shared: one D for all layers, or one per layer. skip: the last layer's states are concatenated before W.
    pool_first: D is applied once, to the learned mix of all layers (see `pool`).
    Parameters: (shared ? 1 : L) * (H + 1) * A + outputs * (L * A + skip * H + 1); with pool_first, L = 1 plus L + 1.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        task: str,
        size: int = 386,
        shared: bool = True,
        skip: bool = False,
        pool_first: bool = False,
    ) -> None:
        super().__init__()
        self.task, self.skip = task, skip
        self.pool = LayerPool(layers) if pool_first else None
        seen = 1 if pool_first else layers
        self.squeeze = Squeeze(seen, width, size, shared)
        self.readout = nn.Linear(seen * size + (width if skip else 0), outputs)

    def forward(self, states: States) -> Tensor:
        layers = states.layers if self.task == "spans" else states.layers[:, :, :1]  # [CLS] only: (B, L, 1, H)
        seen = layers if self.pool is None else self.pool(layers).unsqueeze(1)  # (B, 1, S, H)
        features = self.squeeze(seen)  # (B, S, L * A)
        if self.skip:
            features = torch.cat([features, layers[:, -1]], dim=-1)  # (B, S, L * A + H)
        return self.readout(features if self.task == "spans" else features[:, 0])
