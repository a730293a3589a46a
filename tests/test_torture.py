"""A slice of `make torture`: kills, full disks, damaged files, hostile inputs, a server under load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and mounts a small disk")
def test_a_slice_of_the_attack_finds_nothing():
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "torture", "--slice"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| **all** |" in done.stdout
