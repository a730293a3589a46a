"""The sections of a report on one study: scores, costs, losses, ensembles, and where the numbers come from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from bertvision.evaluate.score import Score, efficiency
from bertvision.report import TEXTS
from bertvision.report.differences import SECONDS, against_cost, published_points
from bertvision.report.figures import Panel, curve_figure, front_figure, score_figure, share_figure
from bertvision.report.grid import (
    Cell,
    Grid,
    cost_columns,
    grid_of,
    main_grid,
    mean,
    member_grid,
    numbers,
    place_columns,
    score_cell,
    words,
)
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, Picture, notes, pictures
from bertvision.report.rows import (
    COSTS,
    FRONTS,
    Entry,
    Metric,
    Row,
    beside,
    called,
    main_metric,
    metrics_of,
    rows_by_kind,
    sources,
    summarise,
)
from bertvision.train.progress import heads_stage, tuning_stage

UNDER = {"tune": ", threshold tuned", "zero": ", threshold at zero"}
LOSS_AXES = ("epochs of training", "loss")
ELSEWHERE = {"title", "paper", "command", "dropped", "variants", "constant"}


def score_blocks(study: Study, album: Album) -> list[Block]:
    """The score against the cost of training, the main table, curves; all scores in folds."""
    if not (metrics := metrics_of(study.rows)):
        return []
    kinds = rows_by_kind(row for row in study.rows if row.fraction == 1)
    details = {_title(kind): member_grid(rows, metrics, study.paper) for kind, rows in kinds.items()}
    found = [picture for kind, rows in kinds.items() for picture in _curve(rows, kind, False, study, album)]
    few = {row.family for row in study.rows if row.fraction < 1}
    partial = rows_by_kind(row for row in study.rows if row.family in few or row.role == "backbone") if few else {}
    for kind, rows in partial.items():
        title = f"Less data. {_title(kind)}" if kind else "Less data"
        details[title] = member_grid(rows, metrics, study.paper)
        found += _curve(rows, kind, True, study, album)
    drawn = against_cost(study, SECONDS, album)
    return [
        *((*pictures(*drawn), *notes(TEXTS["cost_figure"])) if drawn else ()),
        Block("table", main_grid(study.rows, study.paper), "Scores"),
        *notes(*_score_notes(study)),
        *pictures(*found),
        *(Block("fold", [Block("table", grid, title)], title) for title, grid in details.items()),
    ]


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
        published = published_points(study.paper, metric, cost)
        if len({row.scores[cost.key].mean for row in found}) > 1:
            figure = front_figure(Panel("", metric, found, published), cost)
            drawn.append(album.draw(f"front {cost.key}", f"{metric.label} against {cost.label}", figure))
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


def loss_blocks(study: Study, album: Album) -> list[Block]:
    """Losses along the tuning of each seed, and of the heads on the last checkpoint with the first seed."""
    seeds, epochs = study.recipe.get("seeds", [1]), [row.epoch for row in study.rows]
    tuning = {f"seed {seed}": tuning_losses(study, seed) for seed in seeds}
    heads = _losses(study, heads_stage(max(epochs, default=0.0), seeds[0])) if seeds else {}
    drawn = []
    for name, what, curves in (("tuning", "tuning", tuning), ("heads", "training of the heads", heads)):
        if known := {label: points for label, points in curves.items() if len(points) > 1}:
            drawn.append(album.draw(f"loss {name}", f"Loss along the {what}", curve_figure(known, *LOSS_AXES)))
    return [*pictures(*drawn), *notes(TEXTS["losses"])] if drawn else []


def tuning_losses(study: Study, seed: int | None = None) -> list[tuple[float, float]]:
    """(epochs, loss) along the tuning of a seed, the first if none is named."""
    first = next(iter(study.recipe.get("seeds", [])), 1)
    return _losses(study, tuning_stage(first if seed is None else seed)).get("backbone", [])


def _losses(study: Study, stage: str) -> dict[str, list[tuple[float, float]]]:
    """Learner -> (epochs, loss) of a stage."""
    table = study.recipe.get("finetune" if stage.startswith("tuning") else "bank", {})
    epochs = table.get("epochs", 1)
    found = study.contents.losses.get(stage, {})
    return {name: [(epochs * share, loss) for share, loss in points] for name, points in found.items()}


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
    if any(row.equal for row in study.rows):
        yield TEXTS["equal_cost"]
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


def _curve(rows: Sequence[Row], kind: str, by_share: bool, study: Study, album: Album) -> list[Picture]:
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
    paper = [] if kind == "tune" else study.paper  # the papers have no tuned threshold
    figure = (share_figure if by_share else score_figure)(scored, metric, paper)
    caption = f"{metric.label} {over}{UNDER.get(kind, '')}{shaded}"
    return [album.draw(f"{'share' if by_share else 'score'} {kind}", caption, figure)]


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
