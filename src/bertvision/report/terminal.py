"""Lists and bars for the terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


def print_heads(entries: list[dict[str, Any]], layers: int, width: int, task: str) -> None:
    """The catalogue of heads (`heads.catalog.catalog`): kind, parameters at its defaults, formula, options."""
    console = Console(highlight=False)
    console.print(f"Heads for {task} on {layers} layers of width {width}\n")
    for entry in entries:
        size = entry["parameters"]
        note = f"not for {task}" if size is None else f"{size:,} parameters at its defaults"
        console.print(Text.assemble((entry["kind"], "bold"), f"  {note}"))
        console.print(Padding(Text(entry["summary"]), (0, 0, 0, 2)))
        if entry["options"]:
            console.print(Padding(_options(entry["options"]), (0, 0, 0, 4)))
        console.print()


def _options(options: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for option in options:
        limit = f", {option['limit']}" if option["limit"] else ""
        table.add_row(Text(f"{option['name']} = {_toml(option['default'])}"), Text(f"{option['type']}{limit}"))
    return table


def _toml(value: Any) -> str:
    """A default as it would stand in a recipe."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; yields what to call with (bytes received, bytes in all)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, size: bar.update(task, completed=received, total=size)
