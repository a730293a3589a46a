"""Data from the network: data sets of the Hugging Face hub, and official files checked by size and SHA-256."""

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from bertvision.errors import UserError, nearest
from bertvision.files import replacing

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
OFFICIAL_FILES = {
    "train-v2.0.json": (42_123_633, "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002"),
    "dev-v2.0.json": (4_370_528, "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"),
    "dev-v1.1.json": (4_854_279, "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9"),
}
"""Size in bytes and SHA-256 of the files on the official site."""

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
    if path.is_file() and path.stat().st_size == size:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == digest:
                return path
    with replacing(path) as scratch, scratch.open("wb") as file:
        received, found = _download(url, file, size, progress)
        if (received, found) != (size, digest):
            raise UserError(
                f"{url}: not the official file ({received} bytes, sha256 {found[:12]}...; expected {size} bytes, "
                f"{digest[:12]}...); nothing was kept, try again or give the path of your own copy"
            )
    return path


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
