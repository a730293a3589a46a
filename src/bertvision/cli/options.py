"""Arguments and options that several verbs take."""

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(help="A recipe in TOML; see recipes/.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Overrides one value of the recipe.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run; runs/<recipe's name> if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on stdout.")]
