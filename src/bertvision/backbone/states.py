"""States: the hidden states of all layers of a batch, the one type that backbone, store and heads exchange."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from bertvision.errors import UserError

# Which layers; their numbers rise, 0 is the embedding output, POOLED the pooler's output.
Reads = Literal["all", "last"] | tuple[int, ...]
Positions = Literal["all", "cls"]  # which tokens
POOLED = -1  # the encoder's own pooler (a dense layer and tanh on the last [CLS]); not among "all"
COSINE = 4.0  # how much a cosine counts beside the other features of two texts


@dataclass(frozen=True, slots=True)
class States:
    """Hidden states of a batch, all layers or some.

    layers: (batch, layer, token, width). With all layers, index 0 is the embedding output and -1 the encoder's output.
        A source may deliver fewer: the last layer, chosen ones (read them with `layer`), or [CLS] alone (token = 1).
        The pooler's output, where it is asked for, comes first; it stands at [CLS], and is zero at other tokens.
        Of a pair that is encoded apart there are two tokens: the mean over the first text, and over the second.
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
        # Contiguous: a product with a view would copy the weights once per row.
        return States(self.layers[:, :, :1].contiguous(), self.mask[:, :1], self.numbers)

    def compared(self) -> "States":
        """Of pairs that are encoded apart u, v, |u - v|, u * v and their cosine, (batch, layer, 1, 4 width + 1).

        u, v: the means over both texts, scaled to length 1. The products are multiplied by the root of the width, the
        cosine by COSINE: a penalty on weights then asks about as much of each.
        """
        u, v = normalize(self.layers[:, :, :2].float(), dim=-1).unbind(dim=2)  # (batch, layer, width) each
        product = u * v
        cosine = COSINE * product.sum(dim=-1, keepdim=True)
        beside = torch.cat([u, v, (u - v).abs(), product * u.shape[-1] ** 0.5, cosine], dim=-1)
        return States(beside.unsqueeze(2), self.mask[:, :1], self.numbers)

    def only(self, reads: Reads) -> "States":
        """The same states, of no more layers than these; a view where they are neighbours."""
        present = self._present()
        wanted = present[-1:] if reads == "last" else tuple(n for n in present if n >= 0) if reads == "all" else reads
        if wanted == present:
            return self
        indices = [self._index(number) for number in wanted]
        run = slice(indices[0], indices[-1] + 1)
        are_neighbours = run.stop - run.start == len(indices)
        return States(self.layers[:, run if are_neighbours else indices], self.mask, wanted)

    def layer(self, number: int) -> Tensor:
        """The states of layer `number`, (batch, token, width); 0 is the embedding output."""
        return self.layers[:, self._index(number)]

    def _present(self) -> tuple[int, ...]:
        """The numbers of the layers that are here."""
        return self.numbers or tuple(range(self.layers.shape[1]))

    def _index(self, number: int) -> int:
        """The place of layer `number` in `layers`."""
        present = self._present()
        if number not in present:
            raise ValueError(f"layer {number} is not among {list(present)}: a head must declare what it reads")
        return present.index(number)


def numbered(reads: Reads, depth: int) -> tuple[int, ...]:
    """The layer numbers in `reads`, for an encoder with `depth` layers; UserError if it lacks one."""
    if reads == "all":
        return tuple(range(depth))
    if reads == "last":
        return (depth - 1,)
    if not reads or any(not POOLED <= number < depth for number in reads) or list(reads) != sorted(set(reads)):
        raise UserError(f"layers {spelt(reads)}: name some of 0 to {depth - 1}, each once, in rising order")
    return tuple(reads)


def deepest(several: Iterable[Reads], depth: int) -> int:
    """The highest layer that has to be computed for these; the pooler needs all."""
    numbers = {number for reads in several for number in numbered(reads, depth)}
    return depth - 1 if POOLED in numbers else max(numbers)


def together(several: Iterable[Reads], depth: int) -> Reads:
    """The union of several; the last layer if there are none."""
    numbers = tuple(sorted({number for reads in several for number in numbered(reads, depth)}))
    if numbers == tuple(range(depth)):
        return "all"
    return numbers if numbers and numbers != (depth - 1,) else "last"


def spelt(reads: Reads) -> str:
    """`all`, `last` or `0,6,12`; `pooler,0,6`."""
    return reads if isinstance(reads, str) else ",".join("pooler" if n == POOLED else str(n) for n in reads)
