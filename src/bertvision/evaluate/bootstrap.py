"""Paired bootstrap confidence intervals of differences between members."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
K = TypeVar("K", bound=Hashable)
CELLS = 4_000_000  # counts held at a time: draws x questions


@dataclass(frozen=True, slots=True)
class Points:
    """Numbers of each example, (Q, k), from which every metric (in percent) can be computed for any choice of rows."""

    values: Values
    metrics: Mapping[str, Callable[[Values], float]]

    def scores(self) -> dict[str, float]:
        """{metric: percentage} over all examples."""
        return {name: metric(self.values) for name, metric in self.metrics.items()}


Contrast = Sequence[tuple[float, Points]]  # a difference: the sum of weight times score


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric: `scale` times the mean of a column of the points; with `among`, over the rows where that column is 1.

    NaN where there is no such row. `among` says something about the question, so that it is the same for all members.
    """

    column: int
    among: int | None = None
    scale: float = 100.0

    def __call__(self, values: Values) -> float:
        kept = self.kept(values)
        total = float(kept.sum())
        return self.scale * float(values[:, self.column] @ kept) / total if total else float("nan")

    def kept(self, values: Values) -> Values:
        """(Q,) 1 for the questions that count, else 0."""
        return np.ones(len(values)) if self.among is None else (values[:, self.among] > 0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference in a metric, and between which two values 95 % of its resamples lie."""

    difference: float
    low: float
    high: float


def bootstrap(
    contrasts: Mapping[K, Sequence[Contrast]], *, draws: int = 1000, seed: int = 0
) -> dict[K, dict[str, Interval]]:
    """{name: {metric: contrast}} with 95 % percentile intervals over resampled questions.

    contrasts: one per seed, all on the same Q questions. Metrics that are a `Mean` are resampled by a product of
    matrices, all others are computed on every resample. All parts of a contrast see the same resample; several seeds
    are averaged within it, so that the interval is that of the mean over these seeds. Metrics that are undefined on
    these very questions (NaN) are left out.
    """
    if not contrasts:
        return {}
    differences = _Differences(list(contrasts.values()))
    observed = differences.under(np.ones((1, differences.questions)))[0]  # (contrasts, metrics)
    drawn = np.concatenate(
        [differences.under(counts) for counts in resample_counts(differences.questions, draws, seed)]
    )
    return {
        name: _intervals(differences.names, observed[number], drawn[:, number]) for number, name in enumerate(contrasts)
    }


def score_interval(points: Points, metric: str, *, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """Between which two values 95 % of the resamples of a metric lie; NaN where it is undefined."""
    questions, measure = np.arange(len(points.values)), points.metrics[metric]
    scores = [
        measure(points.values[np.repeat(questions, drawn.astype(np.int64))])
        for counts in resample_counts(len(questions), draws, seed)
        for drawn in counts
    ]
    defined = [value for value in scores if np.isfinite(value)] or [float("nan")]
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


def resample_counts(questions: int, draws: int, seed: int) -> Iterator[Values]:
    """How often each question is in each of `draws` samples with replacement: (some draws, Q) at a time."""
    random = np.random.default_rng(seed)
    step = max(1, CELLS // max(questions, 1))
    for begin in range(0, draws, step):
        size = min(step, draws - begin)
        questions_drawn = random.integers(questions, size=(size, questions)) + questions * np.arange(size)[:, None]
        flat = np.bincount(questions_drawn.ravel(), minlength=size * questions)
        yield flat.reshape(size, questions).astype(np.float64)


class _Differences:
    """Contrasts in every metric, averaged over seeds, for any resample."""

    def __init__(self, contrasts: Sequence[Sequence[Contrast]]) -> None:
        everything = [points for runs in contrasts for run in runs for _, points in run]
        if len({len(points.values) for points in everything}) > 1:
            raise ValueError("a contrast needs the same questions throughout")
        first, self.contrasts = everything[0], contrasts
        self.distinct = list({id(points): points for points in everything}.values())
        means = {name: metric for name, metric in first.metrics.items() if isinstance(metric, Mean)}
        self.others = [name for name in first.metrics if name not in means]
        self.names, self.questions = [*means, *self.others], len(first.values)
        kept = [metric.kept(first.values) for metric in means.values()]
        self.kept = np.array(kept).reshape(len(means), self.questions).T  # (Q, means)
        differences = []
        for runs in contrasts:
            difference = np.mean(
                [np.sum([w * points.values for w, points in run], axis=0) for run in runs], axis=0
            )  # (Q, k)
            differences += [
                metric.scale * flags * difference[:, metric.column] for metric, flags in zip(means.values(), kept)
            ]
        self.differences = np.array(differences).reshape(len(differences), self.questions).T  # (Q, contrasts * means)

    def under(self, counts: Values) -> Values:
        """(D, contrasts, metrics) for counts (D, Q)."""
        sums = (counts @ self.differences).reshape(len(counts), len(self.contrasts), self.kept.shape[1])
        with np.errstate(invalid="ignore"):  # 0 / 0: a resample without any question that counts
            means = sums / (counts @ self.kept)[:, None]
        return np.concatenate([means, [self._others(row) for row in counts]], axis=2) if self.others else means

    def _others(self, row: Values) -> Values:
        """(contrasts, metrics that are no mean) on one resample."""
        index = np.repeat(np.arange(len(row)), row.astype(np.int64))
        scores = {}
        for points in self.distinct:
            values = points.values[index]
            scores[id(points)] = np.array([points.metrics[name](values) for name in self.others])
        return np.array(
            [
                np.mean([np.sum([w * scores[id(points)] for w, points in run], axis=0) for run in runs], axis=0)
                for runs in self.contrasts
            ]
        )


def _intervals(names: Sequence[str], observed: Values, drawn: Values) -> dict[str, Interval]:
    intervals = {}
    for name, difference, values in zip(names, observed, drawn.T):
        defined = values[np.isfinite(values)]
        if np.isfinite(difference) and len(defined):
            low, high = np.percentile(defined, [2.5, 97.5])
            intervals[name] = Interval(float(difference), float(low), float(high))
    return intervals
