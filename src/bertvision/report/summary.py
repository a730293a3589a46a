"""Scores of single runs -> what a table says: mean and spread over seeds, and the paired difference to the backbone.

A score row is a plain dict, one per (seed, checkpoint, member, threshold kind): seed, checkpoint (epochs), member, role
(backbone | head | ensemble), threshold_from (zero | tune), and any numbers: exact, f1, accuracy, parameters, seconds;
tune_f1 and its like are scores on the tuning set, for choosing and never for showing off.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bertvision.errors import UserError

ROLES = ("backbone", "head", "ensemble")


class Metric(NamedTuple):
    """A number of a score row as it is shown: its key there, its heading, its decimals."""

    key: str
    label: str
    digits: int


SPANS = (
    Metric("exact", "EM", 2),
    Metric("f1", "F1", 2),
    Metric("HasAns_f1", "HasAns F1", 2),
    Metric("NoAns_f1", "NoAns F1", 2),
    Metric("HasAns_spans_f1", "Spans F1", 2),
)
COSTS = (
    Metric("parameters", "Parameters", 0),
    Metric("train_seconds", "Train s", 1),
    Metric("infer_seconds", "Infer s", 1),
)
NOT_A_METRIC = {
    "seed",
    "checkpoint",
    "threshold",
    "total",
    "HasAns_total",
    "NoAns_total",
    *(cost.key for cost in COSTS),
}


@dataclass(frozen=True)
class Spread:
    """One value per seed."""

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; a single run has none."""
        return stdev(self.values) if self.n > 1 else None


@dataclass(frozen=True)
class Row:
    """A member at a checkpoint under one kind of threshold, over all its seeds.

    scores: key -> spread over seeds. differences: key -> member minus backbone, paired by seed; the backbone has none.
    best: the keys for which no other member with as many seeds is higher here.
    """

    checkpoint: float | None
    member: str
    role: str
    threshold_from: str
    seeds: tuple[Any, ...]
    scores: Mapping[str, Spread]
    differences: Mapping[str, Spread]
    best: frozenset[str]


Place = tuple[float | None, str]  # checkpoint, threshold kind: members are compared within one place
Runs = dict[Any, dict[str, float]]  # seed -> numbers


def summarise(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Score rows -> one Row per (checkpoint, threshold kind, member), in the order a table shows them.

    That order: checkpoint, then threshold kind as it first appears, then backbone, heads and ensembles as they first
    appear. Of two rows for the same run the later one counts.
    """
    places: dict[Place, dict[str, Runs]] = {}
    roles: dict[str, str] = {}
    for row in rows:
        member, place = _member(row), (_checkpoint(row), str(row.get("threshold_from") or ""))
        roles.setdefault(member, _role(row, member))
        places.setdefault(place, {}).setdefault(member, {})[row.get("seed")] = _numbers(row)

    kinds = list(dict.fromkeys(kind for _, kind in places))
    ordered = sorted(places, key=lambda place: (-math.inf if place[0] is None else place[0], kinds.index(place[1])))
    result = []
    for place in ordered:
        members = sorted(places[place], key=lambda member: ROLES.index(roles[member]))  # stable: else as they appear
        result += _compare(place, {member: places[place][member] for member in members}, roles)
    return result


def metrics_of(rows: Iterable[Row]) -> tuple[Metric, ...]:
    """What to show when the caller does not say: the span metrics where rows have them, else every score there is."""
    spreads: dict[str, list[Spread]] = {}
    for row in rows:
        for key, spread in row.scores.items():
            spreads.setdefault(key, []).append(spread)
    if "exact" in spreads and "f1" in spreads:
        return tuple(metric for metric in SPANS if metric.key in spreads)
    shown = {k: found for k, found in spreads.items() if k not in NOT_A_METRIC and not k.startswith("tune_")}
    return tuple(Metric(key, key.replace("_", " "), 2 if _percent(found) else 4) for key, found in shown.items())


def main_metric(metrics: Sequence[Metric]) -> Metric:
    """The one that plots, differences and sentences speak of: F1 where there is one, else the first."""
    return next((metric for metric in metrics if metric.key == "f1"), metrics[0])


def rows_by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Threshold kind -> its rows; the tuned threshold first, for it is the one a user would run with."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.threshold_from, []).append(row)
    return dict(sorted(kinds.items(), key=lambda item: item[0] != "tune"))


def _compare(place: Place, members: Mapping[str, Runs], roles: Mapping[str, str]) -> list[Row]:
    base = next((runs for member, runs in members.items() if roles[member] == "backbone"), None)
    scores = {member: _spreads(runs) for member, runs in members.items()}
    result = []
    for member, runs in members.items():
        apart = {} if base is None or roles[member] == "backbone" else _spreads(_minus(runs, base))
        best = frozenset(key for key in scores[member] if _is_best(scores, member, key))
        result.append(Row(place[0], member, roles[member], place[1], tuple(runs), scores[member], apart, best))
    return result


def _is_best(scores: Mapping[str, Mapping[str, Spread]], member: str, key: str) -> bool:
    """Among those with as many seeds as any: in a study under way, a mean over fewer is no rival."""
    spreads = [found[key] for found in scores.values() if key in found]
    most = max(spread.n for spread in spreads)
    highest = max(spread.mean for spread in spreads if spread.n == most)
    return len(spreads) > 1 and scores[member][key].n == most and scores[member][key].mean == highest


def _minus(runs: Runs, base: Runs) -> Runs:
    return {
        seed: {key: value - base[seed][key] for key, value in numbers.items() if key in base[seed]}
        for seed, numbers in runs.items()
        if seed in base
    }


def _spreads(runs: Runs) -> dict[str, Spread]:
    keys = dict.fromkeys(key for numbers in runs.values() for key in numbers)
    return {key: Spread(tuple(numbers[key] for numbers in runs.values() if key in numbers)) for key in keys}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in ("seed", "checkpoint") and _is_number(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _member(row: Mapping[str, Any]) -> str:
    if not isinstance(row, Mapping) or "member" not in row:
        raise UserError(f"metrics.json: a row without a member: {str(row)[:80]}; run the study again to write it anew")
    return str(row["member"])


def _checkpoint(row: Mapping[str, Any]) -> float | None:
    value: Any = row.get("checkpoint")
    return round(float(value), 6) if _is_number(value) else None  # 0.1 + 0.2 and 0.3 are the same checkpoint


def _role(row: Mapping[str, Any], member: str) -> str:
    role = row.get("role")
    if role in ROLES:
        return str(role)
    return member if member == "backbone" else "ensemble" if member.startswith("ensemble") else "head"


def _percent(spreads: Iterable[Spread]) -> bool:
    return any(abs(value) > 1 for spread in spreads for value in spread.values)
