"""More than luck of the questions? The paired bootstrap gives a difference between members its interval."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
CELLS = 4_000_000  # counts held at a time: draws x questions


@dataclass(frozen=True, slots=True)
class Points:
    """Numbers of each example, (Q, k), from which every metric (in percent) can be computed for any choice of rows."""

    values: Values
    metrics: Mapping[str, Callable[[Values], float]]


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


def paired_bootstrap(
    members: Mapping[str, Sequence[Points]], backbone: Sequence[Points], *, draws: int = 1000, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """{member: {metric: member minus backbone}} with 95 % percentile intervals over resampled questions.

    members: the points of each member's runs, one per seed, in the order of `backbone`, all on the same Q questions.
    Metrics that are a `Mean` are resampled by a product of matrices, all others are computed on every resample.
    Both sides of a pair see the same resample; several seeds are averaged within it, so that the interval speaks of
    the mean over these seeds. Metrics that are undefined on these very questions (NaN) are left out.
    """
    differences = _Differences(list(members.values()), backbone)
    questions = len(backbone[0].values)
    observed = differences.under(np.ones((1, questions)))[0]  # (members, metrics)
    drawn = np.concatenate([differences.under(counts) for counts in resample_counts(questions, draws, seed)])
    return {
        name: _intervals(differences.names, observed[number], drawn[:, number]) for number, name in enumerate(members)
    }


def resample_counts(questions: int, draws: int, seed: int) -> Iterator[Values]:
    """How often each question is in each of `draws` samples with replacement: (some draws, Q) at a time."""
    random = np.random.default_rng(seed)
    step = max(1, CELLS // max(questions, 1))
    for begin in range(0, draws, step):
        size = min(step, draws - begin)
        chosen = random.integers(questions, size=(size, questions)) + questions * np.arange(size)[:, None]
        flat = np.bincount(chosen.ravel(), minlength=size * questions)
        yield flat.reshape(size, questions).astype(np.float64)


class _Differences:
    """Members minus backbone in every metric, averaged over seeds, for any resample."""

    def __init__(self, members: Sequence[Sequence[Points]], backbone: Sequence[Points]) -> None:
        if not backbone or any(len(runs) != len(backbone) for runs in members):
            raise ValueError("a pair needs the same seeds on both sides, at least one")
        if len({len(run.values) for runs in (*members, backbone) for run in runs}) > 1:
            raise ValueError("a pair needs the same questions on both sides")
        metrics = backbone[0].metrics
        means = {name: metric for name, metric in metrics.items() if isinstance(metric, Mean)}
        self.members, self.backbone = members, backbone
        self.others = [name for name in metrics if name not in means]
        self.names = [*means, *self.others]
        questions = len(backbone[0].values)
        kept = [metric.kept(backbone[0].values) for metric in means.values()]
        self.kept = np.array(kept).reshape(len(means), questions).T  # (Q, means)
        gaps = []
        for runs in members:
            apart = np.mean([ours.values - theirs.values for ours, theirs in zip(runs, backbone)], axis=0)  # (Q, k)
            gaps += [metric.scale * flags * apart[:, metric.column] for metric, flags in zip(means.values(), kept)]
        self.gaps = np.array(gaps).reshape(len(gaps), questions).T  # (Q, members * means)

    def under(self, counts: Values) -> Values:
        """(D, members, metrics) for counts (D, Q)."""
        sums = (counts @ self.gaps).reshape(len(counts), len(self.members), self.kept.shape[1])
        with np.errstate(invalid="ignore"):  # 0 / 0: a resample without any question that counts
            means = sums / (counts @ self.kept)[:, None]
        return np.concatenate([means, [self._others(row) for row in counts]], axis=2) if self.others else means

    def _others(self, row: Values) -> Values:
        """(members, metrics that are no mean) on one resample."""
        index = np.repeat(np.arange(len(row)), row.astype(np.int64))
        theirs = self._scores(self.backbone, index)
        return np.array([(self._scores(runs, index) - theirs).mean(axis=0) for runs in self.members])

    def _scores(self, runs: Sequence[Points], index: NDArray[np.int64]) -> Values:
        """(seeds, metrics that are no mean)"""
        chosen = [(run.metrics, run.values[index]) for run in runs]
        return np.array([[metrics[name](values) for name in self.others] for metrics, values in chosen])


def _intervals(names: Sequence[str], observed: Values, drawn: Values) -> dict[str, Interval]:
    found = {}
    for name, difference, values in zip(names, observed, drawn.T):
        defined = values[np.isfinite(values)]
        if np.isfinite(difference) and len(defined):
            low, high = np.percentile(defined, [2.5, 97.5])
            found[name] = Interval(float(difference), float(low), float(high))
    return found
