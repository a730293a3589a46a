"""Writing a store: one backbone pass, shard by shard, each written while the encoder is at work on what follows."""

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads
from bertvision.data.batches import by_length, collate
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import FULL, NoRoom, claim, replacing
from bertvision.states.layout import Dtype, Encoded, Layout, Positions, checksum, encode, readable
from bertvision.states.manifest import NAME, Manifest, Shard, kept_lengths
from bertvision.states.source import live
from bertvision.states.store import OpenShard, Store

SHARD_BYTES = 256 << 20  # what a kill can cost at most; and few enough files
AHEAD = 2  # batches that wait for the disk at most

Item = TypeVar("Item")
Result = TypeVar("Result")


def write_store(
    directory: Path,
    backbone: Backbone,
    windows: Windows,
    *,
    dtype: Dtype = "fp16",
    reads: Reads = "all",
    positions: Positions = "all",
    batch_tokens: int = 2048,
    shard_bytes: int = SHARD_BYTES,
    advance: Callable[[int], None] = lambda tokens: None,
) -> Store:
    """Writes the states of all windows, in eval mode, and opens the store.

    Killed at any moment it can be run again: shards that are whole are checked and kept, and the store ends up bit
    for bit as if nothing had happened. advance: told the number of tokens of each piece of work done.
    UserError if `directory` holds another store, NoRoom if the disk is full.
    """
    claim(directory)
    manifest = _begin(directory, Manifest.of(backbone, windows, dtype, reads, positions, shard_bytes))
    lengths = kept_lengths(windows, positions)
    todo = []
    for number, shard in enumerate(manifest.shards):
        if _sound(directory, manifest, shard, lengths):
            advance(int(windows.lengths[shard.first : shard.end].sum()))
        else:
            todo.append((number, shard))
    _refuse_small_disk(directory, sum(shard.bytes for _, shard in todo))

    feed = live(backbone, reads, positions)
    plans = [shard_batches(windows.lengths, shard, batch_tokens) for _, shard in todo]

    def encoded(index: NDArray[np.int64]) -> tuple[NDArray[np.int64], Encoded]:
        return index, encode(feed(collate(windows, index, backbone.pad)).layers, dtype)

    stream = _ahead(encoded, [index for plan in plans for index in plan], AHEAD)
    try:
        for (number, shard), plan in zip(todo, plans):
            pieces = _told(islice(stream, len(plan)), windows.lengths, advance)
            layout = manifest.layout(shard, lengths)
            manifest = manifest.written(number, write_shard(directory / shard.file, layout, pieces, shard.first))
            manifest.save(directory)
    finally:
        stream.close()
    return Store(directory, manifest, lengths, backbone.layers)


def shard_batches(lengths: NDArray[np.int64], shard: Shard, batch_tokens: int) -> list[NDArray[np.int64]]:
    """The batches in which the windows of a shard go through the encoder, whichever shards were written before."""
    return [shard.first + index for index in by_length(lengths[shard.first : shard.end], batch_tokens)]


def write_shard(path: Path, layout: Layout, pieces: Iterable[tuple[NDArray[np.int64], Encoded]], first: int = 0) -> str:
    """Writes a shard under another name, renames it once all of it is on the disk, and returns its checksum.

    pieces: window numbers (B,), counted from `first`, with their states; together all windows of the layout.
    """
    checks = np.zeros(len(layout.lengths), "<u4")
    with replacing(path) as scratch, scratch.open("r+b") as file:
        _reserve(file.fileno(), layout.bytes)
        for index, encoded in pieces:
            for row, window in enumerate((index - first).tolist()):
                parts = layout.pieces(encoded, row, window)
                checks[window] = checksum([part for _, part in parts])
                for place, part in parts:
                    file.seek(place)
                    file.write(part.data)
        file.seek(layout.checks_at)
        file.write(checks.tobytes())
        file.flush()
        os.fsync(file.fileno())  # a rename that reaches the disk before the bytes would show a shard that is none
    return hashlib.sha256(checks.tobytes()).hexdigest()


def _begin(directory: Path, wanted: Manifest) -> Manifest:
    """The manifest to go on from: the one that is there if it is of the same states, else the new one."""
    if not (directory / NAME).exists():
        wanted.save(directory)
        return wanted
    found = Manifest.load(directory)
    found.refuse_others(directory, (wanted.weights, wanted.tokenizer, wanted.windows))
    if replace(found, shards=()) != replace(wanted, shards=()):
        raise UserError(f"{directory}: holds {found.kind}, not what is asked for; delete it or choose another place")
    return found


def _sound(directory: Path, manifest: Manifest, shard: Shard, lengths: NDArray[np.int64]) -> bool:
    """Whether a shard is there and as it was written."""
    if not shard.checksum or not (directory / shard.file).exists():
        return False
    try:
        OpenShard(directory / shard.file, manifest.layout(shard, lengths), shard.checksum, shard.first).verify()
    except UserError:
        return False
    return True


def _refuse_small_disk(directory: Path, wanted: int) -> None:
    """Better now than after hours."""
    free = shutil.disk_usage(directory).free
    if wanted > free:
        room = f"{readable(wanted)} are still to be written and {readable(free)} are free"
        raise NoRoom(f"{directory}: the disk is too full: {room}; make room and run the same command again")


def _reserve(descriptor: int, size: int) -> None:
    """Takes the room on the disk at once, where the system can: a full disk shows before the encoder's work."""
    if not hasattr(os, "posix_fallocate") or not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in FULL:  # others: this file system cannot reserve
            raise


def _told(
    pieces: Iterator[tuple[NDArray[np.int64], Encoded]], lengths: NDArray[np.int64], advance: Callable[[int], None]
) -> Iterator[tuple[NDArray[np.int64], Encoded]]:
    for index, encoded in pieces:
        yield index, encoded
        advance(int(lengths[index].sum()))


def _ahead(compute: Callable[[Item], Result], items: Sequence[Item], depth: int) -> Generator[Result, None, None]:
    """compute(item) of each item, in order, by a thread that is at most `depth` results ahead of who takes them."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="encoder") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(compute, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
