"""Grids of cells: what a table shows, in no format yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.evaluate.bootstrap import Interval
from bertvision.report.published import Entry, beside, called, without_counterpart
from bertvision.report.rows import COSTS, Metric, Row, Spread, is_number, main_metric, metrics_of

NOTHING = "–"
PARAMETERS = Metric("parameters", "Parameters", 0)
THRESHOLD = Metric("threshold", "Threshold", 2)


@dataclass(frozen=True)
class Cell:
    """A text, and the number it is sorted by, if any."""

    text: str = NOTHING
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """Headings and lines of cells. words: the columns without numbers."""

    heading: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    words: frozenset[int]

    def starts_group(self, number: int) -> bool:
        """Whether a line is the first of its variant or epoch, and not the first of all."""
        grouped = number > 0 and self.heading[0] in ("Variant", "Epoch")
        return grouped and self.lines[number][0] != self.lines[number - 1][0]


Column = tuple[str, Sequence[Cell]]


def grid_of(*columns: Column) -> Grid:
    """The columns that have a value."""
    kept = [(heading, cells) for heading, cells in columns if any(cell.text != NOTHING for cell in cells)]
    words = frozenset(n for n, (_, cells) in enumerate(kept) if all(cell.value is None for cell in cells))
    return Grid([heading for heading, _ in kept], list(zip(*(cells for _, cells in kept), strict=True)), words)


def words(texts: Iterable[object]) -> list[Cell]:
    """Cells of words; an empty one is shown as missing."""
    return [Cell(str(text) or NOTHING) for text in texts]


def numbers(values: Iterable[Any], form: str) -> list[Cell]:
    """Cells of numbers in a format; empty ones for anything else."""
    return [Cell(format(one, form).replace("%", " %"), one) if is_number(one) else Cell() for one in values]


def mark_best(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, the highest of them marked if they differ."""
    found = list(cells)
    values = {cell.value for cell in found if cell.value is not None}
    top = max(values) if len(values) > 1 else None
    return [Cell(cell.text, cell.value, top is not None and cell.value == top) for cell in found]


def member_grid(
    rows: Sequence[Row],
    metrics: Sequence[Metric] = (),
    paper: Sequence[Entry] = (),
    costs: Sequence[Metric] = (THRESHOLD, PARAMETERS),
) -> Grid:
    """One line per row: the main metric, its difference to the backbone, the other metrics, costs; published values
    beside ours. metrics: all the rows have, if not given."""
    published, theirs, main = beside(rows, paper), called(paper), main_metric(rows)
    columns: list[Column] = place_columns(rows)
    if len({row.threshold_from for row in rows}) > 1:
        columns.append(("Threshold from", words(row.threshold_from for row in rows)))
    if len({len(row.seeds) for row in rows}) > 1:  # a study under way: means are over different numbers of runs
        columns.append(("Seeds", numbers((len(row.seeds) for row in rows), "d")))
    for metric in sorted(metrics or metrics_of(rows), key=lambda metric: metric != main):
        columns.append((metric.label, [score_cell(row, metric) for row in rows]))
        if metric == main:
            columns.append((f"Δ {metric.label}", [difference_cell(row, metric) for row in rows]))
            columns.append(("95 % interval", [interval_cell(row, metric) for row in rows]))
        columns.append((f"{metric.label}, {theirs}", [paper_cell(entry, metric) for entry in published]))
    for cost in costs:
        if cost != THRESHOLD or any(row.threshold_from != "zero" for row in rows):
            columns += cost_columns(rows, cost, published, theirs)
    return grid_of(*columns)


def paper_grid(metrics: Sequence[Metric], rows: Sequence[Row], paper: Sequence[Entry]) -> Grid | None:
    """Published results that no row of ours corresponds to; None if there are none."""
    apart = without_counterpart(rows, paper)
    shown = [one for one in (*metrics, *COSTS) if any(one.key in entry for entry in apart)]
    if not metrics or not shown:
        return None
    return grid_of(
        ("Epoch", numbers((entry.get("checkpoint") for entry in apart), "g")),
        ("Member", words(entry.get("member", "") for entry in apart)),
        *((f"{one.label}, {called(apart)}", [paper_cell(entry, one) for entry in apart]) for one in shown),
    )


def place_columns(rows: Sequence[Row]) -> list[Column]:
    return [
        ("Variant", words(row.variant for row in rows)),
        ("Epoch", numbers((row.epoch for row in rows), "g")),
        ("Member", words(row.name for row in rows)),
    ]


def cost_columns(rows: Sequence[Row], cost: Metric, published: Sequence[Entry], theirs: str) -> list[Column]:
    """Our mean of a cost, and the published one."""
    return [
        (cost.label, numbers((mean(row, cost.key) for row in rows), f"z,.{cost.digits}f")),
        (f"{cost.label}, {theirs}", [paper_cell(entry, cost) for entry in published]),
    ]


def mean(row: Row, key: str) -> float | None:
    return row.scores[key].mean if key in row.scores else None


def score_cell(row: Row, metric: Metric) -> Cell:
    spread = row.scores.get(metric.key)
    return Cell() if spread is None else Cell(_with_spread(spread, metric.digits), spread.mean, metric.key in row.best)


def difference_cell(row: Row, metric: Metric) -> Cell:
    spread = row.differences.get(metric.key)
    return Cell() if spread is None else Cell(_with_spread(spread, metric.digits, "+"), spread.mean)


def interval_cell(row: Row, metric: Metric) -> Cell:
    """Sorted by its lower end; marked if it excludes zero."""
    known = row.intervals.get(metric.key)
    if known is None:
        return Cell()
    return Cell(interval_text(known, metric.digits), known.low, known.low > 0 or known.high < 0)


def paper_cell(entry: Entry, metric: Metric) -> Cell:
    return numbers([entry.get(metric.key)], f"z,.{metric.digits}f")[0]


def interval_text(known: Interval, digits: int) -> str:
    """`+0.30 to +2.50`."""
    return f"{known.low:+z.{digits}f} to {known.high:+z.{digits}f}"


def _with_spread(spread: Spread, digits: int, sign: str = "") -> str:
    """`71.20 ± 0.31`; without ± for a single run."""
    text = f"{spread.mean:{sign}z.{digits}f}"
    return text if spread.sd is None else f"{text} ± {spread.sd:.{digits}f}"
