"""Score rows: an ensemble at one threshold, with what it scored and what it costs; scores against costs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member

WEIGHT_BYTES = 4  # heads are kept in fp32
SAME = 0.02  # a checkpoint whose cost differs by no more than this share counts as one of equal cost


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an ensemble; None where it was not measured.

    parameters: those trained for it. total_parameters: those of the encoder and its heads. tuning_seconds,
    head_seconds, train_seconds: training of the backbone to this checkpoint, of the heads, of both. A head is charged
    with all passes of the backbone that its bank needed (feed_seconds, part of head_seconds), as if it were trained
    alone; an ensemble pays for these passes once. disk_bytes: what training changed. infer_seconds: prediction of the
    test set. *_flops: the same in FLOPs, counted by windows without padding.
    """

    parameters: int | None = None
    total_parameters: int | None = None
    tuning_seconds: float | None = None
    feed_seconds: float | None = None
    head_seconds: float | None = None
    train_seconds: float | None = None
    disk_bytes: int | None = None
    infer_seconds: float | None = None
    ms_per_question: float | None = None
    tuning_flops: int | None = None
    feed_flops: int | None = None
    head_flops: int | None = None
    train_flops: int | None = None
    infer_flops: int | None = None

    def to_json(self) -> dict[str, float]:
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        return {key: value for key, value in values.items() if value is not None}


COSTS = tuple(column.name for column in fields(Cost))


def join_costs(costs: Mapping[Member, Cost]) -> Cost:
    """The joint cost of members of one checkpoint, from the cost of each alone: they share the encoder."""
    first = next((cost for member, cost in costs.items() if member.kind == "backbone"), next(iter(costs.values())))
    others = [cost for cost in costs.values() if cost is not first]
    added = sum(cost.parameters or 0 for cost in others)  # what a head adds to the encoder is what was trained of it
    feed = max(cost.feed_seconds or 0.0 for cost in costs.values())
    heads_alone = sum((cost.head_seconds or 0.0) - (cost.feed_seconds or 0.0) for cost in costs.values())
    head_seconds = round(feed + heads_alone, 3)
    tuning = first.tuning_seconds or 0.0
    feeds = [cost.feed_flops for cost in costs.values()]
    shared_flops = None if None in feeds else max(feed or 0 for feed in feeds)
    flops = total_flops(
        [shared_flops, *(cost.head_flops for cost in costs.values()), *(-(feed or 0) for feed in feeds)]
    )
    return Cost(
        (first.parameters or 0) + added,
        (first.total_parameters or 0) + added,
        tuning,
        feed,
        head_seconds,
        round(tuning + head_seconds, 3),
        (first.disk_bytes or 0) + WEIGHT_BYTES * added,
        tuning_flops=first.tuning_flops,
        feed_flops=shared_flops,
        head_flops=flops,
        train_flops=total_flops([first.tuning_flops, flops]),
    )


def total_flops(parts: Iterable[int | None]) -> int | None:
    """The sum; None if a part is not known."""
    flops = list(parts)
    return None if None in flops else sum(filter(None, flops))


@dataclass(frozen=True, slots=True)
class Score:
    """One row: an ensemble at one threshold on the test set.

    metrics: the task's scores and counts. main: the metric that decides, and `tune` its value on the tune set. also:
    metrics on a second reported set. note: a remark on the score. variant: of the study within a series.
    """

    ensemble: Ensemble
    threshold: float
    threshold_from: str
    metrics: dict[str, float]
    cost: Cost = Cost()
    main: str = ""
    tune: float | None = None
    also: dict[str, float] = field(default_factory=dict)
    note: str = ""
    variant: str = ""

    @property
    def seed(self) -> int:
        """The lowest of its members."""
        return min(member.seed for member in self.ensemble.members)

    @property
    def epoch(self) -> float:
        """The latest checkpoint of its members."""
        return max(member.epoch for member in self.ensemble.members)

    @property
    def cell(self) -> tuple[int, float]:
        return self.seed, self.epoch

    @property
    def name(self) -> str:
        return self.ensemble.name

    def to_json(self) -> dict[str, Any]:
        """A flat row, as in metrics.json."""
        ensemble = self.ensemble
        row: dict[str, Any] = {"variant": self.variant} if self.variant else {}
        row |= {"seed": self.seed, "checkpoint": self.epoch, "member": ensemble.name, "role": ensemble.role}
        if ensemble.is_single:
            member = ensemble.members[0]
            row |= {} if member.fraction == 1 else {"fraction": member.fraction}
            row |= {} if member.head_epochs is None else {"head_epochs": member.head_epochs}
        else:
            row |= {"parts": ensemble.parts, "how": ensemble.how}
        row |= {"threshold": self.threshold, "threshold_from": self.threshold_from, **self.metrics}
        row |= {"note": self.note} if self.note else {}
        row |= self.cost.to_json()
        row |= {} if self.tune is None else {f"tune_{self.main}": self.tune}
        row |= {f"also_{key}": value for key, value in self.also.items()}
        return row | {"ensemble": ensemble.to_json()}

    @classmethod
    def from_json(cls, row: Any, where: str) -> "Score":
        """Reads the result of `to_json`; anything else is a UserError that begins with `where`."""
        if not isinstance(row, Mapping) or "ensemble" not in row:
            raise UserError(f"{where}: a row without its ensemble; delete the file and run `bertvision study` again")
        shown = {"seed", "checkpoint", "member", "role", "parts", "how", "fraction", "head_epochs", "ensemble"}
        texts = {key: row.get(key, "") for key in ("threshold_from", "note", "variant")}
        numbers = {key: value for key, value in row.items() if key not in shown and key not in texts}
        wrong = [key for key, value in texts.items() if not isinstance(value, str)]
        wrong += [key for key, value in numbers.items() if not is_number(value)]
        wrong += [] if "threshold" in numbers else ["threshold"]
        if wrong:
            raise UserError(f"{where}: {wrong[0]}: {row.get(wrong[0])!r} does not belong there")
        try:
            ensemble = Ensemble.from_json(row["ensemble"])
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        threshold = float(numbers.pop("threshold"))
        cost = Cost(**{key: numbers.pop(key) for key in COSTS if key in numbers})
        tuned = [(key.removeprefix("tune_"), numbers.pop(key)) for key in [*numbers] if key.startswith("tune_")]
        also = {key.removeprefix("also_"): numbers.pop(key) for key in [*numbers] if key.startswith("also_")}
        main, tune = tuned[0] if tuned else ("", None)
        return cls(ensemble, threshold, texts.pop("threshold_from"), numbers, cost, main, tune, also, **texts)


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def pareto_front(cost: Sequence[float], score: Sequence[float]) -> NDArray[np.bool_]:
    """(n,) whether no other of the n points costs no more and scores no less, being better in one of the two.

    Equal points are all on the front, or none is. A point with an unknown (NaN) cost or score is not on the front.
    """
    costs, scores = np.asarray(cost, np.float64), np.asarray(score, np.float64)
    front = np.zeros(len(costs), bool)
    comparable = np.flatnonzero(np.isfinite(costs) & np.isfinite(scores))
    best = -math.inf  # the highest score at any lower cost
    order = comparable[
        np.lexsort((-scores[comparable], costs[comparable]))
    ]  # cheapest first; of equal cost the best first
    for group in np.split(order, np.flatnonzero(np.diff(costs[order])) + 1):
        if len(group) and scores[group[0]] > best:
            best = scores[group[0]]
            front[group[scores[group] == best]] = True
    return front


def efficiency(f1: float, parameters: int) -> float | None:
    """Hulburd's figure (F1 - 50) / log10(trained parameters), F1 in percent.

    None for fewer than two parameters, where the logarithm is not positive.
    """
    return (f1 - 50) / math.log10(parameters) if parameters > 1 else None


class EqualCost(NamedTuple):
    """The backbone at the cost of a member. weights: of the checkpoints whose scores are interpolated, by epoch.

    epoch: the epochs of tuning with that cost, None if unknown. how: whether a checkpoint has that cost, lies on either
    side of it, or is the last one, tuned for less than that.
    """

    weights: dict[float, float]
    epoch: float | None
    how: Literal["exact", "interpolated", "beyond"]


def equal_cost(tuned: Mapping[float, float], cost: float) -> EqualCost:
    """The backbone that cost as much as a member. tuned: epoch of a checkpoint -> cost of tuning up to it.

    cost: at least that of the checkpoint the member was trained on.
    """
    epochs = sorted(tuned)
    nearest = min(epochs, key=lambda epoch: abs(tuned[epoch] - cost))
    if abs(tuned[nearest] - cost) <= SAME * cost:
        return EqualCost({nearest: 1.0}, nearest, "exact")
    below, above = ([e for e in epochs if (tuned[e] > cost) == higher] for higher in (False, True))
    if not above:
        last = epochs[-1]
        return EqualCost({last: 1.0}, last * cost / tuned[last] if tuned[last] > 0 else None, "beyond")
    low, high = below[-1], above[0]
    share = (cost - tuned[low]) / (tuned[high] - tuned[low])
    return EqualCost({low: 1 - share, high: share}, low + share * (high - low), "interpolated")
