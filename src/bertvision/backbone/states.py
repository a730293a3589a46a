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
    """Hidden states of a batch, all layers or some.

    layers: (batch, layer, token, width). With all layers, index 0 is the embedding output and -1 the encoder's output.
        A source may deliver fewer: the last layer, chosen ones (read them with `layer`), or [CLS] alone (token = 1).
    mask: (batch, token), True for real tokens. Padding is at the end of a row.
    numbers: the layers' numbers; None: all of them.
    """

    layers: Tensor
    mask: Tensor
    numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        batch, _, tokens, _ = self.layers.shape
        if self.mask.shape != (batch, tokens) or self.mask.dtype != torch.bool:
            raise ValueError(f"mask {tuple(self.mask.shape)} {self.mask.dtype} does not fit {tuple(self.layers.shape)}")

    def detach(self) -> "States":
        """The same states without gradients to the backbone."""
        return States(self.layers.detach(), self.mask, self.numbers)

    def cls(self) -> "States":
        """The states of [CLS] alone, (batch, layer, 1, width)."""
        return States(self.layers[:, :, :1], self.mask[:, :1], self.numbers)

    def layer(self, number: int) -> Tensor:
        """The states of layer `number`, (batch, token, width); 0 is the embedding output."""
        known = self.numbers or range(self.layers.shape[1])
        if number not in known:
            raise ValueError(f"layer {number} is not among {list(known)}: a head must declare what it reads")
        return self.layers[:, known.index(number)]


def numbered(reads: Reads, depth: int) -> tuple[int, ...]:
    """The layer numbers in `reads`, for an encoder with `depth` layers; UserError if it lacks one."""
    if reads == "all":
        return tuple(range(depth))
    if reads == "last":
        return (depth - 1,)
    if not reads or any(not 0 <= number < depth for number in reads) or list(reads) != sorted(set(reads)):
        raise UserError(f"layers {spelt(reads)}: name some of 0 to {depth - 1}, each once, in rising order")
    return tuple(reads)


def together(several: Iterable[Reads], depth: int) -> Reads:
    """The union of several; the last layer if there are none."""
    found = tuple(sorted({number for reads in several for number in numbered(reads, depth)}))
    if len(found) == depth:
        return "all"
    return found if found and found != (depth - 1,) else "last"


def spelt(reads: Reads) -> str:
    """`all`, `last` or `0,6,12`."""
    return reads if isinstance(reads, str) else ",".join(map(str, reads))
