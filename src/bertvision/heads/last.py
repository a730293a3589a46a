"""`last`: the encoder's own read-out, the head every fine-tuned BERT carries."""

from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.heads.base import Head, register


@register("last")
class Last(Head):
    """logits = W h_L + b, on the last layer.

    Parameters: H * outputs + outputs.
    """

    reads = "last"

    def __init__(self, layers: int, width: int, outputs: int) -> None:
        super().__init__()
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        return self.readout(states.layers[:, -1])
