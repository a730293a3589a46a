"""`labels`: classes of texts or pairs; of questions on paragraphs, whether they can be answered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.batches import Batch
from bertvision.data.sources import Examples, is_text, load_articles, read_examples
from bertvision.data.splits import article_sets
from bertvision.data.tables import found_labels, label_numbers
from bertvision.data.texts import check_fits, check_sources, example_sets, glue_task
from bertvision.data.windows import Windows, make_text_windows
from bertvision.errors import UserError
from bertvision.evaluate import metrics
from bertvision.evaluate.bootstrap import Mean, Points
from bertvision.evaluate.calibration import auroc, calibration_error, reliability
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import (
    Dataset,
    Judged,
    Sort,
    Task,
    agreement,
    disputes,
    error_entry,
    error_rows,
    gold_of,
    reading_predictions,
    same_share,
    single,
)
from bertvision.tasks.decode import array_of
from bertvision.tasks.spans import Spans

if TYPE_CHECKING:
    from torch import Tensor

ANSWERABILITY = ("answerable", "unanswerable")


class Labels(Task):
    """Classes of texts or pairs; of questions on paragraphs, whether they can be answered: one logit per label."""

    name: ClassVar[str] = "labels"
    served: ClassVar[bool] = True

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels: tuple[str, ...] = tuple(labels)
        self.metrics: tuple[str, ...] = ("matthews", "f1", "accuracy")

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        known_labels = facts.get("labels", ())
        if not is_text(data.train):
            self.labels, self.metrics = ANSWERABILITY, ("accuracy", "f1")
        elif task := glue_task(data, "labels"):
            self.labels, self.metrics = task.labels, task.metrics
        else:
            self.labels = tuple(data.labels or known_labels)
            last = data.metric or self.metrics[-1]
            self.metrics = (*(metric for metric in self.metrics if metric != last), last)
        if data.metric and self.metrics[-1] != data.metric:
            raise UserError(f"data.metric: {data.train} has its own, {self.metrics[-1]} decides; leave it out")
        check_sources(data, self.labels or None)

    def facts(self) -> dict[str, Any]:
        return {"labels": list(self.labels)}

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets of a recipe; a tune set is split off with the same share of every label, questions by article."""
        self.settle(data, self.facts())
        if not is_text(data.train):
            return {
                split: self._questions(*examples, tokenizer, data, seed if split == "train" else None)
                for split, examples in article_sets(data, seed).items()
            }
        train = read_examples(data.train, data)
        self.labels = self.labels or found_labels(train.examples)
        sets = example_sets(data, train, label_numbers(train.examples, self.labels), seed)
        tune = sets["tune"]
        labels = {example.target for example in tune.examples}
        if len(labels) == 1:
            note = f"{tune.source}: all are {labels.pop()!r}, so little can be chosen on them; take more for data.tune"
            sets["tune"] = tune._replace(notes=(*tune.notes, note))
        return {split: self._texts(examples, tokenizer, data) for split, examples in sets.items()}

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        check_fits(source, data, self.labels, labelled=labelled)
        if is_text(source):
            return self._texts(read_examples(source, data, labelled), tokenizer, data)
        return self._questions(source, load_articles(source), tokenizer, data)

    def _texts(self, read: Examples, tokenizer: Tokenizer, data: DataRecipe) -> Dataset:
        gold = label_numbers(read.examples, self.labels)
        texts, apart = [example.texts for example in read.examples], data.pairs == "apart"
        windows = make_text_windows(tokenizer, texts, gold, data.max_length, apart)
        return Dataset(read.source, [], read.examples, windows, gold, read.notes)

    def _questions(
        self, source: str, articles: list[dict], tokenizer: Tokenizer, data: DataRecipe, part_seed: int | None = None
    ) -> Dataset:
        """Questions with the label of each window: does it hold the answer? Where it does not, its target is [CLS]."""
        questions = Spans().from_articles(source, articles, tokenizer, data, part_seed)
        windows = questions.windows.with_targets((questions.windows.targets[:, 0] == 0).astype(np.int64))
        gold = np.array([not record.has_answer for record in questions.records], dtype=np.int64)
        return Dataset(source, articles, questions.records, windows, gold)

    def loss(self, logits: "Tensor", batch: Batch) -> "Tensor":
        """Cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits.float(), batch.targets)

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> "LabelCollector":
        return LabelCollector([record.id for record in dataset.records], dataset.windows, self.labels)

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> "LabelPredictions":
        return LabelPredictions.from_json(rows, where)

    def scores(self, predictions: "LabelPredictions", dataset: Dataset, threshold: float) -> dict[str, Any]:
        """The metrics in percent, `total`, and a `note` where a score says less than it seems."""
        gold, points = gold_of(dataset), self.points(predictions, dataset, threshold)
        scores: dict[str, Any] = {name: metric(points.values) for name, metric in points.metrics.items()}
        scores["total"] = len(gold)
        predicted, present = np.unique(predictions.chosen), np.unique(gold)
        if len(predicted) == 1:
            right = np.mean(gold == predicted[0])
            scores["note"] = f"always says {predictions.labels[predicted[0]]!r}, which is right for {right:.1%}"
        elif len(present) == 1:
            label = predictions.labels[present[0]]
            scores["note"] = f"every example is {label!r}: a correlation has no meaning and is 0"
        return scores

    def points(self, predictions: "LabelPredictions", dataset: Dataset, threshold: float) -> Points:
        """values: (Q, 3) gold label, predicted label, whether they are the same."""
        gold, chosen, classes = gold_of(dataset), predictions.chosen, len(predictions.labels)
        functions: dict[str, Callable[[NDArray[np.float64]], float]] = {
            "accuracy": Mean(2),
            "f1": lambda rows: metrics.f1(rows[:, 0], rows[:, 1], classes),
            "matthews": lambda rows: metrics.matthews(rows[:, 0], rows[:, 1], classes),
        }
        values = np.stack([gold, chosen, gold == chosen], axis=1).astype(np.float64)
        return Points(values, {name: functions[name] for name in self.metrics})

    def analyse(self, dataset: Dataset, members: Mapping[str, Judged]) -> dict[str, Any]:
        gold, singles = gold_of(dataset), single(members)
        return {
            "members": {name: describe(gold, judged.predictions) for name, judged in members.items()},
            "agreement": agreement({name: predictions.chosen for name, predictions in singles.items()}, same_share),
            "errors": mistakes(dataset.records, gold, singles),
        }

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """Always the label that most examples of the set have."""
        gold = dataset.gold
        if gold is None or not len(gold) or (gold < 0).any():
            return {}
        most = int(np.bincount(gold, minlength=len(self.labels)).argmax())
        ids = [record.id for record in dataset.records]
        constant = LabelPredictions(ids, self.labels, np.tile(np.eye(len(self.labels))[most], (len(ids), 1)))
        scores = self.scores(constant, dataset, 0.0)
        return {"says": self.labels[most], **{metric: scores[metric] for metric in self.metrics}}


@dataclass(frozen=True, slots=True)
class LabelPredictions:
    """ids: Q examples. labels: C names. probabilities: (Q, C)."""

    ids: list[str]
    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]

    @property
    def chosen(self) -> NDArray[np.int64]:
        """(Q,) the number of the likeliest label."""
        return self.probabilities.argmax(axis=1)

    def values(self) -> list[str]:
        """The likeliest label of each example."""
        return [self.labels[number] for number in self.chosen.tolist()]

    def to_json(self) -> dict[str, Any]:
        """{id: {label, probabilities: {label: probability}}}"""
        shares = (dict(zip(self.labels, row)) for row in np.round(self.probabilities, 6).tolist())
        return {
            key: {"label": label, "probabilities": probabilities}
            for key, label, probabilities in zip(self.ids, self.values(), shares)
        }

    @classmethod
    def from_json(cls, rows: Mapping[str, Any], where: str = "predictions") -> "LabelPredictions":
        """Reads the result of `to_json`."""
        with reading_predictions(where):
            labels = tuple(next(iter(rows.values()))["probabilities"]) if rows else ()
            probabilities = [[float(row["probabilities"][label]) for label in labels] for row in rows.values()]
        return cls(list(rows), labels, np.array(probabilities).reshape(len(rows), len(labels)))


class LabelCollector:
    """Takes logits (B, C) of windows in any order.

    Of several windows of an example, the one with the highest probability of the first label counts: a question is
    answerable if any of its windows holds the answer.
    """

    def __init__(self, ids: Sequence[str], windows: Windows, labels: tuple[str, ...]) -> None:
        self.ids, self.windows, self.labels = list(ids), windows, labels
        self.probabilities = np.zeros((len(windows), len(labels)))

    def add(self, index: NDArray[np.int64], logits: Any) -> None:
        scores = array_of(logits).astype(np.float64)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        self.probabilities[index] = weights / weights.sum(axis=1, keepdims=True)

    def finish(self) -> LabelPredictions:
        order = np.lexsort((self.probabilities[:, 0], self.windows.example))
        last = np.searchsorted(self.windows.example[order], np.arange(len(self.ids)), side="right") - 1
        return LabelPredictions(self.ids, self.labels, self.probabilities[order[last]])


def describe(gold: NDArray, predictions: LabelPredictions) -> dict[str, Any]:
    """Of one member: accuracy (percent), confusion (rows gold, columns predicted), and calibration.

    gold: (Q,) numbers of labels. Of two labels also the AUROC of the second.
    """
    chosen: NDArray = predictions.chosen
    curve = reliability(predictions.probabilities.max(axis=1), chosen == gold)
    counts = metrics.confusion(gold, chosen, len(predictions.labels)).astype(int)
    description: dict[str, Any] = {
        "accuracy": metrics.accuracy(gold, chosen),
        "confusion": {"labels": list(predictions.labels), "matrix": counts.tolist()},
        "reliability": curve,
        "calibration_error": calibration_error(curve),
    }
    if len(predictions.labels) == 2:
        description["auroc"] = auroc(predictions.probabilities[:, 1], gold == 1)
    return description


def mistakes(records: Sequence[Any], gold: NDArray, members: Mapping[str, LabelPredictions]) -> list[dict[str, Any]]:
    """Examples that some member gets wrong, taken in turn from each sort of mistake."""
    labels = next(iter(members.values())).labels
    right = np.array([predictions.chosen == gold for predictions in members.values()])  # (M, Q)
    sure = np.array([predictions.probabilities.max(axis=1) for predictions in members.values()]).min(axis=0)
    wrong = ~right.any(axis=0)
    sorts: list[Sort] = [
        ("all members are wrong, and sure", wrong, sure),
        ("all members are wrong, and unsure", wrong, -sure),
    ]
    predicted_labels = {name: predictions.values() for name, predictions in members.items()}

    def entry(row: int) -> dict[str, Any]:
        answers = {name: values[row] for name, values in predicted_labels.items()}
        return error_entry(records[row], [labels[gold[row]]], answers)

    return error_rows(sorts + disputes(right, sure), list(members), right, entry)
