"""Several studies on one page: the variants of one recipe, or runs given together, each with its outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bertvision.evaluate.bootstrap import Interval
from bertvision.report import TEXTS
from bertvision.report.figures import curve_figure, score_figure
from bertvision.report.grid import (
    LOSS,
    Cell,
    Column,
    Grid,
    difference_cell,
    equal_cell,
    gap_cell,
    grid_of,
    mean,
    member_grid,
    numbers,
    paper_cell,
    score_cell,
    words,
)
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, Section, notes, pictures
from bertvision.report.rows import (
    ROLES,
    Entry,
    Metric,
    Row,
    beside,
    best_of,
    interval_of,
    judge,
    main_metric,
    main_rows,
    metrics_of,
    of_another_run,
    sources,
    without_counterpart,
)
from bertvision.report.sections import LOSS_AXES, SOURCES, SPANS_F1, cost_blocks, tuning_losses
from bertvision.report.sentences import NOTHING_YET, over_seeds, sentence, side

HEADINGS = {"backbone": "Backbone", "head": "Best head", "ensemble": "Ensemble"}
EVERYTHING = "All members of all variants"


@dataclass(frozen=True)
class Outcome:
    """A variant, its main metric, the row that is best on the tuning set in each role, and published results.

    gaps: origin of the threshold and key of a metric -> its backbone minus that of the first variant, `against`.
    """

    name: str
    metric: Metric
    rows: Mapping[str, Row]
    paper: Sequence[Entry] = ()
    against: str = ""
    gaps: Mapping[tuple[str, str], Interval] = field(default_factory=dict)

    @property
    def head(self) -> Row | None:
        return self.rows.get("head")


def variant_outcomes(rows: Sequence[Row], papers: Mapping[str, Sequence[Entry]]) -> list[Outcome]:
    """The outcome of each variant that has scores, at its last checkpoint. papers: variant -> published results."""
    results = []
    for name in dict.fromkeys(row.variant for row in rows):
        variant_rows = [row for row in rows if row.variant == name and row.fraction == 1]
        if (metric := main_metric(variant_rows)) is None:
            continue
        scored = [row for row in main_rows(variant_rows) if metric.key in row.scores]
        # Papers blend the backbone and a head, so the greedy ensemble is no counterpart of theirs.
        last = [row for row in scored if row.epoch == scored[-1].epoch and not row.is_greedy]
        best = {role: best_of((row for row in last if row.role == role), metric) for role in ROLES}
        present = {role: row for role, row in best.items() if row is not None}
        results.append(Outcome(name, metric, present, papers.get(name, ())))
    return results


def outcomes_of(study: Study) -> list[Outcome]:
    results = variant_outcomes(study.all_rows, {name: variant.paper for name, variant in study.variants.items()})
    return [_with_gaps(outcome, study) for outcome in results]


def _with_gaps(outcome: Outcome, study: Study) -> Outcome:
    """With the differences to the first variant, where they are over the seeds that are shown."""
    if not (backbone := outcome.rows.get("backbone")):
        return outcome
    compared = [
        (entry, interval)
        for entry in study.contents.between
        if entry.get("variant") == outcome.name and set(entry.get("seeds", ())) == set(backbone.seeds)
        if (interval := interval_of(entry))
    ]
    gaps = {
        (str(entry.get("threshold_from") or ""), str(entry.get("metric"))): interval for entry, interval in compared
    }
    return replace(outcome, against=str(compared[0][0].get("against")), gaps=gaps) if compared else outcome


def outcome_grid(outcomes: Sequence[Outcome]) -> Grid:
    """One line per variant: backbone, best head and ensemble, with published numbers beside them."""
    columns: list[Column] = [
        ("Variant", words(outcome.name for outcome in outcomes)),
        ("Metric", words(outcome.metric.label for outcome in outcomes)),
        ("Epoch", numbers((next(iter(outcome.rows.values())).epoch for outcome in outcomes), "g")),
    ]
    for role, heading in HEADINGS.items():
        columns.append((heading, [_score_cell(outcome, role) for outcome in outcomes]))
        columns.append((f"{heading}, paper", [_published_cell(outcome, role) for outcome in outcomes]))
        if role == "backbone" and (against := _first_variant(outcomes)):
            columns.append(
                (f"Δ to {against}", [_gap_to_first(outcome, outcome.rows[role].threshold_from) for outcome in outcomes])
            )
        if role == "head":
            columns.append(
                ("Δ", [gap_cell(outcome.head, outcome.metric) if outcome.head else Cell() for outcome in outcomes])
            )
            equal = [equal_cell(outcome.head, outcome.metric) if outcome.head else Cell() for outcome in outcomes]
            columns.append(("Δ at equal cost", equal))
    columns += _loss_columns(outcomes)
    return grid_of(*columns, ("Which head", words(outcome.head.name if outcome.head else "" for outcome in outcomes)))


def _loss_columns(outcomes: Sequence[Outcome]) -> list[Column]:
    """The backbone's loss and the published one, where any was published."""
    backbones = {outcome.name: row for outcome in outcomes if (row := outcome.rows.get("backbone"))}
    published = {
        outcome.name: beside([backbones[outcome.name]], outcome.paper)[0]
        for outcome in outcomes
        if outcome.name in backbones
    }
    if not any(LOSS.key in entry for entry in published.values()):
        return []
    backbone_losses = [
        mean(backbones[outcome.name], LOSS.key) if outcome.name in backbones else None for outcome in outcomes
    ]
    return [
        (LOSS.label, numbers(backbone_losses, f".{LOSS.digits}f")),
        (f"{LOSS.label}, paper", [paper_cell(published.get(outcome.name, {}), LOSS) for outcome in outcomes]),
    ]


def gap_grid(outcomes: Sequence[Outcome]) -> Grid:
    """The backbone of each variant minus that of the first: at the tuned threshold, at 0, and in the spans alone."""
    compared = [outcome for outcome in outcomes if outcome.gaps]
    kinds = dict.fromkeys(kind for outcome in compared for kind, _ in outcome.gaps)
    columns = [
        (
            f"Δ {outcome.metric.label}, {SOURCES[kind]}" if kind in SOURCES else f"Δ {outcome.metric.label}",
            kind,
            outcome.metric.key,
        )
        for outcome in compared[:1]
        for kind in sorted(kinds, reverse=True)
    ]
    columns += [(f"Δ F1, {SOURCES['spans']}", kind, SPANS_F1) for kind in list(kinds)[:1]]
    return grid_of(
        ("Variant", words(outcome.name for outcome in compared)),
        *((heading, [_gap_to_first(outcome, kind, key) for outcome in compared]) for heading, kind, key in columns),
    )


def _first_variant(outcomes: Sequence[Outcome]) -> str:
    return next((outcome.against for outcome in outcomes if outcome.gaps), "")


def _gap_to_first(outcome: Outcome, kind: str, key: str = "") -> Cell:
    interval = outcome.gaps.get((kind, key or outcome.metric.key))
    return difference_cell(interval, outcome.metric.digits) if interval else Cell()


def outcome_sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """Three sentences: which variants there are, where heads help, how far to trust it."""
    if not outcomes:
        return [NOTHING_YET]
    shown = [row for outcome in outcomes for row in outcome.rows.values()]
    heads = [(outcome.name, outcome.head, outcome.metric) for outcome in outcomes if outcome.head]
    sides = {name: side(head, metric) for name, head, metric in heads if metric.key in head.intervals}
    tuned = all(judge([head], metric) != metric.key for _, head, metric in heads)
    over = over_seeds(shown) if any(len(row.seeds) > 1 for row in shown) else ""
    return [
        sentence("variants", names=[outcome.name for outcome in outcomes]),
        sentence("gaining", heads=len(heads), sides=sides),
        sentence("trust_variants", over=over, heads=len(heads), tuned=tuned),
    ]


def joint_sections(study: Study, outcomes: Sequence[Outcome], album: Album) -> list[Section]:
    """The table of all variants, and joint plots if they share test set and metric."""
    if not outcomes:
        return []
    blocks = [Block("table", outcome_grid(outcomes), "All variants"), *notes(TEXTS["variants"])]
    blocks += notes(*sources(entry for outcome in outcomes for entry in outcome.paper))
    return [
        Section("All variants", blocks),
        *(_comparison_sections(study, outcomes, album) if same_test(study, outcomes) else []),
    ]


def apart(study: Study) -> list[Entry]:
    """Published results without a counterpart: of no variant here, or of members that their variant does not have."""
    unmatched, best = list(study.paper), {f"best {role}" for role in ROLES}  # the latter are in the joint table
    for variant in study.variants.values():
        of_variant = [
            entry for entry in without_counterpart(variant.rows, variant.paper) if entry.get("member") not in best
        ]
        unmatched += [entry for entry in map(of_another_run, of_variant) if entry not in unmatched]
    return unmatched


def same_test(study: Study, outcomes: Sequence[Outcome]) -> bool:
    """Whether the scores of all variants can be compared: one test set, one metric."""
    tests = {study.variants[outcome.name].source("test") for outcome in outcomes}
    return len(outcomes) > 1 and len(tests) == 1 and len({outcome.metric for outcome in outcomes}) == 1


def _comparison_sections(study: Study, outcomes: Sequence[Outcome], album: Album) -> list[Section]:
    """Curves, the table of all members and costs, of variants that can be compared."""
    metric, rows = outcomes[0].metric, main_rows(study.all_rows)
    best = {(outcome.name, row.name) for outcome in outcomes for row in outcome.rows.values()}
    shown = [row for row in rows if (row.variant, row.name) in best]
    blocks = []
    if against := _first_variant(outcomes):
        title = f"Backbones, against {against}"
        blocks += [Block("heading", title), Block("table", gap_grid(outcomes), title), *notes(TEXTS["between"])]
    if len({row.epoch for row in shown}) > 1:
        caption = f"{metric.label} during fine-tuning: backbone, best head and ensemble of each variant"
        blocks += pictures(album.draw("score", caption, score_figure(shown, metric)))
    tuning = {outcome.name: tuning_losses(study.variants[outcome.name]) for outcome in outcomes}
    if curves := {name: points for name, points in tuning.items() if len(points) > 1}:
        blocks += pictures(
            album.draw("loss tuning", "Loss along the tuning, first seed", curve_figure(curves, *LOSS_AXES))
        )
    blocks.append(Block("fold", [Block("table", member_grid(rows), EVERYTHING)], EVERYTHING))
    costs = cost_blocks(shown, replace(study, paper=()), album)
    return [Section("On the same data", blocks), *([Section("Costs", costs)] if costs else [])]


def _score_cell(outcome: Outcome, role: str) -> Cell:
    """The score; the highest of a variant is marked."""
    if role not in outcome.rows:
        return Cell()
    top = max(row.scores[outcome.metric.key].mean for row in outcome.rows.values())
    cell = score_cell(outcome.rows[role], outcome.metric)
    return replace(cell, best=len(outcome.rows) > 1 and cell.value == top)


def _published_cell(outcome: Outcome, role: str) -> Cell:
    """The published number of the same member, else of the best of that role; another metric than ours is named."""
    if role not in outcome.rows:
        return Cell()
    for_role = [entry for entry in outcome.paper if entry.get("member") == f"best {role}"]
    entry = beside([outcome.rows[role]], outcome.paper)[0] or (for_role[0] if for_role else {})
    if outcome.metric.key in entry:
        return paper_cell(entry, outcome.metric)
    other = next((metric for metric in metrics_of([outcome.rows[role]]) if metric.key in entry), None)
    return Cell(f"{paper_cell(entry, other).text} {other.label}", entry[other.key]) if other else Cell()
