"""Settings that hold for all tests."""

from hypothesis import settings

# No time limit per example: on a busy machine, or where something is imported on first use, it says nothing.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
