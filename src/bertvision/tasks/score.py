"""`score`: a number for a text or a pair."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data import glue
from bertvision.data.batches import Batch
from bertvision.data.splits import Examples, check_fits, check_sources, example_sets, glue_task, read_examples
from bertvision.data.tables import score_numbers
from bertvision.data.windows import make_text_windows
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import How
from bertvision.evaluate.points import Points
from bertvision.evaluate.scores import Scale, ScoreCollector, ScorePredictions, score_points, score_scores
from bertvision.evaluate.text_analysis import describe_scores, score_agreement, score_mistakes
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import Dataset, OneWindow, Said, gold_of, single

SPREAD = 10  # ranges of scores that a tune set is split off alike


class Score(OneWindow):
    """A number for a text or a pair: one logit, from -1 to 1 over the range of the training scores."""

    name: ClassVar[str] = "score"
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
        return {split: self._texts(each, tokenizer, data) for split, each in sets.items()}

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        check_fits(source, data, (), labelled=labelled)
        return self._texts(read_examples(source, data, labelled), tokenizer, data)

    def _texts(self, found: Examples, tokenizer: Tokenizer, data: DataRecipe) -> Dataset:
        gold = score_numbers(found.examples)
        targets = self._scale.to_unit(gold).astype(np.float32)
        windows = make_text_windows(tokenizer, [each.texts for each in found.examples], targets, data.max_length)
        return Dataset(found.source, [], found.examples, windows, gold, found.notes)

    @property
    def _scale(self) -> Scale:
        if self.scale is None:
            raise UserError("data.train: the range of its scores is not known yet; train on it first")
        return self.scale

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean squared error."""
        return torch.nn.functional.mse_loss(logits[:, 0].float(), batch.targets)

    def log_probabilities(self, logits: Tensor, mask: Tensor) -> Tensor:
        """A score has no probability: the logits themselves, (B, 1)."""
        return logits.float()

    def blend(self, logits: Sequence[Tensor], mask: Tensor, how: How = "max") -> Tensor:
        """The mean of the members' scores, (B, 1): a score has no probability to take a maximum or a product of."""
        return torch.stack([each.float() for each in logits]).mean(dim=0)

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> ScoreCollector:
        return ScoreCollector([record.id for record in dataset.records], self._scale)

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> ScorePredictions:
        return ScorePredictions.from_json(rows, where)

    def scores(self, predictions: ScorePredictions, dataset: Dataset, threshold: float) -> dict[str, Any]:
        return score_scores(gold_of(dataset), predictions, self.metrics)

    def points(self, predictions: ScorePredictions, dataset: Dataset, threshold: float) -> Points:
        return score_points(gold_of(dataset), predictions, self.metrics)

    def analyse(self, dataset: Dataset, members: Mapping[str, Said]) -> dict[str, Any]:
        gold, singles = gold_of(dataset), single(members)
        return {
            "members": {name: describe_scores(gold, one.predictions) for name, one in members.items()},
            "agreement": score_agreement(singles),
            "errors": score_mistakes(dataset.records, gold, singles),
        }

    def joined_by(self, how: How) -> How:
        """Numbers are no probabilities: their ensemble is the mean, which is what `product` does to logarithms."""
        return "product"
