"""Writing and reading plain files: a kill at any moment leaves the old file or the new one, never half of one."""

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
except ImportError:  # Windows: there directories are not claimed
    fcntl = None  # type: ignore[assignment]

SCRATCH = re.compile(r"\..+\.\d+-[0-9a-f]{8}|\.checkpoint-.+\.part")  # directories of what is not yet whole
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, or what this user or file may have of it
_claimed: dict[Path, int] = {}  # directory -> the open descriptor that holds its lock


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty file in a directory of its own beside `path`; on success it takes the place of `path`.

    The directory is removed in the end, with whatever else the writer may have put there.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}") / path.name
    try:
        scratch.parent.mkdir(parents=True)
        scratch.touch()
        mode = scratch.stat().st_mode  # what the user's umask asks for; some writers make their files private
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
        return NoRoom(f"{path}: {why}; make room and run the same command again, it goes on from here")
    return UserError(f"{path}: cannot be written ({error.strerror or error}); choose another place")


def claim(directory: Path) -> None:
    """Makes `directory` and makes this process the only one at work in it, until it ends or removes the directory.

    UserError if another is at work there.

    What an earlier process was writing when it was killed is removed: by names that only this program gives, for the
    directory may be one that holds other things too.
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
    """An open descriptor of `directory`, locked; the system lets go of it when the process ends, however it ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks: two processes at once are then the user's to avoid
        pass
    return descriptor


def remove(directory: Path) -> None:
    """Removes a directory, if it is there, with all that is in it and the claims on that."""
    place = directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    for claimed in [claimed for claimed in _claimed if claimed.is_relative_to(place)]:
        os.close(_claimed.pop(claimed))


def write_text(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` with one line for each entry of the outermost object or list: for people, and quick to read."""

    def compact(part: Any) -> str:
        return json.dumps(part, ensure_ascii=False)

    text = compact(value)
    if value and isinstance(value, dict):
        pairs = ",\n ".join(f"{compact(str(key))}: {compact(part)}" for key, part in value.items())
        text = f"{{\n {pairs}\n}}"
    elif value and isinstance(value, list):
        entries = ",\n ".join(map(compact, value))
        text = f"[\n {entries}\n]"
    write_text(path, text + "\n")


def read_json(path: Path, what: str = "file") -> Any:
    """The JSON in `path`, or UserError naming `what` was expected there."""
    return _read(path, what, lambda: json.loads(path.read_text(encoding="utf-8")))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors as safetensors, with `about` (JSON) in the header: one file, one rename."""
    with replacing(path) as scratch:
        plain = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
        try:
            save_file(plain, scratch, metadata={"about": json.dumps(about)})
        except SafetensorError as error:  # its errors hide the errno
            code = errno.ENOSPC if "No space left" in str(error) else errno.EIO
            raise OSError(code, str(error)) from None


def load_tensors(path: Path, what: str = "weights") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote: the tensors and `about`."""

    def read() -> tuple[dict[str, Tensor], dict[str, Any]]:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, json.loads((file.metadata() or {})["about"])  # noqa: SIM118

    return _read(path, what, read)


def load_whole(path: Path, what: str = "weights") -> dict[str, Tensor]:
    """All tensors of any safetensors file."""

    def read() -> dict[str, Tensor]:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118

    return _read(path, what, read)


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
    """What was read from `path` is put to use inside: that it does not fit then is the file's fault, a UserError."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, what, error) from None


def _damaged(path: Path, what: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:200]
    way_out = "if this program made it, delete it to have it made again"
    return UserError(f"{path}: damaged, or not a {what} ({reason}); {way_out}")
