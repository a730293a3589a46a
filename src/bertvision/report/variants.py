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


def outcomes(rows: Sequence[Row], papers: Mapping[str, Sequence[Entry]]) -> list[Outcome]:
    """The outcome of each variant that has scores, at its last checkpoint. papers: variant -> published results."""
    found = []
    for name in dict.fromkeys(row.variant for row in rows):
        mine = [row for row in rows if row.variant == name and row.fraction == 1]
        if (metric := main_metric(mine)) is None:
            continue
        scored = [row for row in main_rows(mine) if metric.key in row.scores]
        # Papers blend the backbone and a head, so the greedy ensemble is no counterpart of theirs.
        last = [row for row in scored if row.epoch == scored[-1].epoch and not row.is_greedy]
        best = {role: best_of((row for row in last if row.role == role), metric) for role in ROLES}
        present = {role: row for role, row in best.items() if row is not None}
        found.append(Outcome(name, metric, present, papers.get(name, ())))
    return found


def outcomes_of(study: Study) -> list[Outcome]:
    found = outcomes(study.all_rows, {name: one.paper for name, one in study.variants.items()})
    return [_with_gaps(one, study) for one in found]


def _with_gaps(one: Outcome, study: Study) -> Outcome:
    """With the differences to the first variant, where they are over the seeds that are shown."""
    if not (backbone := one.rows.get("backbone")):
        return one
    known = [
        (entry, interval)
        for entry in study.contents.between
        if entry.get("variant") == one.name and set(entry.get("seeds", ())) == set(backbone.seeds)
        if (interval := interval_of(entry))
    ]
    gaps = {(str(entry.get("threshold_from") or ""), str(entry.get("metric"))): interval for entry, interval in known}
    return replace(one, against=str(known[0][0].get("against")), gaps=gaps) if known else one


def outcome_grid(found: Sequence[Outcome]) -> Grid:
    """One line per variant: backbone, best head and ensemble, with published numbers beside them."""
    columns: list[Column] = [
        ("Variant", words(one.name for one in found)),
        ("Metric", words(one.metric.label for one in found)),
        ("Epoch", numbers((next(iter(one.rows.values())).epoch for one in found), "g")),
    ]
    for role, heading in HEADINGS.items():
        columns.append((heading, [_score(one, role) for one in found]))
        columns.append((f"{heading}, paper", [_published(one, role) for one in found]))
        if role == "backbone" and (against := _first_variant(found)):
            columns.append((f"Δ to {against}", [_gap(one, one.rows[role].threshold_from) for one in found]))
        if role == "head":
            columns.append(("Δ", [gap_cell(one.head, one.metric) if one.head else Cell() for one in found]))
            equal = [equal_cell(one.head, one.metric) if one.head else Cell() for one in found]
            columns.append(("Δ at equal cost", equal))
    columns += _loss_columns(found)
    return grid_of(*columns, ("Which head", words(one.head.name if one.head else "" for one in found)))


def _loss_columns(found: Sequence[Outcome]) -> list[Column]:
    """The backbone's loss and the published one, where any was published."""
    backbones = {one.name: row for one in found if (row := one.rows.get("backbone"))}
    paper = {one.name: beside([backbones[one.name]], one.paper)[0] for one in found if one.name in backbones}
    if not any(LOSS.key in entry for entry in paper.values()):
        return []
    ours = [mean(backbones[one.name], LOSS.key) if one.name in backbones else None for one in found]
    return [
        (LOSS.label, numbers(ours, f".{LOSS.digits}f")),
        (f"{LOSS.label}, paper", [paper_cell(paper.get(one.name, {}), LOSS) for one in found]),
    ]


def gap_grid(found: Sequence[Outcome]) -> Grid:
    """The backbone of each variant minus that of the first: at the tuned threshold, at 0, and in the spans alone."""
    compared = [one for one in found if one.gaps]
    kinds = dict.fromkeys(kind for one in compared for kind, _ in one.gaps)
    columns = [
        (f"Δ {one.metric.label}, {SOURCES[kind]}" if kind in SOURCES else f"Δ {one.metric.label}", kind, one.metric.key)
        for one in compared[:1]
        for kind in sorted(kinds, reverse=True)
    ]
    columns += [(f"Δ F1, {SOURCES['spans']}", kind, SPANS_F1) for kind in list(kinds)[:1]]
    return grid_of(
        ("Variant", words(one.name for one in compared)),
        *((heading, [_gap(one, kind, key) for one in compared]) for heading, kind, key in columns),
    )


def _first_variant(found: Sequence[Outcome]) -> str:
    return next((one.against for one in found if one.gaps), "")


def _gap(one: Outcome, kind: str, key: str = "") -> Cell:
    known = one.gaps.get((kind, key or one.metric.key))
    return difference_cell(known, one.metric.digits) if known else Cell()


def outcome_sentences(found: Sequence[Outcome]) -> list[str]:
    """Three sentences: which variants there are, where heads help, how far to trust it."""
    if not found:
        return [NOTHING_YET]
    shown = [row for one in found for row in one.rows.values()]
    heads = [(one.name, one.head, one.metric) for one in found if one.head]
    sides = {name: side(head, metric) for name, head, metric in heads if metric.key in head.intervals}
    tuned = all(judge([head], metric) != metric.key for _, head, metric in heads)
    over = over_seeds(shown) if any(len(row.seeds) > 1 for row in shown) else ""
    return [
        sentence("variants", names=[one.name for one in found]),
        sentence("gaining", heads=len(heads), sides=sides),
        sentence("trust_variants", over=over, heads=len(heads), tuned=tuned),
    ]


def joint_sections(study: Study, found: Sequence[Outcome], album: Album) -> list[Section]:
    """The table of all variants, and joint plots if they share test set and metric. found: their outcomes."""
    if not found:
        return []
    blocks = [Block("table", outcome_grid(found), "All variants"), *notes(TEXTS["variants"])]
    blocks += notes(*sources(entry for one in found for entry in one.paper))
    return [Section("All variants", blocks), *(_together(study, found, album) if same_test(study, found) else [])]


def apart(study: Study) -> list[Entry]:
    """Published results without a counterpart: of no variant here, or of members that their variant does not have."""
    left, best = list(study.paper), {f"best {role}" for role in ROLES}  # the latter are in the joint table
    for one in study.variants.values():
        alone = [entry for entry in without_counterpart(one.rows, one.paper) if entry.get("member") not in best]
        left += [entry for entry in map(of_another_run, alone) if entry not in left]
    return left


def same_test(study: Study, found: Sequence[Outcome]) -> bool:
    """Whether the scores of all variants can be compared: one test set, one metric."""
    tests = {study.variants[one.name].source("test") for one in found}
    return len(found) > 1 and len(tests) == 1 and len({one.metric for one in found}) == 1


def _together(study: Study, found: Sequence[Outcome], album: Album) -> list[Section]:
    """Curves, the table of all members and costs, of variants that can be compared."""
    metric, rows = found[0].metric, main_rows(study.all_rows)
    best = {(one.name, row.name) for one in found for row in one.rows.values()}
    shown = [row for row in rows if (row.variant, row.name) in best]
    blocks = []
    if against := _first_variant(found):
        title = f"Backbones, against {against}"
        blocks += [Block("heading", title), Block("table", gap_grid(found), title), *notes(TEXTS["between"])]
    if len({row.epoch for row in shown}) > 1:
        caption = f"{metric.label} during fine-tuning: backbone, best head and ensemble of each variant"
        blocks += pictures(album.draw("score", caption, score_figure(shown, metric)))
    tuning = {one.name: tuning_losses(study.variants[one.name]) for one in found}
    if curves := {name: points for name, points in tuning.items() if len(points) > 1}:
        blocks += pictures(
            album.draw("loss tuning", "Loss along the tuning, first seed", curve_figure(curves, *LOSS_AXES))
        )
    blocks.append(Block("fold", [Block("table", member_grid(rows), EVERYTHING)], EVERYTHING))
    costs = cost_blocks(shown, replace(study, paper=()), album)
    return [Section("On the same data", blocks), *([Section("Costs", costs)] if costs else [])]


def _score(one: Outcome, role: str) -> Cell:
    """The score; the highest of a variant is marked."""
    if role not in one.rows:
        return Cell()
    top = max(row.scores[one.metric.key].mean for row in one.rows.values())
    cell = score_cell(one.rows[role], one.metric)
    return replace(cell, best=len(one.rows) > 1 and cell.value == top)


def _published(one: Outcome, role: str) -> Cell:
    """The published number of the same member, else of the best of that role; another metric than ours is named."""
    if role not in one.rows:
        return Cell()
    named = [entry for entry in one.paper if entry.get("member") == f"best {role}"]
    entry = beside([one.rows[role]], one.paper)[0] or (named[0] if named else {})
    if one.metric.key in entry:
        return paper_cell(entry, one.metric)
    other = next((metric for metric in metrics_of([one.rows[role]]) if metric.key in entry), None)
    return Cell(f"{paper_cell(entry, other).text} {other.label}", entry[other.key]) if other else Cell()
