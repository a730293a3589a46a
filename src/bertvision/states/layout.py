"""Layout of a store on disk: windows in a shard (real tokens only, a checksum per window) and the manifest."""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Positions, Reads, numbered, spelt
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import fitting, read_json, write_json

Dtype = Literal["fp32", "fp16", "int8"]
Encoded = tuple[Tensor, Tensor | None]  # values (B, L, S, H) in the store's dtype; scales (B, L, S) fp32, int8 only

FORMAT = 1
NAME = "manifest.json"
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.int8}
SCALE_BYTES = 4  # an int8 row has one fp32 scale
CHECK_BYTES = 4  # crc32


@dataclass(frozen=True, slots=True)
class Selection:
    """Which states a store keeps: layers, token positions, and the number format."""

    dtype: Dtype = "fp16"
    reads: Reads = "all"
    positions: Positions = "all"

    def __str__(self) -> str:
        return f"{self.dtype} states of {spelt(self.reads)} layers and {self.positions} positions"

    def lengths(self, windows: Windows) -> NDArray[np.int64]:
        """(N,) tokens kept of each window; of a pair that is encoded apart one for each text."""
        if self.positions == "all" and windows.second is not None:
            return np.full(len(windows), 2, np.int64)
        return windows.lengths if self.positions == "all" else np.ones(len(windows), np.int64)


EVERYTHING = Selection()


def encode(layers: Tensor, dtype: Dtype) -> Encoded:
    """Converts fp32 states (B, L, S, H) to the stored format.

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
    return values.cpu(), None if scales is None else scales.cpu()  # narrowed on the device: fewer bytes to fetch


def decode(values: Tensor, scales: Tensor | None, out: Tensor) -> None:
    """Writes stored states into `out`, fp32. values, out: (..., H); scales: (...)."""
    out.copy_(values)
    if scales is not None:
        out.mul_(scales[..., None])


@dataclass(frozen=True)
class Layout:
    """Byte positions of the windows' states in a shard of N windows.

    lengths: (N,) tokens kept of each window. layers, width: L and H. The file holds, without gaps: the scales of
    all windows, (L, length) fp32 each (int8 only); the values of all windows, (L, length, H) each; one crc32 per
    window. A window is contiguous, layer after layer, so that it, or its last layer alone, is one read.
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

    def places(self, window: int) -> list[slice]:
        """The bytes of a window: its scales, if any, and its values."""
        start, end = self.starts[window : window + 2].tolist()
        at, size = self.values_at, self.value_bytes
        values = slice(at + start * size, at + end * size)
        return [slice(start * self.scale_bytes, end * self.scale_bytes), values] if self.scale_bytes else [values]

    def pieces(self, encoded: Encoded, row: int, window: int) -> list[NDArray[np.uint8]]:
        """The bytes for `places(window)` from one row of a batch."""
        values, scales = encoded
        length = int(self.lengths[window])
        kept = [part[row, :, :length] for part in (scales, values) if part is not None]
        return [part.contiguous().view(-1).view(torch.uint8).numpy() for part in kept]

    def stored(self, shard: Tensor, window: int) -> tuple[Tensor, Tensor | None]:
        """Values (L, length, H) and scales (L, length) of a window: views of the shard's bytes (uint8, mapped)."""
        *first, last = [shard[place] for place in self.places(window)]
        values = last.view(DTYPES[self.dtype]).view(self.layers, -1, self.width)
        return values, first[0].view(torch.float32).view(self.layers, -1) if first else None

    def check(self, shard: Tensor, window: int) -> int:
        """crc32 of a window's bytes in a shard."""
        return checksum([shard[place].numpy() for place in self.places(window)])


def checksum(parts: list[NDArray[np.uint8]]) -> int:
    """crc32 of the concatenated parts."""
    found = 0
    for part in parts:
        found = zlib.crc32(part.data, found)
    return found


@dataclass(frozen=True, slots=True)
class Shard:
    """A file with the states of windows first:end. checksum: sha256 of its table of crc32s, "" until it is written."""

    file: str
    first: int
    end: int
    bytes: int
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a store: fingerprints of its inputs, the selection, the shards. Saved with a digest of all of it.

    weights, tokenizer, windows: fingerprints of what the states depend on (the encoder as it was then, tuned or not).
    layers, width: L and H of the states as stored.
    """

    weights: str
    tokenizer: str
    windows: str
    dtype: Dtype
    reads: Reads
    positions: Positions
    layers: int
    width: int
    shards: tuple[Shard, ...] = ()

    @classmethod
    def of(cls, backbone: Backbone, windows: Windows, selection: Selection, shard_bytes: int) -> "Manifest":
        """The manifest of a store to be written, with shards of at most `shard_bytes` (or one window)."""
        kept = selection.dtype, selection.reads, selection.positions
        shape = len(numbered(selection.reads, backbone.layers)), backbone.width
        lengths = selection.lengths(windows)
        ends = _shard_ends(Layout(lengths, *shape, selection.dtype), shard_bytes)
        shards = tuple(
            Shard(f"shard-{number:05d}.bin", first, end, Layout(lengths[first:end], *shape, selection.dtype).bytes)
            for number, (first, end) in enumerate(zip([0, *ends], ends))
        )
        return cls(*fingerprints(backbone, windows), *kept, *shape, shards)

    @property
    def selection(self) -> Selection:
        return Selection(self.dtype, self.reads, self.positions)

    def layout(self, shard: Shard, lengths: NDArray[np.int64]) -> Layout:
        """lengths: (N,) tokens kept of every window of the store."""
        return Layout(lengths[shard.first : shard.end], self.layers, self.width, self.dtype)

    def written(self, number: int, checksum: str) -> "Manifest":
        """The same with the checksum of one shard filled in."""
        shards = (replace(one, checksum=checksum) if n == number else one for n, one in enumerate(self.shards))
        return replace(self, shards=tuple(shards))

    def save(self, directory: Path) -> None:
        table = {"format": FORMAT, **asdict(self)}
        write_json(directory / NAME, {**table, "seal": _digest(table)}, durable=True)

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """Reads a saved manifest; UserError if any byte of its contents has changed."""
        path = directory / NAME
        if not path.exists():
            raise UserError(f"{directory}: no store of states; `bertvision tap` writes one")
        table = read_json(path, "manifest of a store")
        table = table if isinstance(table, dict) else {}
        with fitting(path, "manifest of a store"):
            if table.get("format") != FORMAT or table.pop("seal") != _digest(table):
                raise TypeError("unknown format, or the digest does not match")
            del table["format"]
            reads = table["reads"] if isinstance(table["reads"], str) else tuple(table["reads"])
            return cls(**{**table, "reads": reads, "shards": tuple(Shard(**shard) for shard in table["shards"])})

    def refuse_others(self, directory: Path, made_from: tuple[str, str, str]) -> None:
        """UserError unless the states were made from `made_from`, see `fingerprints`."""
        weights, tokenizer, ids = made_from
        for same, problem in (
            (self.tokenizer == tokenizer, "was written with another tokenizer"),
            (self.weights == weights, "was written by an encoder with other weights"),
            (self.windows == ids, "holds the states of other data, or of windows cut otherwise"),
        ):
            if not same:
                raise UserError(f"{directory}: {problem}; delete it or choose another place, and write it anew")


def fingerprints(backbone: Backbone, windows: Windows) -> tuple[str, str, str]:
    """sha256 of the encoder's weights as they are now, of its tokenizer, and of the windows' ids and types; where its
    products are not fp32, the first says so."""
    digest = hashlib.sha256()
    arrays: list[NDArray] = [windows.ids, windows.types, windows.starts]
    if windows.second is not None:
        arrays.append(windows.second)
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    tokenizer = hashlib.sha256(backbone.tokenizer.to_str().encode())
    weights = backbone.fingerprint + ("" if backbone.runtime.precision == "fp32" else " in bf16")
    return weights, tokenizer.hexdigest(), digest.hexdigest()


def padded_bytes(windows: int, longest: int, layers: int, width: int) -> int:
    """Size of the states of `windows` windows as fp32, all padded to `longest` tokens."""
    return 4 * windows * longest * layers * width


def _shard_ends(layout: Layout, shard_bytes: int) -> list[int]:
    """The end of each shard: as many windows as fit, at least one."""
    before = layout.starts * (layout.value_bytes + layout.scale_bytes) + CHECK_BYTES * np.arange(len(layout.starts))
    ends = [0]
    while ends[-1] < len(layout.lengths):
        end = int(np.searchsorted(before, before[ends[-1]] + shard_bytes, side="right")) - 1
        ends.append(max(end, ends[-1] + 1))
    return ends[1:]


def _digest(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
