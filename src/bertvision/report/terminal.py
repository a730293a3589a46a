"""Scores and analyses for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bertvision.evaluate.score import Score
from bertvision.report import TEXTS
from bertvision.report.analysis import agreement_grid, group_grids, number_grid, published_grid
from bertvision.report.grid import Grid, main_grid
from bertvision.report.reading import Study
from bertvision.report.rows import Entry, Row, sources, summarise
from bertvision.report.sentences import over_seeds, row_notes

ERRORS = 5  # shown; all are in the file
CONTEXT_WORDS = 60  # shown of a context


def print_study(study: Study) -> None:
    """Prints the scores of a study, with published ones beside them, and the notes of its score rows."""
    if study.variants:
        from bertvision.report.variants import outcome_grid, outcomes_of

        Console().print(grid_table(outcome_grid(outcomes_of(study)), _over(study.all_rows)))
    else:
        Console().print(score_table(study.rows, study.paper))
    _print_notes(study.scores)


def print_scores(scores: Sequence[Score]) -> None:
    """Prints scores as a table as wide as the terminal, and their notes."""
    Console().print(score_table(summarise(scores)))
    _print_notes(scores)


def score_table(rows: Sequence[Row], paper: Sequence[Entry] = ()) -> Table:
    """One line per member: scores, published ones, differences to the backbone at its checkpoint and at equal cost."""
    return grid_table(main_grid(rows, paper, brief=True), _over(rows))


def _over(rows: Sequence[Row]) -> str:
    if all(len(row.seeds) == 1 for row in rows):
        return "single runs" if len({row.variant for row in rows}) > 1 else "a single run"
    return f"mean ± sample standard deviation over {over_seeds(rows)}"


def _print_notes(scores: Sequence[Score]) -> None:
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
    for number, line in enumerate(grid.lines):
        ends = grid.heading[0] == "Epoch" and (number + 1 == len(grid.lines) or grid.starts_group(number + 1))
        table.add_row(*(Text(cell.text, "bold green" if cell.best else "") for cell in line), end_section=ends)
    return table


def print_analysis(analysis: Mapping[str, Any], console: Console | None = None, paper: Sequence[Entry] = ()) -> None:
    """Prints an analysis, with published numbers beside ours; what a task does not have is left out."""
    console = console or Console(highlight=False)
    members, agreement = analysis["members"], analysis["agreement"]
    console.print(f"Epoch {analysis['checkpoint']:g}, seed {analysis['seed']}, on the test set\n")
    grid = number_grid(members, short=True)
    console.print(grid_table(grid))
    for brief, heading, *_ in TEXTS["analysis"].values():
        if brief in grid.heading and brief != heading:
            console.print(Text(f"{brief}: {heading}"))
    published_here = [entry for entry in paper if entry.get("checkpoint") == analysis["checkpoint"]]
    if (published := published_grid(members, published_here)).lines:
        console.print("\nBeside what was published", grid_table(published), sep="\n")
        console.print(
            *map(Text, sources(entry for entry in published_here if entry.get("member") in members)), sep="\n"
        )
    for title, grouped in group_grids(members).items():
        console.print(f"\n{title}", grid_table(grouped), sep="\n")
    if len(agreement["members"]) > 1:
        console.print("Agreement", grid_table(agreement_grid(agreement)), sep="\n")
    for name, member in members.items():
        if member.get("layer_weights"):
            shares = "  ".join(f"{weight:.0%}" for weight in member["layer_weights"])
            console.print(Text(f"Layers of {name}, embeddings first: {shares}"))
    if analysis["errors"]:
        console.print(
            f"\nErrors, {min(ERRORS, len(analysis['errors']))} of {len(analysis['errors'])} in analysis.json\n"
        )
    for error in analysis["errors"][:ERRORS]:
        _print_error(error, console)


def _print_error(error: Mapping[str, Any], console: Console) -> None:
    console.print(Text(error["question"], "bold"))
    words = error["context"].split()
    context = " ".join(words[:CONTEXT_WORDS]) + (" …" if len(words) > CONTEXT_WORDS else "")
    right = f"right: {' / '.join(error['gold']) or 'no answer'}"
    answers = "; ".join(f"{name}: {text or 'no answer'}" for name, text in error["answers"].items())
    for line in filter(None, (context, right, answers, error["why"])):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print()
