"""Growing disks: a run starts on a disk that is too small, is refused, gets more room, and ends in the same bits.

The disk is a small tmpfs where it can be mounted (root on Linux), else a limit on the size of files.
"""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from torture.children import Fate, Life, run
from torture.kills import SCENES, begun, whole, words_of
from torture.outcomes import Tally
from torture.same import difference

ORDER = ["after", "stored", "lower stored", "along", "search", "tap", "reader"]
MOST = 12  # starts of one run before the disk is as large as it needs to be
SPARE = 4 << 20
Grow = Callable[[int], None]


@cache
def can_mount() -> bool:
    return os.geteuid() == 0 and not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode


@contextmanager
def disk(path: Path, size: int) -> Iterator[Grow]:
    """A disk of so many bytes at `path`; what it yields changes its size."""
    path.mkdir(exist_ok=True)

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(path)], check=True, capture_output=True)

    mount("-t", "tmpfs", "-o", f"size={size}", "torture")
    try:
        yield lambda bytes_: mount("-o", f"remount,size={bytes_}")
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


def attack(tally: Tally, place: Path, seed: int) -> None:
    """A run on a disk that grows until it is large enough."""
    chance, name = random.Random(f"disks {seed}"), ORDER[seed % len(ORDER)]
    if not can_mount():
        _limited(tally, place, seed, name, chance)
        return
    start, right = begun(name, place), whole(name, place)[0]
    least, enough = (sum(_bytes(path) for path in root.rglob("*")) for root in (start, right))
    size, path = least + chance.randint(64 << 10, max(128 << 10, enough - least)), place / "disk"
    with disk(path, size) as grow:
        subprocess.run(["cp", "-a", f"{start}/.", str(path)], check=True)
        for number in range(MOST):
            life = run(words_of(SCENES[name].words, path), Fate(path))
            if not _count(tally, name, life, f"seed {seed}, {size:,} bytes"):
                break
            size += chance.randint(64 << 10, 512 << 10) if number < MOST - 2 else enough + SPARE
            grow(size)
        else:
            tally.add("full disk", name, "lost", f"seed {seed}: it never came to its end: {life.ended.err[-300:]}")
            return
        if not life.ended.code and (differs := difference(path, right)):
            tally.add("full disk", name, "silent", f"seed {seed}: {differs}")
        elif not life.ended.code:
            tally.add("full disk", name, "same")


def _bytes(path: Path) -> int:
    return -(-path.stat().st_size // 4096) * 4096 + 4096


def _count(tally: Tally, name: str, life: Life, about: str) -> bool:
    """Counts a start on a small disk; whether it was refused and may be tried again."""
    if not life.ended.code:
        return False
    good = life.ended.is_refusal and ("full" in life.ended.err or "no room" in life.ended.err)
    outcome = "refused" if good else "traceback"
    tally.add("full disk", name, outcome, f"{about}: {life.ended.error or life.ended.err[-300:]}")
    return good


def _limited(tally: Tally, place: Path, seed: int, name: str, chance: random.Random) -> None:
    """The same with a limit on the size of each file."""
    import shutil

    from bertvision.files import remove

    path = place / "disk"
    remove(path)
    shutil.copytree(begun(name, place), path)
    life = run(words_of(SCENES[name].words, path), Fate(path, largest=chance.randint(1 << 10, 300 << 10)))
    if not life.ended.code or _count(tally, name, life, f"seed {seed}"):
        last = run(words_of(SCENES[name].words, path), Fate(path))
        differs = last.ended.err if last.ended.code else difference(path, whole(name, place)[0])
        tally.add("full disk", name, "silent" if differs else "same", f"seed {seed}: {differs}")
