"""Decoding: span logits to the n best answers of each question, against a loop over windows in plain Python.

The loop is the straightforward one, as in the question-answering examples of transformers: for each window the best
starts times the best ends, what is impossible left out, the rest sorted, and probabilities of those kept. It sees no
more than the best starts and ends, while ours is exact over all pairs. The logits are those of a reader that knows
roughly where the answer is.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import by_length
from bertvision.data.windows import Windows
from bertvision.recipe import EvaluateRecipe
from bertvision.tasks import Dataset
from bertvision.tasks.decode import SpanCollector
from side_by_side import Finding, Race, main, squad

OPTIONS = EvaluateRecipe()
LONGEST = 384


def measure(windows: int, rounds: int) -> list[Finding]:
    data = squad(windows, Backbone.load("minilm"), "squad1/train-subset.json")
    count, logits, offsets = len(data.windows), likely_logits(data.windows), offsets_of(data.windows)
    batches = by_length(data.windows.lengths, OPTIONS.batch_tokens)
    parts = [torch.from_numpy(logits[index, : data.windows.lengths[index].max()]) for index in batches]
    race = Race(lambda: our_answers(data, batches, parts), lambda: plain_answers(data, offsets, logits), rounds=rounds)
    rates = f"{count / race.seconds(0):,.0f} windows per second, a loop over windows {count / race.seconds(1):,.0f}"
    return [Finding("decode", race.ratio(), 15.0, f"{rates}; {count:,} windows")]


def our_answers(data: Dataset, batches: list[NDArray[np.int64]], parts: list[torch.Tensor]) -> dict[str, str]:
    """{id: answer}, as after a backbone pass: logits come batch by batch."""
    collector = SpanCollector(data.records, data.windows, nbest=OPTIONS.nbest, answer_tokens=OPTIONS.answer_tokens)
    for index, part in zip(batches, parts):
        collector.add(index, part)
    return collector.finish().answers()


def likely_logits(windows: Windows) -> NDArray[np.float32]:
    """(N, 384, 2): highest at the answer, or at [CLS] where there is none, falling on both sides, and noise."""
    place = np.arange(LONGEST)[:, None]  # (S, 1)
    away = np.abs(place - windows.targets[:, None]).astype(np.float32)  # (N, S, 2)
    noise = np.random.default_rng(1).normal(0, 1, away.shape).astype(np.float32)
    return 8 * np.exp(-away / 8) + noise


def offsets_of(windows: Windows) -> list[list[tuple[int, int] | None]]:
    """For each token of each window its place in the context, None where it is no token of the context."""
    found: list[list[tuple[int, int] | None]] = []
    for length, at, end, token in zip(windows.lengths, windows.context_at, windows.context_end, windows.context_token):
        inside = [(start, stop) for start, stop in windows.chars[token : token + end - at].tolist()]
        found.append([None] * int(at) + inside + [None] * int(length - end))
    return found


def plain_answers(
    data: Dataset, offsets: list[list[tuple[int, int] | None]], logits: NDArray[np.float32]
) -> dict[str, str]:
    """{id: answer}, "" where no window has a span better than its [CLS]."""
    of: list[list[int]] = [[] for _ in data.records]
    for window, example in enumerate(data.windows.example.tolist()):
        of[example].append(window)
    answers = {}
    for record, numbers in zip(data.records, of):
        spans, null = [], np.inf
        for window in numbers:
            spans += plain_spans(offsets[window], logits[window, :, 0], logits[window, :, 1])
            null = min(null, logits[window, 0, 0] + logits[window, 0, 1])
        best = sorted(spans, key=lambda span: span["score"], reverse=True)[: OPTIONS.nbest]
        odds = np.exp([span["score"] - best[0]["score"] for span in best])
        for span, share in zip(best, odds / odds.sum()):
            span |= {"text": record.context[slice(*span["offsets"])], "probability": float(share)}
        answers[record.id] = best[0]["text"] if best and best[0]["score"] >= null else ""
    return answers


def plain_spans(
    offsets: list[tuple[int, int] | None], start: NDArray[np.float32], end: NDArray[np.float32]
) -> list[dict[str, Any]]:
    """The possible spans between the best starts and the best ends of a window."""
    firsts = np.argsort(start)[: -OPTIONS.nbest - 1 : -1].tolist()
    lasts = np.argsort(end)[: -OPTIONS.nbest - 1 : -1].tolist()
    spans = []
    for first in firsts:
        for last in lasts:
            if first >= len(offsets) or last >= len(offsets):
                continue
            begin, finish = offsets[first], offsets[last]
            if begin is None or finish is None:
                continue
            if last < first or last - first + 1 > OPTIONS.answer_tokens:
                continue
            spans.append(
                {
                    "offsets": (begin[0], finish[1]),
                    "score": start[first] + end[last],
                    "start_logit": start[first],
                    "end_logit": end[last],
                }
            )
    return spans


if __name__ == "__main__":
    main(measure, windows=12_000)
