"""`spans`: extractive question answering with unanswerable questions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from bertvision.data.batches import Batch
from bertvision.data.sources import load_articles
from bertvision.data.splits import article_sets, training_part
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from bertvision.evaluate.bootstrap import Mean, Points
from bertvision.evaluate.calibration import choose_threshold
from bertvision.evaluate.squad import answerable, question_scores, score
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import Dataset, Said, Task, agreement, same_share
from bertvision.tasks.decode import SpanCollector, SpanPredictions
from bertvision.tasks.span_analysis import coded, describe, judge, mistakes

if TYPE_CHECKING:
    from torch import Tensor

    from bertvision.heads import Reduce

POINTS = {
    "exact": Mean(0),
    "f1": Mean(1),
    "HasAns_f1": Mean(1, among=3),
    "NoAns_f1": Mean(1, among=4),
    "HasAns_spans_f1": Mean(2, among=3),
}


class Spans(Task):
    """Extractive question answering with unanswerable questions: two logits per token, start and end."""

    name: ClassVar[str] = "spans"
    served: ClassVar[bool] = True
    reduce: ClassVar["Reduce"] = "none"
    positions_compete: ClassVar[bool] = True
    outputs = 2
    metrics: tuple[str, ...] = ("exact", "f1")

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets of a recipe; a tune set is split off by article."""
        return {
            split: self.from_articles(source, articles, tokenizer, data, seed if split == "train" else None)
            for split, (source, articles) in article_sets(data, seed).items()
        }

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        return self.from_articles(source, load_articles(source), tokenizer, data)

    def from_articles(
        self, source: str, articles: list[dict], tokenizer: Tokenizer, data: DataRecipe, part_seed: int | None = None
    ) -> Dataset:
        """Articles as a data set; with a seed, only the recipe's share of its questions."""
        found = records(articles)
        if part_seed is not None:
            found = [found[i] for i in training_part(len(found), data, part_seed)]
        return Dataset(source, articles, found, make_windows(tokenizer, found, data.max_length, data.overlap))

    def loss(self, logits: "Tensor", batch: Batch) -> "Tensor":
        """Mean of the cross-entropies of start and end over the real tokens."""
        from torch.nn.functional import cross_entropy

        masked = logits.float().masked_fill(~batch.mask[..., None], float("-inf"))  # (B, S, 2)
        return cross_entropy(masked, batch.targets)  # classes are the tokens: (B, S, 2) x (B, 2)

    def log_probabilities(self, logits: "Tensor", mask: "Tensor") -> "Tensor":
        """Of start and end, each over the real tokens: (B, S, 2)."""
        return logits.float().masked_fill(~mask[..., None], float("-inf")).log_softmax(dim=1)

    def decodes_probabilities(self, decoding: str) -> bool:
        return decoding == "independent"

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> SpanCollector:
        return SpanCollector(
            dataset.records,
            dataset.windows,
            nbest=options.nbest,
            answer_tokens=options.answer_tokens,
            rule=options.decoding,
        )

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> SpanPredictions:
        return SpanPredictions.from_json(dict(rows), where)

    def choose(self, predictions: SpanPredictions, dataset: Dataset) -> float:
        """The no-answer threshold with the best F1 on this set."""
        f1 = question_scores(dataset.articles, predictions.best())
        has = answerable(dataset.articles)
        doubts = predictions.no_answer_scores()
        keys = list(f1)
        answered, emptied = [f1[key][1] for key in keys], [float(not has[key]) for key in keys]
        return choose_threshold(answered, emptied, [doubts[key] for key in keys])[0]

    def thresholds(self, tuned: float) -> list[tuple[str, float]]:
        return [("zero", 0.0), ("tune", tuned)]

    def scores(self, predictions: SpanPredictions, dataset: Dataset, threshold: float) -> dict[str, Any]:
        """Official scores at a threshold, and F1 of the answerable questions with "no answer" switched off."""
        found = score(dataset.articles, predictions.answers(threshold))
        spans = score(dataset.articles, predictions.best())
        return found | ({"HasAns_spans_f1": spans["HasAns_f1"]} if "HasAns_f1" in spans else {})

    def points(self, predictions: SpanPredictions, dataset: Dataset, threshold: float) -> Points:
        """values: (Q, 5) exact, F1, F1 with "no answer" switched off, has an answer, has none."""
        found = question_scores(dataset.articles, predictions.answers(threshold))
        spans = question_scores(dataset.articles, predictions.best())
        has = answerable(dataset.articles)
        rows = [(*pair, spans[key][1], has[key], not has[key]) for key, pair in found.items()]
        return Points(np.array(rows, dtype=np.float64), POINTS)

    def analyse(self, dataset: Dataset, members: Mapping[str, Said]) -> dict[str, Any]:
        records = dataset.records
        verdicts = {name: judge(records, one.predictions, one.threshold) for name, one in members.items()}
        singles = {name: verdict for name, verdict in verdicts.items() if members[name].single}
        tokens = np.zeros(len(records), np.int64)
        np.maximum.at(tokens, dataset.windows.example, dataset.windows.lengths)
        return {
            "members": {
                name: describe(records, tokens, verdict, {other: singles[other] for other in singles if other != name})
                for name, verdict in verdicts.items()
            },
            "agreement": agreement(coded({name: one.answers for name, one in singles.items()}), same_share),
            "errors": mistakes(records, singles),
        }

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """Always "no answer"."""
        found = score(dataset.articles, dict.fromkeys((record.id for record in dataset.records), ""))
        return {"says": "no answer", **{metric: found[metric] for metric in self.metrics}}
