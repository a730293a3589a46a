"""Facts about a process: versions, machine, time, memory."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from bertvision import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


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
