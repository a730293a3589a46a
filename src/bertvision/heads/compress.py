"""`compress`: BERTVision's "adapter pooler". Every layer is squeezed to a few numbers, and all are read at once."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad

from bertvision.backbone.states import States
from bertvision.errors import UserError
from bertvision.heads.head import CACHE, Count, Head, Impossible, Places, in_slices, register
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
    mix is concatenated before W. squeezed_mix: GELU(D' mix) is, with a D' of its own (BERTVision's "Tenney"). tokens
    (labels, score): "cls" reads [CLS]; "all" reads every real token and takes the mean before W, or with places = T
    (data.max_length or more) flattens them: each of the T token places has a W of its own, and padding counts zero.
    Parameters: (shared ? 1 : L) * (H + 1) * A + outputs * (T * (L * A + (skip + beside) * H) + 1), L = 1 with
    pool_first, T = 1 without places; plus L + 1 for a learned mix; plus (H + 1 + T * outputs) * A for squeezed_mix.
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
        squeezed_mix: bool = False,
        weights: Literal["learned", "mean"] = "learned",
        tokens: Literal["cls", "all"] = "cls",
        places: Places = 0,
        positions: Literal["all", "cls"] = "all",
    ) -> None:
        super().__init__()
        mixes = pool_first or beside or squeezed_mix
        if tokens == "all" and positions == "all":
            raise Impossible("tokens", "every token is read already; leave it out")
        if weights == "mean" and not mixes:
            raise Impossible("weights", "there is no mix of layers without pool_first, beside or squeezed_mix")
        if places and tokens != "all":
            raise Impossible("places", 'only with tokens = "all"')
        self.skip, self.pool_first, self.beside, self.places = skip, pool_first, beside, places
        if tokens == "all":  # W is linear: the mean of the logits is W of the mean of the features
            self.reduce = "sum" if places else "mean"
        self.pool = LayerPool(layers, weights) if mixes else None
        seen = 1 if pool_first else layers
        self.squeeze = Squeeze(seen, width, size, shared)
        self.second = Squeeze(1, width, size) if squeezed_mix else None
        self.sizes = [seen * size, *([size] if squeezed_mix else []), *([width] * (skip + beside))]
        self.readout = nn.Linear(max(1, places) * sum(self.sizes), outputs)

    def forward(self, states: States) -> Tensor:
        layers = states.layers  # (B, L, S, H)
        mix = None if self.pool is None else self.pool(layers)  # (B, S, H)
        squeezed = mix.unsqueeze(1) if self.pool_first and mix is not None else layers  # (B, 1 or L, S, H)
        _, depth, tokens, _ = squeezed.shape
        by_layer, rest = self._readout_parts(tokens)

        def read_squeezed(part: Tensor) -> Tensor:
            if self.places:
                return torch.einsum("blsa,lsao->bso", self.squeeze(part), by_layer)
            return torch.matmul(self.squeeze(part), by_layer).sum(dim=1)  # (b, L, S, outputs) -> (b, S, outputs)

        # One example at a time where each layer has its own D: a larger batch would make a copy of all D per example.
        floats = depth * tokens * self.squeeze.weight.shape[1] if len(self.squeeze.weight) == 1 else CACHE
        bias: Tensor = self.readout.bias
        if self.places:  # rows are added up: the bias counts once, at [CLS]
            bias = pad(bias[None], (0, 0, 0, tokens - 1))  # (S, outputs)
        logits = in_slices(read_squeezed, floats, squeezed) + bias
        for part, weight in zip(self._further_inputs(layers, mix), rest, strict=True):
            logits = logits + (torch.einsum("bsh,sho->bso", part, weight) if self.places else linear(part, weight))
        return logits

    def layer_weights(self) -> Tensor | None:
        """The norm of what W reads from each layer, as shares; the learned mix with pool_first."""
        if self.pool_first and self.pool is not None:
            return self.pool.layer_weights()
        norms = self._readout_parts(self.places)[0].detach().flatten(1).norm(dim=1)  # (L,)
        return norms / norms.sum()

    def _further_inputs(self, layers: Tensor, mix: Tensor | None) -> list[Tensor]:
        """The further inputs of W beside the squeezed layers, (B, S, size or H) each."""
        parts = []
        if self.second is not None and mix is not None:
            parts.append(self.second(mix.unsqueeze(1)).squeeze(1))  # (B, S, size)
        if self.skip:
            parts.append(layers[:, -1])  # (B, S, H)
        if self.beside and mix is not None:
            parts.append(mix)  # (B, S, H)
        return parts

    def _readout_parts(self, tokens: int) -> tuple[Tensor, list[Tensor]]:
        """W as it is applied: (L, A, outputs) for the squeezed layers, and (outputs, H) for each part beside them.

        With places, of the first S of them: (L, S, A, outputs), and (S, H, outputs). Reading layer by layer and adding
        up spares a transposed copy of all squeezed states.
        """
        size = self.squeeze.weight.shape[1]
        if not self.places:
            squeezed, *rest = self.readout.weight.split(self.sizes, dim=1)
            return squeezed.unflatten(1, (-1, size)).permute(1, 2, 0), rest
        if tokens > self.places:
            raise UserError(
                f"head.places: {tokens} tokens for {self.places} places; give data.max_length = {self.places}"
            )
        by_place = self.readout.weight.unflatten(1, (self.places, -1))[:, :tokens]  # (outputs, S, features)
        whole = by_place.permute(1, 2, 0)  # (S, features, outputs)
        squeezed, *rest = whole.split(self.sizes, dim=1)
        return squeezed.unflatten(1, (-1, size)).transpose(0, 1), rest
