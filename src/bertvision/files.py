"""Atomic files: a kill at any moment leaves the old file or the new one, never half of one."""

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertvision.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: directories are not locked there
    fcntl = None  # type: ignore[assignment]

SCRATCH = re.compile(r"\..+\.\d+-[0-9a-f]{8}|\.checkpoint-.+\.part")  # directories of unfinished files
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or a quota or file size limit is reached
_claimed: dict[Path, int] = {}  # directory -> open descriptor that holds its lock


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty file in a new directory beside `path`; on success it replaces `path`."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}") / path.name
    try:
        scratch.parent.mkdir(parents=True)
        scratch.touch()
        mode = scratch.stat().st_mode  # as the umask says; some writers make their files private
        yield scratch
        scratch.chmod(mode)
        scratch.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(scratch.parent, ignore_errors=True)


class NoRoom(UserError):
    """The disk is full, or will be."""


def _unwritable(path: Path, error: OSError) -> UserError:
    if error.errno in FULL:
        why = "the disk is full" if error.errno == errno.ENOSPC else f"no room for it ({error.strerror})"
        return NoRoom(f"{path}: {why}; make room and run the same command again; it continues from here")
    return UserError(f"{path}: cannot be written ({error.strerror or error}); choose another place")


def claim(directory: Path) -> None:
    """Makes `directory` and locks it until this process ends or removes it; UserError if another process holds it.

    Removes files that a killed process left unfinished, by names that only this program gives.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        place = directory.resolve()
        if place not in _claimed and fcntl is not None:
            _claimed[place] = _lock(place)
    except BlockingIOError:
        raise UserError(f"{directory}: another process is at work here; wait for it, or choose another place") from None
    except OSError as error:
        raise _unwritable(directory, error) from error
    for path in [path for path in directory.rglob(".*") if SCRATCH.fullmatch(path.name)]:
        shutil.rmtree(path, ignore_errors=True)


def _lock(directory: Path) -> int:
    """An open, locked descriptor of `directory`; the system releases the lock when the process ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks: the user must not run two processes at once
        pass
    return descriptor


def remove(directory: Path) -> None:
    """Removes a directory, if it exists, and the locks on it and below it."""
    place = directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    for claimed in [claimed for claimed in _claimed if claimed.is_relative_to(place)]:
        os.close(_claimed.pop(claimed))


def write_text(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def read_text(path: Path, way_out: str = "check the path") -> str:
    """The text of a user's file, without byte-order mark; UserError, with a way out, if there is none."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {way_out}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {way_out}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None


def write_json(path: Path, value: Any) -> None:
    """Writes `value` with one line for each entry of the outermost object or list."""

    def compact(part: Any) -> str:
        return json.dumps(part, ensure_ascii=False)

    text = compact(value)
    if value and isinstance(value, dict | list):
        parts = [compact({str(key): part})[1:-1] for key, part in value.items()] if isinstance(value, dict) else value
        lines = ",\n ".join(parts if isinstance(value, dict) else map(compact, value))
        text = f"{text[0]}\n {lines}\n{text[-1]}"
    write_text(path, text + "\n")


def read_json(path: Path, what: str = "file") -> Any:
    """The JSON in `path`; UserError if it is missing or damaged. what: what the file should be."""
    return _read(path, what, lambda: json.loads(path.read_text(encoding="utf-8")))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors as safetensors, with `about` (JSON) in the header: one file, one rename."""
    write_tensors(path, tensors, {"about": json.dumps(about)})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Tensors as safetensors: one file, one rename; UserError if it cannot be written."""
    plain = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
    with replacing(path) as scratch:
        try:
            save_file(plain, scratch, metadata=dict(header))
        except SafetensorError as error:  # the errno is only in its text
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(str(error)) from None


def load_tensors(path: Path, what: str = "weights") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and `about` of a file that `save_tensors` wrote."""
    return _read(path, what, lambda: _tensors(path, about=True))


def load_whole(path: Path, what: str = "weights") -> dict[str, Tensor]:
    """All tensors of any safetensors file."""
    return _read(path, what, lambda: _tensors(path, about=False)[0])


def _tensors(path: Path, about: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        notes = json.loads((file.metadata() or {})["about"]) if about else {}
        return {key: file.get_tensor(key) for key in file.keys()}, notes  # noqa: SIM118


def _read(path: Path, what: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except OSError as error:
        reason = f"is a directory, not a {what}" if path.is_dir() else f"cannot be read ({error.strerror or error})"
        raise UserError(f"{path}: {reason}") from None
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, what, error) from None


@contextmanager
def fitting(path: Path, what: str) -> Iterator[None]:
    """For using what was read from `path`: errors inside become a UserError that calls the file damaged."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, what, error) from None


def _damaged(path: Path, what: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    way_out = "if this program made it, delete it to have it made again"
    return UserError(f"{path}: damaged, or not a {what} ({reason}); {way_out}")
