"""Store: states of all windows on disk, read window by window through a memory map; and live states in its place."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.backbone.states import Positions, Reads, States, numbered, spelt
from bertvision.data.batches import Batch
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.runtime import CPU, Runtime
from bertvision.states.layout import (
    Layout,
    Manifest,
    Shard,
    decode,
    fingerprints,
)

AGAIN = "write the store again: undamaged shards are kept"

Source = Callable[[Batch], States]


class Store:
    """States of N windows; any of them, in any order, become a batch without touching the others.

    depth: layers of the encoder, of which the store may keep fewer.

    Opening checks the manifest, the size of every shard and every table of checksums. A window's own bytes are
    checked when they are first read, so opening is quick however large the store is. `verify` checks all at once.
    """

    def __init__(self, directory: Path, manifest: Manifest, lengths: NDArray[np.int64], depth: int) -> None:
        self.directory, self.manifest, self.lengths, self.depth = directory, manifest, lengths, depth
        self.shards = [open_shard(directory, manifest, shard, lengths) for shard in manifest.shards]
        self._firsts = np.array([shard.first for shard in manifest.shards], np.int64)

    @classmethod
    def open(
        cls, directory: Path, backbone: Backbone, windows: Windows, made_from: tuple[str, str, str] | None = None
    ) -> "Store":
        """UserError unless the store is complete and belongs to this encoder and these windows.

        made_from: the `fingerprints` of both, if they are known.
        """
        manifest = Manifest.load(directory)
        manifest.refuse_others(directory, made_from or fingerprints(backbone, windows))
        if missing := [shard.file for shard in manifest.shards if not shard.checksum]:
            of = f"{len(missing)} of {len(manifest.shards)} shards are missing, the first is {missing[0]}"
            raise UserError(f"{directory}: is not complete ({of}); {AGAIN}")
        return cls(directory, manifest, manifest.selection.lengths(windows), backbone.layers)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.manifest.shards)

    def offers(self, reads: Reads, positions: Positions) -> bool:
        """True if these layers and positions are all kept here."""
        kept = set(numbered(self.manifest.reads, self.depth))
        return set(numbered(reads, self.depth)) <= kept and self.manifest.positions in ("all", positions)

    def states(self, index: NDArray[np.int64], reads: Reads = "all", positions: Positions = "all") -> States:
        """The states (B, L, S, H) of the windows in `index`, fp32, padded with zeros to the longest of them.

        reads, positions: to read less than is kept; where less is kept, "all" means all of that.
        """
        lengths = self.lengths[index] if positions == "all" else np.ones(len(index), np.int64)
        longest = int(lengths.max(initial=1))
        kept = numbered(self.manifest.reads, self.depth)
        wanted = tuple(n for n in kept if n >= 0) if reads == "all" else numbered(reads, self.depth)
        indices = [kept.index(number) for number in wanted]
        run = slice(indices[0], indices[-1] + 1)
        layers = run if run.stop - run.start == len(indices) else indices  # a slice copies nothing
        out = torch.empty(len(index), len(wanted), longest, self.manifest.width)  # (B, L, S, H)
        shard_of = np.searchsorted(self._firsts, index, side="right") - 1  # (B,)
        for shard in np.unique(shard_of):
            rows = np.flatnonzero(shard_of == shard)
            self.shards[shard].read(index[rows], lengths[rows], out, rows, layers)
        mask = torch.from_numpy(np.arange(longest) < lengths[:, None])  # (B, S)
        return States(out, mask, None if wanted == tuple(range(self.depth)) else wanted)

    def verify(self) -> None:
        """Reads everything and compares it with the checksums."""
        for shard in self.shards:
            shard.verify()


class OpenShard:
    """A shard mapped into memory; its windows are counted from `first`. UserError if its checksum is not `checksum`."""

    def __init__(self, path: Path, layout: Layout, checksum: str, first: int = 0) -> None:
        self.path, self.layout, self.first = path, layout, first
        try:
            size = path.stat().st_size
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); {AGAIN}") from None
        if size != layout.bytes:
            raise self._damaged(f"it has {size:,} bytes instead of {layout.bytes:,}")
        # (bytes,) uint8. The map is private: nothing written to the tensor reaches the file.
        self.data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        table = bytes(self.data[layout.checks_at :].numpy())
        if hashlib.sha256(table).hexdigest() != checksum:
            raise self._damaged("its checksums are not those of the manifest")
        self._checks = np.frombuffer(table, "<u4")  # (N,)
        self._checked = np.zeros(len(self._checks), bool)
        self._single = bool((layout.lengths == 1).all())

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self.path}: damaged ({why}); {AGAIN}")

    def read(
        self,
        index: NDArray[np.int64],
        lengths: NDArray[np.int64],
        out: Tensor,
        rows: NDArray[np.int64],
        layers: slice | list[int] = slice(None),
    ) -> None:
        """Puts the first `lengths` (B,) tokens of the windows in `index` (B,) into `rows` (B,) of out (R, L, S, H).

        layers: which of those kept.
        """
        windows = index - self.first
        self._check(windows[~self._checked[windows]])
        if self._single:  # one token each, as in a store of [CLS] alone: all of them in one gather
            values, scales = self._singles(torch.from_numpy(windows))
            piece = torch.empty(len(rows), out.shape[1], out.shape[-1])  # (B, L, H)
            decode(values[:, layers], None if scales is None else scales[:, layers], piece)
            out[torch.from_numpy(rows)] = torch.nn.functional.pad(piece[:, :, None], (0, 0, 0, out.shape[2] - 1))
            return
        for window, length, row in zip(windows.tolist(), lengths.tolist(), rows.tolist()):
            values, scales = self.layout.stored(self.data, window)
            kept = None if scales is None else scales[layers, :length]
            decode(values[layers, :length], kept, out[row, :, :length])
            out[row, :, length:] = 0

    def _singles(self, windows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values (B, L, H) and scales (B, L) of windows of one token each."""
        layout = self.layout
        whole = Layout(np.array([len(layout.lengths)]), layout.layers, layout.width, layout.dtype)
        values, scales = whole.stored(self.data, 0)  # as one long window: (L, N, H), though stored as (N, L, H)
        values = values.view(-1, layout.layers, layout.width)[windows]
        return values, None if scales is None else scales.view(-1, layout.layers)[windows]

    def verify(self) -> None:
        """Checks all windows, those already checked too."""
        self._check(np.arange(len(self._checks)))

    def _check(self, windows: NDArray[np.int64]) -> None:
        for window in windows.tolist():
            if self.layout.check(self.data, window) != self._checks[window]:
                raise self._damaged(f"the states of window {self.first + window} are not those that were written")
        self._checked[windows] = True


def live(backbone: Backbone, reads: Reads = "all", positions: Positions = "all") -> Source:
    """A source of states from a frozen backbone, with its weights as they are now; it is put into eval mode.

    reads: which layers. positions: all tokens, or [CLS] alone: (B, L, 1, H).
    """
    run = frozen(backbone)

    def states(batch: Batch) -> States:
        return run(batch, reads, positions)

    return states


def stored(store: Store, reads: Reads = "all", positions: Positions = "all", runtime: Runtime = CPU) -> Source:
    """A source of states from a store, which reads only what is asked for and moves it to the device. UserError if the
    store lacks some of it.

    batch.index must count the windows the store was written for. Padding holds zeros. A batch equals the live one
    exactly if it was written in the same batch as fp32; else up to the rounding of matrix products (about 1e-6).
    """
    if not store.offers(reads, positions):
        raise UserError(
            f"{store.directory}: holds {store.manifest.selection}, these heads read {spelt(reads)} layers and "
            f"{positions} positions; write another store, or use live states"
        )
    return lambda batch: runtime.to(store.states(batch.index, reads, positions))


def open_shard(directory: Path, manifest: Manifest, shard: Shard, lengths: NDArray[np.int64]) -> OpenShard:
    """lengths: as of `Manifest.layout`."""
    return OpenShard(directory / shard.file, manifest.layout(shard, lengths), shard.checksum, shard.first)
