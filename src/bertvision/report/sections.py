"""The sections of a report on one study: scores, differences to the backbone, costs, losses, ensembles, facts."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from bertvision.evaluate.score import Score, efficiency
from bertvision.report import TEXTS
from bertvision.report.figures import Panel, cost_figure, curve_figure, front_figure, score_figure
from bertvision.report.grid import (
    Cell,
    Column,
    Grid,
    cost_columns,
    difference_cell,
    gap_cell,
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
    Equal,
    Metric,
    Row,
    beside,
    called,
    is_number,
    main_metric,
    metrics_of,
    rows_by_kind,
    summarise,
)
from bertvision.report.sentences import score_notes
from bertvision.train.progress import heads_stage, tuning_stage

SPANS_F1 = "HasAns_spans_f1"
SOURCES = {"zero": "threshold 0", "tune": "threshold tuned", "spans": "spans alone"}
SECONDS, FLOPS = Metric("train_seconds", "seconds of training", 1), Metric("train_flops", "FLOPs of training", 0)
UNDER = {"tune": ", threshold tuned", "zero": ", threshold at zero"}
LOSS_AXES = ("epochs of training", "loss")
ELSEWHERE = {"title", "paper", "command", "dropped", "variants", "constant"}


def sources_of_gain(rows: Sequence[Row]) -> dict[str, tuple[Metric, list[Row]]]:
    """Title -> metric and rows: threshold 0, threshold tuned, and the spans with “no answer” switched off."""
    metric, kinds = main_metric(rows), rows_by_kind(row for row in rows if row.fraction == 1)
    if metric is None:
        return {}
    sources = {SOURCES.get(kind, metric.label): (metric, kinds[kind]) for kind in sorted(kinds, reverse=True)}
    spans = [row for row in next(iter(kinds.values()), []) if SPANS_F1 in row.scores]
    label = next((candidate for candidate in metrics_of(rows) if candidate.key == SPANS_F1), None)
    return sources | ({SOURCES["spans"]: (label, spans)} if spans and label else {})


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
    entries = [entry for entry in paper if is_number(entry.get(metric.key)) and is_number(entry.get(cost.key))]
    return [(float(entry[cost.key]), float(entry[metric.key])) for entry in entries]


def difference_blocks(study: Study, album: Album) -> list[Block]:
    """Differences to the backbone at the same checkpoint, at equal seconds and at equal FLOPs, by source of gain."""
    sources = {
        title: (metric, {(row.epoch, row.name): row for row in rows if row.role != "backbone"})
        for title, (metric, rows) in sources_of_gain(study.rows).items()
    }
    keys = list(dict.fromkeys(key for _, rows in sources.values() for key in rows))
    compared = [row for _, rows in sources.values() for row in rows.values()]
    if not any(row.differences or row.intervals for row in compared):
        return []

    def columns(heading: str, cell: Callable[[Row, Metric], Cell]) -> list[Column]:
        return [
            (f"{heading}, {title}", [cell(rows[key], metric) if key in rows else Cell() for key in keys])
            for title, (metric, rows) in sources.items()
        ]

    def equal_columns(cost: Metric) -> list[Column]:
        """The epochs of the backbone of equal cost, and the differences to it."""
        equals = {
            (row.epoch, row.name): equal for row in reversed(compared) for equal in row.equal.get(cost.key, {}).values()
        }
        epochs = [_equal_epoch(equals.get(key)) for key in keys]

        def cell(row: Row, metric: Metric) -> Cell:
            equal = row.at_equal(cost.key, metric.key)
            return difference_cell(equal.interval, metric.digits) if equal else Cell()

        return [("Backbone of equal cost", words(epochs)), *columns("Δ", cell)]

    key_columns = [("Epoch", numbers((e for e, _ in keys), "g")), ("Member", words(name for _, name in keys))]
    tables = {"At the same checkpoint": grid_of(*key_columns, *columns("Δ", gap_cell))}
    for title, cost in (("At equal seconds of training", SECONDS), ("At equal FLOPs of training", FLOPS)):
        if any(cost.key in row.equal for row in compared):
            tables[title] = grid_of(*key_columns, *equal_columns(cost))
    blocks = [
        block for title, grid in tables.items() for block in (Block("heading", title), Block("table", grid, title))
    ]
    texts = [TEXTS["differences" if any(row.intervals for row in compared) else "differences_unclear"]]
    texts.append(TEXTS["flops" if len(tables) > 1 else "no_equal_cost"])
    return [*blocks, *notes(*texts), *pictures(*against_cost(study, FLOPS, album))]


def _equal_epoch(equal: Equal | None) -> str:
    if equal is None:
        return ""
    epoch = "" if equal.epoch is None else f"epoch {equal.epoch:.3g}"
    return ", ".join(filter(None, [epoch, {"interpolated": equal.how, "beyond": "beyond the last"}.get(equal.how)]))


def score_blocks(study: Study, album: Album) -> list[Block]:
    """The score against the cost of training, the main table, curves; all scores in folds."""
    if not (metrics := metrics_of(study.rows)):
        return []
    kinds = rows_by_kind(row for row in study.rows if row.fraction == 1)
    details = {_title(kind): member_grid(rows, metrics, study.paper) for kind, rows in kinds.items()}
    curves = [picture for kind, rows in kinds.items() for picture in _curve(rows, kind, False, study, album)]
    few = {row.family for row in study.rows if row.fraction < 1}
    partial = rows_by_kind(row for row in study.rows if row.family in few or row.role == "backbone") if few else {}
    for kind, rows in partial.items():
        title = f"Less data. {_title(kind)}" if kind else "Less data"
        details[title] = member_grid(rows, metrics, study.paper)
        curves += _curve(rows, kind, True, study, album)
    drawn = against_cost(study, SECONDS, album)
    return [
        *((*pictures(*drawn), *notes(TEXTS["cost_figure"])) if drawn else ()),
        Block("table", main_grid(study.rows, study.paper), "Scores"),
        *notes(*score_notes(study)),
        *pictures(*curves),
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
        scored = [row for row in rows if metric.key in row.scores and cost.key in row.scores]
        published = published_points(study.paper, metric, cost)
        if len({row.scores[cost.key].mean for row in scored}) > 1:
            figure = front_figure(Panel("", metric, scored, published), cost)
            drawn.append(album.draw(f"front {cost.key}", f"{metric.label} against {cost.label}", figure))
    texts += [TEXTS["front"]] if drawn else []
    return [Block("table", cost_grid(rows, metric, study.paper), "Costs"), *notes(*texts), *pictures(*drawn)]


def cost_grid(rows: Sequence[Row], metric: Metric, paper: Sequence[Entry]) -> Grid:
    """One line per row: the metric, then its costs, ours and published ones."""
    published, paper_heading = beside(rows, paper), called(paper)
    scores_and_sizes = [(mean(row, "f1"), mean(row, "parameters")) for row in rows]
    efficiencies = [
        None if f1 is None or size is None else efficiency(f1, round(size)) for f1, size in scores_and_sizes
    ]
    return grid_of(
        *place_columns(rows),
        (metric.label, [score_cell(row, metric) for row in rows]),
        *(column for cost in COSTS for column in cost_columns(rows, cost, published, paper_heading)),
        ("On disk", [_bytes(mean(row, "disk_bytes")) for row in rows]),
        ("Efficiency", numbers(efficiencies, "z.2f")),
    )


def loss_blocks(study: Study, album: Album) -> list[Block]:
    """Losses along the tuning of each seed, and of the heads on the last checkpoint with the first seed."""
    seeds, epochs = study.recipe.get("seeds", [1]), [row.epoch for row in study.rows]
    tuning = {f"seed {seed}": tuning_losses(study, seed) for seed in seeds}
    heads = _losses(study, heads_stage(max(epochs, default=0.0), seeds[0])) if seeds else {}
    drawn = []
    for name, stage, curves in (("tuning", "tuning", tuning), ("heads", "training of the heads", heads)):
        if drawable := {label: points for label, points in curves.items() if len(points) > 1}:
            drawn.append(album.draw(f"loss {name}", f"Loss along the {stage}", curve_figure(drawable, *LOSS_AXES)))
    return [*pictures(*drawn), *notes(TEXTS["losses"])] if drawn else []


def tuning_losses(study: Study, seed: int | None = None) -> list[tuple[float, float]]:
    """(epochs, loss) along the tuning of a seed, the first if none is named."""
    first = next(iter(study.recipe.get("seeds", [])), 1)
    return _losses(study, tuning_stage(first if seed is None else seed)).get("backbone", [])


def _losses(study: Study, stage: str) -> dict[str, list[tuple[float, float]]]:
    """Learner -> (epochs, loss) of a stage."""
    table = study.recipe.get("finetune" if stage.startswith("tuning") else "bank", {})
    epochs = table.get("epochs", 1)
    shares = study.contents.losses.get(stage, {})
    return {name: [(epochs * share, loss) for share, loss in points] for name, points in shares.items()}


def greedy_blocks(study: Study) -> list[Block]:
    """The members and weights of the greedy ensemble of each checkpoint and seed; its scores are in the main table."""
    metric = main_metric(study.rows)
    ordered = sorted(study.contents.greedy, key=lambda score: (score.epoch, score.seed))
    last = [list(same_cell)[-1] for _, same_cell in groupby(ordered, key=lambda score: (score.epoch, score.seed))]
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
    sources = {split: study.source(split) for split in ("train", "tune", "test")}
    return "; ".join(f"{split}: {source}" for split, source in sources.items() if source)


def _title(kind: str) -> str:
    return TEXTS["threshold"].get(kind, f"Threshold: {kind}" if kind else "Scores")


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
    figure = score_figure(scored, metric, paper, by_share)
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
