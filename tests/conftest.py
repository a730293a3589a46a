"""Settings that hold for all tests."""

import os

import pytest
from hypothesis import settings

# Where several processes share the tests, they share the cores as well; set before torch is there to read it.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(workers))))

# What `precision = "auto"` finds by measuring may differ from one process to the next.
os.environ["BERTVISION_PRECISION"] = "fp32"

# No time limit per example: on a busy machine, or where something is imported on first use, it says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on a Ray cluster take minutes: they run where they are asked for, with `-m ray`."""
    if "ray" not in (config.option.markexpr or ""):
        left_out = [item for item in items if item.get_closest_marker("ray")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
