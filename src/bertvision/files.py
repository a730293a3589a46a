"""Files with digests, written whole: a kill at any moment leaves the old file or the new one, and damage is noticed.

A safetensors file has the sha256 of all its other bytes in its header. JSON and TOML have no place for one that other
programs would not stumble over, so it is spelt in blanks: the last line is 64 spaces and tabs, the first bits of the
sha256 of the lines above. Files without a digest (older ones, or written by hand) are read as they are.
"""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from bertvision.errors import UserError, one_line

if TYPE_CHECKING:  # slow to import, and an exported reader runs without it
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows: directories are not locked there
    fcntl = None  # type: ignore[assignment]

SCRATCH = re.compile(r"\..+\.\d+-[0-9a-f]{8}|\.checkpoint-.+\.part")  # directories of unfinished files
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or a quota or file size limit is reached
UNSEALED = b"sha256=" + b"0" * 64  # stands in a header until the digest is known
BLANK = re.compile(r"(?s)(.*\n)([ \t]{64})\n?")  # lines, and their digest
CUT = re.compile(r"\n[ \t]{1,63}\Z")  # a digest that was cut off
WAY_OUT = "if this program made it, delete it to have it made again"
_claimed: dict[Path, int] = {}  # directory -> open descriptor that holds its lock


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yields an empty file in a new directory beside `path`; on success it replaces `path`. durable: see `sync`."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}") / path.name
    try:
        scratch.parent.mkdir(parents=True)
        scratch.touch()
        mode = scratch.stat().st_mode  # as the umask says; some writers make their files private
        yield scratch
        scratch.chmod(mode)
        if durable:
            sync(scratch)
        scratch.replace(path)
        if durable:
            sync(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(scratch.parent, ignore_errors=True)


def sync(*paths: Path) -> None:
    """Waits until files, or the names in directories, are on the disk.

    A file that is renamed without it may be empty under its new name after a power loss.
    """
    for path in paths:
        if fcntl is None and path.is_dir():  # Windows cannot open directories
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class NoRoom(UserError):
    """The disk is full, or will be."""


def _unwritable(path: Path, error: OSError) -> UserError:
    if error.errno in FULL:
        why = "the disk is full" if error.errno == errno.ENOSPC else f"no room for it ({error.strerror})"
        return NoRoom(f"{path}: {why}; make room and run the same command again; it continues from here")
    return UserError(f"{path}: cannot be written ({error.strerror or error}); choose another place")


class Busy(UserError):
    """Another process holds the directory."""


def claim(directory: Path, *, shared: bool = False, patience: float = 0.0) -> bool:
    """Makes `directory` and locks it until this process ends, releases or removes it; Busy if another process holds it.
    False if this process held it already.

    Removes files that a killed process left unfinished, by names that only this program gives. shared: other processes
    may hold it too if they share it; unfinished files may then be theirs, and stay. patience: how many seconds to wait
    for another process, such as one that was just killed.
    """
    deadline, newly_locked = time.monotonic() + patience, False
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            resolved = directory.resolve()
            if resolved not in _claimed and fcntl is not None:
                _claimed[resolved], newly_locked = _lock(resolved, shared), True
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                why = "another process is at work here; wait for it, or choose another place"
                raise Busy(f"{directory}: {why}") from None
            time.sleep(0.1)
        except OSError as error:
            raise _unwritable(directory, error) from error
    for path in [] if shared else [path for path in directory.rglob(".*") if SCRATCH.fullmatch(path.name)]:
        shutil.rmtree(path, ignore_errors=True)
    return newly_locked


@contextmanager
def holding(directory: Path) -> Iterator[None]:
    """`claim`, until the end of the block."""
    newly_locked = claim(directory)
    try:
        yield
    finally:
        if newly_locked:
            release(directory)


def release(directory: Path) -> None:
    """Unlocks a directory that this process has claimed; others may claim it then."""
    if (descriptor := _claimed.pop(directory.resolve(), None)) is not None:
        os.close(descriptor)


def _lock(directory: Path, shared: bool) -> int:
    """An open, locked descriptor of `directory`; the system releases the lock when the process ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks: the user must not run two processes at once
        pass
    return descriptor


def remove(directory: Path) -> None:
    """Removes a directory, if it exists, and the locks on it and below it."""
    resolved = directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    for claimed in [claimed for claimed in _claimed if claimed.is_relative_to(resolved)]:
        os.close(_claimed.pop(claimed))


def write_text(path: Path, text: str, *, durable: bool = False) -> None:
    with replacing(path, durable=durable) as scratch:
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


def with_digest(text: str) -> str:
    """Lines of text and, as one more line of blanks, their digest."""
    return f"{text}{_blanks(text)}\n"


def read_with_digest(path: Path, what: str = "file", way_out: str = WAY_OUT) -> str:
    """The text of a file; UserError if it is missing, or does not fit the digest in its last line."""

    def read() -> str:
        text = path.read_text(encoding="utf-8")
        match = BLANK.fullmatch(text)
        if CUT.search(text) or (match and _blanks(match[1]) != match[2]):
            raise ValueError("its digest does not match: remove the blank line at its end if you changed it yourself")
        return text

    return _read(path, what, read, way_out)


def _blanks(text: str) -> str:
    bits = int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8])
    return "".join(" \t"[bits >> position & 1] for position in range(64))


def write_json(path: Path, value: Any, *, durable: bool = False) -> None:
    """Writes `value` with one line for each entry of the outermost object or list, and the digest."""

    def compact(part: Any) -> str:
        return json.dumps(part, ensure_ascii=False)

    text = compact(value)
    if value and isinstance(value, dict | list):
        parts = [compact({str(key): part})[1:-1] for key, part in value.items()] if isinstance(value, dict) else value
        lines = ",\n ".join(parts if isinstance(value, dict) else map(compact, value))
        text = f"{text[0]}\n {lines}\n{text[-1]}"
    write_text(path, with_digest(text + "\n"), durable=durable)


def read_json(path: Path, what: str = "file", way_out: str = WAY_OUT) -> Any:
    """The JSON in `path`; UserError if it is missing or damaged. what: what the file should be."""
    text = read_with_digest(path, what, way_out)
    return _read(path, what, lambda: json.loads(text), way_out)


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], about: Mapping[str, Any]) -> None:
    """Tensors as safetensors, with `about` (JSON) in the header: one file, one rename."""
    write_tensors(path, tensors, {"about": json.dumps(about)})


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], header: Mapping[str, str]) -> None:
    """Tensors as safetensors: one file, synced, one rename; UserError if it cannot be written."""
    from safetensors.torch import save_file

    plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    with replacing(path, durable=True) as scratch:
        try:
            save_file(plain, scratch, metadata={**header, "digest": UNSEALED.decode()})
        except SafetensorError as error:  # the errno is only in its text
            code = re.search(r"os error (\d+)", str(error))
            raise OSError(int(code[1]), os.strerror(int(code[1]))) if code else OSError(str(error)) from None
        position, _, digest = _digests(scratch)
        with scratch.open("r+b") as file:
            file.seek(position)
            file.write(digest)


def load_tensors(
    path: Path, what: str = "weights", way_out: str = WAY_OUT, *, finite: bool = False
) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """The tensors and `about` of a file that `save_tensors` wrote. finite: refuse NaN and infinity."""
    tensors, header = load_whole(path, what, way_out, finite=finite)
    return tensors, _read(path, what, lambda: json.loads(header["about"]), way_out)


def load_whole(
    path: Path, what: str = "weights", way_out: str = WAY_OUT, *, finite: bool = False
) -> tuple[dict[str, "Tensor"], dict[str, str]]:
    """All tensors of a safetensors file, and the notes in its header. finite: refuse NaN and infinity."""

    def read() -> tuple[dict[str, "Tensor"], dict[str, str]]:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        position, stated, actual = _digests(path)
        if position and stated != actual:
            raise ValueError("its digest does not match")
        broken = [key for key, tensor in tensors.items() if finite and not all_finite(tensor)]
        if broken:
            raise ValueError(f"{broken[0]} holds numbers that are not finite")
        return tensors, header

    return _read(path, what, read, way_out)


def all_finite(tensor: "Tensor") -> bool:
    """Whether a tensor holds neither NaN nor an infinity; a finite sum shows it in a third of the time."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def file_digest(path: Path, what: str = "file") -> str:
    """sha256 of a whole file, read piece by piece."""

    def read() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return _read(path, what, read, WAY_OUT)


def _digests(path: Path) -> tuple[int, bytes, bytes]:
    """Of a safetensors file: where its header states a digest (0 if nowhere), the one stated, and the true one.

    The true one is of all bytes, zeros in place of the digest itself.
    """
    with path.open("rb") as file:
        size = file.read(8)
        header = size + file.read(int.from_bytes(size, "little"))
        match = re.search(UNSEALED[:7] + rb"([0-9a-f]{64})", header)
        if not match:
            return 0, b"", b""
        position = match.start(1)
        digest = hashlib.sha256(header[:position] + UNSEALED[7:] + header[position + 64 :])
        while piece := file.read(1 << 20):
            digest.update(piece)
    return position, match[1], digest.hexdigest().encode()


def _read(path: Path, what: str, read: Callable[[], Any], way_out: str) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except OSError as error:
        reason = f"is a directory, not a {what}" if path.is_dir() else f"cannot be read ({error.strerror or error})"
        raise UserError(f"{path}: {reason}") from None
    except (SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, what, error, way_out) from None


@contextmanager
def fitting(path: Path, what: str, way_out: str = WAY_OUT) -> Iterator[None]:
    """For using what was read from `path`: errors inside become a UserError that calls the file damaged."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, what, error, way_out) from None


def _damaged(path: Path, what: str, error: Exception, way_out: str) -> UserError:
    return UserError(f"{path}: damaged, or not a {what} ({one_line(error)}); {way_out}")


def readable(size: float) -> str:
    """A number of bytes in words: `1.5 GB`."""
    power = min(4, int(math.log10(max(1, size))) // 3)
    return f"{size / 1000**power:.{1 if power else 0}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
