"""Compressed tuning: the difference of tuned weights to the plain encoder's, as small factors of each matrix.

A difference D (m, n) is kept as L^T R with L (r, m) and R (r, n), the r largest terms of its singular value
decomposition; vectors, and matrices that factors would not make smaller, are kept whole. Numbers are fp32, fp16, or
int8 with a scale for each row. Tensors that did not change are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from bertvision.errors import UserError, nearest

Numbers = Literal["fp32", "fp16", "int8"]
RANKS = (16, 32, 48, 64, 96, 128)  # those that `rank=auto` tries
LEFT, RIGHT, SCALE = ":left", ":right", ":scale"  # endings of the names of a tensor's parts


@dataclass(frozen=True, slots=True)
class Compression:
    """How differences are kept. rank: most terms of a matrix. numbers: of matrices; vectors are fp16 beside int8."""

    rank: int
    numbers: Numbers = "int8"

    def __str__(self) -> str:
        return f"rank={self.rank},{self.numbers}"


def parse_compression(text: str) -> list[Compression]:
    """`rank=64`, `rank=64,fp16`, `rank=auto` -> the compressions to try, the smallest first; int8 unless told."""
    words = [word.strip() for word in text.split(",")]
    ranks, numbers = [word.removeprefix("rank=") for word in words if word.startswith("rank=")], "int8"
    for word in (word for word in words if not word.startswith("rank=")):
        if word not in get_args(Numbers):
            raise UserError(f"--compress {text}: {word!r} is not a kind of number; {nearest(word, get_args(Numbers))}")
        numbers = word
    if len(ranks) != 1 or len(words) > 2 or not (ranks[0] == "auto" or (ranks[0].isdecimal() and int(ranks[0]))):
        raise UserError(f"--compress {text}: give rank=64, rank=64,fp16 or rank=auto")
    wanted = RANKS if ranks[0] == "auto" else (int(ranks[0]),)
    return [Compression(rank, numbers) for rank in wanted]  # type: ignore[arg-type]


class Difference:
    """What tuning changed, ready to be compressed at any rank. plain, tuned: tensors by name, of the same shapes.

    A tensor that the plain encoder does not have, as those of adapters, is its own difference.
    """

    def __init__(self, plain: Mapping[str, Tensor], tuned: Mapping[str, Tensor]) -> None:
        self.whole = {
            name: tensor.float() - plain[name].float() if name in plain else tensor.float()
            for name, tensor in tuned.items()
        }
        self.whole = {name: tensor for name, tensor in self.whole.items() if tensor.any()}
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}

    def compress(self, how: Compression) -> dict[str, Tensor]:
        """The tensors of a file, by name; see `expand`."""
        found: dict[str, Tensor] = {}
        for name, whole in self.whole.items():
            if whole.dim() == 2 and how.rank * sum(whole.shape) < whole.numel():
                left, right = self._terms(name)
                found |= _stored(name + LEFT, left[: how.rank], how.numbers)
                found |= _stored(name + RIGHT, right[: how.rank], how.numbers)
            else:
                numbers = "fp16" if how.numbers == "int8" and whole.dim() != 2 else how.numbers
                found |= _stored(name, whole, numbers)
        return found

    def _terms(self, name: str) -> tuple[Tensor, Tensor]:
        """All terms of a matrix (m, n), the largest first: (k, m) and (k, n), each with half of the singular value."""
        if name not in self._factors:
            u, s, v = torch.linalg.svd(self.whole[name], full_matrices=False)
            root = s.sqrt()
            self._factors[name] = (u * root).T.contiguous(), root[:, None] * v
        return self._factors[name]


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """{name: difference, fp32} from what `Difference.compress` gave; KeyError if a part is missing."""
    found: dict[str, Tensor] = {}
    for name in tensors:
        base, _, part = name.partition(":")
        if not part:
            found[base] = _value(tensors, base)
        elif name.endswith(LEFT):
            found[base] = _value(tensors, name).T @ _value(tensors, base + RIGHT)  # (m, r) x (r, n)
    return found


def _stored(name: str, values: Tensor, numbers: str) -> dict[str, Tensor]:
    if numbers == "int8":
        scale = values.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
        return {name: (values / scale).round().to(torch.int8), name + SCALE: scale}
    kept = values.half() if numbers == "fp16" else values
    if not kept.isfinite().all():
        raise UserError("--compress: a weight is too large for fp16; give fp32 or int8")
    return {name: kept.contiguous()}


def _value(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    stored = tensors[name]
    return stored.float() * tensors[name + SCALE] if stored.dtype == torch.int8 else stored.float()
