"""What each of several studies came to: backbone, best head and ensemble at its last checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bertvision.evaluate.bootstrap import Interval
from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.paper import Entry, beside, member_of
from bertvision.report.sentences import NOTHING_YET, count, listed, over_seeds, side
from bertvision.report.summary import ROLES, Metric, Row, best_of, judge, main_metric, metrics_of, rows_by_kind
from bertvision.report.tables import (
    NOTHING,
    Cell,
    Grid,
    column,
    difference_cell,
    epoch_cell,
    grid_of,
    interval_cell,
    paper_cell,
    score_cell,
)

HEADINGS = {"backbone": "Backbone", "head": "Best head", "ensemble": "Ensemble"}


@dataclass(frozen=True)
class Outcome:
    """A variant, its main metric, the row that stands for each role there is, and what is published about it."""

    name: str
    metric: Metric
    rows: Mapping[str, Row]  # role -> the best of that role on the tuning set
    paper: Sequence[Entry] = ()

    @property
    def interval(self) -> Interval | None:
        """Of what the best head gains."""
        return self.rows["head"].intervals.get(self.metric.key) if "head" in self.rows else None


def outcomes(rows: Sequence[Row], papers: Mapping[str, Sequence[Entry]] | None = None) -> list[Outcome]:
    """One outcome per variant that has scores, under the threshold a user would run with.

    papers: variant -> published results that belong to it.
    """
    found = []
    for name in dict.fromkeys(row.variant for row in rows):
        mine = [row for row in rows if row.variant == name and row.fraction == 1]
        if not (metrics := metrics_of(mine)):
            continue
        metric = main_metric(metrics, mine)
        scored = [row for row in next(iter(rows_by_kind(mine).values())) if metric.key in row.scores]
        last = [row for row in scored if row.checkpoint == scored[-1].checkpoint]
        known = [row for row in last if row.member != GREEDY]  # papers join the backbone and a head
        best = {role: best_of((row for row in known if row.role == role), metric) for role in ROLES}
        present = {role: row for role, row in best.items() if row is not None}
        found.append(Outcome(name, metric, present, (papers or {}).get(name, ())))
    return found


def outcome_grid(found: Sequence[Outcome]) -> Grid:
    """One line per variant: backbone, best head and ensemble, with the papers' numbers beside."""
    columns = [column("Variant", (Cell(one.name) for one in found))]
    columns.append(column("Metric", (Cell(one.metric.label) for one in found)))
    columns.append(column("Epoch", (epoch_cell(next(iter(one.rows.values())).checkpoint) for one in found)))
    for role, heading in HEADINGS.items():
        columns.append(column(heading, (_score(one, role) for one in found)))
        columns.append(column(f"{heading}, paper", (_published(one, role) for one in found)))
        if role == "head":
            heads = [(one.rows.get(role), one.metric) for one in found]
            columns.append(
                column("Δ", (difference_cell(row, metric) if row else Cell(NOTHING) for row, metric in heads))
            )
            between = (interval_cell(row, metric) if row else Cell(NOTHING) for row, metric in heads)
            columns.append(column("95 % interval", between))
    which = (one.rows["head"].member if "head" in one.rows else NOTHING for one in found)
    columns.append(column("Which head", map(Cell, which)))
    return grid_of(columns)


def outcome_sentences(found: Sequence[Outcome]) -> list[str]:
    """Three sentences on several studies: what they are, where heads help, how far to trust it."""
    if not found:
        return [NOTHING_YET]
    shown = [row for one in found for row in one.rows.values()]
    spread = f"means over {over_seeds(shown)}" if any(len(row.seeds) > 1 for row in shown) else "single runs"
    picked = [judge([one.rows["head"]], one.metric) != one.metric.key for one in found if "head" in one.rows]
    how = (
        "on the tuning set, never on the data reported"
        if all(picked)
        else "after the fact, which flatters them a little"
    )
    stand = "stand side by side" if len(found) > 1 else "has scores"
    return [
        f"{count(len(found), 'variant')} {stand}: {listed([one.name for one in found])}.",
        _gaining(found),
        f"Scores are {spread}{f'; the best heads are picked {how}' if picked else ''}.",
    ]


def _gaining(found: Sequence[Outcome]) -> str:
    if not any("head" in one.rows for one in found):
        return "No heads were trained on them."
    known = {one.name: side(one.rows["head"], one.metric) for one in found if one.interval}
    if not known:
        return "Intervals of what their best heads gain were not computed, so none of it can be called clear."
    above = [name for name, where in known.items() if where > 0]
    below = [name for name, where in known.items() if where < 0]
    if not above and not below:
        return f"In none of {len(known)} does the best head differ clearly from the backbone."
    sides = (("above", above), ("below", below))
    parts = [f"{side} the backbone in {len(names)} ({listed(names)})" for side, names in sides if names]
    rest = len(known) - len(above) - len(below)
    held = f"; in {rest} it does not differ clearly" if rest else ""
    return f"Of {len(known)}, the best head is clearly {' and '.join(parts)}{held}."


def _score(one: Outcome, role: str) -> Cell:
    """The score; the highest of a variant is marked."""
    if role not in one.rows:
        return Cell(NOTHING)
    top = max(row.scores[one.metric.key].mean for row in one.rows.values())
    cell = score_cell(one.rows[role], one.metric)
    return Cell(cell.text, cell.value, len(one.rows) > 1 and cell.value == top)


def _published(one: Outcome, role: str) -> Cell:
    """The paper's number beside ours: of the same member, else of what it calls its best of that role.

    Where it has another metric than ours, that one is named.
    """
    if role not in one.rows:
        return Cell(NOTHING)
    named = [entry for entry in one.paper if member_of(entry) == f"best {role}"]
    entry = beside([one.rows[role]], one.paper)[0] or (named[0] if named else {})
    if one.metric.key in entry:
        return paper_cell(entry, one.metric)
    other = next((metric for metric in metrics_of([one.rows[role]]) if metric.key in entry), None)
    return Cell(f"{paper_cell(entry, other).text} {other.label}", entry[other.key]) if other else Cell(NOTHING)
