"""An error the user can fix: shown as one line, exit code 2, never a traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something in the input is wrong. The message names the file, key or line, and the way out."""


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a misspelt name: `did you mean 'epochs'?`, or the list of known names."""
    right = sorted(right)
    close = difflib.get_close_matches(wrong, right, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(right)}"
