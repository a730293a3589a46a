"""How the states of windows lie in a shard: real tokens only, as fp32, fp16 or int8, with a checksum per window."""

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.errors import UserError

Dtype = Literal["fp32", "fp16", "int8"]
Positions = Literal["all", "cls"]  # which tokens

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}
SCALE_BYTES = 4  # an int8 row has one fp32 scale
CHECK_BYTES = 4  # crc32


@dataclass(frozen=True, slots=True)
class Encoded:
    """States as they are kept. values: (B, L, S, H) in the store's dtype. scales: (B, L, S) fp32, for int8 only."""

    values: Tensor
    scales: Tensor | None


def encode(layers: Tensor, dtype: Dtype) -> Encoded:
    """fp32 states (B, L, S, H) as they are kept.

    int8: each token of each layer has its own scale, max |x| / 127, so no value moves by more than half of it.
    UserError where a state is not finite, or too large for fp16.
    """
    scales = None
    if dtype == "int8":
        scales = layers.abs().amax(dim=-1) / 127  # (B, L, S)
        steps = torch.where(scales > 0, scales, 1.0)[..., None]
        values = (layers / steps).round_().clamp_(-127, 127).to(torch.int8)  # clamp: a subnormal scale has few digits
    else:
        values = layers.to(DTYPES[dtype])
    if not (values if scales is None else scales).isfinite().all():
        if layers.isfinite().all():
            raise UserError("states: this encoder's states are too large for fp16; choose fp32 or int8")
        raise UserError("states: this encoder's states are not finite; it cannot be used as it is")
    return Encoded(values, scales)


@dataclass(frozen=True)
class Layout:
    """Where each window's states lie in a shard of N windows.

    lengths: (N,) tokens kept of each window. layers, width: L and H. The file holds, without gaps: the scales of
    all windows, (L, length) fp32 each (int8 only); the values of all windows, (L, length, H) each; one crc32 per
    window. A window lies in one piece, layer after layer, so that it, or its last layer alone, is one read.
    """

    lengths: NDArray[np.int64]
    layers: int
    width: int
    dtype: Dtype

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(N + 1,) tokens before each window."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @property
    def scale_bytes(self) -> int:
        return SCALE_BYTES * self.layers if self.dtype == "int8" else 0  # per token

    @property
    def value_bytes(self) -> int:
        return self.layers * self.width * DTYPES[self.dtype].itemsize  # per token

    @property
    def values_at(self) -> int:
        return int(self.starts[-1]) * self.scale_bytes

    @property
    def checks_at(self) -> int:
        return self.values_at + int(self.starts[-1]) * self.value_bytes

    @property
    def bytes(self) -> int:
        return self.checks_at + CHECK_BYTES * len(self.lengths)

    def pieces(self, encoded: Encoded, row: int, window: int) -> list[tuple[int, NDArray[np.uint8]]]:
        """[(place in the file, bytes)] of one row of a batch, which is window number `window` of the shard."""
        length, start = int(self.lengths[window]), int(self.starts[window])
        found = [(self.values_at + start * self.value_bytes, encoded.values[row, :, :length])]
        if encoded.scales is not None:
            found.insert(0, (start * self.scale_bytes, encoded.scales[row, :, :length]))
        return [(place, tensor.contiguous().view(-1).view(torch.uint8).numpy()) for place, tensor in found]

    def stored(self, shard: Tensor, window: int) -> tuple[Tensor, Tensor | None]:
        """Values (L, length, H) and scales (L, length) of a window: views of the shard's bytes (uint8, mapped)."""
        length, start = int(self.lengths[window]), int(self.starts[window])
        place = self.values_at + start * self.value_bytes
        values = shard[place : place + length * self.value_bytes].view(DTYPES[self.dtype])
        scales = None
        if self.scale_bytes:
            place = start * self.scale_bytes
            scales = shard[place : place + length * self.scale_bytes].view(torch.float32).view(self.layers, length)
        return values.view(self.layers, length, self.width), scales

    def check(self, shard: Tensor, window: int) -> int:
        """crc32 of a window's bytes in a shard."""
        values, scales = self.stored(shard, window)
        parts = [values] if scales is None else [scales, values]
        return checksum([part.reshape(-1).view(torch.uint8).numpy() for part in parts])


def decode(values: Tensor, scales: Tensor | None, out: Tensor) -> None:
    """Writes kept states into `out`, fp32. values, out: (..., H); scales: (...)."""
    out.copy_(values)
    if scales is not None:
        out.mul_(scales[..., None])


def checksum(parts: list[NDArray[np.uint8]]) -> int:
    """crc32 of the parts, one after the other."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.data, found)
    return found


def padded_bytes(windows: int, longest: int, layers: int, width: int) -> int:
    """What the states of `windows` windows would take as fp32, all padded to `longest` tokens."""
    return 4 * windows * longest * layers * width


def readable(size: float) -> str:
    """A number of bytes in words: `1.5 GB`."""
    power = min(4, int(math.log10(max(1, size))) // 3)
    return f"{size / 1000**power:.{1 if power else 0}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
