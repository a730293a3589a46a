"""`labels`: classes of texts or pairs; of questions on paragraphs, whether they can be answered."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data.batches import Batch
from bertvision.data.sources import is_text, load_articles
from bertvision.data.splits import (
    Examples,
    article_sets,
    check_fits,
    check_sources,
    example_sets,
    glue_task,
    read_examples,
)
from bertvision.data.tables import found_labels, label_numbers
from bertvision.data.windows import make_text_windows
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import How, combine
from bertvision.evaluate.labels import LabelCollector, LabelPredictions, label_points, label_scores
from bertvision.evaluate.points import Points
from bertvision.evaluate.text_analysis import describe_labels, label_agreement, label_mistakes
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import Dataset, OneWindow, Said, gold_of, single
from bertvision.tasks.spans import Spans

ANSWERABILITY = ("answerable", "unanswerable")


class Labels(OneWindow):
    """Classes of texts or pairs; of questions on paragraphs, whether they can be answered: one logit per label."""

    name: ClassVar[str] = "labels"

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels: tuple[str, ...] = tuple(labels)
        self.metrics: tuple[str, ...] = ("matthews", "f1", "accuracy")

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        known = facts.get("labels", ())
        if not is_text(data.train):
            self.labels, self.metrics = ANSWERABILITY, ("accuracy", "f1")
        elif task := glue_task(data, "labels"):
            self.labels, self.metrics = task.labels, task.metrics
        else:
            self.labels = tuple(data.labels or known)
            last = data.metric or self.metrics[-1]
            self.metrics = (*(one for one in self.metrics if one != last), last)
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
                split: self._questions(*each, tokenizer, data, seed if split == "train" else None)
                for split, each in article_sets(data, seed).items()
            }
        train = read_examples(data.train, data)
        self.labels = self.labels or found_labels(train.examples)
        sets = example_sets(data, train, label_numbers(train.examples, self.labels), seed)
        sets["tune"] = self._looked_at(sets["tune"])
        return {split: self._texts(each, tokenizer, data) for split, each in sets.items()}

    def _looked_at(self, tune: Examples) -> Examples:
        """The tune set, with a note if nothing can be told apart on it."""
        found = {example.target for example in tune.examples}
        if len(found) > 1:
            return tune
        note = f"{tune.source}: all are {found.pop()!r}, so that little can be chosen on them; take more for data.tune"
        return tune._replace(notes=(*tune.notes, note))

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        check_fits(source, data, self.labels, labelled=labelled)
        if is_text(source):
            return self._texts(read_examples(source, data, labelled), tokenizer, data)
        return self._questions(source, load_articles(source), tokenizer, data)

    def _texts(self, found: Examples, tokenizer: Tokenizer, data: DataRecipe) -> Dataset:
        gold = label_numbers(found.examples, self.labels)
        windows = make_text_windows(tokenizer, [each.texts for each in found.examples], gold, data.max_length)
        return Dataset(found.source, [], found.examples, windows, gold, found.notes)

    def _questions(
        self, source: str, articles: list[dict], tokenizer: Tokenizer, data: DataRecipe, part_seed: int | None = None
    ) -> Dataset:
        """Questions with the label of each window: does it hold the answer? Where it does not, its target is [CLS]."""
        found = Spans().from_articles(source, articles, tokenizer, data, part_seed)
        windows = found.windows.with_targets((found.windows.targets[:, 0] == 0).astype(np.int64))
        gold = np.array([not record.has_answer for record in found.records], dtype=np.int64)
        return Dataset(source, articles, found.records, windows, gold)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy."""
        return torch.nn.functional.cross_entropy(logits.float(), batch.targets)

    def log_probabilities(self, logits: Tensor, mask: Tensor) -> Tensor:
        return logits.float().log_softmax(dim=1)  # (B, C)

    def blend(self, logits: Sequence[Tensor], mask: Tensor, how: How = "max") -> Tensor:
        return combine(((self.log_probabilities(each, mask), 1.0) for each in logits), how)

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> LabelCollector:
        return LabelCollector([record.id for record in dataset.records], dataset.windows, self.labels)

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> LabelPredictions:
        return LabelPredictions.from_json(rows, where)

    def scores(self, predictions: LabelPredictions, dataset: Dataset, threshold: float) -> dict[str, Any]:
        return label_scores(gold_of(dataset), predictions, self.metrics)

    def points(self, predictions: LabelPredictions, dataset: Dataset, threshold: float) -> Points:
        return label_points(gold_of(dataset), predictions, self.metrics)

    def analyse(self, dataset: Dataset, members: Mapping[str, Said]) -> dict[str, Any]:
        gold, singles = gold_of(dataset), single(members)
        return {
            "members": {name: describe_labels(gold, one.predictions) for name, one in members.items()},
            "agreement": label_agreement(singles),
            "errors": label_mistakes(dataset.records, gold, singles),
        }

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """Always the label that most examples of the set have."""
        gold = dataset.gold
        if gold is None or not len(gold) or (gold < 0).any():
            return {}
        most = int(np.bincount(gold, minlength=len(self.labels)).argmax())
        ids = [record.id for record in dataset.records]
        says = LabelPredictions(ids, self.labels, np.tile(np.eye(len(self.labels))[most], (len(ids), 1)))
        found = label_scores(gold, says, self.metrics)
        return {"says": self.labels[most], **{metric: found[metric] for metric in self.metrics}}
