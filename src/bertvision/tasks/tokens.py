"""`tokens`: a label for every word, such as named entities in BIO form. The first token of a word carries its label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.batches import Batch
from bertvision.data.conll import SUFFIXES, Sentence, is_conll, load_conll
from bertvision.data.sources import parts
from bertvision.data.splits import sources_of, split_off, training_part
from bertvision.data.windows import Frame, Windows
from bertvision.errors import UserError, no_panic
from bertvision.evaluate import metrics
from bertvision.evaluate.bootstrap import Points
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks.base import (
    Dataset,
    Judged,
    Task,
    agreement,
    disputes,
    error_entry,
    error_rows,
    reading_predictions,
    same_share,
    single,
)
from bertvision.tasks.decode import array_of

if TYPE_CHECKING:  # an exported reader labels words without torch
    from torch import Tensor

    from bertvision.heads import Reduce

OUTSIDE = "O"
NONE = -100  # the target of a token that carries no label
Entity = tuple[str, int, int]  # type, first word, last word


class Tokens(Task):
    """A label for every word of a sentence: one logit per label and token. F1 counts whole entities."""

    name: ClassVar[str] = "tokens"
    reduce: ClassVar["Reduce"] = "none"
    served: ClassVar[bool] = True
    metrics: tuple[str, ...] = ("precision", "recall", "f1")

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self.labels: tuple[str, ...] = tuple(labels)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def settle(self, data: DataRecipe, facts: Mapping[str, Any]) -> None:
        self.labels = tuple(facts.get("labels", self.labels))
        for split, source in sources_of(data).items():
            _check_source(source, f"data.{split}: ")
        for key in ("labels", "metric"):
            if getattr(data, key):
                raise UserError(f"data.{key}: is not for tokens: labels are those of data.train, F1 decides; remove it")

    def facts(self) -> dict[str, Any]:
        return {"labels": list(self.labels)}

    def load(self, data: DataRecipe, tokenizer: Tokenizer, seed: int) -> dict[str, Dataset]:
        """The sets of a recipe; a tune set is split off with the same share of sentences without any entity."""
        self.settle(data, {})
        sets = {split: (source, read_sentences(source)) for split, source in sources_of(data).items()}
        train = sets["train"][1]
        kinds = sorted({label[2:] for sentence in train for label in sentence.labels if label != OUTSIDE})
        if not kinds:
            raise UserError(f"{data.train}: every label is {OUTSIDE}; there is nothing to learn")
        self.labels = (OUTSIDE, *(f"{place}-{kind}" for kind in kinds for place in "BI"))
        if "tune" not in sets:
            strata = np.array([set(sentence.labels) == {OUTSIDE} for sentence in train], np.int64)
            stay, off = split_off(strata, data.tune_share, seed)
            sets["tune"] = f"{data.train}, {len(off):,} of its sentences", [train[row] for row in off]
            train = [train[row] for row in stay]
        sets["train"] = data.train, [train[row] for row in training_part(len(train), data, seed)]
        return {
            split: self._dataset(*sets[split], tokenizer, data)
            for split in ("train", "tune", "test", "also")
            if split in sets
        }

    def dataset(self, source: str, tokenizer: Tokenizer, data: DataRecipe, labelled: bool = True) -> Dataset:
        _check_source(source, "")
        return self._dataset(source, read_sentences(source), tokenizer, data)

    def _dataset(self, source: str, sentences: list[Sentence], tokenizer: Tokenizer, data: DataRecipe) -> Dataset:
        windows = make_windows(tokenizer, sentences, self.labels, data.max_length, data.overlap)
        unknown = sorted({label for sentence in sentences for label in sentence.labels} - set(self.labels))
        notes = [f"{source}: has {', '.join(unknown)}, which the training data have not"] if unknown else []
        return Dataset(source, [], sentences, windows, None, tuple(notes))

    def loss(self, logits: "Tensor", batch: Batch) -> "Tensor":
        """Mean cross-entropy over the words of the batch."""
        from torch.nn.functional import cross_entropy

        targets = batch.targets[:, : logits.shape[1], 0].long()  # (B, S)
        total = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=NONE, reduction="sum")
        return total / (targets != NONE).sum().clamp(min=1)

    def collector(self, dataset: Dataset, options: EvaluateRecipe) -> "TokenCollector":
        return TokenCollector(dataset.records, dataset.windows, self.labels)

    def read_predictions(self, rows: Mapping[str, Any], where: str) -> "TokenPredictions":
        return TokenPredictions.from_json(rows, where)

    def scores(self, predictions: "TokenPredictions", dataset: Dataset, threshold: float) -> dict[str, Any]:
        """Precision, recall and F1 of entities, the share of words with the right label, and counts."""
        points = self.points(predictions, dataset, threshold)
        scores: dict[str, Any] = {name: metric(points.values) for name, metric in points.metrics.items()}
        pairs = zip(dataset.records, predictions.labels)
        right = [gold == predicted for record, labels in pairs for gold, predicted in zip(record.labels, labels)]
        return scores | {"accuracy": 100.0 * float(np.mean(right)), "total": len(dataset.records), "words": len(right)}

    def points(self, predictions: "TokenPredictions", dataset: Dataset, threshold: float) -> Points:
        """values: (Q, 3) entities of each sentence that are right, predicted, and there."""
        pairs = [
            (entities(record.labels), entities(labels)) for record, labels in zip(dataset.records, predictions.labels)
        ]
        values = np.array([(len(gold & predicted), len(predicted), len(gold)) for gold, predicted in pairs], np.float64)
        return Points(values.reshape(-1, 3), {"precision": precision, "recall": recall, "f1": f1})

    def analyse(self, dataset: Dataset, members: Mapping[str, Judged]) -> dict[str, Any]:
        singles = single(members)
        words = {
            name: np.array([label for labels in predictions.labels for label in labels])
            for name, predictions in singles.items()
        }
        return {
            "members": {name: self._describe(judged.predictions, dataset) for name, judged in members.items()},
            "agreement": agreement(words, same_share),
            "errors": mistakes(dataset.records, singles),
        }

    def _describe(self, predictions: "TokenPredictions", dataset: Dataset) -> dict[str, Any]:
        """Of one member: the scores, the confusion of labels, and F1 of each type of entity."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        pairs = [(record.labels, predicted) for record, predicted in zip(dataset.records, predictions.labels)]
        gold, predicted = (
            np.array([numbers.get(label, 0) for pair in pairs for label in pair[side]]) for side in (0, 1)
        )
        counts = metrics.confusion(gold, predicted, len(self.labels)).astype(int)
        by_type = []
        for kind in sorted({label[2:] for label in self.labels if label != OUTSIDE}):
            found_entities = [
                [{entity for entity in entities(side) if entity[0] == kind} for side in pair] for pair in pairs
            ]
            values = np.array(
                [
                    (len(gold & predicted_entities), len(predicted_entities), len(gold))
                    for gold, predicted_entities in found_entities
                ],
                np.float64,
            )
            by_type.append({"group": kind, "questions": int(values[:, 2].sum()), "f1": f1(values)})
        confusion = {"labels": list(self.labels), "matrix": counts.tolist()}
        return self.scores(predictions, dataset, 0.0) | {"confusion": confusion, "by_type": by_type}


@dataclass(frozen=True, slots=True)
class TokenPredictions:
    """ids: Q sentences. labels: of each, the label of every word."""

    ids: list[str]
    labels: list[tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """{id: {labels}}"""
        return {key: {"labels": list(labels)} for key, labels in zip(self.ids, self.labels)}

    @classmethod
    def from_json(cls, rows: Mapping[str, Any], where: str = "predictions") -> "TokenPredictions":
        """Reads the result of `to_json`."""
        with reading_predictions(where):
            return cls(list(rows), [tuple(label + "" for label in row["labels"]) for row in rows.values()])


class TokenCollector:
    """Takes logits (B, S, C) of windows in any order; a word has the likeliest label of its first token.

    labels, probabilities: of every word of every sentence.
    """

    def __init__(self, sentences: Sequence[Sentence], windows: Windows, labels: tuple[str, ...]) -> None:
        self.sentences, self.windows, self.names = sentences, windows, np.array(labels, object)
        self.labels = [np.full(len(sentence.words), OUTSIDE, object) for sentence in sentences]
        self.probabilities = [np.ones(len(sentence.words)) for sentence in sentences]

    def add(self, index: NDArray[np.int64], logits: Any) -> None:
        for window, rows in zip(index, array_of(logits)):
            words = self.windows.targets[window, : len(rows), 1]
            tokens = np.flatnonzero(words != NONE)  # the first token of each word
            word_logits = rows[tokens].astype(np.float64)  # (words, C)
            best, sentence = word_logits.argmax(axis=1), self.windows.example[window]
            weights = np.exp(word_logits - word_logits.max(axis=1, keepdims=True))
            self.labels[sentence][words[tokens]] = self.names[best]
            self.probabilities[sentence][words[tokens]] = 1 / weights.sum(axis=1)

    def finish(self) -> TokenPredictions:
        return TokenPredictions([sentence.id for sentence in self.sentences], [tuple(labels) for labels in self.labels])


def make_windows(
    tokenizer: Tokenizer, sentences: Sequence[Sentence], labels: Sequence[str], max_length: int, overlap: int
) -> Windows:
    """Sentences as windows of at most `max_length` tokens; the windows of a long sentence share `overlap` tokens.

    targets: (N, longest window, 2) number of the label and of the word at the first token of each word, else NONE. A
    word that is in two windows belongs to the one in which it is farther from the cut. An unknown label counts as O.
    """
    frame = Frame.of(tokenizer, pair=False)
    room = max_length - frame.size
    if room <= overlap:
        raise UserError(f"data.max_length: {max_length} tokens leave no room beside data.overlap, {overlap}")
    numbers = {label: number for number, label in enumerate(labels)}
    tokens, targets, example = [], [], []
    with no_panic("the encoder's tokenizer"):
        texts = [" ".join(sentence.words) for sentence in sentences]
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    for number, (sentence, encoding) in enumerate(zip(sentences, encodings)):
        ids, token_targets = np.array(encoding.ids, np.int32), _token_targets(sentence, encoding.offsets, numbers)
        for begin in range(0, max(1, len(ids) - overlap), room - overlap):
            end = begin + room
            window_targets = token_targets[begin:end].copy()
            window_targets[: overlap // 2 if begin else 0] = NONE
            window_targets[room - overlap + overlap // 2 if end < len(ids) else room :] = NONE
            tokens.append(ids[begin:end])
            targets.append(window_targets)
            example.append(number)
    lengths = np.array([frame.size + len(ids) for ids in tokens], np.int64)
    padded = np.full((len(tokens), lengths.max(initial=frame.size), 2), NONE, np.int32)
    for row, window_targets in zip(padded, targets):
        row[len(frame.prefix) : len(frame.prefix) + len(window_targets)] = window_targets
    flat, types = frame.assemble((ids, ids[:0]) for ids in tokens)
    return Windows.of_texts(flat, types, lengths, np.array(example), padded)


def _token_targets(
    sentence: Sentence, offsets: Sequence[tuple[int, int]], numbers: dict[str, int]
) -> NDArray[np.int32]:
    """(tokens, 2) number of the label and of the word at the first token of each word, else NONE.

    A token belongs to the word in which its last character is. offsets: of the tokens in the words joined by spaces.
    """
    starts = np.cumsum([0, *(len(word) + 1 for word in sentence.words)])[:-1]
    last = np.array([end - 1 for _, end in offsets], np.int64)
    word_of = np.maximum(np.searchsorted(starts, last, side="right") - 1, 0)  # (tokens,)
    words, first = np.unique(word_of, return_index=True)
    targets = np.full((len(offsets), 2), NONE, np.int32)
    targets[first, 0] = [numbers.get(sentence.labels[word], 0) for word in words.tolist()]
    targets[first, 1] = words
    return targets


def read_sentences(source: str) -> list[Sentence]:
    """The sentences of one or several files, numbered anew."""
    sentences = [sentence for part in parts(source) for sentence in load_conll(part)]
    return [Sentence(str(number), sentence.words, sentence.labels) for number, sentence in enumerate(sentences)]


def _check_source(source: str, where: str) -> None:
    for part in parts(source):
        if not is_conll(part):
            raise UserError(f"{where}{part}: tokens are learnt from files that end in {', '.join(SUFFIXES)}")


def entities(labels: Sequence[str]) -> set[Entity]:
    """The entities of a sentence: an I- that does not continue one of its type begins one, as seqeval counts."""
    spans: set[Entity] = set()
    kind, begin = "", 0
    for word, label in enumerate([*labels, OUTSIDE]):
        if label.startswith("I-") and label[2:] == kind:
            continue
        if kind:
            spans.add((kind, begin, word - 1))
        kind, begin = label[2:], word
    return spans


def precision(values: NDArray[np.float64]) -> float:
    right, predicted, _ = values.sum(axis=0)
    return 100.0 * float(right / predicted) if predicted else 0.0


def recall(values: NDArray[np.float64]) -> float:
    right, _, present = values.sum(axis=0)
    return 100.0 * float(right / present) if present else 0.0


def f1(values: NDArray[np.float64]) -> float:
    right, predicted, present = values.sum(axis=0)
    return 200.0 * float(right / (predicted + present)) if predicted + present else 0.0


def mistakes(records: Sequence[Sentence], members: Mapping[str, TokenPredictions]) -> list[dict[str, Any]]:
    """Sentences with entities that some member gets wrong, those with most wrong words first."""
    wrong = np.array(
        [
            [sum(a != b for a, b in zip(record.labels, labels)) for record, labels in zip(records, predictions.labels)]
            for predictions in members.values()
        ]
    )  # (M, Q)
    right = wrong == 0
    sorts = [("all members are wrong", ~right.any(axis=0), wrong.mean(axis=0)), *disputes(right, wrong.mean(axis=0))]

    def entry(row: int) -> dict[str, Any]:
        sentence = records[row]
        answers = {name: "; ".join(_listed(sentence, predictions.labels[row])) for name, predictions in members.items()}
        return error_entry(sentence, _listed(sentence, sentence.labels), answers)

    return error_rows(sorts, list(members), right, entry)


def _listed(sentence: Sentence, labels: Sequence[str]) -> list[str]:
    """`LOC: New York` for each entity."""
    spans = sorted(entities(labels), key=lambda entity: entity[1:])
    return [f"{kind}: {' '.join(sentence.words[first : last + 1])}" for kind, first, last in spans]
