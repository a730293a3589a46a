"""States: the hidden states of all layers of a batch, the one type that backbone, store and heads exchange."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bertvision.errors import UserError

Reads = Literal["all", "last"] | tuple[int, ...]  # which layers; their numbers rise, 0 is the embedding output


@dataclass(frozen=True, slots=True)
class States:
    """What an encoder thought of a batch, layer by layer.

    layers: (batch, layer, token, width). Where all layers are kept, index 0 is the embedding output and the last is
        the encoder's. A source may deliver fewer: only the last layer, only chosen ones, or only the [CLS] column
        (token = 1). Heads that read the last layer therefore count from the end, those that read chosen ones ask for
        them by `layer`, and [CLS] is token 0.
    mask: (batch, token), True where there is a real token. Padding stands at the end of a row.
    numbers: which layers these are; None: all of them.
    """

    layers: Tensor
    mask: Tensor
    numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        batch, _, tokens, _ = self.layers.shape
        if self.mask.shape != (batch, tokens) or self.mask.dtype != torch.bool:
            raise ValueError(f"mask {tuple(self.mask.shape)} {self.mask.dtype} does not fit {tuple(self.layers.shape)}")

    def detach(self) -> "States":
        """The same states cut off from the backbone's graph, for heads that must not move it."""
        return States(self.layers.detach(), self.mask, self.numbers)

    def cls(self) -> "States":
        """The states of [CLS] alone, (batch, layer, 1, width)."""
        return States(self.layers[:, :, :1], self.mask[:, :1], self.numbers)

    def layer(self, number: int) -> Tensor:
        """The states of one layer, (batch, token, width), whichever others are here; 0 is the embedding output."""
        known = self.numbers or range(self.layers.shape[1])
        if number not in known:
            raise ValueError(f"layer {number} is not here, only {list(known)}: a head must declare what it reads")
        return self.layers[:, known.index(number)]


def numbered(reads: Reads, depth: int) -> tuple[int, ...]:
    """The numbers of the layers that are read of an encoder with `depth` of them; UserError if it has not all."""
    if reads == "all":
        return tuple(range(depth))
    if reads == "last":
        return (depth - 1,)
    if not reads or any(not 0 <= number < depth for number in reads) or list(reads) != sorted(set(reads)):
        raise UserError(f"layers {spelt(reads)}: name some of 0 to {depth - 1}, each once, in rising order")
    return tuple(reads)


def together(several: Iterable[Reads], depth: int) -> Reads:
    """What is read by any of several; the last layer if there are none."""
    found = tuple(sorted({number for reads in several for number in numbered(reads, depth)}))
    if len(found) == depth:
        return "all"
    return found if found and found != (depth - 1,) else "last"


def spelt(reads: Reads) -> str:
    """`all`, `last` or `0,6,12`."""
    return reads if isinstance(reads, str) else ",".join(map(str, reads))
