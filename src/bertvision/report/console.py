"""Scores for the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bertvision.report.outcomes import outcome_grid, outcomes
from bertvision.report.sentences import over_seeds
from bertvision.report.summary import PARAMETERS, Metric, Row, main_metric, metrics_of, summarise
from bertvision.report.tables import Grid, member_grid


def console_table(
    scores: Iterable[Mapping[str, Any]], metrics: Sequence[Metric] = (), title: str | None = None
) -> Table:
    """Score rows for the terminal, and for its width: the main metric and one more, the difference and the parameters.

    Of several variants: one line each, as at the top of their report.
    """
    rows = summarise(scores)
    grid = outcome_grid(outcomes(rows)) if any(row.variant for row in rows) else _narrow(rows, metrics)
    several = any(len(row.seeds) > 1 for row in rows)
    alone = "single runs" if len({row.variant for row in rows}) > 1 else "a single run"
    caption = f"mean ± sample standard deviation over {over_seeds(rows)}" if several else alone
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, text in enumerate(grid.heading):
        wordy = column in grid.words
        table.add_column(text, justify="left" if wordy else "right", no_wrap=not wordy, min_width=8 if wordy else None)
    for number, cells in enumerate(grid.lines):
        last = number + 1 == len(grid.lines) or grid.lines[number + 1][0] != cells[0]
        texts = [Text(cell.text, style="bold green" if cell.best else "") for cell in cells]
        table.add_row(*texts, end_section=last and grid.heading[0] == "Epoch")
    return table


def _narrow(rows: Sequence[Row], metrics: Sequence[Metric]) -> Grid:
    shown = [Metric(*metric) for metric in metrics]
    if not shown and (every := metrics_of(rows)):
        main = main_metric(every, rows)
        wide = len({row.threshold_from for row in rows}) > 1 and any(len(row.seeds) > 1 for row in rows)
        other = next((metric for metric in every if metric != main and not wide), main)
        shown = [metric for metric in every if metric in (main, other)]
    return member_grid(rows, shown, costs=[PARAMETERS])
