"""Pairs of question and context -> ranked answers with probabilities and places in the caller's own strings."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from bertvision.data.squad import Record
from bertvision.data.windows import Windows
from bertvision.serve.asked import Options
from bertvision.serve.config import TaskConfig
from bertvision.tasks.decode import SpanCollector, SpanPredictions

SURROGATES = re.compile("[\ud800-\udfff]")  # halves of characters: Python can hold them, tokenizers cannot
# Scripts in which words stand together, or with their particles: Thai to Khmer, Japanese, Chinese, Korean.
TOGETHER = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")


@dataclass(frozen=True, slots=True)
class Spot:
    """Where in the windows something was read: a window, and its first and last token; (0, 0) is [CLS], no answer."""

    window: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answers to one question, best first: what the caller gets, and for each the offsets it was decoded at."""

    answers: list[dict[str, Any]]
    chars: list[tuple[int, int]]


def as_records(pairs: Sequence[tuple[str, str]]) -> list[Record]:
    """Questions without known answers. Characters no tokenizer takes become others, one for one: offsets stay."""
    return [
        Record(str(row), SURROGATES.sub("\ufffd", question), SURROGATES.sub("\ufffd", context), (), (), "", row)
        for row, (question, context) in enumerate(pairs)
    ]


def span_collector(records: Sequence[Record], windows: Windows, config: TaskConfig, top_k: int) -> SpanCollector:
    """What takes the logits; it keeps `top_k` candidates per question, but no more than a window has spans."""
    rule = cast(Literal["joint", "independent"], config.decoding.rule)
    longest = int(windows.lengths.max(initial=1))
    answer_tokens = min(config.decoding.answer_tokens, longest)
    nbest = min(max(config.decoding.nbest, top_k), longest * answer_tokens)
    return SpanCollector(records, windows, nbest=nbest, answer_tokens=answer_tokens, rule=rule)


def probabilities(
    scores: NDArray[np.float64], no_answer: float, threshold: float, among: int
) -> tuple[NDArray[np.float64], float]:
    """Of the candidates (K,), and of there being no answer: a softmax over the first `among` of them and the latter.

    scores: (K,) best first, finite. no_answer: null score minus best score; it counts from `threshold` on, so that at
    the threshold "no answer" and the best span are equally probable. among: fixed, so that a probability does not
    depend on how many are asked for; those behind come on top.
    """
    if not len(scores):
        return scores, 1.0
    alternatives = np.append(scores - scores[0], no_answer - threshold)
    weights = np.exp(alternatives - alternatives.max())
    shares = weights / (weights[:-1][:among].sum() + weights[-1])
    return shares[:-1], float(shares[-1])


def rank(predictions: SpanPredictions, row: int, context: str, config: TaskConfig, options: Options) -> Ranking:
    """The best answers to question `row` on the caller's own `context`, at most `options.top_k`; never none.

    "No answer" wins where its probability exceeds `options.limit`, or that of the best span if that is None. It then
    comes first, with answer "" and start = end = 0.
    """
    limit = options.limit
    found = int(np.isfinite(predictions.scores[row]).sum())
    shares, nothing = probabilities(
        predictions.scores[row, :found], float(predictions.no_answer[row]), config.threshold, config.decoding.nbest
    )
    silent = nothing > (shares[0] if limit is None else limit) if found else True
    ranking = Ranking([], [])
    if silent:
        ranking.answers.append({"answer": "", "score": nothing, "start": 0, "end": 0, "no_answer_score": nothing})
        ranking.chars.append((0, 0))
    seen: set[tuple[int, int]] = set()
    for share, (start, end) in zip(shares.tolist(), predictions.chars[row].tolist()):
        if len(ranking.answers) == options.top_k:
            break
        first, last = whole_characters(context, start, end)
        if options.words:
            first, last = whole_words(context, first, last)
        if (first, last) not in seen:
            seen.add((first, last))
            place = {"answer": context[first:last], "score": share, "start": first, "end": last}
            ranking.answers.append(place | {"no_answer_score": nothing})
            ranking.chars.append((start, end))
    return ranking


def whole_characters(text: str, start: int, end: int) -> tuple[int, int]:
    """The span start:end, grown so that it parts no letter from its accents: some tokenizers drop them."""
    while start > 0 and _is_mark(text[start]):
        start -= 1
    while end < len(text) and _is_mark(text[end]):
        end += 1
    return start, end


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The span start:end, grown so that it parts no word: tokenizers cut rare ones into pieces."""
    while start > 0 and _parts_word(text, start):
        start -= 1
    while end < len(text) and _parts_word(text, end):
        end += 1
    return start, end


def _parts_word(text: str, place: int) -> bool:
    return all((one.isalnum() or _is_mark(one)) and not TOGETHER.match(one) for one in text[place - 1 : place + 1])


def _is_mark(character: str) -> bool:
    return character >= "\u0300" and unicodedata.category(character).startswith("M")


def find_spots(collector: SpanCollector, rows: Sequence[int], chars: Sequence[tuple[int, int]]) -> list[Spot]:
    """Where answers were read, given their questions and decoded offsets; (0, 0) is "no answer".

    Of several windows that hold a span, the one with most context around it; for "no answer" the least sure.
    """
    windows = collector.windows
    bounds = np.searchsorted(windows.example, np.arange(len(collector.records) + 1))
    spots = []
    for row, (start, end) in zip(rows, chars):
        own = range(int(bounds[row]), int(bounds[row + 1]))
        if start == end:
            spots.append(Spot(own[int(np.argmin(collector.nulls[own.start : own.stop]))], 0, 0))
        else:
            spots.append(max((_within(windows, window, start, end) for window in own), key=lambda one: one[0])[1])
    return spots


def _within(windows: Windows, window: int, start: int, end: int) -> tuple[int, Spot]:
    """How many tokens of context a window has on the narrower side of the span, below 0 if it does not hold it."""
    at, size = int(windows.context_at[window]), int(windows.context_end[window] - windows.context_at[window])
    row = int(windows.context_token[window])
    chars = windows.chars[row : row + size]
    first = int(np.searchsorted(chars[:, 1], start, side="right"))
    last = int(np.searchsorted(chars[:, 0], end, side="left")) - 1
    if first > last or chars[first, 0] > start or chars[last, 1] < end:
        return -1, Spot(window, 0, 0)
    return min(first, size - 1 - last), Spot(window, at + first, at + last)
