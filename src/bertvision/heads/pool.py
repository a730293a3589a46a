"""`last`, the read-out of a fine-tuned BERT; `pool`, one weight per layer; `probe`, one layer (edge probing)."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from bertvision.backbone.states import POOLED, Reads, States
from bertvision.heads.head import Head, Impossible, Places, register


class LayerPool(nn.Module):
    """gamma * sum_l softmax(w)_l x_l; L + 1 parameters, an equal mix at the start. `mean`: the plain average, none.

    (B, L, S, H) -> (B, S, H).
    """

    def __init__(self, layers: int, weights: Literal["learned", "mean"] = "learned") -> None:
        super().__init__()
        self.learned = weights == "learned"
        if self.learned:
            self.weights = nn.Parameter(torch.zeros(layers))
            self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        batch, depth, tokens, width = layers.shape
        equal = layers.new_full((depth,), 1 / depth)
        mix = self.gamma * self.weights.softmax(dim=0) if self.learned else equal  # (L,)
        # A batch of row vectors times matrices: three times faster than einsum, which moves the layers last first.
        mixed = torch.bmm(mix.expand(batch, 1, depth), layers.flatten(2))  # (B, 1, S * H)
        return mixed.view(batch, tokens, width)

    def layer_weights(self) -> Tensor | None:
        """softmax(w), (L,); None for the plain average."""
        return self.weights.detach().softmax(dim=0) if self.learned else None


def check_cls(positions: Literal["all", "cls"]) -> None:
    """The pooler's output is one vector per window."""
    if positions == "all":
        raise Impossible("pooled", "the pooler reads [CLS] alone, and this head every token; leave it out")


@register("last")
class Last(Head):
    """logits = W h_L + b, on the last layer.

    pooled (labels, score): W reads the encoder's own pooler, tanh(P h_L + p) of [CLS], which trains with the encoder.
    Parameters: H * outputs + outputs; the pooler's are the encoder's.
    """

    reads: Reads = "last"

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        pooled: bool = False,
        positions: Literal["all", "cls"] = "all",
    ) -> None:
        super().__init__()
        if pooled:
            check_cls(positions)
            self.reads = (POOLED,)
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        return self.readout(states.layers[:, -1])


@register("pool")
class Pool(Head):
    """Learned pooling: logits = W (gamma * sum_l softmax(w)_l h_l) + b; with weights = "mean", W mean_l(h_l) + b.

    lowest: the layers below it are left out. Parameters: the number of layers + 1 (learned) or 0 (mean), and
    H * outputs + outputs.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        weights: Literal["learned", "mean"] = "learned",
        lowest: Places = 0,
    ) -> None:
        super().__init__()
        if lowest >= layers:
            raise Impossible("lowest", f"{lowest} is too high: the encoder has the layers 0 to {layers - 1}")
        self.lowest = lowest
        if lowest:
            self.reads = tuple(range(lowest, layers))
        self.pool = LayerPool(layers - lowest, weights)
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        return self.readout(self.pool(states.layers))

    def layer_weights(self) -> Tensor | None:
        weights = self.pool.layer_weights()
        return None if weights is None else pad(weights, (self.lowest, 0))


@register("probe")
class Probe(Head):
    """logits = W h_layer + b, on one layer; 0 is the embedding output.

    cumulative: W reads the learned mix of the layers 0 ... layer (see `pool`), as in Tenney's cumulative scoring: what
    a layer adds is its score minus that of the layer before.
    Parameters: H * outputs + outputs; and layer + 2 with cumulative.
    """

    def __init__(self, layers: int, width: int, outputs: int, *, layer: Places = 0, cumulative: bool = False) -> None:
        super().__init__()
        if layer >= layers:
            raise Impossible("layer", f"{layer} is too high: the encoder has the layers 0 to {layers - 1}")
        self.layer, self.layers = layer, layers
        self.reads = tuple(range(layer + 1)) if cumulative else (layer,)
        self.pool = LayerPool(layer + 1) if cumulative else None
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        return self.readout(states.layer(self.layer) if self.pool is None else self.pool(states.layers))

    def layer_weights(self) -> Tensor | None:
        """The learned mix; all of it on one layer without cumulative."""
        weights = torch.ones(1) if self.pool is None else self.pool.layer_weights()
        below = 0 if self.pool else self.layer
        return None if weights is None else pad(weights, (below, self.layers - 1 - self.layer))
