"""The command line: one thin function per verb, each a wrapper over something importable."""

import os
import sys
from typing import Annotated, Any

import typer

from bertvision import __version__
from bertvision.cli.datasets import data_app
from bertvision.cli.facts import heads, params, recipe
from bertvision.cli.options import help_without_verb, opt
from bertvision.cli.readers import ask, export, reader, serve
from bertvision.cli.runs import analyze, ensemble, evaluate, report
from bertvision.cli.studies import finetune, search, study, tap, train
from bertvision.errors import UserError

__all__ = ["app", "data_app", "main"]

UsageError: Any = typer.BadParameter.__base__  # what a wrong option or argument raises; typer does not export it
INTERRUPTED = 130  # what typer makes of Ctrl-C

# In the order in which --help lists them.
VERBS = (
    *(study, finetune, train, search, tap),
    *(evaluate, ensemble, analyze, report),
    *(reader, ask, serve, export),
    *(heads, params, recipe),
)
RESUMED = {verb.__name__ for verb in VERBS[:5]}  # the same command continues where it stopped

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
for verb in VERBS:
    app.command()(verb)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def top(context: typer.Context, version: Annotated[bool, opt("Show the version.", "--version")] = False) -> None:
    """Fine-tuned quality for a fraction of the fine-tuning: tiny heads on all layers of an encoder."""
    if version:
        print(f"bertvision {__version__}")
        raise typer.Exit
    help_without_verb(context)


def main() -> None:
    """Runs the command line; an error the user can fix is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # closed by the parent process
            sys.stdout.flush()
    except (UserError, UsageError) as error:
        code = _complain(str(error) if isinstance(error, UserError) else f"{error.format_message()} (try --help)")
    except BrokenPipeError:  # stdout was closed by the reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        reason = error.strerror or str(error)
        code = _complain(f"{error.filename}: {reason}" if error.filename else reason)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        code = _complain(f"out of memory; {_advice()}")
    if code == INTERRUPTED:
        print("stopped; the same command continues from here" if _verb() in RESUMED else "stopped", file=sys.stderr)
    sys.exit(code)


def _verb() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _advice() -> str:
    """What to change where memory was not enough."""
    if _verb() in RESUMED:
        return "lower batch_tokens in the recipe; the same command then continues from here"
    ways = {"ask": "give shorter texts, fewer at once, or a lower --top-k", "serve": "lower --batch-tokens"}
    return ways.get(_verb(), "close other programs, or use a machine with more memory")


def _complain(text: str) -> int:
    print(f"bertvision: {' '.join(text.split())}", file=sys.stderr)
    return 2
