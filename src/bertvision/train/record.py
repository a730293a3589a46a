"""study.json: what a run is and where its numbers come from. Versions, machine, data, times, memory."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bertvision import __version__
from bertvision.files import read_json, write_json

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


class Record:
    """The facts of a run, kept in a file that is written anew with each change."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """What is known so far."""
        return read_json(self.path, "study file") if self.path.is_file() else {}

    def add(self, **values: Any) -> None:
        """Adds facts to those already known, or takes them back where the value is None."""
        known = (self.read() or environment()) | values
        write_json(self.path, {key: value for key, value in known.items() if value is not None})

    @property
    def peak(self) -> float:
        """The most memory that any process of the run is known to have held, in GiB."""
        return float(self.read().get("peak", {}).get("memory_gib", 0.0))

    def note_peak(self, others: float = 0.0) -> None:
        """Notes the most memory that the run ever took: this process, those before it, and `others`."""
        most = max(self.peak, peak_memory(), others)
        if most > self.peak:
            self.add(peak={"memory_gib": most})

    def finish(self) -> None:
        """Notes that everything is done."""
        self.note_peak()
        self.add(finished=now())


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, Any]:
    """Versions and machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    own = {"python": platform.python_version(), "bertvision": __version__}
    return {
        "versions": own | {name: version(name) for name in PACKAGES},
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": round(memory / 2**30),
        },
    }


def peak_memory() -> float:
    """The most memory this process has held so far, in GiB; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if platform.system() == "Darwin" else 1024  # macOS counts bytes, Linux kibibytes
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30, 2)
