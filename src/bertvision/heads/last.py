"""`last`: the encoder's own read-out, the head every fine-tuned BERT carries."""

from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.heads.registry import Head, register


@register("last")
class Last(Head):
    """logits = W h_L + b, on every token of the last layer (spans) or on its [CLS] (labels, score).

    Parameters: H * outputs + outputs.
    """

    reads = "last"

    def __init__(self, layers: int, width: int, outputs: int, *, task: str) -> None:
        super().__init__()
        self.task = task
        self.readout = nn.Linear(width, outputs)

    def forward(self, states: States) -> Tensor:
        last = self.looks_at(states)[:, -1]  # (B, S, H)
        return self.per_task(self.readout(last))
