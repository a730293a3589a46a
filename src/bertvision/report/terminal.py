"""Tables, lists and progress bars for the terminal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bertvision.evaluate.score import Score
from bertvision.report import TEXTS
from bertvision.report.findings import group_grids, number_grid
from bertvision.report.grid import PARAMETERS, Grid, grid_of, member_grid, numbers, words
from bertvision.report.rows import Metric, Row, main_metric, metrics_of, summarise
from bertvision.report.sentences import over_seeds
from bertvision.report.variants import outcome_grid, outcomes

ERRORS = 5  # shown; all are in the file
CONTEXT_WORDS = 60  # shown of a context


def console_table(scores: Iterable[Score]) -> Table:
    """Scores for the width of a terminal: the main metric and one more, the difference and the parameters.

    Of several variants: one line each, as at the top of their report.
    """
    rows = summarise(scores)
    variants = {row.variant for row in rows}
    grid = outcome_grid(outcomes(rows, {})) if any(variants) else member_grid(rows, _narrow(rows), costs=[PARAMETERS])
    several = any(len(row.seeds) > 1 for row in rows)
    alone = "single runs" if len(variants) > 1 else "a single run"
    return grid_table(grid, f"mean ± sample standard deviation over {over_seeds(rows)}" if several else alone)


def grid_table(grid: Grid, caption: str | None = None) -> Table:
    """A grid as a table, with a rule between epochs."""
    table = Table(caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, heading in enumerate(grid.heading):
        wordy = column in grid.words
        text, width = Text(heading), 8 if wordy else None
        table.add_column(text, justify="left" if wordy else "right", no_wrap=not wordy, min_width=width)
    for place, line in enumerate(grid.lines):
        ends = grid.heading[0] == "Epoch" and (place + 1 == len(grid.lines) or grid.starts_group(place + 1))
        table.add_row(*(Text(cell.text, "bold green" if cell.best else "") for cell in line), end_section=ends)
    return table


def print_analysis(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints an analysis; what a task does not have is left out."""
    console = console or Console(highlight=False)
    members, agreement = found["members"], found["agreement"]
    console.print(f"Epoch {found['checkpoint']:g}, seed {found['seed']}, on the test set\n")
    grid = number_grid(members, short=True)
    console.print(grid_table(grid))
    meanings = {
        brief: heading
        for brief, heading, *_ in TEXTS["analysis"].values()
        if brief in grid.heading and brief != heading
    }
    console.print(Text("".join(f"{brief}: {heading}\n" for brief, heading in meanings.items())))
    for title, grouped in group_grids(members).items():
        console.print(title, grid_table(grouped), sep="\n")
    if len(names := agreement["members"]) > 1:  # members are numbered, so that many fit
        member = ("Member", words(f"{number} {name}" for number, name in enumerate(names, 1)))
        columns = [(str(n + 1), numbers((row[n] for row in agreement["matrix"]), ".0%")) for n in range(len(names))]
        console.print("Agreement", grid_table(grid_of(member, *columns)), sep="\n")
    for name, one in members.items():
        if one.get("layer_weights"):
            shares = "  ".join(f"{weight:.0%}" for weight in one["layer_weights"])
            console.print(Text(f"Layers of {name}, embeddings first: {shares}"))
    if found["errors"]:
        console.print(f"\nErrors, {min(ERRORS, len(found['errors']))} of {len(found['errors'])} in analysis.json\n")
    for error in found["errors"][:ERRORS]:
        _print_error(error, console)


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
    ordered = sorted(rows, key=lambda row: -(row[f"tune_{metric}"] or 0.0))
    scores = [row[f"tune_{metric}"] for row in ordered]
    grid = grid_of(
        ("trial", numbers((row["trial"] for row in ordered), "d")),
        ("head", words(map(_head, ordered))),
        (f"{metric} on tune", words(row["state"] if s is None else f"{s:.2f}" for row, s in zip(ordered, scores))),
        ("parameters", numbers((row["parameters"] for row in ordered), ",d")),
    )
    caption = "scores on the set the trials are chosen by, which favours them"
    Console(highlight=False).print(grid_table(grid, caption))


@contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function of (bytes received, bytes in all)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda received, size: bar.update(task, completed=received, total=size)


def _narrow(rows: Sequence[Row]) -> list[Metric]:
    """The main metric, and one more if there is room."""
    metrics, main = metrics_of(rows), main_metric(rows)
    wide = len({row.threshold_from for row in rows}) > 1 and any(len(row.seeds) > 1 for row in rows)
    other = next((metric for metric in metrics if metric != main and not wide), main)
    return [metric for metric in metrics if metric in (main, other)]


def _print_error(error: Mapping[str, Any], console: Console) -> None:
    console.print(Text(error["question"], "bold"))
    spoken = error["context"].split()
    context = " ".join(spoken[:CONTEXT_WORDS]) + (" …" if len(spoken) > CONTEXT_WORDS else "")
    right = f"right: {' / '.join(error['gold']) or 'no answer'}"
    answers = "; ".join(f"{name}: {text or 'no answer'}" for name, text in error["answers"].items())
    for line in filter(None, (context, right, answers, error["why"])):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print()


def _head(row: Mapping[str, Any]) -> str:
    options = [f"{key}={_toml(value)}" for key, value in row["head"].items() if key not in ("kind", "name")]
    return " ".join([row["head"]["kind"], *options])


def _toml(value: Any) -> str:
    """A default as in a recipe."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
