"""Options that several verbs take, and what several of them print."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def _import_code(files: list[str] | None) -> list[str] | None:
    if files:
        from bertvision.registry import load_code

        for file in files:
            load_code(Path(file))
    return files


RecipePath = Annotated[Path, typer.Argument(help="A recipe in TOML; see recipes/.")]
RunPath = Annotated[Path, typer.Argument(help="A run's directory.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value of the recipe.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run; runs/<recipe's name> if not given.")]
Checkpoint = Annotated[float | None, typer.Option(help="Epoch of the checkpoint; the last if not given.")]
Seed = Annotated[int | None, typer.Option(help="Seed; the first if not given.")]
Task = Annotated[str, typer.Option(help="spans, labels, score or tokens.")]
Outputs = Annotated[int, typer.Option(help="Classes, for labels and tokens.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on stdout.")]
Code = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE", callback=_import_code, help="Python file with heads or tasks of your own to import."),
]


def help_without_verb(context: typer.Context) -> None:
    """Prints the help where no verb is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def print_json(value: Any) -> None:
    """Prints one line of JSON."""
    print(json.dumps(value))


def print_table(rows: Any) -> None:
    """Prints the scores of members as a table as wide as the terminal, and the notes of rows under it."""
    from rich.console import Console

    from bertvision.report.console import console_table
    from bertvision.report.reading import row_notes

    Console().print(console_table(rows))
    variants = list(dict.fromkeys(row.get("variant", "") for row in rows))
    for name in variants:
        for note in row_notes([row for row in rows if row.get("variant", "") == name]):
            print(f"{name}: {note}" if name else note)
