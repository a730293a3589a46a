"""Ensembles that were put together from what a run has stored: greedy.json, and ensemble.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.document import Block, Note, Section, Table
from bertvision.report.reading import Study
from bertvision.report.summary import Metric, main_metric, summarise
from bertvision.report.tables import NOTHING, Cell, column, epoch_cell, grid_of, member_grid

CHOSEN = {
    "greedy": "Members and weights were chosen on the tuning set, by forward selection; scored on the test set.",
    "given": "Its members were named by hand; scored on the test set.",
}


SELECTED = (
    "Forward selection on the tuning set, checkpoint by checkpoint and seed by seed: begin with the best single "
    "member, add whoever helps most, as often as it helps. The weights are those of a {how} of probabilities; they and "
    "the threshold are in greedy.json. Scored on the test set, from stored predictions. The score on the tuning set is "
    "what it was chosen by, which flatters it."
)


def greedy_section(study: Study, metrics: Sequence[Metric]) -> list[Section]:
    """Who is in the greedy ensemble of each checkpoint and seed, with which weight; its row is in the main table."""
    known = [one for one in study.greedy if one.get("members") and one.get("test")]
    if not known or not metrics:
        return []
    found = sorted(known, key=lambda one: (one["test"][-1].get("checkpoint", 0), one["test"][-1].get("seed", 0)))
    rows = [one["test"][-1] for one in found]
    metric = main_metric(metrics, study.rows)
    columns = [column("Epoch", (epoch_cell(row.get("checkpoint")) for row in rows))]
    columns.append(column("Seed", (Cell(str(row.get("seed"))) for row in rows)))
    columns.append(column("Weights and members", (Cell(_weighted(one["members"])) for one in found)))
    for key, heading in ((f"tune_{metric.key}", f"{metric.label} on tune"), (metric.key, metric.label)):
        columns.append(column(heading, (_number(row.get(key), metric.digits) for row in rows)))
    note = SELECTED.format(how=found[0].get("how"))
    return [Section(f"The {GREEDY}", [Table(f"The {GREEDY}", grid_of(columns)), Note(note)])]


def _weighted(members: Sequence[Mapping[str, Any]]) -> str:
    """`0.50 backbone + 0.50 pool`; one alone goes without a weight."""
    if len(members) == 1:
        return f"{members[0].get('member')} alone"
    return " + ".join(f"{one.get('weight', 0):.2f} {one.get('member')}" for one in members)


def committee_section(study: Study, metrics: Sequence[Metric]) -> list[Section]:
    """Who is in it with which weight, and what it scores beside its members; nothing where there is no such file."""
    members = [one for one in study.ensemble.get("members") or [] if isinstance(one, dict)]
    if not members:
        return []
    columns = [column("Member", (Cell(str(one.get("member"))) for one in members))]
    columns.append(column("Epoch", (epoch_cell(one.get("checkpoint")) for one in members)))
    columns.append(column("Seed", (Cell(str(one.get("seed"))) for one in members)))
    columns.append(column("Weight", (_number(one.get("weight"), 3) for one in members)))
    chosen = CHOSEN.get(str(study.ensemble.get("chosen")), "Scored on the test set.")
    how = f"Joined by: {study.ensemble.get('how')}. {chosen}"
    blocks: list[Block] = [Table("Members", grid_of(columns)), Note(how)]
    if (rows := summarise(study.ensemble.get("test") or [])) and metrics:
        blocks.append(Table("Scores of the ensemble", member_grid(rows, metrics)))
    return [Section("An ensemble, member by member", blocks)]


def _number(value: object, digits: int) -> Cell:
    return Cell(f"{value:.{digits}f}", value) if isinstance(value, int | float) else Cell(NOTHING)
