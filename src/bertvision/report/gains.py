"""What a head gains over the backbone, by where it comes from: better spans, a calibrated null, a tuned threshold."""

from collections.abc import Sequence
from typing import NamedTuple

from bertvision.report.document import Album, Block, Note, Picture, Pictures, Section, Table
from bertvision.report.forest import Gain, forest_figure, gain_of
from bertvision.report.reading import Study
from bertvision.report.summary import Metric, Row, main_metric, rows_by_kind
from bertvision.report.tables import NOTHING, Cell, column, epoch_cell, grid_of

SPANS_F1 = "HasAns_spans_f1"
CALLED = {"zero": "null as it comes (threshold 0)", "tune": "threshold tuned for both"}
MEANING = {
    SPANS_F1: "Better spans: F1 of the best span on questions that have an answer, whatever the null score says.",
    "zero": "Null as it comes: F1 over all questions with the threshold at 0, so a null score that is right by itself "
    "counts too.",
    "tune": "Threshold tuned for both: F1 after member and backbone each got their threshold on the tuning set, so "
    "that what is only calibration is gone.",
}
WITH = "In brackets 95 % intervals by paired bootstrap over the questions; bold, and filled points: zero is left out."
WITHOUT = "No intervals were computed (comparisons.json is not there): nothing here can be called clear."


Gains = dict[tuple[float | None, str], dict[str, Gain]]  # checkpoint, member -> name of the kind -> gain


class Kind(NamedTuple):
    """A kind of gain: the score it is a difference of, the threshold kind of the rows it is read from, its name."""

    key: str
    threshold_from: str
    name: str


def gain_section(study: Study, metrics: Sequence[Metric], album: Album) -> list[Section]:
    """A table with a column per kind of gain, and forest plots of the first and the last checkpoint."""
    blocks = gain_blocks(study.rows, metrics, album)
    return [Section("What a head gains, kept apart", blocks)] if blocks else []


def gain_blocks(rows: Sequence[Row], metrics: Sequence[Metric], album: Album) -> list[Block]:
    """The blocks of that section; none where nothing is compared with a backbone."""
    members = [
        row for row in rows if row.role != "backbone" and row.fraction == 1 and (row.differences or row.intervals)
    ]
    if not metrics or not members:
        return []
    metric = main_metric(metrics, rows)
    kinds = kinds_of(members, metric)
    gains: Gains = {}
    for row in members:
        place = gains.setdefault((row.checkpoint, row.member), {})
        for kind in kinds:
            gain = gain_of(row, kind.key) if kind.threshold_from == row.threshold_from else None
            if gain is not None:
                place[kind.name] = gain
    names = [kind.name for kind in kinds]
    gains = {place: {name: found[name] for name in names if name in found} for place, found in gains.items() if found}
    columns = [column("Epoch", (epoch_cell(point) for point, _ in gains))]
    columns.append(column("Member", (Cell(member) for _, member in gains)))
    for kind in kinds:
        columns.append(column(_sentence(kind.name), (_cell(found.get(kind.name), metric) for found in gains.values())))
    known = any(row.intervals for row in members)
    notes = [MEANING[name] for kind in kinds if (name := _meaning(kind)) in MEANING]
    pictures = _pictures(gains, metric, album)
    return [
        Table("Differences to the backbone", grid_of(columns)),
        *(Note(text) for text in [*(notes if len(kinds) > 1 else ()), WITH if known else WITHOUT]),
        *([Pictures(pictures)] if pictures else []),
    ]


def kinds_of(rows: Sequence[Row], metric: Metric) -> list[Kind]:
    """The kinds of gain that the rows tell apart: the spans where they have such a score, then each threshold kind."""
    kinds = rows_by_kind(rows)
    spans = [kind for kind, found in kinds.items() if any(gain_of(row, SPANS_F1) for row in found)]
    # The spans' score is the same under any threshold: read it where it has intervals.
    spans.sort(key=lambda kind: not any(SPANS_F1 in row.intervals for row in kinds[kind]))
    found = [Kind(SPANS_F1, kind, "better spans") for kind in spans[:1]]
    for kind in sorted(kinds, key=lambda kind: list(CALLED).index(kind) if kind in CALLED else -1):
        found.append(Kind(metric.key, kind, CALLED.get(kind, kind or metric.label)))
    return found


def _pictures(gains: Gains, metric: Metric, album: Album) -> list[Picture]:
    points = list(dict.fromkeys(point for point, _ in gains))
    pictures = []
    for point in dict.fromkeys([*points[:1], *points[-1:]]):
        at = "" if point is None else f" at epoch {point:g}"
        found = {member: one for (here, member), one in gains.items() if here == point}
        figure = forest_figure(found, f"{metric.label} minus the backbone's")
        name = "gain" if point is None else f"gain {point:g}"
        pictures.append(album.draw(name, f"Gains over the backbone{at}", figure))
    return pictures


def _cell(gain: Gain | None, metric: Metric) -> Cell:
    if gain is None:
        return Cell(NOTHING)
    text = f"{gain.mean:+z.{metric.digits}f}"
    if gain.low != gain.high:
        between = f"({gain.low:+z.{metric.digits}f} to {gain.high:+z.{metric.digits}f})"
        text += f" {between}" if gain.interval else f" ± {gain.high - gain.mean:.{metric.digits}f}"
    return Cell(text, gain.mean, gain.clear)


def _meaning(kind: Kind) -> str:
    return kind.key if kind.key == SPANS_F1 else kind.threshold_from


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
