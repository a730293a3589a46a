"""The device that tests run on: BERTVISION_TEST_DEVICE = cpu (the default), ghost, cuda, mps or xpu.

from devices import DEVICE, RUNTIME

Tests marked `device` hold on all of them: they take encoders, heads, recipes and readers from `runs` and `readers`,
which are on that device, and compare values on the CPU.
"""

import os

from bertvision.runtime import Runtime

DEVICE = os.environ.get("BERTVISION_TEST_DEVICE", "cpu")
if DEVICE == "ghost":
    import ghost  # noqa: F401 - registers it
RUNTIME = Runtime(DEVICE)
