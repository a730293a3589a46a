"""`score`: a number for a text or a pair."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data import glue
from bertvision.data.batches import Batch
from bertvision.data.sources import Examples, read_examples
from bertvision.data.tables import score_numbers
from bertvision.data.texts import check_fits, check_sources, example_sets, glue_task
from bertvision.data.windows import make_text_windows
from bertvision.errors import UserError
from bertvision.evaluate import metrics
from bertvision.evaluate.bootstrap import Points
from bertvision.evaluate.ensemble import How
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import (
    Dataset,
    Judged,
    Sort,
    Task,
    agreement,
    error_entry,
    error_rows,
    gold_of,
    reading_predictions,
    single,
)
from bertvision.tasks.decode import array_of

if TYPE_CHECKING:
    from torch import Tensor

SPREAD = 10  # ranges of scores that a tune set is split off alike
KNOWN: dict[str, Callable[..., float]] = {"pearson": metrics.pearson, "spearman": metrics.spearman}


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of the training scores, low to high. The logits run from -1 to 1 over it, and may leave it."""

    low: float
    high: float

    def to_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values - self.low) / (self.high - self.low) * 2 - 1

    def from_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return (values + 1) / 2 * (self.high - self.low) + self.low


class Score(Task):
    """A number for a text or a pair: one logit, from -1 to 1 over the range of the training scores."""

    name: ClassVar[str] = "score"
    served: ClassVar[bool] = True
    outputs = 1
    metrics: tuple[str, ...] = ("pearson", "spearman")

    def __init__(self, scale: Scale | None = None) -> None:
        self.scale = scale

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        if glue_task(data, "score"):
            self.scale = Scale(*glue.SCALE)
        elif "scale" in facts:
            self.scale = Scale(*facts["scale"])
        if data.metric:
            raise UserError(f"data.metric: is for labels; of scores, {self.metrics[-1]} decides")
        check_sources(data, ())

    def facts(self) -> dict[str, Any]:
        return {"scale": [self.scale.low, self.scale.high]} if self.scale else {}

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets of a recipe; a tune set is split off evenly over the range of the scores."""
        self.settle(data, self.facts())
        train = read_examples(data.train, data)
        values = score_numbers(train.examples)
        if self.scale is None:
            if np.ptp(values) == 0:
                raise UserError(f"{train.examples[0].origin}: every score is {values[0]:g}; there is nothing to learn")
            self.scale = Scale(float(values.min()), float(values.max()))
        ranks = values.argsort(kind="stable").argsort(kind="stable")
        sets = example_sets(data, train, ranks * SPREAD // len(values), seed)
        return {split: self._texts(examples, tokenizer, data) for split, examples in sets.items()}

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        check_fits(source, data, (), labelled=labelled)
        return self._texts(read_examples(source, data, labelled), tokenizer, data)

    def _texts(self, read: Examples, tokenizer: Tokenizer, data: DataRecipe) -> Dataset:
        gold = score_numbers(read.examples)
        targets = self._scale.to_unit(gold).astype(np.float32)
        texts, apart = [example.texts for example in read.examples], data.pairs == "apart"
        windows = make_text_windows(tokenizer, texts, targets, data.max_length, apart)
        return Dataset(read.source, [], read.examples, windows, gold, read.notes)

    @property
    def _scale(self) -> Scale:
        if self.scale is None:
            raise UserError("data.train: the range of its scores is not known yet; train on it first")
        return self.scale

    def loss(self, logits: "Tensor", batch: Batch) -> "Tensor":
        """Mean squared error."""
        from torch.nn.functional import mse_loss

        return mse_loss(logits[:, 0].float(), batch.targets)

    def log_probabilities(self, logits: "Tensor", mask: "Tensor") -> "Tensor":
        """A score has no probability: the logits themselves, (B, 1)."""
        return logits.float()

    def joined_by(self, how: How) -> How:
        """Scores are no probabilities: their ensemble is the mean, which is what `product` does to logarithms."""
        return "product"

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> "ScoreCollector":
        return ScoreCollector([record.id for record in dataset.records], self._scale)

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> "ScorePredictions":
        return ScorePredictions.from_json(rows, where)

    def scores(self, predictions: "ScorePredictions", dataset: Dataset, threshold: float) -> dict[str, Any]:
        """The metrics in percent, `total`, and a `note` where a correlation has no meaning."""
        points = self.points(predictions, dataset, threshold)
        scores: dict[str, Any] = {name: metric(points.values) for name, metric in points.metrics.items()}
        sides = zip(("gold", "predicted"), points.values.T)
        constant = [side_ for side_, values in sides if metrics.is_constant(values)]
        if constant:
            all_same = f"all {' and all '.join(constant)} scores are the same"
            scores["note"] = f"{all_same}: a correlation has no meaning and is 0"
        return scores | {"total": len(points.values)}

    def points(self, predictions: "ScorePredictions", dataset: Dataset, threshold: float) -> Points:
        """values: (Q, 2) gold and predicted score."""
        values = np.stack([gold_of(dataset), predictions.numbers], axis=1)
        return Points(values, {name: _of_columns(KNOWN[name]) for name in self.metrics})

    def analyse(self, dataset: Dataset, members: Mapping[str, Judged]) -> dict[str, Any]:
        gold, singles = gold_of(dataset), single(members)
        numbers = {name: predictions.numbers for name, predictions in singles.items()}
        return {
            "members": {name: describe(gold, judged.predictions) for name, judged in members.items()},
            "agreement": agreement(numbers, lambda numbers, others: metrics.pearson(numbers, others) / 100),
            "errors": mistakes(dataset.records, gold, singles),
        }


def _of_columns(metric: Callable[..., float]) -> Callable[[NDArray[np.float64]], float]:
    return lambda rows: metric(rows[:, 0], rows[:, 1])


@dataclass(frozen=True, slots=True)
class ScorePredictions:
    """ids: Q examples. numbers: (Q,) the score of each."""

    ids: list[str]
    numbers: NDArray[np.float64]

    def values(self) -> list[float]:
        """The score of each example."""
        return self.numbers.tolist()

    def to_json(self) -> dict[str, Any]:
        """{id: {score}}"""
        return {key: {"score": round(value, 6)} for key, value in zip(self.ids, self.values())}

    @classmethod
    def from_json(cls, rows: Mapping[str, Any], where: str = "predictions") -> "ScorePredictions":
        """Reads the result of `to_json`."""
        with reading_predictions(where):
            return cls(list(rows), np.array([float(row["score"]) for row in rows.values()]))


class ScoreCollector:
    """Takes logits (B, 1) of windows in any order; every example is one window."""

    def __init__(self, ids: Sequence[str], scale: Scale) -> None:
        self.ids, self.scale = list(ids), scale
        self.numbers = np.zeros(len(ids))

    def add(self, index: NDArray[np.int64], logits: Any) -> None:
        self.numbers[index] = self.scale.from_unit(array_of(logits)[:, 0].astype(np.float64))

    def finish(self) -> ScorePredictions:
        return ScorePredictions(self.ids, self.numbers)


def describe(gold: NDArray, predictions: ScorePredictions) -> dict[str, Any]:
    """Of one member: both correlations (percent), the mean absolute error and the mean error."""
    off = predictions.numbers - gold
    correlations = {name: metric(gold, predictions.numbers) for name, metric in KNOWN.items()}
    return correlations | {"absolute_error": float(np.abs(off).mean()), "bias": float(off.mean())}


def mistakes(records: Sequence[Any], gold: NDArray, members: Mapping[str, ScorePredictions]) -> list[dict[str, Any]]:
    """Examples on which all members are farthest off, and those on which they differ most."""
    off = np.array([predictions.numbers - gold for predictions in members.values()])  # (M, Q)
    sorts: list[Sort] = [
        ("all members score it far too high", (off > 0).all(axis=0), off.min(axis=0)),
        ("all members score it far too low", (off < 0).all(axis=0), -off.max(axis=0)),
    ]
    if len(members) > 1:
        apart = np.ptp(off, axis=0)
        sorts.append(("members differ most", apart > 0, apart))

    def entry(row: int) -> dict[str, Any]:
        answers = {name: f"{predictions.numbers[row]:.2f}" for name, predictions in members.items()}
        return error_entry(records[row], [f"{gold[row]:g}"], answers)

    return error_rows(sorts, list(members), off == 0, entry)
