"""A backbone in two parts: the frozen blocks below, run once, and the trained blocks above, fed with their states."""

import torch
from torch import Tensor

from bertvision.backbone.anatomy import are_separable, blocks, only_blocks, watched
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, States, numbered
from bertvision.data.batches import Batch
from bertvision.errors import UserError

CLOSE = 1e-3  # rounding error allowed, relative to the states; a wrong order of parts differs by far more


class Lower(Backbone):
    """The embeddings and the first blocks of a backbone, sharing its modules; itself a backbone of fewer layers.

    The last of its states is the input of block `first`.
    """

    def __init__(self, whole: Backbone, first: int) -> None:
        super().__init__(whole.model, whole.tokenizer, whole.name, whole.runtime)
        self.first = first
        self.layers = first + 1

    @property
    def fingerprint(self) -> str:
        """Of the lower blocks alone: those above may train."""
        with only_blocks(self.model, slice(self.first)):
            return super().fingerprint

    def encode(self, batch: Batch, reads: Reads = "all") -> list[Tensor]:
        """States (B, S, H) of each layer up to the first trained block, or of some of them."""
        return self.stopped(batch, numbered(reads, self.layers))


class Upper:
    """The blocks of a backbone from `first` on, up to `stop`, which is left out; None: up to the last."""

    def __init__(self, whole: Backbone, first: int, stop: int | None = None) -> None:
        self.whole, self.first, self.stop = whole, first, stop

    def __call__(self, batch: Batch, below: States) -> States:
        """The states (B, L, S, H) of all layers from those of `Lower`, with gradients of the blocks above.

        below: all layers of `Lower`, or only its last; then the result is the last layer alone, (B, 1, S, H).
        """
        if self.first == (self.stop or len(blocks(self.whole.model))):
            return below
        upper = entered(self.whole, batch, below.layers[:, -1], self.first, self.stop)
        if below.layers.shape[1] == 1:
            return States(upper[-1].unsqueeze(1), batch.mask, (self.first + len(upper),))
        layers = torch.cat([below.layers, torch.stack(upper, dim=1)], dim=1)  # (B, L, S, H)
        return States(layers, batch.mask, tuple(range(layers.shape[1])) if self.stop else None)


def entered(whole: Backbone, batch: Batch, states: Tensor, first: int, stop: int | None = None) -> list[Tensor]:
    """The outputs of the blocks from `first` on, (B, S, H) each, where `states` (B, S, H) enter the first of them.

    stop: the first block that does not run; None: all do.
    """
    with only_blocks(whole.model, slice(first, stop)) as kept, watched(kept, states) as seen:
        last = whole.encode(batch, "last")
    is_last = stop is None or stop >= whole.layers - 1  # above the last block there may be a norm
    return [*seen[1:-1], *last] if is_last else seen[1:]


@torch.no_grad()
def split(whole: Backbone, first: int, batch: Batch, stop: int | None = None) -> tuple[Lower, Upper]:
    """Both parts, in eval mode; UserError unless together they give the states of the whole on `batch`.

    stop: the first block that is not used.
    """
    name = type(whole.model).__name__
    if not are_separable(whole.model):
        raise UserError(
            f"finetune.lower: the layers of {name} share their weights, so there is no frozen part below to store; "
            'use lower = "live"'
        )
    whole.eval()
    lower, upper = Lower(whole, first), Upper(whole, first, stop)
    wanted = whole(batch, tuple(range(stop + 1)) if stop else "all")
    real = batch.mask[:, None, :, None]
    difference = ((upper(batch, lower(batch)).layers - wanted.layers) * real).abs().max()
    if not difference <= CLOSE * wanted.layers.abs().max():
        raise UserError(f'finetune.lower: {name} cannot be entered at block {first}; use lower = "live"')
    return lower, upper
