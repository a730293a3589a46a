"""Lists and progress bars for the terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def print_heads(entries: Sequence[Mapping[str, Any]], layers: int, width: int, task: str) -> None:
    """The catalogue of heads: kind, parameters at its defaults, formula, options."""
    console = Console(highlight=False)
    console.print(f"Heads for {task} on {layers} layers of width {width}\n")
    for entry in entries:
        size = entry["parameters"]
        note = f"not for {task}" if size is None else f"{size:,} parameters at its defaults"
        console.print(Text.assemble((entry["kind"], "bold"), f"  {note}"))
        console.print(Padding(Text(entry["summary"]), (0, 0, 0, 2)))
        options = Table.grid(padding=(0, 2))
        for option in entry["options"]:
            limit = f", {option['limit']}" if option["limit"] else ""
            options.add_row(Text(f"{option['name']} = {_toml(option['default'])}"), Text(f"{option['type']}{limit}"))
        if entry["options"]:
            console.print(Padding(options, (0, 0, 0, 4)))
        console.print()


def print_trials(rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    """The trials of a search, the best first; then those that were not trained to the end."""
    caption = "scores on the set the trials are chosen by, which favours them"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption)
    for heading in ("trial", "head", f"{metric} on tune", "parameters"):
        table.add_column(heading, justify="left" if heading == "head" else "right")
    for row in sorted(rows, key=lambda row: -(row[f"tune_{metric}"] or 0.0)):
        score = row["state"] if row[f"tune_{metric}"] is None else f"{row[f'tune_{metric}']:.2f}"
        words = [row["head"]["kind"], *(f"{k}={_toml(v)}" for k, v in row["head"].items() if k not in ("kind", "name"))]
        table.add_row(str(row["trial"]), Text(" ".join(words)), score, f"{row['parameters']:,}")
    Console(highlight=False).print(table)


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function of (bytes received, bytes in all)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, size: bar.update(task, completed=received, total=size)


def _toml(value: Any) -> str:
    """A default as in a recipe."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
