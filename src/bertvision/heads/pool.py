"""`pool`: one weight per layer. The smallest head that reads them all, and BERTVision's winner on classification."""

from typing import Literal

import torch
from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.heads.registry import Head, register


class LayerPool(nn.Module):
    """gamma * sum_l softmax(w)_l x_l; L + 1 parameters, an equal mix at the start. `mean`: the plain average, none.

    (..., L, T, H) -> (..., T, H): layers stand third from the end.
    """

    def __init__(self, layers: int, weights: Literal["learned", "mean"] = "learned") -> None:
        super().__init__()
        self.learned = weights == "learned"
        if self.learned:
            self.weights = nn.Parameter(torch.zeros(layers))
            self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        if not self.learned:
            return layers.mean(dim=-3)
        mix = self.gamma * self.weights.softmax(dim=0)  # (L,)
        return torch.einsum("l,...lth->...th", mix, layers)


@register("pool")
class Pool(Head):
    """Learned pooling: logits = W (gamma * sum_l softmax(w)_l h_l) + b; with weights = "mean", W mean_l(h_l) + b.

    Parameters: L + 1 (learned) or 0 (mean), and H * outputs + outputs.
    """

    def __init__(
        self, layers: int, width: int, outputs: int, *, task: str, weights: Literal["learned", "mean"] = "learned"
    ) -> None:
        super().__init__()
        self.task = task
        self.pool = LayerPool(layers, weights)
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        layers = states.layers if self.task == "spans" else states.layers[:, :, :1]  # [CLS] only: (B, L, 1, H)
        pooled = self.pool(layers)  # (B, S, H)
        return self.readout(pooled if self.task == "spans" else pooled[:, 0])
