"""The scores of a study: the main table of each threshold kind, its curves, and the heads that saw less data."""

from collections.abc import Sequence

from bertvision.report.curves import score_figure, share_figure
from bertvision.report.document import Album, Block, Fold, Heading, Note, Picture, Pictures, Section, Table
from bertvision.report.reading import Study
from bertvision.report.summary import PARAMETERS, Metric, Row, main_metric, metrics_of, rows_by_kind
from bertvision.report.tables import KINDS, THRESHOLD, member_grid, paper_grid

LEGEND = (
    "Bold: the highest at its checkpoint. Δ: difference to the backbone at the same checkpoint and threshold, "
    "paired by seed. Parameters: those that were trained."
)
INTERVALS = (
    "95 % interval: of Δ, by paired bootstrap over the questions; in bold where it leaves zero out. It resamples the "
    "questions only: what another seed of the training would change is outside it. Of twenty differences that are "
    "none, one is expected to look clear."
)

UNLIKE = (
    "The published scores are of real questions, ours of synthetic ones: what may be compared is the order of "
    "backbone, heads and ensemble, never the height of the scores."
)
UNDER = {"tune": ", threshold tuned", "zero": ", threshold at zero"}


def score_blocks(study: Study, metrics: Sequence[Metric], album: Album) -> list[Block]:
    """The main table, under the threshold a user would run with, and its curves; behind folds the other tables."""
    if not metrics:
        return []
    kinds = rows_by_kind(row for row in study.rows if row.fraction == 1)
    costs = (THRESHOLD, PARAMETERS)
    tables = {_title(kind): member_grid(rows, metrics, study.paper, costs) for kind, rows in kinds.items()}
    pictures = [picture for kind, rows in kinds.items() for picture in _along(rows, metrics, kind, album)]
    few = {row.family for row in study.rows if row.fraction < 1}
    partial = rows_by_kind(row for row in study.rows if row.family in few or row.role == "backbone") if few else {}
    for kind, rows in partial.items():
        title = f"Less data. {_title(kind)}" if kind else "Less data"
        tables[title] = member_grid(rows, metrics, study.paper, costs[1:])
        pictures += _by_share(rows, metrics, kind, album)
    (title, first), *others = tables.items()
    return [
        *([Heading(title)] if others else []),
        Table(title, first),
        *(Note(text) for text in _notes(study)),
        *([Pictures(pictures)] if pictures else []),
        *(Fold(title, [Table(title, grid)]) for title, grid in others),
    ]


def published_section(study: Study, metrics: Sequence[Metric]) -> list[Section]:
    """Published results that none of ours stands beside, if there are any."""
    grid = paper_grid(study.rows, metrics, study.paper)
    title = "Published results without a counterpart here"
    return [] if grid is None else [Section(title, [Table(title, grid)])]


def _title(kind: str) -> str:
    """A threshold kind in words."""
    return KINDS.get(kind, f"Threshold: {kind}" if kind else "Scores")


def _notes(study: Study) -> list[str]:
    notes = [*_constant(study), LEGEND]
    if any(row.intervals for row in study.rows):
        notes.append(INTERVALS)
    notes += [*study.notes, *study.chosen]
    if "tune" in study.recipe.get("data", {}) and not study.recipe["data"]["tune"]:
        notes.append(f"No tuning set was given, so one was split off the training data: {study.source('tune')}.")
    sources = dict.fromkeys(str(entry["source"]) for entry in study.paper if entry.get("source"))
    notes += [f"Paper: {'; '.join(sources)}."] if sources else []
    return [*notes, *([UNLIKE] if study.paper and study.synthetic() else [])]


def _constant(study: Study) -> list[str]:
    """What nothing learnt would score, from the composition of the test set."""
    known = dict(study.facts.get("constant") or {})
    totals = [row.scores for row in study.rows if {"total", "NoAns_total", "f1"} <= row.scores.keys()]
    if not known and totals:  # the official metric itself says how many questions have no answer
        share = 100 * totals[0]["NoAns_total"].mean / totals[0]["total"].mean
        known = {"says": "no answer", "exact": share, "f1": share}
    shown = [metric for metric in metrics_of(study.rows) if isinstance(known.get(metric.key), int | float)]
    scores = ", ".join(f"{metric.label} {known[metric.key]:.{metric.digits}f}" for metric in shown)
    return [f"Nothing learnt: always saying “{known['says']}” scores {scores} on this test set."] if scores else []


def _along(rows: Sequence[Row], metrics: Sequence[Metric], kind: str, album: Album) -> list[Picture]:
    metric = main_metric(metrics, rows)
    if len({row.checkpoint for row in rows if metric.key in row.scores} - {None}) < 2:
        return []
    caption = f"{metric.label} along fine-tuning{UNDER.get(kind, '')}{_shading(rows)}"
    return [album.draw(f"score {kind}", caption, score_figure(rows, metric))]


def _by_share(rows: Sequence[Row], metrics: Sequence[Metric], kind: str, album: Album) -> list[Picture]:
    """At the last checkpoint: heads that saw a share of the training set, beside themselves with all of it."""
    metric = main_metric(metrics, rows)
    last = [row for row in rows if row.checkpoint == rows[-1].checkpoint and metric.key in row.scores]
    if len({row.fraction for row in last if row.role == "head"}) < 2:
        return []
    at = "" if last[0].checkpoint is None else f" at epoch {last[0].checkpoint:g}"
    caption = f"{metric.label} by share of the training set{at}{UNDER.get(kind, '')}{_shading(last)}"
    return [album.draw(f"share {kind}", caption, share_figure(last, metric))]


def _shading(rows: Sequence[Row]) -> str:
    """What the shading is, where there is any."""
    return ". Shaded: one standard deviation over seeds" if any(len(row.seeds) > 1 for row in rows) else ""
