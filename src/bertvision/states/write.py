"""Writing of a store: shard after shard, each renamed once it is whole; the encoder a few batches ahead of the disk."""

import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import by_length, collate
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import NoRoom, claim, readable, replacing
from bertvision.runtime import Runtime
from bertvision.states.layout import (
    EVERYTHING,
    NAME,
    Encoded,
    Layout,
    Manifest,
    Selection,
    Shard,
    checksum,
    encode,
    fingerprints,
)
from bertvision.states.store import Store, live, open_shard

SHARD_BYTES = 256 << 20  # the most work that a kill can cost; and few enough files
AHEAD = 2  # batches that may wait for the disk

Note = Callable[[int, str], None]  # takes the number and the checksum of a shard
Elsewhere = Callable[[Sequence[int], Note], None]  # see `write_store`
Item = TypeVar("Item")
Result = TypeVar("Result")


def write_store(
    directory: Path,
    backbone: Backbone,
    windows: Windows,
    selection: Selection = EVERYTHING,
    *,
    batch_tokens: int = 2048,
    shard_bytes: int = SHARD_BYTES,
    advance: Callable[[int], None] = lambda tokens: None,
    elsewhere: Elsewhere | None = None,
) -> Store:
    """Writes the states of all windows, in eval mode, and opens the store.

    After a kill it can be run again: complete shards are checked and kept, and the store ends up the same bit for bit.
    Of several processes each writes some of the shards, the main one the manifest.
    advance: called with the number of tokens of each piece of work done. elsewhere: has shards of given numbers written
    by others, each by `write_one`, and notes those that are done.
    UserError if `directory` holds another store, NoRoom if the disk is full.
    """
    runtime, lengths = backbone.runtime, selection.lengths(windows)
    manifest = _begun(directory, Manifest.of(backbone, windows, selection, shard_bytes), lengths, runtime)
    tokens = [int(windows.lengths[shard.first : shard.end].sum()) for shard in manifest.shards]
    missing = [number for number, shard in enumerate(manifest.shards) if not shard.checksum]
    mine = runtime.mine(missing)
    for number in set(range(len(tokens))) - set(missing):
        advance(tokens[number])

    def note(number: int, shard_checksum: str) -> None:
        nonlocal manifest
        manifest = manifest.written(number, shard_checksum)
        if runtime.is_main:
            manifest.save(directory)
        if elsewhere or number not in mine:
            advance(tokens[number])

    if elsewhere:
        elsewhere(missing, note)
    else:
        written = _written(directory, manifest, backbone, windows, mine, batch_tokens, advance)
        for first in range(0, len(missing), runtime.world):
            _write_round(missing[first : first + runtime.world], written, runtime, note)
    return Store(directory, manifest, lengths, backbone.layers)


def _begun(directory: Path, wanted: Manifest, lengths: NDArray[np.int64], runtime: Runtime) -> Manifest:
    """The manifest to continue from, in every process; NoRoom if the disk is full."""
    tables, full = runtime.broadcast(_begin(directory, wanted, lengths) if runtime.is_main else ([], ""))
    if full:  # fails before hours of work, not after
        raise NoRoom(full)
    return replace(wanted, shards=tuple(Shard(**table) for table in tables))


def _write_round(numbers: Sequence[int], written: Iterator[tuple[int, str]], runtime: Runtime, note: Note) -> None:
    """Writes one of these shards in each process, and notes all of them in each; NoRoom in all where one has none."""
    shard_checksum = full = ""
    if runtime.rank < len(numbers):
        try:
            _, shard_checksum = next(written)
        except NoRoom as error:
            full = str(error)
    outcomes = runtime.exchange((shard_checksum, full))
    for number, (shard_checksum, _) in zip(numbers, outcomes):
        if shard_checksum:
            note(number, shard_checksum)
    for _, full in outcomes:
        if full:
            raise NoRoom(full)


def write_one(directory: Path, backbone: Backbone, windows: Windows, number: int, *, batch_tokens: int = 2048) -> str:
    """Writes one shard of a store that another process has begun; its checksum, which that process notes."""
    manifest = Manifest.load(directory)
    manifest.refuse_others(directory, fingerprints(backbone, windows))
    written = _written(directory, manifest, backbone, windows, [number], batch_tokens, lambda tokens: None)
    return next(shard_checksum for _, shard_checksum in written)


def _written(
    directory: Path,
    manifest: Manifest,
    backbone: Backbone,
    windows: Windows,
    numbers: Sequence[int],
    batch_tokens: int,
    advance: Callable[[int], None],
) -> Generator[tuple[int, str], None, None]:
    """Writes some shards; (number, checksum) of each. The encoder is a few batches ahead of the disk."""
    selection, shards = manifest.selection, [manifest.shards[number] for number in numbers]
    feed, lengths = live(backbone, selection.reads, selection.positions), selection.lengths(windows)
    plans = [shard_batches(windows.lengths, shard, batch_tokens) for shard in shards]

    def encoded(index: NDArray[np.int64]) -> tuple[NDArray[np.int64], Encoded]:
        return index, encode(feed(collate(windows, index, backbone.pad)).layers, selection.dtype)

    def pieces(batches: int) -> Generator[tuple[NDArray[np.int64], Encoded], None, None]:
        for index, states in islice(stream, batches):
            yield index, states
            advance(int(windows.lengths[index].sum()))

    stream = _ahead(encoded, [index for plan in plans for index in plan], AHEAD)
    try:
        for number, shard, plan in zip(numbers, shards, plans):
            layout = manifest.layout(shard, lengths)
            yield number, write_shard(directory / shard.file, layout, pieces(len(plan)), shard.first)
    finally:
        stream.close()


def shard_batches(lengths: NDArray[np.int64], shard: Shard, batch_tokens: int) -> list[NDArray[np.int64]]:
    """The batches in which the windows of a shard go through the encoder, whichever shards were written before."""
    return [shard.first + index for index in by_length(lengths[shard.first : shard.end], batch_tokens)]


def write_shard(path: Path, layout: Layout, pieces: Iterable[tuple[NDArray[np.int64], Encoded]], first: int = 0) -> str:
    """Writes a shard under another name, renames it once all of it is on the disk, and returns its checksum.

    pieces: window numbers (B,), counted from `first`, with their states; together all windows of the layout.
    """
    checks = np.zeros(len(layout.lengths), "<u4")
    with replacing(path, durable=True) as scratch, scratch.open("r+b") as file:
        file.truncate(layout.bytes)
        for index, encoded in pieces:
            for row, window in enumerate((index - first).tolist()):
                parts = layout.pieces(encoded, row, window)
                checks[window] = checksum(parts)
                for byte_range, part_bytes in zip(layout.places(window), parts):
                    file.seek(byte_range.start)
                    file.write(part_bytes.data)
        file.seek(layout.checks_at)
        file.write(checks.tobytes())
    return hashlib.sha256(checks.tobytes()).hexdigest()


def _begin(directory: Path, wanted: Manifest, lengths: NDArray[np.int64]) -> tuple[list[dict[str, Any]], str]:
    """Claims the directory. All shards as tables, those that are not there or not whole without a checksum; and why
    there is no room for these, if there is none."""
    claim(directory)
    manifest = _existing_or_new(directory, wanted)
    whole = [_is_whole(directory, manifest, shard, lengths) for shard in manifest.shards]
    needed = sum(shard.bytes for shard, done in zip(manifest.shards, whole) if not done)
    free = shutil.disk_usage(directory).free
    full = ""
    if needed > free:
        room = f"{readable(needed)} are still to be written and {readable(free)} are free"
        full = f"{directory}: the disk is too full: {room}; make room and run the same command again"
    return [asdict(shard) | ({} if done else {"checksum": ""}) for shard, done in zip(manifest.shards, whole)], full


def _existing_or_new(directory: Path, wanted: Manifest) -> Manifest:
    """The manifest to continue from: the existing one if it is of the same states, else the new one."""
    if not (directory / NAME).exists():
        wanted.save(directory)
        return wanted
    existing = Manifest.load(directory)
    existing.refuse_others(directory, (wanted.weights, wanted.tokenizer, wanted.windows))
    if replace(existing, shards=()) != replace(wanted, shards=()):
        kind = existing.selection
        raise UserError(f"{directory}: holds {kind}, not what is asked for; delete it or choose another place")
    return existing


def _is_whole(directory: Path, manifest: Manifest, shard: Shard, lengths: NDArray[np.int64]) -> bool:
    """True if a shard exists and holds exactly what was written."""
    try:
        open_shard(directory, manifest, shard, lengths).verify()
    except UserError:
        return False
    return True


def _ahead(compute: Callable[[Item], Result], items: Sequence[Item], depth: int) -> Generator[Result, None, None]:
    """compute(item) of each item, in order, from a thread that is at most `depth` results ahead of the consumer."""
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
