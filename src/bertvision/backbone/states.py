"""States: the hidden states of all layers of a batch, the one type that backbone, store and heads exchange."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class States:
    """What an encoder thought of a batch, layer by layer.

    layers: (batch, layer, token, width). The last index of `layer` is always the encoder's output; where all
        layers are kept, index 0 is the embedding output. A source may deliver fewer: only the last layer, or
        only the [CLS] column (token = 1). Heads therefore count layers from the end and [CLS] as token 0.
    mask: (batch, token), True where there is a real token. Padding stands at the end of a row.
    """

    layers: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        batch, _, tokens, _ = self.layers.shape
        if self.mask.shape != (batch, tokens) or self.mask.dtype != torch.bool:
            raise ValueError(f"mask {tuple(self.mask.shape)} {self.mask.dtype} does not fit {tuple(self.layers.shape)}")

    def detach(self) -> "States":
        """The same states cut off from the backbone's graph, for heads that must not move it."""
        return States(self.layers.detach(), self.mask)
