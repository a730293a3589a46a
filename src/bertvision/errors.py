"""An error the user can fix: shown as one line, exit code 2, never a traceback."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Something in the input is wrong. The message names the file, key or line, and the way out."""


class TooLarge(UserError):
    """A size that this machine has no memory for, or that would never be done."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: too large: {why}; choose a smaller number")


@contextmanager
def no_panic(what: str) -> Iterator[None]:
    """Turns a panic of a Rust library, which is no Exception, into a UserError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{what} cannot be used ({one_line(error)}); fetch it again, or choose another") from None


def one_line(error: BaseException, most: int = 200) -> str:
    """The text of an error on one line, cut to so many characters."""
    return " ".join(str(error).split())[:most]


def nearest(wrong: str, right: Iterable[str]) -> str:
    """A hint for a misspelt name: `did you mean 'epochs'?`, or the list of known names."""
    right = sorted(right)
    close = difflib.get_close_matches(wrong, right, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(right)}"
