"""Members against the backbone: at the same checkpoint, and at equal cost of training."""

from collections.abc import Callable, Sequence

from bertvision.report import TEXTS
from bertvision.report.figures import Panel, cost_figure
from bertvision.report.grid import Cell, Column, difference_cell, gap_cell, grid_of, numbers, words
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, Picture, notes, pictures
from bertvision.report.rows import Entry, Equal, Metric, Row, is_number, main_metric, metrics_of, rows_by_kind

SPANS_F1 = "HasAns_spans_f1"
SOURCES = {"zero": "threshold 0", "tune": "threshold tuned", "spans": "spans alone"}
SECONDS, FLOPS = Metric("train_seconds", "seconds of training", 1), Metric("train_flops", "FLOPs of training", 0)


def sources_of_gain(rows: Sequence[Row]) -> dict[str, tuple[Metric, list[Row]]]:
    """Title -> metric and rows: threshold 0, threshold tuned, and the spans with “no answer” switched off."""
    metric, kinds = main_metric(rows), rows_by_kind(row for row in rows if row.fraction == 1)
    if metric is None:
        return {}
    found = {SOURCES.get(kind, metric.label): (metric, kinds[kind]) for kind in sorted(kinds, reverse=True)}
    spans = [row for row in next(iter(kinds.values()), []) if SPANS_F1 in row.scores]
    label = next((one for one in metrics_of(rows) if one.key == SPANS_F1), None)
    return found | ({SOURCES["spans"]: (label, spans)} if spans and label else {})


def against_cost(study: Study, cost: Metric, album: Album) -> list[Picture]:
    """The score against a cost of training, for each source of gain."""
    panels = []
    for title, (metric, rows) in sources_of_gain(study.rows).items():
        scored = [row for row in rows if {metric.key, cost.key} <= row.scores.keys()]
        whole = [row for row in scored if row.ensemble.members[0].head_epochs is None]
        published = published_points(study.paper, metric, cost) if title != SOURCES["tune"] else []
        if any(row.role != "backbone" for row in whole):
            panels.append(Panel(title.capitalize() if title in SOURCES.values() else "", metric, whole, published))
    if not panels:
        return []
    narrow = cost_figure(panels, cost, across=False) if len(panels) > 1 else None
    caption = f"{panels[0].metric.label} against {cost.label}"
    return [album.draw(cost.key, caption, cost_figure(panels, cost), narrow)]


def published_points(paper: Sequence[Entry], metric: Metric, cost: Metric) -> list[tuple[float, float]]:
    """Published (cost, score), where both are known."""
    known = [entry for entry in paper if is_number(entry.get(metric.key)) and is_number(entry.get(cost.key))]
    return [(float(entry[cost.key]), float(entry[metric.key])) for entry in known]


def difference_blocks(study: Study, album: Album) -> list[Block]:
    """Differences to the backbone at the same checkpoint, at equal seconds and at equal FLOPs, by source of gain."""
    found = {
        title: (metric, {(row.epoch, row.name): row for row in rows if row.role != "backbone"})
        for title, (metric, rows) in sources_of_gain(study.rows).items()
    }
    places = list(dict.fromkeys(place for _, rows in found.values() for place in rows))
    everyone = [row for _, rows in found.values() for row in rows.values()]
    if not any(row.differences or row.intervals for row in everyone):
        return []

    def columns(heading: str, cell: Callable[[Row, Metric], Cell]) -> list[Column]:
        return [
            (f"{heading}, {title}", [cell(rows[place], metric) if place in rows else Cell() for place in places])
            for title, (metric, rows) in found.items()
        ]

    def equal_columns(cost: Metric) -> list[Column]:
        """The epochs of the backbone of equal cost, and the differences to it."""
        known = {(r.epoch, r.name): one for r in reversed(everyone) for one in r.equal.get(cost.key, {}).values()}
        epochs = [_equal_epoch(known.get(place)) for place in places]

        def cell(row: Row, metric: Metric) -> Cell:
            known = row.at_equal(cost.key, metric.key)
            return difference_cell(known.interval, metric.digits) if known else Cell()

        return [("Backbone of equal cost", words(epochs)), *columns("Δ", cell)]

    place = [("Epoch", numbers((e for e, _ in places), "g")), ("Member", words(name for _, name in places))]
    tables = {"At the same checkpoint": grid_of(*place, *columns("Δ", gap_cell))}
    for title, cost in (("At equal seconds of training", SECONDS), ("At equal FLOPs of training", FLOPS)):
        if any(cost.key in row.equal for row in everyone):
            tables[title] = grid_of(*place, *equal_columns(cost))
    blocks = [one for title, grid in tables.items() for one in (Block("heading", title), Block("table", grid, title))]
    texts = [TEXTS["differences" if any(row.intervals for row in everyone) else "differences_unclear"]]
    texts.append(TEXTS["flops" if len(tables) > 1 else "no_equal_cost"])
    return [*blocks, *notes(*texts), *pictures(*against_cost(study, FLOPS, album))]


def _equal_epoch(known: Equal | None) -> str:
    if known is None:
        return ""
    epoch = "" if known.epoch is None else f"epoch {known.epoch:.3g}"
    return ", ".join(filter(None, [epoch, {"interpolated": known.how, "beyond": "beyond the last"}.get(known.how)]))
