"""What users see: the one line of an error, the output of a command.

from checks import error_of, shown
"""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.errors import UserError


def error_of(call: Callable[..., Any], *args: object, **options: object) -> str:
    """The message of the UserError that a call ends in: one line."""
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def shown(*words: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """What `bertvision WORDS` prints, run in this process; code: how it ends."""
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=code != 0, env=env)
    assert done.exit_code == code, done.output
    return done.stdout
