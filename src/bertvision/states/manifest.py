"""The manifest of a store: what its states were made from, its shards, and a seal over all of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import fitting, read_json, write_json
from bertvision.states.layout import Dtype, Layout, Positions, Reads

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Shard:
    """A file with the states of windows first ... end - 1. checksum: sha256 of its table of crc32s; "" = not written."""

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
        layers = backbone.layers if reads == "all" else 1
        lengths = kept_lengths(windows, positions)
        ends = _cut(lengths, Layout(lengths, layers, backbone.width, dtype), shard_bytes)
        shards = tuple(
            Shard(f"shard-{n:05d}.bin", first, end, Layout(lengths[first:end], layers, backbone.width, dtype).bytes)
            for n, (first, end) in enumerate(zip([0, *ends], ends))
        )
        return cls(*fingerprints(backbone, windows), dtype, reads, positions, layers, backbone.width, shards)

    def layout(self, shard: Shard, lengths: NDArray[np.int64]) -> Layout:
        """lengths: (N,) tokens kept of every window of the store."""
        return Layout(lengths[shard.first : shard.end], self.layers, self.width, self.dtype)

    def written(self, number: int, checksum: str) -> "Manifest":
        """The same with the checksum of one shard filled in."""
        shards = list(self.shards)
        shards[number] = replace(shards[number], checksum=checksum)
        return replace(self, shards=tuple(shards))

    def save(self, directory: Path) -> None:
        table = _table(self)
        write_json(directory / NAME, {**table, "seal": _seal(table)})

    @classmethod
    def load(cls, directory: Path) -> "Manifest":
        """UserError unless it is exactly as some `save` left it."""
        path = directory / NAME
        if not path.exists():
            raise UserError(f"{directory}: no store of states; `bertvision tap` writes one")
        table = read_json(path, "manifest of a store")
        with fitting(path, "manifest of a store"):
            table = dict(table)
            if table.get("format", FORMAT) != FORMAT:
                raise UserError(f"{path}: is of format {table['format']}, not {FORMAT}; delete the store, write it anew")
            if table.pop("seal", None) != _seal(table):
                raise TypeError("its seal does not fit")
            del table["format"]
            return cls(**{**table, "shards": tuple(Shard(**shard) for shard in table["shards"])})

    def refuse_others(self, directory: Path, backbone: Backbone, windows: Windows) -> None:
        """UserError unless the states are those of this encoder, as its weights are now, and of these windows."""
        weights, tokenizer, ids = fingerprints(backbone, windows)
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
        digest.update(np.ascontiguousarray(array))
    tokenizer = hashlib.sha256(backbone.tokenizer.to_str().encode())
    return backbone.fingerprint, tokenizer.hexdigest(), digest.hexdigest()


def _cut(lengths: NDArray[np.int64], layout: Layout, shard_bytes: int) -> list[int]:
    """The ends of the shards."""
    size = Layout(lengths[:1], layout.layers, layout.width, layout.dtype)  # for its bytes per token
    before = layout.starts * (size.value_bytes + size.scale_bytes)  # (N + 1,) bytes
    ends = [0]
    while ends[-1] < len(lengths):
        end = int(np.searchsorted(before, before[ends[-1]] + shard_bytes, side="right")) - 1
        ends.append(max(end, ends[-1] + 1))
    return ends[1:]


def _table(manifest: Manifest) -> dict[str, Any]:
    table = {name: getattr(manifest, name) for name in Manifest.__slots__}
    shards = [{name: getattr(shard, name) for name in Shard.__slots__} for shard in manifest.shards]
    return {"format": FORMAT, **table, "shards": shards}


def _seal(table: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
