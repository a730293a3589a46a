"""Tasks: what is asked of the logits. Targets, loss, how logits reduce to predictions, thresholds and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data.batches import Batch, nested_fraction
from bertvision.data.source import load_articles
from bertvision.data.squad import Record, records, split_by_article
from bertvision.data.windows import Windows, make_windows
from bertvision.evaluate.spans import SpanCollector, SpanPredictions
from bertvision.evaluate.squad import answerable, question_scores, score
from bertvision.evaluate.threshold import choose_threshold
from bertvision.recipe import DataRecipe, EvaluateRecipe


@dataclass(frozen=True, slots=True)
class Dataset:
    """One set of questions, ready for the encoder. source says where it came from, for people."""

    source: str
    articles: list[dict]
    records: list[Record]
    windows: Windows


class Collector(Protocol):
    """Takes logits batch by batch and keeps only what predictions need."""

    def add(self, index: NDArray[np.int64], logits: Tensor) -> None: ...

    def finish(self) -> Any: ...


class Spans:
    """Extractive question answering with unanswerable questions: two logits per token, start and end."""

    name = "spans"
    outputs = 2
    metrics = ("exact", "f1")

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets `train`, `tune` and `test` of a recipe. Without a tune set, one is split off by article."""
        sources = {"train": data.train, "tune": data.tune, "test": data.test}
        articles = {split: load_articles(source) for split, source in sources.items() if source}
        if not data.tune:
            articles["train"], articles["tune"] = split_by_article(articles["train"], data.tune_share, seed)
            sources["tune"] = f"{data.train}, {100 * data.tune_share:g} % of it, by article"
        return {
            split: self.dataset(sources[split], articles[split], tokenizer, data, seed if split == "train" else None)
            for split in ("train", "tune", "test")
        }

    def dataset(
        self,
        source: str,
        articles: list[dict],
        tokenizer: Tokenizer,
        data: DataRecipe,
        fraction_seed: int | None = None,
    ) -> Dataset:
        """Articles as a data set; with a seed, only the recipe's fraction of its questions."""
        found = records(articles)
        if fraction_seed is not None and data.fraction < 1:
            found = [found[i] for i in nested_fraction(len(found), data.fraction, fraction_seed)]
        return Dataset(source, articles, found, make_windows(tokenizer, found, data.max_length, data.overlap))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean of the cross-entropies of start and end over the real tokens."""
        masked = logits.float().masked_fill(~batch.mask[..., None], float("-inf"))  # (B, S, 2)
        return torch.nn.functional.cross_entropy(masked, batch.targets)  # classes are the tokens: (B, S, 2) x (B, 2)

    def blend(self, logits: Sequence[Tensor], batch: Batch) -> Tensor:
        """Ensemble of members: element-wise maximum of their start and end probabilities, as logits (B, S, 2)."""
        padding = ~batch.mask[..., None]
        members = [each.float().masked_fill(padding, float("-inf")).log_softmax(dim=1) for each in logits]
        return torch.stack(members).amax(dim=0)

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> SpanCollector:
        return SpanCollector(
            dataset.records,
            dataset.windows,
            nbest=options.nbest,
            answer_tokens=options.answer_tokens,
            rule=options.decoding,
        )

    def choose(self, predictions: SpanPredictions, dataset: Dataset) -> float:
        """The no-answer threshold with the best F1 on this set."""
        f1 = question_scores(dataset.articles, predictions.best())
        has = answerable(dataset.articles)
        doubts = predictions.no_answer_scores()
        keys = list(f1)
        return choose_threshold([f1[k][1] for k in keys], [float(not has[k]) for k in keys], [doubts[k] for k in keys])[
            0
        ]

    def scores(self, predictions: SpanPredictions, dataset: Dataset, threshold: float) -> dict[str, float]:
        """Official scores at a threshold, and F1 of the answerable questions with "no answer" switched off."""
        found = score(dataset.articles, predictions.answers(threshold))
        spans = score(dataset.articles, predictions.best())
        return found | ({"HasAns_spans_f1": spans["HasAns_f1"]} if "HasAns_f1" in spans else {})

    def thresholds(self, tuned: float) -> list[tuple[str, float]]:
        """The thresholds a member is reported at, with where they come from."""
        return [("zero", 0.0), ("tune", tuned)]


TASKS = {"spans": Spans}
