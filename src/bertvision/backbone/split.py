"""A backbone in two parts: the frozen blocks below, run once, and the trained blocks above, fed with their states."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import blocks, named_blocks, shares_blocks
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
        super().__init__(whole.model, whole.tokenizer, whole.name)
        self.first = first
        self.layers = first + 1

    @property
    def fingerprint(self) -> str:
        """Of the lower blocks alone: those above may train."""
        with _only(self.model, slice(self.first)):
            return super().fingerprint

    def encode(self, batch: Batch, reads: Reads = "all") -> list[Tensor]:
        """States (B, S, H) of each layer up to the first trained block, or of some of them."""
        with _only(self.model, slice(self.first)) as kept, _watched(kept) as seen:
            super().encode(batch, "last")
        return [seen[number] for number in numbered(reads, self.layers)]


class Upper:
    """The blocks of a backbone from `first` on."""

    def __init__(self, whole: Backbone, first: int) -> None:
        self.whole, self.first = whole, first

    def __call__(self, batch: Batch, below: States) -> States:
        """The states (B, L, S, H) of all layers from those of `Lower`, with gradients of the blocks above.

        below: all layers of `Lower`, or only its last; then the result is the last layer alone, (B, 1, S, H).
        """
        if self.first == len(blocks(self.whole.model)):
            return below
        with _only(self.whole.model, slice(self.first, None)) as kept, _watched(kept, below.layers[:, -1]) as seen:
            last = self.whole.encode(batch, "last")
        if below.layers.shape[1] == 1:
            return States(last[0].unsqueeze(1), batch.mask, (self.whole.layers - 1,))
        own = torch.stack([*seen[1:-1], *last], dim=1)  # (B, blocks above, S, H)
        return States(torch.cat([below.layers, own], dim=1), batch.mask)


@torch.no_grad()
def split(whole: Backbone, first: int, batch: Batch) -> tuple[Lower, Upper]:
    """Both parts, in eval mode; UserError unless together they give the states of the whole on `batch`."""
    name = type(whole.model).__name__
    # ALBERT calls its one block, or its groups of blocks, by number
    grouped = any(isinstance(part, nn.ModuleList) for block in blocks(whole.model) for part in block.modules())
    if grouped or shares_blocks(whole.model):
        raise UserError(
            f"finetune.lower: the layers of {name} share their weights, so there is no frozen part below to store; "
            'use lower = "live"'
        )
    whole.eval()
    lower, upper = Lower(whole, first), Upper(whole, first)
    wanted = whole(batch)
    real = batch.mask[:, None, :, None]
    difference = ((upper(batch, lower(batch)).layers - wanted.layers) * real).abs().max()
    if not difference <= CLOSE * wanted.layers.abs().max():
        raise UserError(f'finetune.lower: {name} cannot be entered at block {first}; use lower = "live"')
    return lower, upper


@contextmanager
def _only(model: PreTrainedModel, part: slice) -> Iterator[list[nn.Module]]:
    """Inside, the model has only some of its blocks, which are yielded; embeddings, masks and positions stay."""
    own = blocks(model)
    name = named_blocks(model)[0][0].rpartition(".")[0]
    whole = model.get_submodule(name)
    try:
        model.set_submodule(name, nn.ModuleList(own[part]))
        yield own[part]
    finally:
        model.set_submodule(name, whole)


@contextmanager
def _watched(own: list[nn.Module], enters: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Yields a list that receives the input of the first of these blocks and the output of each: (B, S, H) tensors.

    enters: replaces the input of the first block.
    """
    seen: list[Tensor] = []

    def before(block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(args[0] if enters is None else enters)
        return (seen[0], *args[1:])

    def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    hooks = [own[0].register_forward_pre_hook(before), *(block.register_forward_hook(after) for block in own)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
