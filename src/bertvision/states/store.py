"""Store: the states of all windows on disk, read back window by window through a memory map."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, States, numbered
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.layout import Layout, Positions, decode
from bertvision.states.manifest import Manifest, fingerprints, kept_lengths

AGAIN = "write the store again: the shards that are sound are kept"


class Store:
    """States of N windows; any of them, in any order, become a batch without touching the others.

    depth: layers of the encoder, which are perhaps not all kept.

    Opening checks the manifest, that every shard is whole, and every table of checksums. A window's own bytes are
    checked the first time they are read: opening takes no time however large the store is, yet no wrong state is
    ever used. `verify` checks all of them at once.
    """

    def __init__(self, directory: Path, manifest: Manifest, lengths: NDArray[np.int64], depth: int) -> None:
        self.directory, self.manifest, self.lengths, self.depth = directory, manifest, lengths, depth
        self.shards = [
            OpenShard(directory / shard.file, manifest.layout(shard, lengths), shard.checksum, shard.first)
            for shard in manifest.shards
        ]
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
        missing = [shard.file for shard in manifest.shards if not shard.checksum]
        if missing:
            of = f"{len(missing)} of {len(manifest.shards)} shards are missing, the first is {missing[0]}"
            raise UserError(f"{directory}: is not complete ({of}); {AGAIN}")
        return cls(directory, manifest, kept_lengths(windows, manifest.positions), backbone.layers)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.manifest.shards)

    def offers(self, reads: Reads, positions: Positions) -> bool:
        """Whether these layers and positions are all kept here."""
        kept = self.manifest
        wanted = set(numbered(reads, self.depth))
        return wanted <= set(numbered(kept.reads, self.depth)) and kept.positions in ("all", positions)

    def states(self, index: NDArray[np.int64], reads: Reads = "all", positions: Positions = "all") -> States:
        """The states (B, L, S, H) of the windows in `index`, fp32, padded with zeros to the longest of them.

        reads, positions: to read less than is kept; where less is kept, "all" means all of that.
        """
        lengths = self.lengths[index] if positions == "all" else np.ones(len(index), np.int64)
        longest = int(lengths.max(initial=1))
        kept = numbered(self.manifest.reads, self.depth)
        chosen = kept if reads == "all" else numbered(reads, self.depth)
        out = torch.empty(len(index), len(chosen), longest, self.manifest.width)  # (B, L, S, H)
        owners = np.searchsorted(self._firsts, index, side="right") - 1  # (B,) the shard of each
        for number in np.unique(owners):
            rows = np.flatnonzero(owners == number)
            self.shards[number].read(index[rows], lengths[rows], out, rows, _places(chosen, kept))
        numbers = None if len(chosen) == self.depth else chosen
        return States(out, torch.from_numpy(np.arange(longest) < lengths[:, None]), numbers)

    def verify(self) -> None:
        """Reads everything and compares it with the checksums."""
        for shard in self.shards:
            shard.verify()


def _places(chosen: tuple[int, ...], kept: tuple[int, ...]) -> slice | list[int]:
    """Where the chosen layers are among those kept; as a slice, which copies nothing, where they follow one another."""
    places = [kept.index(number) for number in chosen]
    run = slice(places[0], places[-1] + 1)
    return run if run.stop - run.start == len(places) else places


class OpenShard:
    """A shard mapped into memory; its windows are counted from `first`. UserError unless its checksum is the given."""

    def __init__(self, path: Path, layout: Layout, checksum: str, first: int = 0) -> None:
        self.path, self.layout, self.first = path, layout, first
        self.data = self._map()
        table = bytes(self.data[self.layout.checks_at :].numpy())
        if hashlib.sha256(table).hexdigest() != checksum:
            raise self._damaged("its checksums are not those of the manifest")
        self._checks = np.frombuffer(table, "<u4")  # (N,)
        self._sound = np.zeros(len(self._checks), bool)  # windows that were found to be as they were written
        self._single = bool((self.layout.lengths == 1).all())

    def _map(self) -> Tensor:
        """The file's bytes, (bytes,) uint8. The map is private: nothing written to the tensor reaches the file."""
        wanted = self.layout.bytes
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror}); {AGAIN}") from None
        if size != wanted:
            raise self._damaged(f"it has {size:,} bytes instead of {wanted:,}")
        return torch.from_file(str(self.path), shared=False, size=wanted, dtype=torch.uint8)

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
        self._check(windows[~self._sound[windows]])
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
        values, scales = whole.stored(self.data, 0)  # as one long window: (L, N, H), though it lies as (N, L, H)
        values = values.view(-1, layout.layers, layout.width)[windows]
        return values, None if scales is None else scales.view(-1, layout.layers)[windows]

    def verify(self) -> None:
        """Checks all windows anew."""
        self._check(np.arange(len(self._checks)))

    def _check(self, windows: NDArray[np.int64]) -> None:
        for window in windows.tolist():
            if self.layout.check(self.data, window) != self._checks[window]:
                raise self._damaged(f"the states of window {self.first + window} are not those that were written")
        self._sound[windows] = True
