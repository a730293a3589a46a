"""Score rows of single runs -> rows of a table, and the published results that belong beside them."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from bertvision import toml
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Interval
from bertvision.evaluate.ensemble import Ensemble
from bertvision.evaluate.score import Score, is_number
from bertvision.report import TEXTS

ROLES = ("backbone", "head", "ensemble")
ALSO = "also_"  # prefix of the metrics of a second test set
# Numbers of a row that are no metrics: what it counts, measures and chooses by.
NOT_A_METRIC = re.compile(
    "seed|checkpoint|fraction|head_epochs|threshold|loss|tune_.*|ms_per_question|(.*_)?(total|parameters|seconds|flops|bytes|gib)"
)
# A published result (`paper` of a recipe): checkpoint, member, and any numbers that a score row has, costs included, or
# that the analysis of a member has, shares in percent (`second_right`, `right_tokens`; see `[analysis]` of
# templates/texts.toml). member = "ensemble" means the backbone with a head at that checkpoint, whichever head that is.
# `when` gives the settings of the run that it belongs to, in the form of --set ("finetune.train_layers=6
# finetune.adapters=0"), `label` the paper's name for that run; `variant` may name the variant instead. `on` says what
# it was measured on, if that is not what the study reads ("BERT-large, SQuAD 2.0"). `source` is cited below the table.
Entry = Mapping[str, Any]


class Metric(NamedTuple):
    """A number of a row as it is shown: its key, its heading, its decimals."""

    key: str
    label: str
    digits: int


SPANS, COSTS, FRONTS = ([Metric(*entry) for entry in TEXTS["numbers"][name]] for name in ("spans", "costs", "fronts"))
LABELS = {"matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman", **{m.key: m.label for m in SPANS}}


@dataclass(frozen=True)
class Spread:
    """One value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; None for a single run."""
        return stdev(self.values) if len(self.values) > 1 else None


class Equal(NamedTuple):
    """A row minus the backbone of equal cost, with its 95 % interval; the rest as in comparisons.json."""

    interval: Interval
    how: str
    epoch: float | None


@dataclass(frozen=True)
class Row:
    """A member or ensemble at a checkpoint under one kind of threshold, over all its seeds.

    ensemble: that of the first seed. scores: key -> spread over seeds. differences: key -> row minus backbone, paired
    by seed. best: the keys for which no other row with as many seeds is higher here. intervals: key -> row minus
    backbone with its 95 % interval, if computed. equal: cost -> key -> the same against the backbone of
    equal cost.
    """

    ensemble: Ensemble
    epoch: float
    threshold_from: str
    seeds: tuple[int, ...]
    scores: Mapping[str, Spread]
    differences: Mapping[str, Spread] = field(default_factory=dict)
    best: frozenset[str] = frozenset()
    variant: str = ""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    equal: Mapping[str, Mapping[str, Equal]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.ensemble.name

    def at_equal(self, cost: str, key: str) -> Equal | None:
        """The difference to the backbone of equal cost, if computed."""
        return self.equal.get(cost, {}).get(key)

    @property
    def role(self) -> str:
        return self.ensemble.role

    @property
    def is_greedy(self) -> bool:
        return self.ensemble.chosen == "greedy"

    @property
    def fraction(self) -> float:
        """The share of the training set that a head has seen; 1 for all others."""
        return self.ensemble.members[0].fraction if self.role == "head" else 1.0

    @property
    def family(self) -> str:
        """The name that a head has with the whole training set."""
        return replace(self.ensemble.members[0], fraction=1.0).name if self.role == "head" else self.name


def summarise(scores: Iterable[Score]) -> list[Row]:
    """One row per (variant, checkpoint, threshold kind, member), in the order of a table.

    That order: variant and threshold kind as they first appear, checkpoints ascending, then backbone, heads and
    ensembles as they first appear. Of two scores of the same run the later one counts.
    """
    by_group: dict[tuple[str, float, str], dict[tuple[Any, ...], dict[int, Score]]] = {}
    for score in scores:
        group = (score.variant, round(score.epoch, 6), score.threshold_from)  # 0.1 + 0.2 and 0.3 are the same
        by_group.setdefault(group, {}).setdefault(_identity(score.ensemble), {})[score.seed] = score
    variants, kinds = (list(dict.fromkeys(group[part] for group in by_group)) for part in (0, 2))
    result = []
    for group in sorted(by_group, key=lambda group: (variants.index(group[0]), group[1], kinds.index(group[2]))):
        members = sorted(by_group[group].values(), key=lambda runs: ROLES.index(_first(runs).ensemble.role))
        base = members[0] if _first(members[0]).ensemble.role == "backbone" else {}
        rows = [_row(group, runs, base) for runs in members]
        for row in rows:
            rivals = [other for other in rows if (other.fraction < 1) == (row.fraction < 1)]
            result.append(replace(row, best=frozenset(key for key in row.scores if _is_best(row, rivals, key))))
    return result


def with_intervals(
    rows: Sequence[Row], comparisons: Iterable[Mapping[str, Any]], equal_cost: Iterable[Mapping[str, Any]] = ()
) -> list[Row]:
    """The rows with their intervals, as comparisons.json has them, where these are over the same seeds."""
    intervals: dict[tuple[Any, ...], dict[str, Interval]] = {}
    equal_cost_of: dict[tuple[Any, ...], dict[str, dict[str, Equal]]] = {}
    for entry in comparisons:
        if interval := interval_of(entry):
            intervals.setdefault(_entry_key(entry), {})[str(entry.get("metric"))] = interval
    for entry in equal_cost:
        if interval := interval_of(entry):
            equal_of = equal_cost_of.setdefault(_entry_key(entry), {}).setdefault(str(entry.get("by")), {})
            epoch = float(entry["epoch"]) if is_number(entry.get("epoch")) else None
            equal_of[str(entry.get("metric"))] = Equal(interval, str(entry.get("how")), epoch)
    keys = [(row.epoch, row.name, row.threshold_from, frozenset(row.seeds)) for row in rows]
    keyed = zip(rows, keys)
    return [replace(row, intervals=intervals.get(key, {}), equal=equal_cost_of.get(key, {})) for row, key in keyed]


def interval_of(entry: Mapping[str, Any]) -> Interval | None:
    """None if a metric is undefined in some resamples, or the entry is damaged."""
    values = [entry.get(key) for key in ("difference", "low", "high")]
    whole = all(map(is_number, [*values, entry.get("checkpoint")]))
    return Interval(*map(float, values)) if whole else None  # type: ignore[arg-type]


def _entry_key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    epoch, seeds = round(float(entry["checkpoint"]), 6), frozenset(entry.get("seeds", ()))
    return epoch, entry.get("member"), entry.get("threshold_from") or "", seeds


def metrics_of(rows: Iterable[Row]) -> list[Metric]:
    """The metrics to show: SQuAD's if the rows have them, else all there are."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for key, spread in row.scores.items():
            values.setdefault(key, []).extend(spread.values)
    if {"exact", "f1"} <= values.keys():
        return [metric for metric in SPANS if metric.key in values]
    metrics = []
    for key in values:
        if not NOT_A_METRIC.fullmatch(key):
            plain = key.removeprefix(ALSO)
            label = LABELS.get(plain, plain.replace("_", " ")) + (", second set" if plain != key else "")
            percent = plain in LABELS or any(abs(value) > 1 for value in values[key])
            metrics.append(Metric(key, label, 2 if percent else 4))
    return metrics


def main_metric(rows: Sequence[Row]) -> Metric | None:
    """The metric of plots, differences and sentences: the one that members are chosen by on the tuning set if the rows
    have it, else F1, else the first."""
    keys = {key for row in rows for key in row.scores}
    order = sorted(metrics_of(rows), key=lambda metric: (f"tune_{metric.key}" not in keys, metric.key != "f1"))
    return order[0] if order else None


def judge(rows: Iterable[Row], metric: Metric) -> str:
    """The key that picks the best: the score on the tuning set if every row has one, else the reported score."""
    tuned = f"tune_{metric.key}"
    return tuned if all(tuned in row.scores for row in rows) else metric.key


def best_of(rows: Iterable[Row], metric: Metric) -> Row | None:
    """The best row of one place; rows with fewer seeds than others do not compete."""
    scored = [row for row in rows if metric.key in row.scores]
    most = max((len(row.seeds) for row in scored), default=0)
    by = judge(scored, metric)
    return max((row for row in scored if len(row.seeds) == most), key=lambda row: row.scores[by].mean, default=None)


def rows_by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Threshold kind -> its rows, the tuned threshold first: it is the one a user would run with."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.threshold_from, []).append(row)
    return dict(sorted(kinds.items(), key=lambda item: item[0] != "tune"))


def main_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows of heads that saw the whole training set, under the threshold a user would run with."""
    return next(iter(rows_by_kind(row for row in rows if row.fraction == 1).values()), [])


def _identity(ensemble: Ensemble) -> tuple[Any, ...]:
    """A key that ensembles of several seeds share; chosen ones may have other members with each seed."""
    if ensemble.chosen in ("best", "greedy"):
        return (ensemble.chosen,)
    return (ensemble.chosen, *((member.head, member.fraction, member.head_epochs) for member in ensemble.members))


def _row(group: tuple[str, float, str], runs: Mapping[int, Score], base: Mapping[int, Score]) -> Row:
    """base: the runs of the backbone; it has no differences to itself."""
    variant, epoch, kind = group
    numbers = {seed: _numbers(score) for seed, score in runs.items()}
    backbone_numbers = {seed: _numbers(base[seed]) for seed in runs if seed in base and base is not runs}
    differences_by_seed = [
        {key: value - base_numbers[key] for key, value in numbers[seed].items() if key in base_numbers}
        for seed, base_numbers in backbone_numbers.items()
    ]
    spreads, differences = _spreads(list(numbers.values())), _spreads(differences_by_seed)
    return Row(_first(runs).ensemble, epoch, kind, tuple(runs), spreads, differences, variant=variant)


def _spreads(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    keys = dict.fromkeys(key for numbers in runs for key in numbers)
    return {key: Spread(tuple(numbers[key] for numbers in runs if key in numbers)) for key in keys}


def _numbers(score: Score) -> dict[str, float]:
    return {key: value for key, value in score.to_json().items() if is_number(value)}


def _first(runs: Mapping[int, Score]) -> Score:
    return next(iter(runs.values()))


def _is_best(row: Row, rivals: Sequence[Row], key: str) -> bool:
    """Whether no rival is higher; while a study is under way, means over fewer seeds do not compete."""
    spreads = [rival.scores[key] for rival in rivals if key in rival.scores]
    most = max(len(spread.values) for spread in spreads)
    highest = max(spread.mean for spread in spreads if len(spread.values) == most)
    own = row.scores[key]
    return len(spreads) > 1 and len(own.values) == most and own.mean == highest


def for_run(paper: Iterable[Entry], recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries for a run without variants: those of another run get its name, so that they match no member here."""
    without_variant = [entry for entry in paper if not entry.get("variant")]
    return [entry if _holds(entry, recipe) else of_another_run(entry) for entry in without_variant]


def of_another_run(entry: Entry) -> Entry:
    """An entry whose member carries the name of the run that it belongs to."""
    run = next((entry[key] for key in ("label", "variant", "when") if entry.get(key)), "")
    return {**entry, "member": f"{entry.get('member', '')}, {run}"} if run else entry


def for_variant(paper: Iterable[Entry], name: str, recipe: Mapping[str, Any]) -> list[Entry]:
    """The entries of one variant: by its name, else by their settings; those with neither belong to every variant."""
    return [entry for entry in paper if (entry["variant"] == name if "variant" in entry else _holds(entry, recipe))]


def beside(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """For each row the entry to compare it with, or an empty one."""
    published = {_key(entry): entry for entry in paper}
    return [next((published[key] for key in _keys(row) if key in published), {}) for row in rows]


def without_counterpart(rows: Sequence[Row], paper: Iterable[Entry]) -> list[Entry]:
    """The entries that belong beside none of the rows."""
    row_keys = {key for row in rows for key in _keys(row)}
    return [entry for entry in paper if _key(entry) not in row_keys]


def called(paper: Iterable[Entry]) -> str:
    """The heading of published results: `paper`, with what they were measured on."""
    measured_on = dict.fromkeys(str(entry["on"]) for entry in paper if entry.get("on"))
    return f"paper ({'; '.join(measured_on)})" if measured_on else "paper"


def sources(paper: Iterable[Entry]) -> list[str]:
    """The line that cites them, if they have sources."""
    cited = dict.fromkeys(str(entry["source"]) for entry in paper if entry.get("source"))
    return [f"Paper: {'; '.join(cited)}."] if cited else []


def _holds(entry: Entry, recipe: Mapping[str, Any]) -> bool:
    """Whether a run has the settings of an entry: set in its recipe, they change nothing."""
    changed = copy.deepcopy(dict(recipe))
    try:
        for setting in str(entry.get("when", "")).split():
            toml.lay_over(changed, setting)
    except UserError:  # the recipe has no such key, as `finetune.head.form` if the head is just a kind
        return False
    return changed == recipe


def _key(entry: Entry) -> tuple[float | None, str]:
    epoch = entry.get("checkpoint")
    return round(epoch, 6) if epoch is not None and is_number(epoch) else None, str(entry.get("member", ""))


def _keys(row: Row) -> list[tuple[float | None, str]]:
    """The keys of entries that a row may be compared with, the most exact first."""
    names = [row.name, *(["ensemble"] if row.role == "ensemble" and not row.is_greedy else [])]
    return [(row.epoch, name) for name in names]
