"""`spans`: extractive question answering with unanswerable questions, and the papers' analyses of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.batches import Batch
from bertvision.data.sources import load_articles
from bertvision.data.splits import article_sets, training_part
from bertvision.data.squad import Record, normalize, question_word, records
from bertvision.data.windows import make_windows
from bertvision.evaluate.bootstrap import Mean, Points
from bertvision.evaluate.calibration import auroc, calibration_error, choose_threshold, null_probability, reliability
from bertvision.evaluate.ensemble import BACKBONE
from bertvision.evaluate.squad import answerable, f1, question_scores, score
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
    same_share,
)
from bertvision.tasks.decode import SpanCollector, SpanPredictions

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
        questions = records(articles)
        if part_seed is not None:
            questions = [questions[i] for i in training_part(len(questions), data, part_seed)]
        return Dataset(source, articles, questions, make_windows(tokenizer, questions, data.max_length, data.overlap))

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
        scores = score(dataset.articles, predictions.answers(threshold))
        spans = score(dataset.articles, predictions.best())
        return scores | ({"HasAns_spans_f1": spans["HasAns_f1"]} if "HasAns_f1" in spans else {})

    def points(self, predictions: SpanPredictions, dataset: Dataset, threshold: float) -> Points:
        """values: (Q, 5) exact, F1, F1 with "no answer" switched off, has an answer, has none."""
        scores = question_scores(dataset.articles, predictions.answers(threshold))
        spans = question_scores(dataset.articles, predictions.best())
        has = answerable(dataset.articles)
        rows = [(*exact_and_f1, spans[key][1], has[key], not has[key]) for key, exact_and_f1 in scores.items()]
        return Points(np.array(rows, dtype=np.float64), POINTS)

    def analyse(self, dataset: Dataset, members: Mapping[str, Judged]) -> dict[str, Any]:
        records = dataset.records
        verdicts = {name: judge(records, judged.predictions, judged.threshold) for name, judged in members.items()}
        singles = {name: verdict for name, verdict in verdicts.items() if members[name].single}
        tokens = np.zeros(len(records), np.int64)
        np.maximum.at(tokens, dataset.windows.example, dataset.windows.lengths)
        return {
            "members": {
                name: describe(records, tokens, verdict, {other: singles[other] for other in singles if other != name})
                for name, verdict in verdicts.items()
            },
            "agreement": agreement(coded({name: verdict.answers for name, verdict in singles.items()}), same_share),
            "errors": mistakes(records, singles),
        }

    def constant(self, dataset: Dataset) -> dict[str, Any]:
        """Always "no answer"."""
        scores = score(dataset.articles, dict.fromkeys((record.id for record in dataset.records), ""))
        return {"says": "no answer", **{metric: scores[metric] for metric in self.metrics}}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one member did on Q questions under its threshold, in the order of the records.

    answers: Q given answers, "" = no answer. exact, f1: (Q,) 0 to 1. spans_f1: (Q,) that of the best span, "no answer"
    or not. second_exact: (Q,) whether the next best answer is right. no_answer: (Q,) no-answer scores; doubt: (Q,) by
    how much they are above the threshold.
    """

    answers: list[str]
    exact: NDArray[np.bool_]
    f1: NDArray[np.float64]
    spans_f1: NDArray[np.float64]
    second_exact: NDArray[np.bool_]
    no_answer: NDArray[np.float64]
    doubt: NDArray[np.float64]


def judge(records: Sequence[Record], predictions: SpanPredictions, threshold: float) -> Verdict:
    """The verdict on predictions for `records` (by id)."""
    row_of = {id_: row for row, id_ in enumerate(predictions.ids)}
    rows = [row_of[record.id] for record in records]
    golds = [_golds(record) for record in records]
    doubt = predictions.no_answer[rows] - threshold
    candidates = [predictions.texts[row] for row in rows]
    ranked = [
        two_best(text, predictions.scores[row], above) for text, row, above in zip(candidates, rows, doubt.tolist())
    ]
    answers = [first for first, _ in ranked]
    return Verdict(
        answers,
        np.array([normalize(text) in gold for gold, text in zip(golds, answers)], bool),
        np.array([_f1(gold, text) for gold, text in zip(golds, answers)], np.float64),
        np.array([_f1(gold, text[0]) for gold, text in zip(golds, candidates)], np.float64),
        np.array([normalize(second) in gold for gold, (_, second) in zip(golds, ranked)], bool),
        predictions.no_answer[rows],
        doubt,
    )


def two_best(texts: Sequence[str], scores: Sequence[float], doubt: float) -> tuple[str, str]:
    """The answer given and the one that would come next; "no answer" ("") competes with the spans.

    texts, scores: (K,) spans, best first, score -inf where there are fewer. doubt: by how much "no answer" beats the
    best span. Spans that differ only in case, articles or punctuation are one answer. Without a second it is "".
    """
    spans = [(float(score), text) for text, score in zip(texts, scores) if np.isfinite(score)]
    null = (spans[0][0] if spans else 0.0) + doubt
    rank = 0 if doubt > 0 else max(1, sum(score > null for score, _ in spans))  # the null's place among them
    first, *others = [text for _, text in spans[:rank]] + [""] + [text for _, text in spans[rank:]]
    return first, next((text for text in others if normalize(text) != normalize(first)), "")


def describe(
    records: Sequence[Record], tokens: NDArray[np.int64], verdict: Verdict, others: Mapping[str, Verdict]
) -> dict[str, Any]:
    """The analysis of one member; shares between 0 and 1, F1 in percent, lengths in tokens.

    tokens: (Q,) of question and context, as far as they fit into one window. others: the other single members, for what
    it alone gets right; what it gets right and the backbone does not, and the other way round, is `against_backbone`.
    """
    has = np.array([record.has_answer for record in records], bool)
    wrong = ~verdict.exact
    alone = verdict.exact & ~np.any([other.exact for other in others.values()] or [np.zeros_like(wrong)], axis=0)
    second = verdict.second_exact & wrong
    backbone = others.get(BACKBONE)
    words = np.array([len(record.context.split()) for record in records], np.int64)
    empty = np.array([not text for text in verdict.answers], bool)
    curve = reliability(null_probability(verdict.no_answer), ~has)
    question_words = [question_word(record.question) for record in records]
    lengths = [answer_length(len(record.answers[0].split()) if record.answers else 0) for record in records]
    return {
        "has_answer": _share(verdict.exact[has]),
        "no_answer": _share(verdict.exact[~has]),
        "wrong_predicted_empty": _share(empty[has & wrong]),
        "second_right": _share(verdict.second_exact[wrong]),
        "answerable_of_right": _share(has[verdict.exact]),
        "answerable_of_second": _share(has[second]),
        "right": _counted(verdict.exact, tokens),
        "only_right": _counted(alone, tokens),
        "against_backbone": None
        if backbone is None
        else {
            "member": _counted(verdict.exact & ~backbone.exact, tokens),
            "backbone": _counted(backbone.exact & wrong, tokens),
        },
        "by_question_word": sorted(by_group(question_words, verdict.f1), key=lambda row: -row["questions"]),
        "by_answer_length": by_group(lengths, verdict.f1),
        "by_context_length": by_group(context_lengths(words), verdict.f1),
        "reliability": curve,
        "calibration_error": calibration_error(curve),
        "auroc": auroc(verdict.no_answer, ~has),
    }


def by_group(labels: Sequence[str], scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Mean score, as a percentage, of the questions of each group: [{"group", "questions", "f1"}].

    In the order of the numbers that the names of the groups begin with, those without one first.
    """
    names, index, counts = np.unique(np.array(labels, str), return_inverse=True, return_counts=True)
    sums = np.bincount(index, weights=scores, minlength=len(names))
    rows = [
        {"group": str(name), "questions": int(count), "f1": float(100 * total / count)}
        for name, count, total in zip(names, counts, sums)
    ]
    return sorted(rows, key=lambda row: _number(str(row["group"])))


def answer_length(words: int) -> str:
    """The group of a gold answer of so many words; 0 = none."""
    if words <= 2:
        return ("no answer", "1 word", "2 words")[words]
    return "3–4 words" if words <= 4 else "5–8 words" if words <= 8 else "9 words and more"


def context_lengths(words: NDArray[np.int64]) -> list[str]:
    """The group of each context by its words: about a quarter of the questions each."""
    edges = np.unique(np.percentile(words, [25, 50, 75]))
    group = np.searchsorted(edges, words, side="left")  # a length at a cut belongs below it
    names = {}
    for group_number in np.unique(group).tolist():
        inside = words[group == group_number]
        low, high = int(inside.min()), int(inside.max())
        names[group_number] = f"{low}–{high} words" if low < high else f"{low} words"
    return [names[group_number] for group_number in group.tolist()]


def coded(answers: Mapping[str, Sequence[str]]) -> dict[str, NDArray[np.int64]]:
    """Answers as numbers that are equal where normalised answers are, (Q,) per member."""
    numbers: dict[str, int] = {}
    return {
        name: np.array([numbers.setdefault(normalize(text), len(numbers)) for text in texts], np.int64)
        for name, texts in answers.items()
    }


def mistakes(records: Sequence[Record], verdicts: Mapping[str, Verdict]) -> list[dict[str, Any]]:
    """Questions that some member gets wrong: {"id", "question", "context", "gold", "answers", "why"}.

    Taken in turn from each sort of mistake, the most telling first, no question twice.
    """
    right = np.array([verdict.exact for verdict in verdicts.values()])  # (M, Q)

    def entry(row: int) -> dict[str, Any]:
        answers = {name: verdict.answers[row] for name, verdict in verdicts.items()}
        return error_entry(records[row], list(dict.fromkeys(records[row].answers)), answers)

    return error_rows(sorts_of_mistake(records, verdicts), list(verdicts), right, entry)


def sorts_of_mistake(records: Sequence[Record], verdicts: Mapping[str, Verdict]) -> list[Sort]:
    """The sorts, with the questions that belong to each and a number by which they are put in order."""
    has = np.array([record.has_answer for record in records], bool)
    members = verdicts.values()
    right = np.array([verdict.exact for verdict in members])  # (M, Q)
    doubt = np.array([verdict.doubt for verdict in members])
    f1s = np.array([verdict.f1 for verdict in members])
    spans = np.array([verdict.spans_f1 for verdict in members])
    gives_answer = np.array([[bool(text) for text in verdict.answers] for verdict in members])
    wrong, certain = ~right.any(axis=0), np.abs(doubt).min(axis=0)
    answered, silent = wrong & gives_answer.all(axis=0), wrong & has & ~gives_answer.any(axis=0)
    alike = np.ptp([*coded({name: verdict.answers for name, verdict in verdicts.items()}).values()], axis=0) == 0
    held_back = silent & (spans.min(axis=0) == 1)
    sorts: list[Sort] = [
        ("there is no answer, yet all members give one, and are sure", answered & ~has, certain),
        ("there is an answer, yet all members say there is none, and are sure", silent, certain),
        ("all members give the same wrong span: the given answer may be wrong", answered & has & alike, certain),
        ("all members say there is no answer, but their best span is right", held_back, -certain),
        ("a near miss: the right place, the wrong ends", answered & has & (f1s.min(axis=0) > 0), f1s.mean(axis=0)),
    ]
    return sorts + disputes(right, certain)


def _number(group: str) -> int:
    number = group.split()[0].split("–")[0]
    return int(number) if number.isdecimal() else 0


def _counted(flags: NDArray[np.bool_], tokens: NDArray[np.int64]) -> dict[str, Any]:
    """How many questions, and their mean length."""
    return {"questions": int(flags.sum()), "tokens": round(float(tokens[flags].mean()), 2) if flags.any() else None}


def _share(flags: NDArray[np.bool_]) -> float | None:
    """The share that is true; None of nothing."""
    return float(flags.mean()) if flags.size else None


def _f1(golds: Sequence[str], text: str) -> float:
    return float(max(f1(gold, text) for gold in golds))


def _golds(record: Record) -> list[str]:
    """As in the official metric: answers that normalise to nothing do not count, and without any "" is right."""
    return [text for text in map(normalize, record.answers) if text] or [""]
