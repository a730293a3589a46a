"""Benches are scripts in a folder of their own."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch):
    """Imports a bench by name, as if it were run from its own folder."""
    monkeypatch.syspath_prepend(str(BENCH))
    names = {path.stem for path in BENCH.glob("*.py")}
    for name in names:  # a folder of tests may be called like a bench
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names & set(sys.modules):
        del sys.modules[name]
