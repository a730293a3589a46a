"""Forecast: what a store would weigh, and what live and stored states would cost here, from a few measured batches."""

import math
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, numbered
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.layout import Dtype, Layout, Positions, padded_bytes, readable
from bertvision.states.manifest import kept_lengths
from bertvision.states.probe import Bench, Probe, spread

try:
    import resource
except ImportError:  # Windows: there memory is not told
    resource = None  # type: ignore[assignment]

SPARE = 1.05  # a store is not begun unless the disk would keep this much of its size free


@dataclass(frozen=True, slots=True)
class Looks:
    """What is to be expected of a tuning set on which heads are looked at `times` times while they learn.

    The seconds of one look: of the encoder, of all heads together, of reading a store; and of writing and checking it.
    """

    times: int = 0
    windows: int = 0
    encoder_seconds: float = 0.0
    heads_seconds: float = 0.0
    write_seconds: float = 0.0
    check_seconds: float = 0.0
    read_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected of training `heads` heads for `epochs` epochs.

    bytes: of a store, by dtype; padded_bytes: of all windows as fp32, padded to the longest; both with the tuning set,
    where heads are looked at on one. The seconds of one epoch: of the encoder, of all heads together, of writing a
    store, of checking it on first use, of reading it. held_bytes: most memory this process has held until now, with
    the largest batch measured; 0 = not known. free_bytes: of the disk.
    """

    windows: int
    tokens: int
    longest: int
    epochs: float
    heads: int
    dtype: Dtype
    bytes: dict[str, int]
    padded_bytes: int
    encoder_seconds: float
    heads_seconds: float
    write_seconds: float
    check_seconds: float
    read_seconds: float
    held_bytes: int
    free_bytes: int
    looks: Looks = Looks()

    @property
    def live_seconds(self) -> float:
        """The encoder runs in every epoch, and at every look."""
        looks = self.looks.times * (self.looks.encoder_seconds + self.looks.heads_seconds)
        return self.epochs * (self.encoder_seconds + self.heads_seconds) + looks

    @property
    def stored_seconds(self) -> float:
        """The encoder runs once, as if nothing were written at the same time; every epoch and every look reads."""
        looks = self.looks
        once = self.encoder_seconds + self.write_seconds + self.check_seconds
        once += looks.encoder_seconds + looks.write_seconds + looks.check_seconds
        again = looks.times * (looks.read_seconds + looks.heads_seconds)
        return once + self.epochs * (self.read_seconds + self.heads_seconds) + again

    def choose(self) -> tuple[Literal["live", "stored"], str]:
        """The quicker way that the disk has room for, and why."""
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
        """All of it as plain values, with the choice; seconds that are not possible are None."""
        choice, why = self.choose()
        found = asdict(self) | {"live_seconds": self.live_seconds, "stored_seconds": self.stored_seconds}
        found["looks"] = {key: None if value == math.inf else value for key, value in found["looks"].items()}
        plain = {key: None if value == math.inf else value for key, value in found.items()}
        return {**plain, "choice": choice, "why": why}

    def lines(self) -> list[str]:
        """The forecast in words."""
        mean = self.tokens / max(1, self.windows)
        stores = ", ".join(
            f"{readable(size)} as {name} (1/{self.padded_bytes / max(1, size):.1f})"
            for name, size in self.bytes.items()
        )
        encoder, heads = _time(self.encoder_seconds), _time(self.heads_seconds)
        work = f"{self.epochs:g} epochs of {self.heads} heads"
        choice, why = self.choose()
        padded, free = readable(self.padded_bytes), readable(self.free_bytes)
        memory = [f"memory: {readable(self.held_bytes)} held until now"] if self.held_bytes else []
        looks = [f"looks: {self.looks.windows:,} windows, {self.looks.times} times"] if self.looks.times else []
        return [
            f"windows: {self.windows:,} of {mean:.0f} tokens, the longest {self.longest}; together {self.tokens:,}",
            *looks,
            f"store: {stores}; padded fp32 would be {padded}; {free} are free",
            f"one epoch: encoder {encoder}, heads {heads}, reading {self.dtype} {_time(self.read_seconds)}",
            f"{work}: live {_time(self.live_seconds)}, stored {_time(self.stored_seconds)}",
            *memory,
            f"choice: {choice}, for {why}",
        ]


def forecast(
    backbone: Backbone,
    windows: Windows,
    heads: Sequence[Any],
    epochs: float,
    *,
    directory: Path,
    reads: Reads = "all",
    positions: Positions = "all",
    dtype: Dtype = "fp16",
    batch_size: int = 16,
    batch_tokens: int = 4096,
    looked_at: Windows | None = None,
    looks: int = 0,
) -> Forecast:
    """Measures the longest, the middle and the shortest batch, all of it for real, and adds up over all lengths.

    heads: modules States -> logits; copies of them are trained. directory: where a store would be, for the speed and
    the room of that disk; nothing stays there. looked_at: a tuning set that is read `looks` times beside the epochs.
    """
    lengths = windows.lengths
    if not len(lengths):
        raise UserError("forecast: there is nothing to read; give data with at least one question")
    disk = _existing(directory)
    place = (
        disk / f".forecast.{os.getpid()}-{secrets.token_hex(4)}"
    )  # a scratch name: `claim` clears away what a kill left
    try:
        with torch.random.fork_rng(devices=[]):
            bench = Bench(backbone, windows, heads, reads, positions, dtype, place / "shard.bin")
            shortest, *others = spread(lengths, batch_size, batch_tokens)
            bench.measure(shortest)  # the first time everything is slower
            probes = [bench.measure(index) for index in (shortest, *others)]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sets = [windows] if looked_at is None or not looks else [windows, looked_at]
    layers, width = len(numbered(reads, backbone.layers)), backbone.width
    kept = [kept_lengths(one, positions) for one in sets]
    names: list[Dtype] = [dtype, "fp16", "int8"]
    sizes: dict[str, int] = {name: sum(Layout(one, layers, width, name).bytes for one in kept) for name in names}
    cached = sizes[dtype] <= _memory() / 2  # else too large for the page cache: read as fast as written
    training, *looking = [_seconds(probes, one.lengths, cached) for one in sets]
    return Forecast(
        windows=len(windows),
        tokens=int(lengths.sum()),
        longest=int(lengths.max(initial=0)),
        epochs=epochs,
        heads=len(heads),
        dtype=dtype,
        bytes=sizes,
        padded_bytes=sum(padded_bytes(len(one), int(one.max(initial=0)), layers, width) for one in kept),
        encoder_seconds=training["encoder"],
        heads_seconds=training["heads"],
        write_seconds=training["write"],
        check_seconds=training["check"],
        read_seconds=training["read"],
        held_bytes=_held(),
        free_bytes=shutil.disk_usage(disk).free,
        looks=_looks(looks, sets[-1], *looking) if looking else Looks(),
    )


def _looks(times: int, windows: Windows, seconds: dict[str, float]) -> Looks:
    return Looks(
        times=times,
        windows=len(windows),
        encoder_seconds=seconds["encoder"],
        heads_seconds=seconds["looks"],
        write_seconds=seconds["write"],
        check_seconds=seconds["check"],
        read_seconds=seconds["read"],
    )


def _seconds(probes: list[Probe], lengths: NDArray[np.int64], cached: bool) -> dict[str, float]:
    """{part of the work: seconds for windows of these lengths}"""
    found = {what: _total(probes, what, lengths) for what in ("encoder", "heads", "looks", "write", "check", "read")}
    return found if cached else found | {"read": max(found["write"], found["read"])}


def _total(probes: list[Probe], what: str, lengths: NDArray[np.int64]) -> float:
    """Seconds for all windows: those per token, interpolated between the lengths that were measured."""
    found = {probe.length: getattr(probe, what) / probe.tokens for probe in probes}
    if math.inf in found.values():
        return math.inf
    known = sorted(found)
    return float((lengths * np.interp(lengths, known, [found[length] for length in known])).sum())


def _existing(directory: Path) -> Path:
    """The directory, or the nearest above it that is there."""
    return next(place for place in (directory, *directory.absolute().parents) if place.is_dir())


def _memory() -> int:
    """Bytes of memory of this machine."""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 8 << 30


def _held() -> int:
    """Most memory this process has held."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _time(seconds: float) -> str:
    if seconds == math.inf:
        return "impossible"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
