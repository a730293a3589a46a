"""The sections of a report on one study: scores, gains, costs, ensembles, and where the numbers come from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from bertvision.evaluate.pareto import efficiency
from bertvision.evaluate.score import Score
from bertvision.report import TEXTS
from bertvision.report.figures import Gain, forest_figure, front_figure, gain_of, score_figure, share_figure
from bertvision.report.grid import (
    PARAMETERS,
    Cell,
    Grid,
    cost_columns,
    grid_of,
    mean,
    member_grid,
    numbers,
    place_columns,
    score_cell,
    words,
)
from bertvision.report.published import Entry, beside, called, sources
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, Picture, notes, pictures
from bertvision.report.rows import COSTS, FRONTS, Metric, Row, main_metric, metrics_of, rows_by_kind, summarise

UNDER = {"tune": ", threshold tuned", "zero": ", threshold at zero"}
SPANS_F1 = "HasAns_spans_f1"
GAINS = {"spans": "Better spans", "zero": "Threshold at zero", "tune": "Threshold tuned"}
ELSEWHERE = {"title", "paper", "command", "dropped", "variants", "constant"}


def score_blocks(study: Study, album: Album) -> list[Block]:
    """The main table, with the threshold a user would run with, and its curves; the other tables in folds."""
    if not (metrics := metrics_of(study.rows)):
        return []
    kinds = rows_by_kind(row for row in study.rows if row.fraction == 1)
    tables = {_title(kind): member_grid(rows, metrics, study.paper) for kind, rows in kinds.items()}
    found = [picture for kind, rows in kinds.items() for picture in _curve(rows, kind, False, album)]
    few = {row.family for row in study.rows if row.fraction < 1}
    partial = rows_by_kind(row for row in study.rows if row.family in few or row.role == "backbone") if few else {}
    for kind, rows in partial.items():
        title = f"Less data. {_title(kind)}" if kind else "Less data"
        tables[title] = member_grid(rows, metrics, study.paper, [PARAMETERS])
        found += _curve(rows, kind, True, album)
    (title, first), *others = tables.items()
    return [
        *([Block("heading", title)] if others else []),
        Block("table", first, title),
        *notes(*_score_notes(study)),
        *pictures(*found),
        *(Block("fold", [Block("table", grid, title)], title) for title, grid in others),
    ]


def gain_blocks(study: Study, album: Album) -> list[Block]:
    """A table with a column per source of gain, and forest plots of the first and the last checkpoint."""
    rows = [row for row in study.rows if row.role != "backbone" and row.fraction == 1]
    rows = [row for row in rows if row.differences or row.intervals]
    metric = main_metric(study.rows)
    if metric is None or not rows:
        return []
    kinds = _gain_kinds(rows, metric)
    gains: dict[tuple[float, str], dict[str, Gain]] = {}
    for row in rows:
        place = gains.setdefault((row.epoch, row.name), {})
        for label, (key, kind) in kinds.items():
            if kind == row.threshold_from and (gain := gain_of(row, key)):
                place[label] = gain
    grid = grid_of(
        ("Epoch", numbers((epoch for epoch, _ in gains), "g")),
        ("Member", words(name for _, name in gains)),
        *((label, [_gain_cell(found.get(label), metric) for found in gains.values()]) for label in kinds),
    )
    meaning = [TEXTS["gains"][kind] for kind, label in GAINS.items() if label in kinds] if len(kinds) > 1 else []
    drawn = []
    for epoch in dict.fromkeys([rows[0].epoch, rows[-1].epoch]):
        here = {name: {k: found[k] for k in kinds if k in found} for (at, name), found in gains.items() if at == epoch}
        figure = forest_figure(here, f"{metric.label} minus the backbone's")
        drawn.append(album.draw(f"gain {epoch:g}", f"Gains over the backbone at epoch {epoch:g}", figure))
    known = any(row.intervals for row in rows)
    table = Block("table", grid, "Differences to the backbone")
    return [table, *notes(*meaning, TEXTS["gains_clear" if known else "gains_unclear"]), *pictures(*drawn)]


def cost_blocks(rows: Sequence[Row], study: Study, album: Album) -> list[Block]:
    """The table of costs and plots of score against cost. rows: of one threshold kind."""
    metric = main_metric(rows)
    if metric is None or not any(cost.key in row.scores for row in rows for cost in COSTS):
        return []
    texts = [TEXTS["costs"]]
    if any("f1" in row.scores for row in rows):
        texts.append(TEXTS["efficiency"])
    if memory := study.facts.get("peak", {}).get("memory_gib"):
        texts.append(f"Peak memory of the whole run: {memory:g} GiB.")
    drawn = []
    for cost in FRONTS:
        found = [row for row in rows if metric.key in row.scores and cost.key in row.scores]
        if len({row.scores[cost.key].mean for row in found}) > 1:
            caption = f"{metric.label} against {cost.label}"
            drawn.append(album.draw(f"front {cost.key}", caption, front_figure(found, metric, cost)))
    texts += [TEXTS["front"]] if drawn else []
    return [Block("table", cost_grid(rows, metric, study.paper), "Costs"), *notes(*texts), *pictures(*drawn)]


def cost_grid(rows: Sequence[Row], metric: Metric, paper: Sequence[Entry]) -> Grid:
    """One line per row: the metric, then its costs, ours and published ones."""
    published, theirs = beside(rows, paper), called(paper)
    known = [(mean(row, "f1"), mean(row, "parameters")) for row in rows]
    efficiencies = [None if f1 is None or size is None else efficiency(f1, round(size)) for f1, size in known]
    return grid_of(
        *place_columns(rows),
        (metric.label, [score_cell(row, metric) for row in rows]),
        *(column for cost in COSTS for column in cost_columns(rows, cost, published, theirs)),
        ("On disk", [_bytes(mean(row, "disk_bytes")) for row in rows]),
        ("Efficiency", numbers(efficiencies, "z.2f")),
    )


def greedy_blocks(study: Study) -> list[Block]:
    """The members and weights of the greedy ensemble of each checkpoint and seed; its scores are in the main table."""
    metric = main_metric(study.rows)
    found = sorted(study.contents.greedy, key=lambda score: (score.epoch, score.seed))
    last = [list(scores)[-1] for _, scores in groupby(found, key=lambda score: (score.epoch, score.seed))]
    if not last or metric is None:
        return []
    form = f".{metric.digits}f"
    grid = grid_of(
        ("Epoch", numbers((score.epoch for score in last), "g")),
        ("Seed", words(score.seed for score in last)),
        ("Weights and members", words(map(_weighted, last))),
        (f"{metric.label} on tune", numbers((score.tune for score in last), form)),
        (metric.label, numbers((score.metrics.get(metric.key) for score in last), form)),
    )
    return [Block("table", grid, "Greedy ensembles"), *notes(TEXTS["greedy"].format(how=last[0].ensemble.how))]


def ensemble_blocks(study: Study) -> list[Block]:
    """The members and weights of the ensemble of `bertvision ensemble`, and its scores beside theirs."""
    if not (scores := study.contents.ensemble):
        return []
    ensemble = scores[0].ensemble
    weights = ensemble.weights or [1.0] * len(ensemble.members)
    grid = grid_of(
        ("Member", words(member.name for member in ensemble.members)),
        ("Epoch", numbers((member.epoch for member in ensemble.members), "g")),
        ("Seed", words(member.seed for member in ensemble.members)),
        ("Weight", numbers(weights, ".3f")),
    )
    text = TEXTS["ensemble_greedy" if ensemble.chosen == "greedy" else "ensemble_given"].format(how=ensemble.how)
    table = Block("table", member_grid(summarise(scores)), "Scores of the ensemble")
    return [Block("table", grid, "Members"), *notes(text), table]


def reproduce_blocks(study: Study) -> list[Block]:
    """The command and the recipe."""
    command, text = str(study.facts.get("command") or ""), study.contents.recipe_text
    blocks = [Block("code", command)] if command else []
    return [*blocks, *notes("The recipe, recipe.toml:"), Block("code", text)] if text else blocks


def fact_blocks(study: Study) -> list[Block]:
    """The seeds, and what study.json says that is shown nowhere else."""
    facts = {
        key: value for key, value in study.facts.items() if key not in ELSEWHERE and value not in (None, "", {}, [])
    }
    if not facts:
        return []
    seeds = study.recipe.get("seeds")
    try:
        took = datetime.fromisoformat(facts["finished"]) - datetime.fromisoformat(facts["started"])
        facts["duration"] = str(timedelta(seconds=round(took.total_seconds())))
    except (KeyError, TypeError, ValueError):
        pass  # not finished, or no times
    return [Block("facts", ({"seeds": seeds} if seeds else {}) | facts)]


def data_line(study: Study) -> str:
    """`train: sample:train; test: …`."""
    labels = study.facts.get("data")
    if labels and not isinstance(labels, Mapping):
        return str(labels)
    known = {split: study.source(split) for split in ("train", "tune", "test")}
    return "; ".join(f"{split}: {source}" for split, source in known.items() if source)


def _title(kind: str) -> str:
    return TEXTS["threshold"].get(kind, f"Threshold: {kind}" if kind else "Scores")


def _score_notes(study: Study) -> Iterator[str]:
    yield from _constant(study)
    yield TEXTS["legend"]
    if any(row.intervals for row in study.rows):
        yield TEXTS["intervals"]
    yield from row_notes(study.contents.scores)
    yield from _chosen_parts(study.contents.scores)
    if "tune" in study.recipe.get("data", {}) and not study.recipe["data"]["tune"]:
        yield f"No tuning set was given, so one was split off the training data: {study.source('tune')}."
    yield from sources(study.paper)
    if study.paper and study.synthetic():
        yield TEXTS["unlike"]


def row_notes(scores: Sequence[Score]) -> list[str]:
    """The notes of scores, such as that a member always gives the same answer, with their checkpoints and seeds."""
    found: dict[tuple[str, str], dict[str, None]] = {}  # name, note -> places, in order
    for score in scores:
        if score.note:
            found.setdefault((score.name, score.note), {})[f"epoch {score.epoch:g}, seed {score.seed}"] = None
    return [f"{name} ({'; '.join(places)}): {note}." for (name, note), places in found.items()]


def _chosen_parts(scores: Sequence[Score]) -> list[str]:
    """The pairs that were chosen on the tuning set, by checkpoint."""
    found: dict[str, dict[float, dict[str, None]]] = {}  # name -> epoch -> parts, in order
    for score in scores:
        if score.ensemble.chosen == "best":
            found.setdefault(score.name, {}).setdefault(score.epoch, {})[score.ensemble.parts] = None
    places = {
        name: [f"at epoch {epoch:g} {' or '.join(parts)}" for epoch, parts in sorted(epochs.items())]
        for name, epochs in found.items()
    }
    return [f"{name}, chosen on the tuning set: {'; '.join(texts)}." for name, texts in places.items()]


def _constant(study: Study) -> list[str]:
    """The scores of the best constant answer, from the composition of the test set."""
    known = dict(study.facts.get("constant") or {})
    totals = [row.scores for row in study.rows if {"total", "NoAns_total", "f1"} <= row.scores.keys()]
    if not known and totals:  # the SQuAD metric counts the questions without an answer
        share = 100 * totals[0]["NoAns_total"].mean / totals[0]["total"].mean
        known = {"says": "no answer", "exact": share, "f1": share}
    shown = [metric for metric in metrics_of(study.rows) if isinstance(known.get(metric.key), int | float)]
    scores = ", ".join(f"{metric.label} {known[metric.key]:.{metric.digits}f}" for metric in shown)
    return [f"Baseline: always answering “{known['says']}” scores {scores} on this test set."] if scores else []


def _curve(rows: Sequence[Row], kind: str, by_share: bool, album: Album) -> list[Picture]:
    """The main metric during fine-tuning; by_share: by share of the training set, at the last checkpoint."""
    metric = main_metric(rows)
    scored = [row for row in rows if metric and metric.key in row.scores]
    if by_share:
        scored = [row for row in scored if row.epoch == scored[-1].epoch]
    points = {row.fraction for row in scored if row.role == "head"} if by_share else {row.epoch for row in scored}
    if metric is None or len(points) < 2:
        return []
    over = f"by share of the training set at epoch {scored[-1].epoch:g}" if by_share else "during fine-tuning"
    shaded = ". Shaded: one standard deviation over seeds" if any(len(row.seeds) > 1 for row in scored) else ""
    figure = share_figure(scored, metric) if by_share else score_figure(scored, metric)
    caption = f"{metric.label} {over}{UNDER.get(kind, '')}{shaded}"
    return [album.draw(f"{'share' if by_share else 'score'} {kind}", caption, figure)]


def _gain_kinds(rows: Sequence[Row], metric: Metric) -> dict[str, tuple[str, str]]:
    """Label -> (key, threshold kind) of each source of gain: the spans, then each threshold kind."""
    kinds = rows_by_kind(rows)
    spans = [kind for kind, found in kinds.items() if any(gain_of(row, SPANS_F1) for row in found)]
    # The score of the spans is the same under any threshold: take the kind that has intervals.
    spans.sort(key=lambda kind: not any(SPANS_F1 in row.intervals for row in kinds[kind]))
    found = {GAINS["spans"]: (SPANS_F1, spans[0])} if spans else {}
    for kind in sorted(kinds, key=lambda kind: kind == "tune"):
        found[GAINS.get(kind, kind or metric.label)] = (metric.key, kind)
    return found


def _gain_cell(gain: Gain | None, metric: Metric) -> Cell:
    if gain is None:
        return Cell()
    form = f"+z.{metric.digits}f"
    text = format(gain.mean, form)
    if gain.low != gain.high:
        between = f"({gain.low:{form}} to {gain.high:{form}})"
        text += f" {between}" if gain.is_interval else f" ± {gain.high - gain.mean:.{metric.digits}f}"
    return Cell(text, gain.mean, gain.clear)


def _bytes(size: float | None) -> Cell:
    """Bytes in a unit that suits them."""
    if size is None:
        return Cell()
    power = min(int(math.log10(max(size, 1))) // 3, 3)
    shown = size / 1000**power
    text = f"{shown:.2f}" if power == 3 else f"{shown:.3g}" if shown < 100 else f"{shown:.0f}"
    return Cell(f"{text} {('B', 'KB', 'MB', 'GB')[power]}", size)


def _weighted(score: Score) -> str:
    """`0.50 backbone + 0.50 pool`; a single member has no weight."""
    members = score.ensemble.members
    if len(members) == 1:
        return f"{members[0].name} alone"
    weights = score.ensemble.weights or [1 / len(members)] * len(members)
    return " + ".join(f"{weight:.2f} {member.name}" for weight, member in zip(weights, members))
