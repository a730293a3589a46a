"""A study -> what its report consists of: sentences, tables and figures, not yet in any format."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bertvision.report.plots import difference_figure, render, score_figure
from bertvision.report.reading import Study
from bertvision.report.sentences import summary_sentences
from bertvision.report.summary import Metric, Row, main_metric, metrics_of, rows_by_kind
from bertvision.report.tables import KINDS, Grid, member_grid, paper_grid

SYNTHETIC = "Synthetic data: the questions were written by a program. Scores say nothing about real text."
LEGEND = (
    "Bold: the highest at its checkpoint. Δ: difference to the backbone at the same checkpoint and threshold, "
    "paired by seed. Parameters: those that were trained."
)


@dataclass(frozen=True)
class Picture:
    """A figure under its file name, what it shows in words, and its two files."""

    name: str
    caption: str
    svg: str
    png: bytes


@dataclass(frozen=True)
class Part:
    """Scores that may be compared with each other: a table, its figures, and what helps to read them."""

    title: str
    grid: Grid
    pictures: list[Picture]
    notes: list[str]


@dataclass(frozen=True)
class Report:
    """Everything a section of the page may draw on."""

    study: Study
    sentences: list[str]
    parts: list[Part]


def compose(study: Study, metrics: Sequence[Metric] = ()) -> Report:
    """The report of a study, one part per threshold kind. metrics: what to show; by default the scores there are."""
    metrics = [Metric(*metric) for metric in metrics] or metrics_of(study.rows)
    sources = dict.fromkeys(str(entry["source"]) for entry in study.paper if entry.get("source"))
    notes = [LEGEND, *study.chosen, *([f"Paper: {'; '.join(sources)}."] if sources else [])]
    parts = []
    for kind, rows in rows_by_kind(study.rows).items() if metrics else ():
        title = KINDS.get(kind, f"Threshold: {kind}" if kind else "Scores")
        parts.append(Part(title, member_grid(rows, metrics, study.paper), _pictures(rows, metrics, kind), notes))
        notes = []  # once is enough
    if (published := paper_grid(study.rows, metrics, study.paper)) is not None:
        parts.append(Part("Published results without a counterpart here", published, [], []))
    return Report(study, summary_sentences(study.rows, metrics, study.recipe), parts)


def _pictures(rows: Sequence[Row], metrics: Sequence[Metric], kind: str) -> list[Picture]:
    """The figures that rows of one threshold kind allow: lines need two checkpoints, bars a backbone."""
    metric, found = main_metric(metrics), []
    if len({row.checkpoint for row in rows if metric.key in row.scores} - {None}) > 1:
        found.append(("score", f"{metric.label} along fine-tuning", score_figure))
    if any(metric.key in row.differences for row in rows):
        found.append(("difference", f"What each member adds to the backbone's {metric.label}", difference_figure))
    suffix = f"-{re.sub(r'[^a-z0-9]+', '-', kind.lower())}" if kind else ""
    pictures = []
    for stem, caption, draw in found:
        name, figure = f"{stem}{suffix}", draw(rows, metric)
        svg, png = render(figure, "svg", name), render(figure, "png", name)
        pictures.append(Picture(name, caption, svg.decode(), png))
    return pictures
