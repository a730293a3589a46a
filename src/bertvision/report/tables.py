"""Summary rows -> one grid of cells -> Markdown or HTML."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.evaluate.bootstrap import Interval
from bertvision.report.paper import alone, beside, called, checkpoint_of, member_of
from bertvision.report.summary import COSTS, PARAMETERS, Metric, Row, Spread, main_metric, metrics_of

KINDS = {
    "tune": "No-answer threshold chosen on the tuning set",
    "zero": "No-answer threshold at zero: nothing tuned",
}
THRESHOLD = Metric("threshold", "Threshold", 2)
NOTHING = "–"
WIDE = 24  # letters from which on a heading gets more than the width of its numbers
LONG = 18  # letters from which on words are broken into lines
GROUPS = ("Variant", "Epoch")  # columns whose equal neighbours belong together


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
    costs: Sequence[Metric] = (THRESHOLD, PARAMETERS),
) -> Grid:
    """One line per row. The main metric comes first, then the difference to the backbone; published values stand
    beside ours.

    metrics: what to show; by default what the rows have. paper: {"checkpoint", "member", metric: value, "source"}.
    costs: further numbers, shown as a plain mean. Columns without a value are left out.
    """
    metrics = [Metric(*metric) for metric in metrics] or metrics_of(rows)
    published = beside(rows, paper := list(paper))
    theirs = called(paper)
    columns = [column("Variant", (Cell(row.variant or NOTHING) for row in rows))]
    columns.append(column("Epoch", (epoch_cell(row.checkpoint) for row in rows)))
    columns.append(column("Member", (Cell(row.member) for row in rows)))
    if len({row.threshold_from for row in rows}) > 1:
        columns.append(column("Threshold from", (Cell(row.threshold_from or NOTHING) for row in rows)))
    if len({len(row.seeds) for row in rows}) > 1:  # a study under way: not every mean is over the same number of runs
        columns.append(column("Seeds", (Cell(str(len(row.seeds)), len(row.seeds)) for row in rows)))
    main = main_metric(metrics, rows) if metrics else None
    for metric in sorted(metrics, key=lambda metric: metric != main):  # a narrow screen shows the first alone
        columns.append(column(metric.label, (score_cell(row, metric) for row in rows)))
        if metric == main:
            columns.append(column(f"Δ {metric.label}", (difference_cell(row, metric) for row in rows)))
            columns.append(column("95 % interval", (interval_cell(row, metric) for row in rows)))
        columns.append(column(f"{metric.label}, {theirs}", (paper_cell(entry, metric) for entry in published)))
    for cost in costs:
        if cost != THRESHOLD or any(row.threshold_from != "zero" for row in rows):
            columns.append(column(cost.label, (plain_cell(row.scores.get(cost.key), cost.digits) for row in rows)))
            columns.append(column(f"{cost.label}, {theirs}", (paper_cell(entry, cost) for entry in published)))
    return grid_of(columns)


def paper_grid(rows: Sequence[Row], metrics: Sequence[Metric], paper: Iterable[Mapping[str, Any]]) -> Grid | None:
    """Published results that no row of ours stands beside; None if there are none."""
    apart = alone(rows, paper)
    shown = [number for number in (*metrics, *COSTS) if any(number.key in entry for entry in apart)]
    if not metrics or not shown:
        return None
    columns = [column("Epoch", (epoch_cell(checkpoint_of(entry)) for entry in apart))]
    columns.append(column("Member", (Cell(member_of(entry)) for entry in apart)))
    theirs = called(apart)
    columns += [column(f"{one.label}, {theirs}", (paper_cell(entry, one) for entry in apart)) for one in shown]
    return grid_of(columns)


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
        f'<th scope="col"{_kind(column, grid, wide=len(text) > WIDE)}><button type="button">{html.escape(text)}'
        "</button></th>"
        for column, text in enumerate(grid.heading)
    )
    body = []
    for number, cells in enumerate(grid.lines):
        # A line above the first row of a checkpoint or a variant, until the reader sorts otherwise.
        starts = number > 0 and grid.heading[0] in GROUPS and cells[0] != grid.lines[number - 1][0]
        line = "".join(_html_cell(cell, _kind(column, grid, cell)) for column, cell in enumerate(cells))
        body.append(f'<tr class="starts">{line}</tr>' if starts else f"<tr>{line}</tr>")
    return (
        f'<div class="scroll" role="region" aria-label="{html.escape(label)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>"
    )


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def column(heading: str, cells: Iterable[Cell]) -> list[Cell]:
    return [Cell(heading), *cells]


def grid_of(columns: list[list[Cell]]) -> Grid:
    kept = [column for column in columns if any(cell.text != NOTHING for cell in column[1:])]
    words = frozenset(n for n, column in enumerate(kept) if all(cell.value is None for cell in column))
    lines = [list(cells) for cells in zip(*kept, strict=True)]
    return Grid([cell.text for cell in lines[0]], lines[1:], words) if lines else Grid([], [], words)


def score_cell(row: Row, metric: Metric) -> Cell:
    spread = row.scores.get(metric.key)
    if spread is None:
        return Cell(NOTHING)
    return Cell(with_spread(spread, metric.digits), spread.mean, metric.key in row.best)


def difference_cell(row: Row, metric: Metric) -> Cell:
    spread = row.differences.get(metric.key)
    return Cell(NOTHING) if spread is None else Cell(with_spread(spread, metric.digits, "+"), spread.mean)


def interval_cell(row: Row, metric: Metric) -> Cell:
    """Sorted by its lower end; the table's bold is for what is clear of zero."""
    known = row.intervals.get(metric.key)
    if known is None:
        return Cell(NOTHING)
    return Cell(interval_text(known, metric.digits), known.low, is_clear(known))


def interval_text(known: Interval, digits: int) -> str:
    """`0.30 to 2.50`."""
    return f"{known.low:+z.{digits}f} to {known.high:+z.{digits}f}"


def is_clear(known: Interval) -> bool:
    """Whether the interval leaves zero out."""
    return known.low > 0 or known.high < 0


def plain_cell(spread: Spread | None, digits: int) -> Cell:
    return Cell(NOTHING) if spread is None else Cell(f"{spread.mean:z,.{digits}f}", spread.mean)


def paper_cell(entry: Mapping[str, Any], metric: Metric) -> Cell:
    value = entry.get(metric.key)
    return Cell(f"{value:z,.{metric.digits}f}", value) if isinstance(value, int | float) else Cell(NOTHING)


def with_spread(spread: Spread, digits: int, sign: str = "") -> str:
    """`71.20 ± 0.31`; without ± for a single run. Never a negative zero."""
    mean = f"{spread.mean:{sign}z.{digits}f}"
    return mean if spread.sd is None else f"{mean} ± {spread.sd:.{digits}f}"


def epoch_cell(checkpoint: float | None) -> Cell:
    return Cell(NOTHING) if checkpoint is None else Cell(f"{checkpoint:g}", checkpoint)


def _kind(column: int, grid: Grid, cell: Cell | None = None, wide: bool = False) -> str:
    """The class of a cell: words, the first of which stay in sight when the table is scrolled, and long ones wrap.

    wide: of a heading that would otherwise be a tower of words above narrow numbers.
    """
    if column not in grid.words:
        return ' class="wide"' if wide else ""
    name = " name" if column == min(grid.words) else ""
    return f' class="word{name}{" long" if cell and len(cell.text) > LONG else ""}"'


def _html_cell(cell: Cell, kind: str) -> str:
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    text = f"<strong>{html.escape(cell.text)}</strong>" if cell.best else html.escape(cell.text)
    return f"<td{kind}{value}>{text}</td>"
