"""`probe`: the read-out of one layer, or of all layers up to one, to see which layer knows what (edge probing)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from bertvision.backbone.states import States
from bertvision.heads.base import Head, Impossible, Places, register
from bertvision.heads.pool import LayerPool


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
        own = torch.ones(1) if self.pool is None else self.pool.layer_weights()
        below = 0 if self.pool else self.layer
        return None if own is None else pad(own, (below, self.layers - 1 - self.layer))
