"""A backbone in two: the frozen blocks below, run once, and the trained ones above, which start from their states."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import blocks, shares_blocks
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, States, numbered
from bertvision.data.batches import Batch
from bertvision.errors import UserError

CLOSE = 1e-3  # of the size of the states: what rounding may differ by, while a wrong order of parts differs by far more


class Lower(Backbone):
    """The embeddings and the first blocks of a backbone, whose modules it shares; itself a backbone of fewer layers.

    The last of its states is what enters block `first`.
    """

    def __init__(self, whole: Backbone, first: int) -> None:
        super().__init__(whole.model, whole.tokenizer, whole.name)
        _refuse_inseparable(whole.model)
        self.first = first
        self.layers = first + 1

    @property
    def fingerprint(self) -> str:
        """Of the lower blocks alone: those above may train."""
        with _only(self.model, slice(self.first)):
            return super().fingerprint

    def encode(self, batch: Batch, reads: Reads = "all") -> list[Tensor]:
        """States (B, S, H) of each layer up to the first trained block, or of some; the last of them enter it."""
        with _only(self.model, slice(self.first)) as kept, _watched(kept) as seen:
            super().encode(batch, "last")
        return [seen[number] for number in numbered(reads, self.layers)]


class Upper:
    """The blocks of a backbone from `first` on. Called with a batch and the states below, it gives those of all."""

    def __init__(self, whole: Backbone, first: int) -> None:
        _refuse_inseparable(whole.model)
        self.whole, self.first = whole, first

    def __call__(self, batch: Batch, below: States) -> States:
        """below: what `Lower` gave of the batch, all its layers or the last. The states (B, L, S, H) of all layers
        where all below are given, else those of the last one, (B, 1, S, H); with gradients of the blocks above."""
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
    """Both parts, put into eval mode; UserError unless on `batch` they give together what the whole gives."""
    whole.eval()
    lower, upper = Lower(whole, first), Upper(whole, first)
    wanted = whole(batch)
    real = batch.mask[:, None, :, None]
    difference = ((upper(batch, lower(batch)).layers - wanted.layers) * real).abs().max()
    if not difference <= CLOSE * wanted.layers.abs().max():
        raise UserError(
            f'finetune.lower: {type(whole.model).__name__} cannot be entered at block {first}; use lower = "live"'
        )
    return lower, upper


def _refuse_inseparable(model: PreTrainedModel) -> None:
    """ALBERT: its one block, or its groups of blocks, are called by number from within."""
    grouped = any(isinstance(part, nn.ModuleList) for block in blocks(model) for part in block.modules())
    if grouped or shares_blocks(model):
        raise UserError(
            f"finetune.lower: the layers of {type(model).__name__} share their weights, so there is no frozen part "
            'below to store; use lower = "live"'
        )


@contextmanager
def _only(model: PreTrainedModel, part: slice) -> Iterator[list[nn.Module]]:
    """Inside, the model consists of some of its blocks; yields these. It keeps its embeddings, masks and positions."""
    own = blocks(model)
    name, whole = next((name, module) for name, module in model.named_modules() if _lists(module, own))
    try:
        model.set_submodule(name, nn.ModuleList(own[part]))
        yield own[part]
    finally:
        model.set_submodule(name, whole)


def _lists(module: nn.Module, members: list[nn.Module]) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) == len(members) and module[0] is members[0]


@contextmanager
def _watched(own: list[nn.Module], enters: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Yields a list that fills with what enters the first of these blocks and what leaves each: (B, S, H) tensors.

    enters: goes into the first block in place of what the model would give it.
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
