"""What a score costs: parameters, seconds, memory and bytes beside it, and the front of what nothing beats."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.evaluate.pareto import efficiency
from bertvision.report.document import Album, Block, Note, Picture, Pictures, Section, Table
from bertvision.report.front import front_figure
from bertvision.report.paper import beside, called
from bertvision.report.reading import Study
from bertvision.report.summary import COSTS, Metric, Row, main_metric, rows_by_kind
from bertvision.report.tables import (
    NOTHING,
    Cell,
    Grid,
    column,
    epoch_cell,
    grid_of,
    paper_cell,
    plain_cell,
    score_cell,
)

FRONTS = (
    Metric("parameters", "trained parameters", 0),
    Metric("train_seconds", "seconds of training, tuning included", 0),
    Metric("ms_per_question", "milliseconds per question", 0),
    Metric("total_parameters", "all parameters", 0),
    Metric("disk_bytes", "bytes on disk", 0),
)
LEGEND = (
    "Trained parameters: what had to be learnt for this member beyond the checkpoint it stands on; the backbone's are "
    "those of tuning. Seconds of a head: what it would have taken alone, with the backbone passes it needs; of an "
    "ensemble: the sum over its members."
)
FRONT = (
    "Filled points are on the front: nothing else is both cheaper and better. A scale that is logarithmic begins at 1."
)


def cost_section(study: Study, metrics: Sequence[Metric], album: Album) -> list[Section]:
    """The table of costs and the plots of score against cost, under the threshold a user would run with."""
    if not metrics:
        return []
    rows = next(iter(rows_by_kind(row for row in study.rows if row.fraction == 1).values()), [])
    known = any(cost.key in row.scores for row in rows for cost in COSTS)
    blocks = cost_blocks(rows, main_metric(metrics, rows), study.paper, study.facts, album) if known else []
    return [Section("What it costs", blocks)] if blocks else []


def cost_blocks(
    rows: Sequence[Row], metric: Metric, paper: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], album: Album
) -> list[Block]:
    """Table, notes and plots of rows of one threshold kind."""
    notes = [LEGEND]
    if any("f1" in row.scores for row in rows):
        notes.append("Efficiency, after Hulburd: (F1 - 50) / ln(trained parameters).")
    peak = facts.get("peak")
    if isinstance(peak, Mapping) and peak.get("memory_gib"):
        notes.append(f"Peak memory of the whole run: {peak['memory_gib']:g} GiB.")
    pictures = _pictures(rows, metric, album)
    if pictures:
        notes.append(FRONT)
    return [
        Table("Costs", cost_grid(rows, metric, paper)),
        *(Note(note) for note in notes),
        *([Pictures(pictures)] if pictures else []),
    ]


def cost_grid(rows: Sequence[Row], metric: Metric, paper: Sequence[Mapping[str, Any]] = ()) -> Grid:
    """One line per row: the metric, then what it cost; published costs stand beside ours."""
    published = beside(rows, paper)
    columns = [column("Variant", (Cell(row.variant or NOTHING) for row in rows))]
    columns.append(column("Epoch", (epoch_cell(row.checkpoint) for row in rows)))
    columns.append(column("Member", (Cell(row.member) for row in rows)))
    columns.append(column(metric.label, (score_cell(row, metric) for row in rows)))
    for cost in COSTS:
        columns.append(column(cost.label, (plain_cell(row.scores.get(cost.key), cost.digits) for row in rows)))
        columns.append(column(f"{cost.label}, {called(paper)}", (paper_cell(entry, cost) for entry in published)))
    columns.append(column("On disk", (_bytes(row) for row in rows)))
    columns.append(column("Efficiency", (_efficiency(row) for row in rows)))
    return grid_of(columns)


def _pictures(rows: Sequence[Row], metric: Metric, album: Album) -> list[Picture]:
    pictures = []
    for cost in FRONTS:
        found = [row for row in rows if metric.key in row.scores and cost.key in row.scores]
        if len({row.scores[cost.key].mean for row in found}) > 1:
            caption = f"{metric.label} against {cost.label}"
            pictures.append(album.draw(f"front {cost.key}", caption, front_figure(found, metric, cost)))
    return pictures


def _bytes(row: Row) -> Cell:
    """Bytes in the unit that suits them."""
    if "disk_bytes" not in row.scores:
        return Cell(NOTHING)
    size = value = row.scores["disk_bytes"].mean
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return Cell(f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}", value)
        size /= 1000
    return Cell(f"{size:.2f} GB", value)


def _efficiency(row: Row) -> Cell:
    if "f1" not in row.scores or "parameters" not in row.scores:
        return Cell(NOTHING)
    value = efficiency(row.scores["f1"].mean, round(row.scores["parameters"].mean))
    return Cell(NOTHING) if value is None else Cell(f"{value:z.2f}", value)
