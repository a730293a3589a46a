"""Sources of states; see `bertvision.states.store`."""

from bertvision.states.store import Source, live, stored

__all__ = ["Source", "live", "stored"]
