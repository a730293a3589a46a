"""The interface of a task, the data sets it hands out, and what the analyses of all tasks share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.batches import Batch
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points
from bertvision.evaluate.ensemble import How
from bertvision.recipe import DataRecipe, EvaluateRecipe

if TYPE_CHECKING:  # an exported reader decodes without torch
    from torch import Tensor

    from bertvision.heads import Reduce


@dataclass(frozen=True, slots=True)
class Dataset:
    """One set of questions or texts, ready for the encoder. source: where it came from, for people.

    records: Q questions, texts or sentences, each with an `id`. articles: what questions were read from, else none.
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
class Judged:
    """Predictions of a member, the threshold they are judged at; single: whether it is one head and no ensemble."""

    predictions: Any
    threshold: float
    single: bool


class Collector(Protocol):
    """Takes logits batch by batch and keeps only what predictions need."""

    def add(self, index: NDArray[np.int64], logits: "Tensor") -> None: ...

    def finish(self) -> Any: ...


class Task(Protocol):
    """All that the rest of the program knows about a task; tasks inherit from it.

    outputs: logits per position. metrics: percentages, the last one decides. Both are right once the task is settled or
    has loaded its data.
    reduce: how the rows of a head become one prediction per window, unless the head's entry says otherwise: "none" for
    a prediction per token, "first" for [CLS] alone. positions_compete: whether probabilities are over the
    positions rather than over the outputs, so that a bias would change nothing. served: whether a reader can be made.
    """

    name: ClassVar[str]
    reduce: ClassVar["Reduce"] = "first"
    positions_compete: ClassVar[bool] = False
    served: ClassVar[bool] = False
    metrics: tuple[str, ...]

    @property
    def outputs(self) -> int: ...

    @property
    def per_token(self) -> bool:
        """Whether there is a prediction per token."""
        return self.reduce == "none"

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        """Takes from a recipe, and from the facts of an earlier `load`, what is known without reading the data."""
        return

    def facts(self) -> dict[str, Any]:
        """Facts of the training data that are needed later without them, as JSON."""
        return {}

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets `train`, `tune`, `test` and, if there is one, `also` of a recipe. Without a tune set, one is split
        off train."""

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        """A set to predict, of the kind that was learnt. labelled: whether it must come with what can be scored."""

    def loss(self, logits: "Tensor", batch: Batch) -> "Tensor": ...

    def log_probabilities(self, logits: "Tensor", mask: "Tensor") -> "Tensor":
        """Log-probabilities in the shape of the logits; mask: (B, S), the real tokens."""
        return logits.float().log_softmax(dim=-1)

    def decodes_probabilities(self, decoding: str) -> bool:
        """Whether collectors take a single member's log-probabilities, as they do an ensemble's, and not its logits."""
        return False

    def joined_by(self, how: How) -> How:
        """How log-probabilities are combined where `how` is asked for."""
        return how

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> Collector: ...

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> Any:
        """Predictions from their `to_json`; `where` opens the error if they are something else."""

    def choose(self, predictions: Any, dataset: Dataset) -> float:
        """The threshold that is best on this set."""
        return 0.0

    def thresholds(self, tuned: float) -> list[tuple[str, float]]:
        """The thresholds a member is reported at, with where they come from; the last is the main one."""
        return [("", 0.0)]

    def scores(self, predictions: Any, dataset: Dataset, threshold: float) -> dict[str, Any]:
        """All scores at a threshold."""

    def points(self, predictions: Any, dataset: Dataset, threshold: float) -> Points:
        """Per-example numbers from which the metrics can be computed again for a resample."""

    def analyse(self, dataset: Dataset, members: Mapping[str, Judged]) -> dict[str, Any]:
        """Right and wrong predictions: {"members", "agreement", "errors"}, the latter two of single heads."""

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """The score without any learning: {"says": the best constant answer, metric: score}; {} where there is none."""
        return {}


def single(members: Mapping[str, Judged]) -> dict[str, Any]:
    """{member: predictions} of single heads."""
    return {name: judged.predictions for name, judged in members.items() if judged.single}


def gold_of(dataset: Dataset) -> NDArray:
    """(Q,) the gold of every example; UserError where the set comes without."""
    gold = dataset.gold
    if gold is None or not len(gold) or bool(np.any(gold == -1 if gold.dtype.kind == "i" else np.isnan(gold))):
        raise UserError(f"{dataset.source}: comes without labels and cannot be scored; `--predictions` predicts it")
    return gold


@contextmanager
def reading_predictions(where: str) -> Iterator[None]:
    """Within, whatever a file of predictions does not have is a UserError. where: names the file."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise UserError(f"{where}: not a predictions file of this program ({error!r})") from None


def agreement(members: Mapping[str, Any], alike: Callable[[Any, Any], float]) -> dict[str, Any]:
    """{"members": names, "matrix": how much two members agree}"""
    return {"members": list(members), "matrix": [[alike(a, b) for b in members.values()] for a in members.values()]}


def same_share(labels: NDArray, other_labels: NDArray) -> float:
    """The share of examples on which two members say the same."""
    return float(np.mean(labels == other_labels))


# A sort of mistake: why, which examples (Q,), how telling each of them is (Q,). `{right}` and `{wrong}` in the reason
# stand for a member that is.
Sort = tuple[str, Any, Any]


def disputes(right: NDArray[np.bool_], sure: NDArray[np.float64]) -> list[Sort]:
    """The sorts of mistake that not all members make. right: (M, Q). sure: (Q,) how sure members are."""
    members, count = len(right), right.sum(axis=0)
    sorts: list[Sort] = [("only {right} is right", count == 1, sure)] if members > 1 else []
    if members > 2:
        split = (count > 0) & (count < members)
        sorts.append(("only {wrong} is wrong", count == members - 1, sure))
        sorts.append(("members disagree: about half of them are right", split, -np.abs(count - members / 2)))
    return sorts


def take_turns(sorts: Sequence[Sort], most: int = 50) -> Iterable[tuple[int, str]]:
    """(example, why), one of each sort in turn, the most telling first; an example is taken once."""
    queues = []
    for why, members, telling in sorts:
        rows = np.flatnonzero(members)
        queues.append((why, iter(rows[np.argsort(-telling[rows], kind="stable")].tolist())))
    taken: dict[int, str] = {}
    while queues and len(taken) < most:
        left = []
        for why, rows in queues:
            row = next((row for row in rows if row not in taken), None)
            if row is not None and len(taken) < most:
                taken[row] = why
                left.append((why, rows))
        queues = left
    return list(taken.items())


def error_rows(
    sorts: Sequence[Sort], names: Sequence[str], right: NDArray[np.bool_], entry: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The examples of `take_turns`, each `entry(row)` with the reason `why`. right: (M, Q), by the members `names`."""
    rows = []
    for row, why in take_turns(sorts):
        examples = {"right": names[int(right[:, row].argmax())], "wrong": names[int(right[:, row].argmin())]}
        rows.append(entry(row) | {"why": why.format(**examples)})
    return rows


def error_entry(record: Any, gold: list[str], answers: dict[str, str]) -> dict[str, Any]:
    """An entry of `errors`; of a text, a pair or a sentence, the first stands in the place of the question."""
    words = (" ".join(record.words),) if hasattr(record, "words") else None
    texts = words or getattr(record, "texts", None) or (record.question, record.context)
    question, context = (*texts, "")[:2]
    return {"id": record.id, "question": question, "context": context, "gold": gold, "answers": answers}
