"""The command line: one thin function per verb, each a wrapper over something importable."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision import __version__
from bertvision.cli.facts import data_app, heads, params, recipe
from bertvision.cli.options import ALONE, help_without_verb, opt
from bertvision.cli.readers import ask, export, fit, mcp, reader, serve
from bertvision.cli.runs import analyze, depth, ensemble, evaluate, report
from bertvision.cli.studies import cell, cells, finetune, forecast, search, study, tap, train
from bertvision.errors import UserError

__all__ = ["app", "data_app", "main"]

UsageError: Any = typer.BadParameter.__base__  # what a wrong option or argument raises; typer does not export it
RANK = os.environ.get("RANK", "0")  # of this process among those of torchrun; the first alone prints
LOST = ("gloo", "NCCL", "Connection")  # in what torch says when another process is gone
NO_MEMORY = ("allocate memory", "out of memory")  # in what torch says of a CPU, and of other devices
INTERRUPTED = 130  # what typer makes of Ctrl-C

# In the order in which --help lists them.
VERBS = (
    *(fit, study, finetune, train, search, tap, cell),
    *(evaluate, ensemble, analyze, report, depth),
    *(reader, ask, serve, mcp, export),
    *(cells, forecast, heads, params, recipe),
)
RESUMED = {verb.__name__ for verb in VERBS[:7]}  # the same command continues where it stopped

app = typer.Typer(pretty_exceptions_enable=False)
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
    if RANK != "0":
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    try:
        _check_arguments()
        code = app(standalone_mode=False, obj=ALONE)
        if sys.stdout is not None:  # closed by the parent process
            sys.stdout.flush()
    except (UserError, UsageError) as error:
        code = _print_error(str(error) if isinstance(error, UserError) else f"{error.format_message()} (try --help)")
    except BrokenPipeError:  # stdout was closed by the reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        reason = error.strerror or str(error)
        code = _print_error(f"{error.filename}: {reason}" if error.filename else reason)
    except (MemoryError, RuntimeError) as error:
        if "WORLD_SIZE" in os.environ and any(words in str(error) for words in LOST):
            sys.exit(_print_error("another process of this job has ended; the same command continues from here"))
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in NO_MEMORY):
            raise
        code = _print_error(f"out of memory; {_advice()}")
    if code == INTERRUPTED:
        print("stopped; the same command continues from here" if _verb() in RESUMED else "stopped", file=sys.stderr)
    sys.exit(code)


def _check_arguments() -> None:
    """UserError for an argument that is not UTF-8: it could neither be printed nor written to a file."""
    for position, argument in enumerate(sys.argv[1:], start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"argument {position} is not UTF-8; rename the file, or write it in UTF-8") from None


def _verb() -> str:
    """The verb on the command line; "" if there is none."""
    return next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")


def _advice() -> str:
    """How to get by with less memory."""
    if _verb() in RESUMED:
        return (
            "the same command with --set runtime.gradient_checkpointing=true continues from here with less; or give "
            "another --out and a lower batch_tokens or a higher runtime.accumulate"
        )
    advice = {"ask": "give shorter texts, fewer at once, or a lower --top-k", "serve": "lower --batch-tokens"}
    return advice.get(_verb(), "close other programs, or use a machine with more memory")


def _print_error(text: str) -> int:
    """Prints an error on one line of stderr; the exit code."""
    program = "bertvision" if RANK == "0" else f"bertvision, process {RANK}"
    with _may_speak() as speaks:
        if speaks:
            print(f"{program}: {' '.join(text.split())}", file=sys.stderr)
    return 2


def _may_speak() -> AbstractContextManager[bool]:
    """Whether this process prints the error; of several under torchrun, one does."""
    if "WORLD_SIZE" not in os.environ:
        return nullcontext(True)
    from bertvision.runtime import may_print_error

    return may_print_error()
