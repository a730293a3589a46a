"""Scores of single runs -> what a table says: mean and spread over seeds, and the paired difference to the backbone.

A score row is a plain dict, one per (seed, checkpoint, member, threshold kind): seed, checkpoint (epochs), member, role
(backbone | head | ensemble), threshold_from (zero | tune), and any numbers: exact, f1, accuracy, parameters, seconds;
tune_f1 and its like are scores on the tuning set, for choosing and never for showing off. `variant` names the study
within a study, `fraction` the share of the training set that a head has seen, `head_epochs` after how many epochs of
its training it was taken, where that was not the last.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Interval

ROLES = ("backbone", "head", "ensemble")


class Metric(NamedTuple):
    """A number of a score row as it is shown: its key there, its heading, its decimals."""

    key: str
    label: str
    digits: int


ALSO = "also_"  # how metrics of a second reported set are called
SPANS = (
    Metric("exact", "EM", 2),
    Metric("f1", "F1", 2),
    Metric("HasAns_f1", "HasAns F1", 2),
    Metric("NoAns_f1", "NoAns F1", 2),
    Metric("HasAns_spans_f1", "Spans F1", 2),
    Metric(f"{ALSO}exact", "EM, second set", 2),
    Metric(f"{ALSO}f1", "F1, second set", 2),
)
PARAMETERS = Metric("parameters", "Parameters", 0)
COSTS = (
    Metric("parameters", "Trained parameters", 0),
    Metric("total_parameters", "All parameters", 0),
    Metric("tuning_seconds", "Tuning s", 1),
    Metric("head_seconds", "Head s", 1),
    Metric("train_seconds", "Training s", 1),
    Metric("infer_seconds", "Inference s", 1),
    Metric("ms_per_question", "ms per question", 2),
)
NAMES = {"matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman", **{m.key: m.label for m in SPANS}}
# What a row counts, measures and chooses by, as against what it is scored by.
NOT_A_METRIC = re.compile(
    "seed|checkpoint|fraction|head_epochs|threshold|tune_.*|ms_per_question|(.*_)?(total|parameters|seconds|bytes|gib)"
)


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
    best: the keys for which no other member with as many seeds is higher here. intervals: key -> member minus backbone
    with its 95 % interval, where that was computed.
    """

    checkpoint: float | None
    member: str
    role: str
    threshold_from: str
    seeds: tuple[Any, ...]
    scores: Mapping[str, Spread]
    differences: Mapping[str, Spread]
    best: frozenset[str]
    variant: str = ""
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def fraction(self) -> float:
        """The share of the training set that a head has learnt from; an ensemble may join heads of several."""
        return self.scores["fraction"].mean if "fraction" in self.scores and self.role == "head" else 1.0

    @property
    def head_epochs(self) -> float | None:
        """After how many epochs of its training a head was taken, where that was not the last."""
        return self.scores["head_epochs"].mean if "head_epochs" in self.scores and self.role == "head" else None

    @property
    def head(self) -> str:
        """The member as the recipe names it, whatever its share of the data and the epoch it was taken at."""
        return self.family.removesuffix(self._epoch)

    @property
    def family(self) -> str:
        """The member's name without the share."""
        share = f" @ {100 * self.fraction:g} %" if self.fraction < 1 else ""
        return self.member.removesuffix(self._epoch).removesuffix(share) + self._epoch

    @property
    def _epoch(self) -> str:
        return "" if self.head_epochs is None else f", epoch {self.head_epochs:g}"


Place = tuple[str, float | None, str]  # variant, checkpoint, threshold kind: members are compared within one place
Runs = dict[Any, dict[str, float]]  # seed -> numbers


def summarise(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Score rows -> one Row per (variant, checkpoint, threshold kind, member), in the order a table shows them.

    That order: variant, checkpoint, then threshold kind as it first appears, then backbone, heads and ensembles as
    they first appear. Of two rows for the same run the later one counts.
    """
    places: dict[Place, dict[str, Runs]] = {}
    roles: dict[str, str] = {}
    for row in rows:
        member = _member(row)
        place = (str(row.get("variant") or ""), _checkpoint(row), str(row.get("threshold_from") or ""))
        roles.setdefault(member, _role(row, member))
        places.setdefault(place, {}).setdefault(member, {})[row.get("seed")] = _numbers(row)

    variants, _, kinds = (list(dict.fromkeys(parts)) for parts in zip(*places)) if places else ([], [], [])
    order = {place: (variants.index(place[0]), _number(place[1]), kinds.index(place[2])) for place in places}
    result = []
    for place in sorted(places, key=order.__getitem__):
        members = sorted(places[place], key=lambda member: ROLES.index(roles[member]))  # stable: else as they appear
        result += _compare(place, {member: places[place][member] for member in members}, roles)
    return result


def metrics_of(rows: Iterable[Row]) -> tuple[Metric, ...]:
    """The scores worth showing: SQuAD's where the rows have them, else every score there is."""
    spreads: dict[str, list[Spread]] = {}
    for row in rows:
        for key, spread in row.scores.items():
            spreads.setdefault(key, []).append(spread)
    if "HasAns_f1" in spreads or {"exact", "f1"} <= set(spreads):
        return tuple(metric for metric in SPANS if metric.key in spreads)
    shown = {key: found for key, found in spreads.items() if not NOT_A_METRIC.fullmatch(key)}
    return tuple(
        Metric(key, _label(key), 2 if key.removeprefix(ALSO) in NAMES or _percent(found) else 4)
        for key, found in shown.items()
    )


def _label(key: str) -> str:
    plain = key.removeprefix(ALSO)
    return NAMES.get(plain, plain.replace("_", " ")) + (", second set" if plain != key else "")


def main_metric(metrics: Sequence[Metric], rows: Iterable[Row] = ()) -> Metric:
    """The one that plots, differences and sentences speak of: by which members are chosen on the tuning set where the
    rows tell, else F1 where there is one, else the first."""
    known = {key for row in rows for key in row.scores}
    return min(metrics, key=lambda metric: (f"tune_{metric.key}" not in known, metric.key != "f1"))


def judge(rows: Iterable[Row], metric: Metric) -> str:
    """The key that picks the best: its score on the tuning set where every row has one, else the reported score."""
    tuned = f"tune_{metric.key}"
    return tuned if all(tuned in row.scores for row in rows) else metric.key


def best_of(rows: Iterable[Row], metric: Metric) -> Row | None:
    """The best of rows at one place as `judge` judges; a mean over fewer seeds than others have is no rival."""
    scored = [row for row in rows if metric.key in row.scores]
    most = max((len(row.seeds) for row in scored), default=0)
    by = judge(scored, metric)
    return max((row for row in scored if len(row.seeds) == most), key=lambda row: row.scores[by].mean, default=None)


def rows_by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Threshold kind -> its rows; the tuned threshold first, for it is the one a user would run with."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.threshold_from, []).append(row)
    return dict(sorted(kinds.items(), key=lambda item: item[0] != "tune"))


def _compare(place: Place, members: Mapping[str, Runs], roles: Mapping[str, str]) -> list[Row]:
    base = next((runs for member, runs in members.items() if roles[member] == "backbone"), None)
    scores = {member: _spreads(runs) for member, runs in members.items()}
    # Heads that have seen a share of the data compete with each other.
    shares = {member: found["fraction"].mean for member, found in scores.items() if "fraction" in found}
    fewer = {member for member, share in shares.items() if share < 1 and roles[member] == "head"}
    result = []
    for member, runs in members.items():
        apart = {} if base is None or roles[member] == "backbone" else _spreads(_minus(runs, base))
        rivals = [found for one, found in scores.items() if (one in fewer) == (member in fewer)]
        best = frozenset(key for key in scores[member] if _is_best(scores[member], rivals, key))
        variant, checkpoint, kind = place
        result.append(Row(checkpoint, member, roles[member], kind, tuple(runs), scores[member], apart, best, variant))
    return result


def _is_best(mine: Mapping[str, Spread], rivals: Iterable[Mapping[str, Spread]], key: str) -> bool:
    """Among those with as many seeds as any: in a study under way, a mean over fewer is no rival."""
    spreads = [found[key] for found in rivals if key in found]
    most = max(spread.n for spread in spreads)
    highest = max(spread.mean for spread in spreads if spread.n == most)
    return len(spreads) > 1 and mine[key].n == most and mine[key].mean == highest


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


def _number(checkpoint: float | None) -> float:
    return -math.inf if checkpoint is None else checkpoint


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
