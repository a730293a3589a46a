"""Several studies on one page: the variants of one recipe, or runs given together."""

from collections.abc import Sequence
from dataclasses import replace

from bertvision.report.cost import cost_blocks
from bertvision.report.curves import score_figure
from bertvision.report.document import Album, Block, Fold, Note, Pictures, Section, Table
from bertvision.report.forest import forest_figure, gain_of
from bertvision.report.outcomes import Outcome, outcome_grid, outcomes
from bertvision.report.paper import Entry, alone, member_of, of_another_run
from bertvision.report.reading import Study
from bertvision.report.summary import ROLES, Row, rows_by_kind
from bertvision.report.tables import member_grid

LEGEND = (
    "Each at its last checkpoint, under the threshold a user would run with. The best head and the ensemble are those "
    "with the highest score on the tuning set. Δ: that head minus the backbone; its interval is bold where it leaves "
    "zero out."
)
EVERYONE = "Every member of every variant"


def outcomes_of(study: Study) -> list[Outcome]:
    """What the variants of a study came to."""
    return outcomes(_rows(study), {name: one.paper for name, one in study.variants.items()})


def joint_sections(study: Study, album: Album) -> list[Section]:
    """The table of all variants, what their heads gain, and, where they are scored on the same data, joint plots."""
    found = outcomes_of(study)
    if not found:
        return []
    blocks: list[Block] = [Table("All variants", outcome_grid(found)), Note(LEGEND)]
    sources = dict.fromkeys(str(entry["source"]) for one in found for entry in one.paper if entry.get("source"))
    blocks += [Note(f"Paper: {'; '.join(sources)}.")] if sources else []
    heads = [(one, one.rows["head"]) for one in found if "head" in one.rows]
    gains = {f"{one.name}: {head.member}": gain_of(head, one.metric.key) for one, head in heads}
    if known := {name: {"gain": gain} for name, gain in gains.items() if gain}:
        figure = forest_figure(known, "best head minus backbone, each in its own metric")
        blocks.append(Pictures([album.draw("gains", "What the best head gains in each variant", figure)]))
    return [Section("Side by side", blocks), *(_together(study, found, album) if same_test(study, found) else [])]


def apart(study: Study) -> list[Entry]:
    """Published results that stand beside none of ours: of no variant here, or of members that theirs does not have."""
    best = {f"best {role}" for role in ROLES}  # these stand in the joint table
    left = list(study.paper)
    for one in study.variants.values():
        found = [of_another_run(entry) for entry in alone(one.rows, one.paper) if member_of(entry) not in best]
        left += [entry for entry in found if entry not in left]
    return left


def same_test(study: Study, found: Sequence[Outcome]) -> bool:
    """Whether the scores of all variants may be held against each other: one test set, one metric."""
    tests = {study.variants[one.name].source("test") for one in found}
    return len(found) > 1 and len(tests) == 1 and len({one.metric for one in found}) == 1


def _together(study: Study, found: Sequence[Outcome], album: Album) -> list[Section]:
    """Curves, the table of everyone and costs, of variants that may be held against each other."""
    metric = found[0].metric
    rows = next(iter(rows_by_kind(row for row in _rows(study) if row.fraction == 1).values()))
    best = {(one.name, row.member) for one in found for row in one.rows.values()}
    shown = [row for row in rows if (row.variant, row.member) in best]
    blocks: list[Block] = []
    if len({row.checkpoint for row in shown} - {None}) > 1:
        caption = f"{metric.label} along fine-tuning: backbone, best head and ensemble of each"
        blocks.append(Pictures([album.draw("score", caption, score_figure(shown, metric))]))
    blocks.append(Fold(EVERYONE, [Table(EVERYONE, member_grid(rows))]))
    return [Section("On the same data", blocks), Section("What they cost", cost_blocks(shown, metric, (), {}, album))]


def _rows(study: Study) -> list[Row]:
    return [replace(row, variant=name) for name, one in study.variants.items() for row in one.rows]
