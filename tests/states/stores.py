"""What the tests of stores share: a tiny backbone, windows of given lengths, and work for processes of their own.

from states.stores import contents, digests, full_disk, slow_store, tiny_backbone, windows_of
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from bertvision.backbone.backbone import Backbone
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.write import write_store
from runs import encoder

LENGTHS = [3, 1, 9, 30, 2, 17, 5, 1, 12, 8, 22, 4] * 3
SHARD_BYTES = 20_000  # fp16 windows of LENGTHS, 4 layers of width 32: five shards


@cache
def tiny_backbone(directory: str = "") -> Backbone:
    return Backbone.load(directory or encoder())


def windows_of(lengths: Sequence[int], seed: int = 0) -> Windows:
    """Windows with random ids."""
    random = np.random.default_rng(seed)
    count, tokens = len(lengths), sum(lengths)
    ids, types = random.integers(5, 60, tokens).astype(np.int32), np.zeros(tokens, np.uint8)
    return Windows.of_texts(ids, types, np.array(lengths), np.arange(count), np.zeros((count, 2), np.int64))


def contents(directory: Path) -> dict[str, bytes]:
    """All files of a store."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def slow_store(directory: str, name: str) -> None:
    """Writes the store of LENGTHS so slowly that it can be killed half-way."""
    write_store(
        Path(directory),
        tiny_backbone(name),
        windows_of(LENGTHS),
        batch_tokens=64,
        shard_bytes=SHARD_BYTES,
        advance=lambda tokens: time.sleep(0.2),
    )


def full_disk(directory: str, name: str) -> None:
    """Writes the store of LENGTHS to a disk that is full, that fills up while it is written, that has room again."""
    store, filler = Path(directory) / "store", Path(directory) / "filler"
    backbone, windows = tiny_backbone(name), windows_of(LENGTHS)

    def fill(tokens: int = 0) -> None:
        """Leaves room for a manifest, not for a shard."""
        if filler.exists() or (tokens and not (store / "shard-00000.bin").exists()):
            return
        with filler.open("ab", buffering=0) as file:
            with suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            file.truncate(file.tell() - 16384)

    def attempt(advance: Callable[[int], None]) -> None:
        try:
            write_store(store, backbone, windows, batch_tokens=64, shard_bytes=SHARD_BYTES, advance=advance)
            print("written")
        except UserError as error:
            print(error)

    fill()
    attempt(lambda tokens: None)
    filler.unlink()
    attempt(fill)
    print(*contents(store))
    filler.unlink()
    attempt(lambda tokens: None)
    print(digests(store))


def digests(directory: Path) -> str:
    """The sha256 of every file of a store."""
    return str({name: hashlib.sha256(data).hexdigest() for name, data in contents(directory).items()})
