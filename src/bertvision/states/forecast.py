"""Forecast: size of a store, and time of training heads on live or stored states, from a few measured batches."""

import copy
import math
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import States, numbered
from bertvision.data.batches import by_length, collate, cut
from bertvision.data.windows import Windows
from bertvision.devices import memory, peak_memory
from bertvision.errors import UserError
from bertvision.files import readable
from bertvision.recipe import BankRecipe
from bertvision.states.layout import EVERYTHING, Dtype, Layout, Selection, encode, padded_bytes
from bertvision.states.store import OpenShard, live
from bertvision.states.write import write_shard

SPARE = 1.05  # a store is started only if the disk has room for this many times its size


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of reading a set once, by part of the work; infinite = impossible.

    heads: training them. evaluate: evaluating them. check: the first read of a store, with checksums.
    """

    encoder: float = 0.0
    heads: float = 0.0
    evaluate: float = 0.0
    write: float = 0.0
    check: float = 0.0
    read: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Expected cost of training `heads` heads for `epochs` epochs, with `looks` evaluations on `looked_at` windows.

    bytes: of a store, by dtype; padded_bytes: of all windows as fp32, padded to the longest; both with the evaluated
    windows. held_bytes: peak memory of this process, with the largest batch measured; 0 = unknown. free_bytes: of the
    disk. processes: that share heads and the writing of a store.
    """

    windows: int
    tokens: int
    longest: int
    epochs: float
    heads: int
    dtype: Dtype
    bytes: dict[str, int]
    padded_bytes: int
    epoch: Seconds
    held_bytes: int
    free_bytes: int
    looks: int = 0
    looked_at: int = 0
    look: Seconds = Seconds()
    processes: int = 1

    @property
    def live_seconds(self) -> float:
        """The encoder runs in every epoch and every evaluation; in every process, which share the heads."""
        epoch, look, shared = self.epoch, self.look, self.processes
        passes = self.epochs * epoch.encoder + self.looks * look.encoder
        return passes + (self.epochs * epoch.heads + self.looks * look.evaluate) / shared

    @property
    def stored_seconds(self) -> float:
        """The encoder runs once, which processes share; every epoch and every evaluation reads."""
        epoch, look, shared = self.epoch, self.look, self.processes
        once = sum((part.encoder + part.write) / shared + part.check for part in (epoch, look))
        reads = self.epochs * epoch.read + self.looks * look.read
        return once + reads + (self.epochs * epoch.heads + self.looks * look.evaluate) / shared

    def choose(self) -> tuple[Literal["live", "stored"], str]:
        """The quicker way that the disk has room for, and the reason."""
        wanted = self.bytes[self.dtype]
        times = f"live takes {_time(self.live_seconds)}, stored {_time(self.stored_seconds)}"
        if self.stored_seconds == math.inf:
            return "live", f"a store cannot be written there, or not as {self.dtype}"
        if self.stored_seconds >= self.live_seconds:
            return "live", f"{times}, and live needs no disk"
        if wanted * SPARE > self.free_bytes:
            return "live", f"{times}, but the store needs {readable(wanted)} and {readable(self.free_bytes)} are free"
        return "stored", f"{times}; the store needs {readable(wanted)} of {readable(self.free_bytes)} that are free"

    def to_json(self) -> dict[str, Any]:
        """All fields, the totals and the choice; impossible seconds are None."""
        choice, why = self.choose()
        table = asdict(self) | {"live_seconds": self.live_seconds, "stored_seconds": self.stored_seconds}
        for seconds in (table, table["epoch"], table["look"]):
            seconds.update({key: None for key, value in seconds.items() if value == math.inf})
        return {**table, "choice": choice, "why": why}

    def lines(self) -> list[str]:
        """The forecast in words."""
        mean = self.tokens / max(1, self.windows)
        stores = ", ".join(
            f"{readable(size)} as {name} (1/{self.padded_bytes / max(1, size):.1f})"
            for name, size in self.bytes.items()
        )
        epoch = f"encoder {_time(self.epoch.encoder)}, heads {_time(self.epoch.heads)}"
        work = f"{self.epochs:g} epochs of {self.heads} heads"
        choice, why = self.choose()
        padded, free = readable(self.padded_bytes), readable(self.free_bytes)
        memory = [f"memory: peak so far {readable(self.held_bytes)}"] if self.held_bytes else []
        looks = [f"evaluations: {self.looked_at:,} windows, {self.looks} times"] if self.looks else []
        return [
            f"windows: {self.windows:,} of {mean:.0f} tokens, the longest {self.longest}; together {self.tokens:,}",
            *looks,
            f"store: {stores}; padded fp32 would be {padded}; {free} are free",
            f"one epoch: {epoch}, reading {self.dtype} {_time(self.epoch.read)}",
            f"{work}: live {_time(self.live_seconds)}, stored {_time(self.stored_seconds)}",
            *memory,
            f"choice: {choice}, for {why}",
        ]


def forecast(
    backbone: Backbone,
    windows: Windows,
    heads: Sequence[Any],
    recipe: BankRecipe,
    *,
    directory: Path,
    selection: Selection = EVERYTHING,
    looked_at: Windows | None = None,
    looks: int = 0,
) -> Forecast:
    """Measures the longest, the middle and the shortest batch and extrapolates over all lengths.

    heads: modules with `logits(states)`; copies of them are trained. directory: where a store would be, for the speed
    and the free space of that disk; nothing is left there. looked_at: a tuning set, evaluated `looks` times in all.
    """
    if not len(windows):
        raise UserError("forecast: there is nothing to read; give data with at least one question")
    disk = next(parent for parent in (directory, *directory.absolute().parents) if parent.is_dir())
    measured = _measured(backbone, windows, heads, recipe, selection, disk)
    sets = [windows] if looked_at is None or not looks else [windows, looked_at]
    shape = len(numbered(selection.reads, backbone.layers)), backbone.width
    kept = [selection.lengths(read) for read in sets]
    dtypes: list[Dtype] = [selection.dtype, "fp16", "int8"]
    sizes: dict[str, int] = {dtype: sum(Layout(lengths, *shape, dtype).bytes for lengths in kept) for dtype in dtypes}
    cached = sizes[selection.dtype] <= memory() / 2  # else too large for the page cache: read as fast as written
    epoch, *look = [_seconds(measured, read.lengths, cached) for read in sets]
    return Forecast(
        windows=len(windows),
        tokens=int(windows.lengths.sum()),
        longest=int(windows.lengths.max()),
        epochs=recipe.epochs,
        heads=len(heads),
        dtype=selection.dtype,
        bytes=sizes,
        padded_bytes=sum(padded_bytes(len(lengths), int(lengths.max(initial=0)), *shape) for lengths in kept),
        epoch=epoch,
        held_bytes=peak_memory(),
        free_bytes=shutil.disk_usage(disk).free,
        looks=looks if look else 0,
        looked_at=len(sets[1]) if look else 0,
        look=look[0] if look else Seconds(),
        processes=backbone.runtime.world,
    )


def _measured(
    backbone: Backbone,
    windows: Windows,
    heads: Sequence[Any],
    recipe: BankRecipe,
    selection: Selection,
    disk: Path,
) -> dict[float, Seconds]:
    """Seconds per token of a short, a middle and a long batch, by the mean length of its windows."""
    scratch = disk / f".forecast.{os.getpid()}-{secrets.token_hex(4)}"  # a name that `claim` removes after a kill
    try:
        with torch.random.fork_rng(devices=[]):
            bench = _Bench(backbone, windows, heads, selection, scratch / "shard.bin")
            shortest, *others = _spread(windows.lengths, recipe.batch_size, recipe.batch_tokens)
            bench.measure(shortest)  # the first time everything is slower
            return dict(bench.measure(index) for index in (shortest, *others))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Bench:
    """Measures a batch in every part of the work: encoder, heads forward and backward, a shard written and read."""

    def __init__(
        self, backbone: Backbone, windows: Windows, heads: Sequence[Any], selection: Selection, path: Path
    ) -> None:
        self.windows, self.pad, self.dtype, self.path = windows, backbone.pad, selection.dtype, path
        self.lengths = selection.lengths(windows)
        self.feed, self.runtime = live(backbone, selection.reads, selection.positions), backbone.runtime
        self.heads = [self.runtime.to(copy.deepcopy(head).train()) for head in heads]
        self.optimizers = [torch.optim.AdamW(head.parameters(), fused=True) for head in self.heads]

    def measure(self, index: NDArray[np.int64]) -> tuple[float, Seconds]:
        """The mean length of the windows, and the seconds per token."""
        tokens = int(self.windows.lengths[index].sum())
        clock = [self.runtime.clock()]
        states = self.feed(collate(self.windows, index, self.pad))
        clock.append(self.runtime.clock())
        for head, optimizer in zip(self.heads, self.optimizers):
            head.logits(states).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        clock.append(self.runtime.clock())
        with torch.no_grad():
            for head in self.heads:
                head.logits(states)
        clock.append(self.runtime.clock())
        seconds = [*np.diff(clock).tolist(), *self._store(index, states)]
        return tokens / len(index), Seconds(*(part / tokens for part in seconds))

    def _store(self, index: NDArray[np.int64], states: States) -> list[float]:
        """Seconds of writing, checking and reading."""
        rows = np.arange(len(index))
        _, layers, _, width = states.layers.shape
        layout = Layout(self.lengths[index], layers, width, self.dtype)
        clock = [self.runtime.clock()]
        try:
            checksum = write_shard(self.path, layout, [(rows, encode(states.layers, self.dtype))])
            shard = OpenShard(self.path, layout, checksum)
        except UserError:  # the disk is full or read-only, or the states do not fit the format: only live is possible
            return [math.inf, 0.0, 0.0]
        clock.append(self.runtime.clock())
        shard.verify()
        clock.append(self.runtime.clock())
        shard.read(rows, self.lengths[index], torch.empty(states.layers.shape), rows)
        clock.append(self.runtime.clock())
        return np.diff(clock).tolist()


def _spread(lengths: NDArray[np.int64], batch_size: int, batch_tokens: int) -> list[NDArray[np.int64]]:
    """The batch of the shortest windows, one of the middle, and that of the longest."""
    falling = by_length(lengths, batch_tokens, batch_size)
    rising = cut(np.argsort(lengths, kind="stable"), lengths, batch_size, batch_tokens)
    return [rising[0], falling[len(falling) // 2], falling[0]]


def _seconds(measured: dict[float, Seconds], lengths: NDArray[np.int64], cached: bool) -> Seconds:
    """Seconds for windows of these lengths, interpolated between the measured lengths."""
    measured_lengths = sorted(measured)
    seconds = {}
    for part in asdict(Seconds()):
        per_token = [getattr(measured[length], part) for length in measured_lengths]
        possible = math.inf not in per_token
        seconds[part] = (
            float((lengths * np.interp(lengths, measured_lengths, per_token)).sum()) if possible else math.inf
        )
    return Seconds(**seconds) if cached else Seconds(**seconds | {"read": max(seconds["write"], seconds["read"])})


def _time(seconds: float) -> str:
    if seconds == math.inf:
        return "impossible"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
