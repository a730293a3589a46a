"""Commands in forked children: of a warm process, so that a start costs nothing; killed at a file operation or at once.

Pages are drawn only where `pages` is asked for: a report takes ten times as long as a tiny study.
"""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertvision.files import remove
from bertvision.report import page
from runs import tiny_recipe
from torture.outcomes import Ended, command

WRITES = os.O_WRONLY | os.O_RDWR
KILLED = -signal.SIGKILL


@dataclass(frozen=True)
class Fate:
    """What happens to a child. operation: it is killed before this file operation in `place` (0: never).

    seconds: it is killed after so much time (0: never). largest: most bytes of a file it may write.
    """

    place: Path
    operation: int = 0
    seconds: float = 0.0
    largest: int = resource.RLIM_INFINITY


@dataclass(frozen=True)
class Life:
    """How a child ended. operations: the paths of its file operations."""

    ended: Ended
    operations: list[str]
    seconds: float

    @property
    def killed(self) -> bool:
        return self.ended.code == KILLED


@cache
def warm() -> None:
    """Runs a study and asks its reader in this process, so that children find everything imported."""
    with TemporaryDirectory(prefix="torture-") as place:
        recipe, out = tiny_recipe(Path(place) / "study.toml"), Path(place) / "run"
        ask = ("ask", "who was the king", "--context", "the old king was born", "--reader", out / "reader")
        for words in (("study", recipe, "--out", out), ask):
            done = command(*words)
            assert done.code == 0, done.err
        remove(out)


def run(words: tuple[object, ...], fate: Fate, *, pages: bool = False) -> Life:
    """`bertvision WORDS` in a child."""
    warm()
    notes = fate.place.with_name(".child")  # not on a disk that may be full
    notes.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child == 0:
        _live(words, fate, notes, pages)
    code = _wait(child, began + fate.seconds if fate.seconds else None)
    seconds = time.monotonic() - began
    out, err, error, operations = (
        (notes / name).read_text(encoding="utf-8") if (notes / name).is_file() else ""
        for name in ("out", "err", "error", "operations")
    )
    for path in notes.iterdir():
        path.unlink()
    notes.rmdir()
    return Life(Ended(code, out, err, error), operations.splitlines(), seconds)


def _wait(child: int, until: float | None) -> int:
    while until is not None and time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(0.005, max(0.0, until - time.monotonic())))
    if until is not None:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _live(words: tuple[object, ...], fate: Fate, notes: Path, pages: bool) -> None:
    """In the child; never returns."""
    status = 1
    try:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        sys.addaudithook(_watch(fate, os.open(notes / "operations", os.O_WRONLY | os.O_CREAT)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (fate.largest, limit))
        with nullcontext() if pages else without_pages():
            done = command(*words)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for name in ("out", "err", "error"):
            (notes / name).write_text(getattr(done, name), encoding="utf-8")
        status = done.code
    finally:
        os._exit(status)


@contextmanager
def without_pages() -> Iterator[None]:
    """Leaves out what takes most of the time of a tiny study."""
    drawn, page.write_pages = page.write_pages, lambda study, directory: directory
    try:
        yield
    finally:
        page.write_pages = drawn


def _watch(fate: Fate, log: int) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes every operation that changes files in a place, and kills the process before one."""
    inside, left = f"{fate.place}{os.sep}", fate.operation

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        path = _changed(event, args)
        if not path.startswith(inside):
            return
        os.write(log, f"{path.removeprefix(inside)}\n".encode(errors="replace"))
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def _changed(event: str, args: tuple[Any, ...]) -> str:
    """The path that an audited operation is going to change, empty if it changes none."""
    if event == "open" and not (args[2] or 0) & WRITES:
        return ""
    if event == "os.rename":
        return str(args[1])
    return str(args[0]) if event in ("open", "os.mkdir", "os.remove", "os.rmdir", "os.truncate") else ""
