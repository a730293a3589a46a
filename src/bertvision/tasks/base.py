"""What the rest of the program knows about a task, and the data sets it hands out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data.batches import Batch
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import How
from bertvision.evaluate.points import Points
from bertvision.heads import Reduce
from bertvision.recipe import DataRecipe, EvaluateRecipe


@dataclass(frozen=True, slots=True)
class Dataset:
    """One set of questions or texts, ready for the encoder. source says where it came from, for people.

    records: Q of `data.squad.Record` or `data.tables.Example`. articles: what questions were read from, else none.
    gold: (Q,) numbers of labels or scores, where the task has them: -1 or NaN where an example has none.
    notes: what is worth knowing about it, a sentence each.
    """

    source: str
    articles: list[dict]
    records: Sequence[Any]
    windows: Windows
    gold: NDArray | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a member said about a set, the threshold it is judged at, and whether it is one head and no ensemble."""

    predictions: Any
    threshold: float
    single: bool


class Collector(Protocol):
    """Takes logits batch by batch and keeps only what predictions need."""

    def add(self, index: NDArray[np.int64], logits: Tensor) -> None: ...

    def finish(self) -> Any: ...


class Task(Protocol):
    """All that the rest of the program knows about a task.

    outputs: logits per position. metrics: percentages, the last one decides. outputs and metrics are right once the
    task is settled or has loaded its data.
    reduce: how the rows of a head become one prediction per window, unless the head's entry says otherwise: "none" for
    a prediction per token (per_token), "first" for [CLS] alone. positions_compete: whether probabilities are over the
    positions rather than over the outputs, so that a bias would change nothing.
    """

    name: ClassVar[str]
    per_token: ClassVar[bool]
    reduce: ClassVar[Reduce]
    positions_compete: ClassVar[bool]
    metrics: tuple[str, ...]

    @property
    def outputs(self) -> int: ...

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        """Takes from a recipe, and from the facts of an earlier `load`, what there is to know without the data."""

    def facts(self) -> dict[str, Any]:
        """What was learnt from the training data and is needed without them, as JSON."""

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets `train`, `tune`, `test` and, if there is one, `also` of a recipe. Without a tune set, one is split
        off train."""

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        """A set to predict, of the kind that was learnt. labelled: whether it must come with what can be scored."""

    def loss(self, logits: Tensor, batch: Batch) -> Tensor: ...

    def log_probabilities(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Log-probabilities in the shape of the logits; mask: (B, S), the real tokens."""

    def blend(self, logits: Sequence[Tensor], mask: Tensor, how: How = "max") -> Tensor:
        """An ensemble of members, as logits."""

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> Collector: ...

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> Any:
        """Predictions from their `to_json`; `where` opens the error if they are something else."""

    def choose(self, predictions: Any, dataset: Dataset) -> float:
        """The threshold that is best on this set."""

    def thresholds(self, tuned: float) -> list[tuple[str, float]]:
        """The thresholds a member is reported at, with where they come from; the last is the main one."""

    def scores(self, predictions: Any, dataset: Dataset, threshold: float) -> dict[str, Any]:
        """All scores at a threshold."""

    def points(self, predictions: Any, dataset: Dataset, threshold: float) -> Points:
        """Per-example numbers from which the metrics can be computed again for a resample."""

    def analyse(self, dataset: Dataset, members: Mapping[str, Said]) -> dict[str, Any]:
        """What members get right and wrong: {"members", "agreement", "errors"}, the latter two of single heads."""

    def joined_by(self, how: How) -> How:
        """How stored log-probabilities are combined where `how` is asked for."""

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """What nothing learnt would score: {"says": the best constant answer, metric: score}; {} where none makes
        sense."""


class OneWindow:
    """What labels and scores have in common: one prediction per window, no threshold."""

    per_token: ClassVar[bool] = False
    reduce: ClassVar[Reduce] = "first"
    positions_compete: ClassVar[bool] = False

    def choose(self, predictions: Any, dataset: Dataset) -> float:
        return 0.0

    def thresholds(self, tuned: float) -> list[tuple[str, float]]:
        return [("", 0.0)]

    def joined_by(self, how: How) -> How:
        return how

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        return {}


def single(members: Mapping[str, Said]) -> dict[str, Any]:
    """{member: predictions} of single heads."""
    return {name: one.predictions for name, one in members.items() if one.single}


def gold_of(dataset: Dataset) -> NDArray:
    """(Q,) the gold of every example; UserError where the set comes without."""
    gold = dataset.gold
    if gold is None or not len(gold) or bool(np.any(gold == -1 if gold.dtype.kind == "i" else np.isnan(gold))):
        raise UserError(f"{dataset.source}: comes without labels and cannot be scored; `--predictions` predicts it")
    return gold
