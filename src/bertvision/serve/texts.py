"""Texts and pairs -> labels with probabilities, or scores: the tasks with one answer per example."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bertvision.data.windows import Windows, make_text_windows, make_windows
from bertvision.serve.config import TaskConfig
from bertvision.serve.spans import SURROGATES, as_records
from bertvision.tasks.labels import LabelCollector, LabelPredictions
from bertvision.tasks.scores import Scale, ScoreCollector, ScorePredictions


def cut_texts(tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]], config: TaskConfig) -> Windows:
    """Windows as in the training of a task: one for each text or pair, or several where a pair's second is long."""
    length = config.windows.max_length
    if config.windows.too_long == "windows":
        return make_windows(tokenizer, as_records([(one[0], one[-1]) for one in texts]), length, config.windows.overlap)
    clean = [tuple(SURROGATES.sub("\ufffd", text) for text in one) for one in texts]
    return make_text_windows(tokenizer, clean, np.zeros(len(texts), np.int64), length)


def text_collector(examples: int, windows: Windows, config: TaskConfig) -> LabelCollector | ScoreCollector:
    """What takes the logits of a task with labels or scores."""
    if config.task == "labels":
        return LabelCollector([str(row) for row in range(examples)], windows, config.labels)
    return ScoreCollector([str(row) for row in range(len(windows))], Scale(*config.scale))


def results(predictions: LabelPredictions | ScorePredictions, windows: Windows) -> list[Any]:
    """Of each example {"label", "score", "scores": {label: probability}}, or its number: the mean over its windows."""
    if isinstance(predictions, ScorePredictions):
        return (np.bincount(windows.example, predictions.numbers) / np.bincount(windows.example)).tolist()
    found = []
    for label, shares in zip(predictions.values(), predictions.probabilities.tolist()):
        scores = dict(zip(predictions.labels, shares))
        found.append({"label": label, "score": scores[label], "scores": scores})
    return found
