"""Summary rows -> one grid of cells -> Markdown, HTML or the terminal."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bertvision.report.paper import alone, beside, checkpoint_of, member_of
from bertvision.report.summary import COSTS, Metric, Row, Spread, main_metric, metrics_of, summarise

__all__ = ["Cell", "Grid", "console_table", "html_table", "markdown_table", "member_grid", "paper_grid", "summarise"]

KINDS = {
    "tune": "No-answer threshold chosen on the tuning set",
    "zero": "No-answer threshold at zero: nothing tuned",
}
THRESHOLD = Metric("threshold", "Threshold", 2)
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by where that is a number."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """Headings and lines of cells. words: the columns that hold words, the others hold numbers."""

    heading: list[str]
    lines: list[list[Cell]]
    words: frozenset[int]


def member_grid(
    rows: Sequence[Row],
    metrics: Sequence[Metric] = (),
    paper: Iterable[Mapping[str, Any]] = (),
    costs: Sequence[Metric] = (THRESHOLD, *COSTS),
) -> Grid:
    """One line per row. Published values stand beside ours; the difference to the backbone beside the main metric.

    metrics: what to show; by default what the rows have. paper: {"checkpoint", "member", metric: value, "source"}.
    costs: further numbers, shown as a plain mean. Columns without a value are left out.
    """
    metrics = [Metric(*metric) for metric in metrics] or metrics_of(rows)
    published = beside(rows, paper)
    columns = [_column("Epoch", (_epoch(row.checkpoint) for row in rows))]
    columns.append(_column("Member", (Cell(row.member) for row in rows)))
    if len({row.threshold_from for row in rows}) > 1:
        columns.append(_column("Threshold from", (Cell(row.threshold_from or NOTHING) for row in rows)))
    if len({len(row.seeds) for row in rows}) > 1:  # a study under way: not every mean is over the same number of runs
        columns.append(_column("Seeds", (Cell(str(len(row.seeds)), len(row.seeds)) for row in rows)))
    for metric in metrics:
        columns.append(_column(metric.label, (_score(row, metric) for row in rows)))
        columns.append(_column(f"{metric.label}, paper", (_paper(entry, metric) for entry in published)))
        if metric == main_metric(metrics):
            columns.append(_column(f"Δ {metric.label}", (_difference(row, metric) for row in rows)))
    for cost in costs:
        if cost != THRESHOLD or any(row.threshold_from != "zero" for row in rows):
            columns.append(_column(cost.label, (_plain(row.scores.get(cost.key), cost.digits) for row in rows)))
            columns.append(_column(f"{cost.label}, paper", (_paper(entry, cost) for entry in published)))
    return _grid(columns)


def paper_grid(rows: Sequence[Row], metrics: Sequence[Metric], paper: Iterable[Mapping[str, Any]]) -> Grid | None:
    """Published results that no row of ours stands beside; None if there are none."""
    apart = alone(rows, paper)
    shown = [number for number in (*metrics, *COSTS) if any(number.key in entry for entry in apart)]
    if not metrics or not shown:
        return None
    columns = [_column("Epoch", (_epoch(checkpoint_of(entry)) for entry in apart))]
    columns.append(_column("Member", (Cell(member_of(entry)) for entry in apart)))
    columns += [_column(f"{number.label}, paper", (_paper(entry, number) for entry in apart)) for number in shown]
    return _grid(columns)


def markdown_table(
    rows: Sequence[Row] | Grid, metrics: Sequence[Metric] = (), paper: Iterable[Mapping[str, Any]] = ()
) -> str:
    """A Markdown table; the best at each checkpoint in bold."""
    grid = rows if isinstance(rows, Grid) else member_grid(rows, metrics, paper)
    rule = ["---" if column in grid.words else "---:" for column in range(len(grid.heading))]
    lines = [[markdown_escape(text) for text in grid.heading], rule]
    for cells in grid.lines:
        lines.append([f"**{markdown_escape(c.text)}**" if c.best else markdown_escape(c.text) for c in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def html_table(grid: Grid, label: str) -> str:
    """A table that can be sorted by its headings and scrolls by itself where the screen is narrow."""
    head = "".join(
        f'<th scope="col"{_word(column, grid)}><button type="button">{html.escape(text)}</button></th>'
        for column, text in enumerate(grid.heading)
    )
    body = []
    for number, cells in enumerate(grid.lines):
        # A line above the first row of a checkpoint, until the reader sorts otherwise.
        starts = number > 0 and grid.heading[0] == "Epoch" and cells[0] != grid.lines[number - 1][0]
        line = "".join(_html_cell(cell, _word(column, grid)) for column, cell in enumerate(cells))
        body.append(f'<tr class="starts">{line}</tr>' if starts else f"<tr>{line}</tr>")
    return (
        f'<div class="scroll" role="region" aria-label="{html.escape(label)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def console_table(
    scores: Iterable[Mapping[str, Any]], metrics: Sequence[Metric] = (), title: str | None = None
) -> Table:
    """Score rows for the terminal, and for its width: the first two metrics, the difference and the parameters."""
    rows = summarise(scores)
    grid = member_grid(rows, metrics or metrics_of(rows)[:2], costs=COSTS[:1])
    seeds = len({seed for row in rows for seed in row.seeds})
    caption = f"mean ± sample standard deviation over {seeds} seeds" if seeds > 1 else "a single run"
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column, text in enumerate(grid.heading):
        wordy = column in grid.words
        table.add_column(text, justify="left" if wordy else "right", no_wrap=not wordy, min_width=8 if wordy else None)
    for number, cells in enumerate(grid.lines):
        last = number + 1 == len(grid.lines) or grid.lines[number + 1][0] != cells[0]
        texts = [Text(cell.text, style="bold green" if cell.best else "") for cell in cells]
        table.add_row(*texts, end_section=last and grid.heading[0] == "Epoch")
    return table


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _column(heading: str, cells: Iterable[Cell]) -> list[Cell]:
    return [Cell(heading), *cells]


def _grid(columns: list[list[Cell]]) -> Grid:
    kept = [column for column in columns if any(cell.text != NOTHING for cell in column[1:])]
    words = frozenset(n for n, column in enumerate(kept) if all(cell.value is None for cell in column))
    lines = [list(cells) for cells in zip(*kept, strict=True)]
    return Grid([cell.text for cell in lines[0]], lines[1:], words) if lines else Grid([], [], words)


def _score(row: Row, metric: Metric) -> Cell:
    spread = row.scores.get(metric.key)
    if spread is None:
        return Cell(NOTHING)
    return Cell(with_spread(spread, metric.digits), spread.mean, metric.key in row.best)


def _difference(row: Row, metric: Metric) -> Cell:
    spread = row.differences.get(metric.key)
    return Cell(NOTHING) if spread is None else Cell(with_spread(spread, metric.digits, "+"), spread.mean)


def _plain(spread: Spread | None, digits: int) -> Cell:
    return Cell(NOTHING) if spread is None else Cell(f"{spread.mean:z,.{digits}f}", spread.mean)


def _paper(entry: Mapping[str, Any], metric: Metric) -> Cell:
    value = entry.get(metric.key)
    return Cell(f"{value:z,.{metric.digits}f}", value) if isinstance(value, int | float) else Cell(NOTHING)


def with_spread(spread: Spread, digits: int, sign: str = "") -> str:
    """`71.20 ± 0.31`; without ± for a single run. Never a negative zero."""
    mean = f"{spread.mean:{sign}z.{digits}f}"
    return mean if spread.sd is None else f"{mean} ± {spread.sd:.{digits}f}"


def _epoch(checkpoint: float | None) -> Cell:
    return Cell(NOTHING) if checkpoint is None else Cell(f"{checkpoint:g}", checkpoint)


def _word(column: int, grid: Grid) -> str:
    return ' class="word"' if column in grid.words else ""


def _html_cell(cell: Cell, kind: str) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<strong>{html.escape(cell.text)}</strong>" if cell.best else html.escape(cell.text)
    return f"<td{kind}{value}>{text}</td>"
