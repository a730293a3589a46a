"""The manifest of a store: what its states were made from, its shards, and a seal over all of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, numbered, spelt
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import fitting, read_json, write_json
from bertvision.states.layout import CHECK_BYTES, Dtype, Layout, Positions

FORMAT = 1
NAME = "manifest.json"


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
    """What a store holds.

    weights, tokenizer, windows: fingerprints of what the states depend on; the encoder's weights are those it had
    when it wrote, tuned or not. layers, width: L and H of the states as kept.
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
    def of(
        cls, backbone: Backbone, windows: Windows, dtype: Dtype, reads: Reads, positions: Positions, shard_bytes: int
    ) -> "Manifest":
        """The manifest of a store that is still to be written, with shards of at most `shard_bytes` (or one window)."""
        layers = len(numbered(reads, backbone.layers))
        lengths = kept_lengths(windows, positions)
        ends = _cut(Layout(lengths, layers, backbone.width, dtype), shard_bytes)
        shards = tuple(
            Shard(f"shard-{n:05d}.bin", first, end, Layout(lengths[first:end], layers, backbone.width, dtype).bytes)
            for n, (first, end) in enumerate(zip([0, *ends], ends))
        )
        return cls(*fingerprints(backbone, windows), dtype, reads, positions, layers, backbone.width, shards)

    @property
    def kind(self) -> str:
        """What of the states is kept, in words."""
        return f"{self.dtype} states of {spelt(self.reads)} layers and {self.positions} positions"

    def layout(self, shard: Shard, lengths: NDArray[np.int64]) -> Layout:
        """lengths: (N,) tokens kept of every window of the store."""
        return Layout(lengths[shard.first : shard.end], self.layers, self.width, self.dtype)

    def written(self, number: int, checksum: str) -> "Manifest":
        """The same with the checksum of one shard filled in."""
        shards = list(self.shards)
        shards[number] = replace(shards[number], checksum=checksum)
        return replace(self, shards=tuple(shards))

    def save(self, directory: Path) -> None:
        table = {"format": FORMAT, **asdict(self)}
        write_json(directory / NAME, {**table, "seal": _seal(table)})

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """UserError unless it is exactly as some `save` left it."""
        path = directory / NAME
        if not path.exists():
            raise UserError(f"{directory}: no store of states; `bertvision tap` writes one")
        table = read_json(path, "manifest of a store")
        table = table if isinstance(table, dict) else {}
        with fitting(path, "manifest of a store"):
            if table.get("format") != FORMAT or table.pop("seal") != _seal(table):
                raise TypeError("its seal or its format does not fit")
            del table["format"]
            reads = table["reads"] if isinstance(table["reads"], str) else tuple(table["reads"])
            return cls(**{**table, "reads": reads, "shards": tuple(Shard(**shard) for shard in table["shards"])})

    def refuse_others(self, directory: Path, made_from: tuple[str, str, str]) -> None:
        """UserError unless the states were made from the same as `made_from`, see `fingerprints`."""
        weights, tokenizer, ids = made_from
        way_out = "delete it or choose another place, and write it anew"
        if self.tokenizer != tokenizer:
            raise UserError(f"{directory}: was written with another tokenizer; {way_out}")
        if self.weights != weights:
            raise UserError(f"{directory}: was written by an encoder with other weights; {way_out}")
        if self.windows != ids:
            raise UserError(f"{directory}: holds the states of other data, or of windows cut otherwise; {way_out}")


def kept_lengths(windows: Windows, positions: Positions) -> NDArray[np.int64]:
    """(N,) tokens of each window whose states are kept."""
    return windows.lengths if positions == "all" else np.ones(len(windows), np.int64)


def fingerprints(backbone: Backbone, windows: Windows) -> tuple[str, str, str]:
    """sha256 of the encoder's weights as they are now, of its tokenizer, and of the windows' ids and types."""
    digest = hashlib.sha256()
    for array in (windows.ids, windows.types, windows.starts):
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    tokenizer = hashlib.sha256(backbone.tokenizer.to_str().encode())
    return backbone.fingerprint, tokenizer.hexdigest(), digest.hexdigest()


def _cut(layout: Layout, shard_bytes: int) -> list[int]:
    """The ends of the shards: as many windows as fit into each, at least one."""
    before = layout.starts * (layout.value_bytes + layout.scale_bytes) + CHECK_BYTES * np.arange(len(layout.starts))
    ends = [0]
    while ends[-1] < len(layout.lengths):
        end = int(np.searchsorted(before, before[ends[-1]] + shard_bytes, side="right")) - 1
        ends.append(max(end, ends[-1] + 1))
    return ends[1:]


def _seal(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
