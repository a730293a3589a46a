"""Options that several verbs share, and how they print results."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

ALONE = "alone"  # the context's object where this process runs nothing but the command line


def opt(text: str, *names: str, **more: Any) -> Any:
    """An option of a verb; names: given where they are not those of the parameter."""
    return typer.Option(*names, help=text, **more)


def arg(text: str, **more: Any) -> Any:
    """An argument of a verb."""
    return typer.Argument(help=text, **more)


def _import_code(files: list[str] | None) -> list[str] | None:
    if files:
        from bertvision.registry import load_code

        for file in files:
            load_code(Path(file))
    return files


RecipePath = Annotated[Path, arg("A recipe in TOML; see recipes/.")]
RunPath = Annotated[Path, arg("A run's directory.")]
Settings = Annotated[list[str] | None, opt("Override one value of the recipe.", "--set", metavar="KEY=VALUE")]
Out = Annotated[Path | None, opt("Directory of the run; runs/<recipe's name> if not given.", "--out")]
Checkpoint = Annotated[float | None, opt("Epoch of the checkpoint; the last if not given.")]
Seed = Annotated[int | None, opt("Seed; the first if not given.")]
Task = Annotated[str, opt("spans, labels, score or tokens.")]
Outputs = Annotated[int, opt("Classes, for labels and tokens.")]
Answerable = Annotated[
    float | None, opt("Share of questions expected to have an answer; that of the tune set if not given.")
]
EarlyExit = Annotated[
    float | None, opt("Stop early where a lower read-out is sure, at this loss on tune; reader --exits.", min=0)
]
AsJson = Annotated[bool, opt("Print results as JSON, and nothing else, on stdout.", "--json")]
Device = Annotated[str, opt("cpu, cuda, cuda:1, mps or xpu; as the recipe says if not given.", "--device")]
Threads = Annotated[int | None, opt("With --on: threads per cell; results depend on it.", min=1)]
Address = Annotated[str, opt("With ray: the cluster to join; without it, one on this machine alone.")]
CpusPerCell = Annotated[float, opt("With ray: CPUs that a cell reserves.", min=0)]
GpusPerCell = Annotated[float, opt("With ray: GPUs that a cell reserves.", min=0)]
Code = Annotated[
    list[str] | None,
    opt("Python file with heads or tasks of your own to import.", metavar="FILE", callback=_import_code),
]


def help_without_verb(context: typer.Context) -> None:
    """Prints the help where no verb is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def print_json(value: Any) -> None:
    """Prints one line of JSON, at once."""
    print(json.dumps(value), flush=True)


def print_table(rows: list[Any]) -> None:
    """Prints score rows as a table as wide as the terminal, and their notes under it."""
    from bertvision.evaluate.score import Score
    from bertvision.report.terminal import print_scores

    print_scores([Score.from_json(row, "scores") for row in rows])
