"""Grids of cells: what a table shows, in no format yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertvision.evaluate.bootstrap import Interval
from bertvision.report.rows import (
    COSTS,
    Entry,
    Metric,
    Row,
    Spread,
    beside,
    called,
    is_number,
    main_metric,
    main_rows,
    metrics_of,
    without_counterpart,
)

NOTHING = "–"
PRINTED = ","  # of published numbers: as many decimals as they have
PARAMETERS = Metric("parameters", "Parameters", 0)
LOSS = Metric("loss", "Loss", 3)
THRESHOLD = Metric("threshold", "Threshold", 2)
SECONDS = Metric("train_seconds", "Training s", 1)


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
    return [Cell(format(value, form).replace("%", " %"), value) if is_number(value) else Cell() for value in values]


def mark_best(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, the highest of them marked if they differ."""
    marked = list(cells)
    values = {cell.value for cell in marked if cell.value is not None}
    top = max(values) if len(values) > 1 else None
    return [Cell(cell.text, cell.value, top is not None and cell.value == top) for cell in marked]


def main_grid(rows: Sequence[Row], paper: Sequence[Entry] = (), brief: bool = False) -> Grid:
    """One line per member, with all thresholds: scores, published ones, differences to the backbone, costs.

    Exact match and F1 at threshold 0, as in the papers, beside F1 at the tuned threshold; for tasks without thresholds
    the two first metrics. brief: for the terminal, without intervals and costs.
    """
    shown, main = main_rows(rows), main_metric(rows)
    if main is None:
        return grid_of()
    published, paper_heading = beside(shown, paper), "paper" if brief else called(paper)
    zero = {(row.variant, row.epoch, row.name): row for row in rows if row.threshold_from == "zero"}
    columns = [*place_columns(shown), *_seed_column(shown)]
    if zero and shown[0].threshold_from != "zero":
        at_zero = [zero.get((row.variant, row.epoch, row.name)) for row in shown]
        columns.append(("EM / F1 at 0" if brief else "EM / F1, threshold 0", [_em_f1_cell(row) for row in at_zero]))
        published_pairs = [_em_f1(entry.get("exact"), entry.get("f1"), PRINTED) for entry in published]
        columns.append((paper_heading if brief else f"EM / F1, {paper_heading}", published_pairs))
        columns.append(
            (f"{main.label}{'' if brief else ', threshold'} tuned", [score_cell(row, main) for row in shown])
        )
    else:
        for metric in sorted(metrics_of(shown), key=lambda metric: metric != main)[:2]:
            columns.append((metric.label, [score_cell(row, metric) for row in shown]))
            columns.append((f"{metric.label}, {paper_heading}", [paper_cell(entry, metric) for entry in published]))
    columns.append((f"Δ {main.label}", [gap_cell(row, main, brief) for row in shown]))
    heading = "Equal cost" if brief else f"Δ {main.label} at equal cost"
    columns.append((heading, [equal_cell(row, main, brief) for row in shown]))
    costs = [] if brief else [PARAMETERS, SECONDS]
    return grid_of(*columns, *(cost_columns(shown, cost, [], "")[0] for cost in costs))


def member_grid(rows: Sequence[Row], metrics: Sequence[Metric] = (), paper: Sequence[Entry] = ()) -> Grid:
    """One line per row: all metrics, the main one first, published values beside ours, and the threshold."""
    published, paper_heading, main = beside(rows, paper), called(paper), main_metric(rows)
    columns: list[Column] = place_columns(rows)
    if len({row.threshold_from for row in rows}) > 1:
        columns.append(("Threshold from", words(row.threshold_from for row in rows)))
    columns += _seed_column(rows)
    for metric in sorted(metrics or metrics_of(rows), key=lambda metric: metric != main):
        columns.append((metric.label, [score_cell(row, metric) for row in rows]))
        columns.append((f"{metric.label}, {paper_heading}", [paper_cell(entry, metric) for entry in published]))
    columns += cost_columns(rows, LOSS, published, paper_heading)
    if any(row.threshold_from == "tune" for row in rows):
        columns += cost_columns(rows, THRESHOLD, published, paper_heading)
    return grid_of(*columns)


def _seed_column(rows: Sequence[Row]) -> list[Column]:
    """Numbers of seeds if they differ: in a study under way, means are over different numbers of runs."""
    counts = [len(row.seeds) for row in rows]
    return [("Seeds", numbers(counts, "d"))] if len(set(counts)) > 1 else []


def _em_f1_cell(row: Row | None) -> Cell:
    """`40.11 / 43.23`: exact match and F1."""
    cell = _em_f1(mean(row, "exact"), mean(row, "f1")) if row else Cell()
    return replace(cell, best=bool(row and "f1" in row.best))


def _em_f1(exact: Any, f1: Any, form: str = ".2f") -> Cell:
    present = is_number(f1) or is_number(exact)
    texts = [format(value, form) if is_number(value) else NOTHING for value in (exact, f1)]
    return Cell(" / ".join(texts), f1 if is_number(f1) else exact) if present else Cell()


def paper_grid(metrics: Sequence[Metric], rows: Sequence[Row], paper: Sequence[Entry]) -> Grid | None:
    """Published results without a row of the study beside them; None if there are none."""
    unmatched = without_counterpart(rows, paper)
    shown_metrics = [metric for metric in (*metrics, *COSTS) if any(metric.key in entry for entry in unmatched)]
    if not metrics or not shown_metrics:
        return None
    return grid_of(
        ("Epoch", numbers((entry.get("checkpoint") for entry in unmatched), "g")),
        ("Member", words(entry.get("member", "") for entry in unmatched)),
        *(
            (f"{metric.label}, {called(unmatched)}", [paper_cell(entry, metric) for entry in unmatched])
            for metric in shown_metrics
        ),
    )


def place_columns(rows: Sequence[Row]) -> list[Column]:
    return [
        ("Variant", words(row.variant for row in rows)),
        ("Epoch", numbers((row.epoch for row in rows), "g")),
        ("Member", words(row.name for row in rows)),
    ]


def cost_columns(rows: Sequence[Row], cost: Metric, published: Sequence[Entry], paper_heading: str) -> list[Column]:
    """Our mean of a cost, and the published one."""
    return [
        (cost.label, numbers((mean(row, cost.key) for row in rows), f"z,.{cost.digits}f")),
        (f"{cost.label}, {paper_heading}", [paper_cell(entry, cost) for entry in published]),
    ]


def mean(row: Row, key: str) -> float | None:
    return row.scores[key].mean if key in row.scores else None


def score_cell(row: Row, metric: Metric) -> Cell:
    spread = row.scores.get(metric.key)
    return Cell() if spread is None else Cell(_with_spread(spread, metric.digits), spread.mean, metric.key in row.best)


def gap_cell(row: Row, metric: Metric, brief: bool = False) -> Cell:
    """The difference to the backbone: `+1.42 (-0.25 to +3.02)`, marked if its interval excludes zero; without one, with
    the standard deviation over seeds. brief: the difference alone."""
    spread, interval = row.differences.get(metric.key), row.intervals.get(metric.key)
    if interval:
        return difference_cell(interval, metric.digits, brief)
    if spread is None:
        return Cell()
    return Cell(_with_spread(Spread((spread.mean,)) if brief else spread, metric.digits, "+"), spread.mean)


def equal_cell(row: Row, metric: Metric, brief: bool = False) -> Cell:
    """The difference to the backbone of equal seconds of training; `beyond` if it was not tuned that long."""
    equal = row.at_equal(SECONDS.key, metric.key)
    if equal is None or equal.how == "beyond":
        return Cell("beyond") if equal else Cell()
    return difference_cell(equal.interval, metric.digits, brief)


def difference_cell(interval: Interval, digits: int, brief: bool = False) -> Cell:
    text = f"{interval.difference:+z.{digits}f}"
    clear = interval.low > 0 or interval.high < 0
    return Cell(text if brief else f"{text} ({interval_text(interval, digits)})", interval.difference, clear)


def paper_cell(entry: Entry, metric: Metric) -> Cell:
    """A published number with the decimals it was published with."""
    return numbers([entry.get(metric.key)], PRINTED)[0]


def interval_text(interval: Interval, digits: int) -> str:
    """`+0.30 to +2.50`."""
    return f"{interval.low:+z.{digits}f} to {interval.high:+z.{digits}f}"


def _with_spread(spread: Spread, digits: int, sign: str = "") -> str:
    """`71.20 ± 0.31`; without ± for a single run."""
    text = f"{spread.mean:{sign}z.{digits}f}"
    return text if spread.sd is None else f"{text} ± {spread.sd:.{digits}f}"
