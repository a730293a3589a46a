"""Writing and reading plain files so that a kill at any moment leaves the old file or the new one, never half of one."""

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertvision.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes the place of `path`, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"{path}: the disk is full; make room and run the same command again, it goes on from here") from None
        raise
    finally:
        scratch.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


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


def _read(path: Path, what: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise UserError(f"{path}: no such {what}") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a {what}") from None
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: damaged, or not a {what} of this program ({error}); delete it to have it made again") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
