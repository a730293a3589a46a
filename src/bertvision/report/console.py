"""Scores and analyses for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bertvision.evaluate.score import Score
from bertvision.report import TEXTS
from bertvision.report.findings import group_grids, number_grid
from bertvision.report.grid import PARAMETERS, Grid, grid_of, member_grid, numbers, words
from bertvision.report.rows import Metric, Row, main_metric, metrics_of, summarise
from bertvision.report.sections import row_notes
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


def print_scores(scores: Sequence[Score]) -> None:
    """Prints scores as a table as wide as the terminal, and their notes."""
    Console().print(console_table(scores))
    for name in dict.fromkeys(score.variant for score in scores):
        for note in row_notes([score for score in scores if score.variant == name]):
            print(f"{name}: {note}" if name else note)


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
    for brief, heading, *_ in TEXTS["analysis"].values():
        if brief in grid.heading and brief != heading:
            console.print(Text(f"{brief}: {heading}"))
    for title, grouped in group_grids(members).items():
        console.print(f"\n{title}", grid_table(grouped), sep="\n")
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
