"""The ensemble that was put together from what a run has stored, from ensemble.json."""

from collections.abc import Sequence

from bertvision.report.document import Block, Note, Section, Table
from bertvision.report.reading import Study
from bertvision.report.summary import Metric, summarise
from bertvision.report.tables import NOTHING, Cell, column, epoch_cell, grid_of, member_grid

CHOSEN = {
    "greedy": "Members and weights were chosen on the tuning set, by forward selection; scored on the test set.",
    "given": "Its members were named by hand; scored on the test set.",
}


def committee_section(study: Study, metrics: Sequence[Metric]) -> list[Section]:
    """Who is in it with which weight, and what it scores beside its members; nothing where there is no such file."""
    members = [one for one in study.ensemble.get("members") or [] if isinstance(one, dict)]
    if not members:
        return []
    columns = [column("Member", (Cell(str(one.get("member"))) for one in members))]
    columns.append(column("Epoch", (epoch_cell(one.get("checkpoint")) for one in members)))
    columns.append(column("Seed", (Cell(str(one.get("seed"))) for one in members)))
    columns.append(column("Weight", (_weight(one.get("weight")) for one in members)))
    chosen = CHOSEN.get(str(study.ensemble.get("chosen")), "Scored on the test set.")
    how = f"Joined by: {study.ensemble.get('how')}. {chosen}"
    blocks: list[Block] = [Table("Members", grid_of(columns)), Note(how)]
    if (rows := summarise(study.ensemble.get("test") or [])) and metrics:
        blocks.append(Table("Scores of the ensemble", member_grid(rows, metrics)))
    return [Section("An ensemble, member by member", blocks)]


def _weight(value: object) -> Cell:
    return Cell(f"{value:.3f}", value) if isinstance(value, int | float) else Cell(NOTHING)
