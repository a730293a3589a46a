"""Span logits -> the n best answers of each window, merged over the windows of each question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertvision.data.squad import Record
from bertvision.data.windows import Windows

Rule = Literal["joint", "independent"]
Floats = NDArray[np.float32]
Places = NDArray[np.int64]
NEVER = float("-inf")
AT_ONCE = 512  # windows decoded together: enough to be quick, few enough to stay in the cache
CERTAIN = 1e4  # no-answer scores stay finite: a question without any candidate span has this one


@dataclass(frozen=True, slots=True)
class Candidates:
    """The K best spans of each window, best first, and the window's null score.

    first, last: (B, K) token positions. score: (B, K), -inf where there are fewer than K. null: (B,).
    """

    first: Places
    last: Places
    score: Floats
    null: Floats


def array_of(logits: Any) -> Floats:
    """Logits as an array in fp32, from an array or from a tensor on any device; a copy."""
    return np.array(logits if isinstance(logits, np.ndarray) else logits.detach().float().cpu().numpy(), np.float32)


def decode(
    logits: ArrayLike,
    context_at: ArrayLike,
    context_end: ArrayLike,
    *,
    nbest: int = 20,
    answer_tokens: int = 30,
    rule: Rule = "joint",
) -> Candidates:
    """Reduces span logits (B, S, 2) to candidates inside context_at..context_end (B,) of each window.

    The rule `independent` compares probabilities and takes log-probabilities in place of logits.
    """
    sides = np.asarray(logits, np.float32)
    with np.errstate(invalid="ignore"):  # a head that has diverged may give infinity minus infinity
        return RULES[rule](sides, np.asarray(context_at), np.asarray(context_end), nbest, answer_tokens)


def _inside(logits: Floats, context_at: Places, context_end: Places) -> tuple[Floats, Floats]:
    """Start and end logits (B, S), -inf outside the context."""
    position = np.arange(logits.shape[1])
    inside = (position >= context_at[:, None]) & (position < context_end[:, None])  # (B, S)
    start, end = (np.where(inside, logits[..., side], np.float32(NEVER)) for side in (0, 1))
    return start, end


def joint(logits: Floats, context_at: Places, context_end: Places, nbest: int, answer_tokens: int) -> Candidates:
    """Score = start + end over all pairs with start <= end < start + answer_tokens; null = start[CLS] + end[CLS].

    Exact, yet never sorts all S * answer_tokens pairs: the n best pairs begin at no more than n tokens, and those
    are among the n tokens whose best pair is best.
    """
    start, end = _inside(logits, context_at, context_end)
    batch, tokens = start.shape
    reach = min(answer_tokens, tokens)
    padded = np.pad(end, ((0, 0), (0, reach - 1)), constant_values=NEVER)
    starts = _largest(start + _running_maximum(padded, reach), min(nbest, tokens))[1]  # (B, K)
    rows = np.arange(batch)[:, None]
    ends = padded[rows[..., None], starts[..., None] + np.arange(reach)]  # (B, K, reach)
    pairs = (start[rows, starts][..., None] + ends).reshape(batch, -1)  # (B, K * reach)
    score, index = _largest(pairs, min(nbest, pairs.shape[1]))  # (B, K)
    first = starts[rows, index // reach]
    return Candidates(first, first + index % reach, score, logits[:, 0].sum(axis=-1))


def _running_maximum(values: Floats, reach: int) -> Floats:
    """(B, S) the maximum of `reach` values from each on, of values (B, S + reach - 1); stretches double until then."""
    size = 1
    while size < reach:
        step = min(size, reach - size)
        values, size = np.maximum(values[:, :-step], values[:, step:]), size + step
    return values


def _largest(values: Floats, count: int) -> tuple[Floats, Places]:
    """The `count` largest of each row (B, N), the largest first, and their places; NaN counts as -inf."""
    values = np.where(np.isnan(values), np.float32(NEVER), values)
    below = values.shape[1] - count
    if not below:
        order = np.argsort(-values, axis=1, kind="stable")
        return np.take_along_axis(values, order, axis=1), order
    columns = np.argpartition(values, below, axis=1)[:, below:]
    best, order = _largest(np.take_along_axis(values, columns, axis=1), count)
    return best, np.take_along_axis(columns, order, axis=1)


def independent(logs: Floats, context_at: Places, context_end: Places, nbest: int, answer_tokens: int) -> Candidates:
    """BERTVision's older rule: start and end argmax taken apart, over the context and [CLS].

    start > end, or either at [CLS], means "no answer". A window's score is the product of the two maxima, and the best
    window wins. logs: log-probabilities, which are not normalised again: those of an ensemble do not sum to one.
    Candidates and null scores are those of `joint`, with two differences: an answer of this rule is among them whatever
    its length, and where the window says "no answer", its null score is its score, above that of any span.
    """
    candidates = joint(logs, context_at, context_end, nbest, answer_tokens)
    start, end = _inside(logs, context_at, context_end)
    start[:, 0], end[:, 0] = logs[:, 0, 0], logs[:, 0, 1]
    first, last = start.argmax(axis=1), end.argmax(axis=1)  # (B,)
    answers = (first > 0) & (last > 0) & (first <= last)
    score = start.max(axis=1) + end.max(axis=1)
    above = np.nextafter(candidates.score[:, 0], np.float32(np.inf))  # sums of unequal terms may round to equal ones
    null = np.where(answers, candidates.null, np.maximum(score, above))
    too_long = (answers & (last - first >= answer_tokens))[:, None]

    def led_by(new: NDArray, old: NDArray) -> NDArray:
        return np.where(too_long, np.concatenate([new[:, None], old[:, :-1]], axis=1), old)  # (B, K)

    return Candidates(
        led_by(first, candidates.first), led_by(last, candidates.last), led_by(score, candidates.score), null
    )


RULES = {"joint": joint, "independent": independent}


class SpanTexts(Sequence[list[str]]):
    """The texts of spans chars (Q, K, 2), cut from Q contexts when asked for: kept, they would outweigh the rest."""

    def __init__(self, records: Sequence[Record], chars: NDArray[np.int64]) -> None:
        self.records, self.chars = records, chars

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        context = self.records[row].context
        return [context[start:end] for start, end in self.chars[row].tolist()]

    def best(self) -> list[str]:
        """The first text of each."""
        return [record.context[start:end] for record, (start, end) in zip(self.records, self.chars[:, 0].tolist())]


@dataclass(frozen=True, slots=True)
class SpanPredictions:
    """The K best answers of each of Q questions, best first, and how much "no answer" outweighs the best.

    ids: Q question ids. texts: Q lists of K answers, "" where there are fewer. chars: (Q, K, 2) offsets in the context.
    scores: (Q, K), -inf where there are fewer. no_answer: (Q,) null score minus best span score.
    """

    ids: list[str]
    texts: Sequence[list[str]]
    chars: NDArray[np.int64]
    scores: NDArray[np.float64]
    no_answer: NDArray[np.float64]

    def best(self) -> dict[str, str]:
        """{id: the best span}, with "no answer" switched off."""
        return dict(zip(self.ids, self._best_texts()))

    def answers(self, threshold: float = 0.0) -> dict[str, str]:
        """{id: answer}, "" where the no-answer score lies above the threshold."""
        decided = zip(self.ids, self._best_texts(), self.no_answer.tolist())
        return {key: "" if doubt > threshold else text for key, text, doubt in decided}

    def _best_texts(self) -> list[str]:
        return self.texts.best() if isinstance(self.texts, SpanTexts) else [texts[0] for texts in self.texts]

    def no_answer_scores(self) -> dict[str, float]:
        return dict(zip(self.ids, self.no_answer.tolist()))

    def to_json(self) -> dict[str, Any]:
        """{id: {answer, no_answer_score, nbest: [{text, start, end, score}]}}"""
        rows = {}
        for row, key in enumerate(self.ids):
            kept = int(np.isfinite(self.scores[row]).sum())
            nbest = [
                {"text": text, "start": int(start), "end": int(end), "score": round(float(score), 6)}
                for text, (start, end), score in zip(self.texts[row][:kept], self.chars[row], self.scores[row])
            ]
            doubt = float(self.no_answer[row])
            rows[key] = {"answer": "" if doubt > 0 else self.texts[row][0], "no_answer_score": doubt, "nbest": nbest}
        return rows

    @classmethod
    def from_json(cls, rows: dict[str, Any], where: str = "predictions") -> "SpanPredictions":
        """Reads the result of `to_json`."""
        from bertvision.tasks.base import reading_predictions

        with reading_predictions(where):
            width = max((len(row["nbest"]) for row in rows.values()), default=0) or 1
            chars = np.zeros((len(rows), width, 2), np.int64)
            scores = np.full((len(rows), width), -np.inf)
            texts = [[""] * width for _ in rows]
            for number, row in enumerate(rows.values()):
                for rank, entry in enumerate(row["nbest"]):
                    texts[number][rank] = entry["text"] + ""  # a TypeError unless it is a text
                    chars[number, rank] = entry["start"], entry["end"]
                    scores[number, rank] = entry["score"]
            doubts = np.array([float(row["no_answer_score"]) for row in rows.values()])
        return cls(list(rows), texts, chars, scores, doubts)


class SpanCollector:
    """Takes the logits of batches in any order, keeps n-best and null score of each window, merges at the end.

    Memory: a few numbers per window, and the logits of a few batches at most.
    """

    def __init__(
        self,
        records: Sequence[Record],
        windows: Windows,
        *,
        nbest: int = 5,
        answer_tokens: int = 30,
        rule: Rule = "joint",
    ) -> None:
        self.records, self.windows = records, windows
        self.options: dict[str, Any] = {"nbest": nbest, "answer_tokens": answer_tokens, "rule": rule}
        self.nbest, self.rule = nbest, rule
        self.tokens = np.zeros((len(windows), nbest, 2), np.int32)
        self.scores = np.full((len(windows), nbest), -np.inf, np.float32)
        self.nulls = np.full(len(windows), -np.inf, np.float32)
        self.waiting: list[tuple[NDArray[np.int64], Floats]] = []

    def add(self, index: NDArray[np.int64], logits: Any) -> None:
        """Takes the logits (B, S, 2) of the windows `index` (B,), see `decode`; reduced once enough have come."""
        self.waiting.append((index, array_of(logits)))  # a copy, so that nothing of the batch is held
        if sum(len(index) for index, _ in self.waiting) >= AT_ONCE:
            self._reduce()

    def _reduce(self) -> None:
        """Decodes all windows that wait, padded to the longest of them."""
        if not self.waiting:
            return
        longest = max(logits.shape[1] for _, logits in self.waiting)
        index = np.concatenate([index for index, _ in self.waiting])
        padded = np.zeros((len(index), longest, 2), np.float32)
        row = 0
        for _, logits in self.waiting:
            padded[row : row + len(logits), : logits.shape[1]] = logits
            row += len(logits)
        self.waiting = []
        bounds = self.windows.context_at[index], self.windows.context_end[index]
        candidates = decode(padded, *bounds, **self.options)
        width = candidates.score.shape[1]
        self.tokens[index, :width, 0] = candidates.first
        self.tokens[index, :width, 1] = candidates.last
        self.scores[index, :width] = candidates.score
        self.nulls[index] = candidates.null

    def finish(self) -> SpanPredictions:
        """Merges the windows of each question."""
        self._reduce()
        questions = len(self.records)
        window, rank = np.nonzero(np.isfinite(self.scores))
        score = self.scores[window, rank]
        chars = self.windows.span_chars(window, self.tokens[window, rank, 0], self.tokens[window, rank, 1])
        is_text = chars[:, 0] < chars[:, 1]  # a token may stand for white space alone, which is no answer
        score, chars, example = score[is_text], chars[is_text], self.windows.example[window[is_text]]

        order = _best_first(example, score, chars)
        first_seen = np.unique(_numbers(example, chars)[order], return_index=True)[1]
        order = order[np.sort(first_seen)]  # overlapping windows find a span twice
        example, score, chars = example[order], score[order], chars[order]
        begins = np.searchsorted(example, np.arange(questions))
        rank = np.arange(len(example)) - begins[example]
        kept = rank < self.nbest
        example, rank = example[kept], rank[kept]

        scores = np.full((questions, self.nbest), -np.inf)
        spans = np.zeros((questions, self.nbest, 2), np.int64)
        scores[example, rank], spans[example, rank] = score[kept], chars[kept]
        ids = [record.id for record in self.records]
        return SpanPredictions(ids, SpanTexts(self.records, spans), spans, scores, self._no_answer(scores[:, 0]))

    def _no_answer(self, best: NDArray[np.float64]) -> NDArray[np.float64]:
        # The question is unanswerable if every window says so, hence the least null score; under the independent
        # rule the best window wins, hence the highest.
        merge, start = (np.minimum, np.inf) if self.rule == "joint" else (np.maximum, -np.inf)
        nulls = np.nan_to_num(self.nulls.astype(np.float64), nan=CERTAIN, posinf=CERTAIN, neginf=-CERTAIN)
        null = np.full(len(self.records), start)
        merge.at(null, self.windows.example, nulls)
        return np.clip(np.where(np.isfinite(best), null - best, CERTAIN), -CERTAIN, CERTAIN)


def _best_first(example: NDArray[np.int64], score: NDArray[np.float32], chars: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order (n,) of candidates by question, the best first, ties by place."""
    bits = (score + 0.0).view(np.int32).astype(np.int64)  # + 0.0: there is a negative zero
    rising = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # whole numbers in the order of the floats
    keys = (example << 32) - rising  # one key, almost in order already: many times faster than sorting by each
    order = np.argsort(keys, kind="stable")
    if (np.diff(keys[order]) == 0).any():
        order = np.lexsort((_numbers(example, chars), keys))
    return order


def _numbers(example: NDArray[np.int64], chars: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number (n,) for each span (n, 2) of a question, in the order of question, start, end."""
    reach = int(chars.max(initial=0)) + 1
    return (example * reach + chars[:, 0]) * reach + chars[:, 1]
