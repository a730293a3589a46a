"""Span logits -> the n best answers of each window, all windows of a batch at once."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, slots=True)
class Candidates:
    """The K best spans of each window, best first, and the window's null score.

    first, last: (B, K) token positions. score: (B, K), -inf where there are fewer than K. null: (B,).
    """

    first: Tensor
    last: Tensor
    score: Tensor
    null: Tensor


def decode(
    logits: Tensor,
    context_at: Tensor,
    context_end: Tensor,
    *,
    nbest: int = 20,
    answer_tokens: int = 30,
    rule: Literal["joint", "independent"] = "joint",
) -> Candidates:
    """Reduces span logits (B, S, 2) to candidates inside context_at..context_end (B,) of each window."""
    return RULES[rule](logits.float(), context_at, context_end, nbest, answer_tokens)


def _inside(logits: Tensor, context_at: Tensor, context_end: Tensor) -> tuple[Tensor, Tensor]:
    """Start and end logits (B, S), -inf outside the context."""
    place = torch.arange(logits.shape[1])
    outside = (place < context_at[:, None]) | (place >= context_end[:, None])  # (B, S)
    return logits[..., 0].masked_fill(outside, IMPOSSIBLE), logits[..., 1].masked_fill(outside, IMPOSSIBLE)


def joint(logits: Tensor, context_at: Tensor, context_end: Tensor, nbest: int, answer_tokens: int) -> Candidates:
    """Score = start + end over all pairs with start <= end < start + answer_tokens; null = start[CLS] + end[CLS].

    Exact, yet never sorts all S * answer_tokens pairs: the n best pairs begin at no more than n tokens, and those
    are among the n tokens whose best pair is best.
    """
    start, end = _inside(logits, context_at, context_end)
    batch, tokens = start.shape
    reach = min(answer_tokens, tokens)
    padded = torch.nn.functional.pad(end, (0, reach - 1), value=IMPOSSIBLE)
    bands = padded.unfold(1, reach, 1)  # (B, S, reach), a view: bands[b, s, d] = end[b, s + d]
    best = torch.nn.functional.max_pool1d(padded[:, None], reach, stride=1)[:, 0]  # (B, S), the band's maximum
    starts = (start + best).topk(min(nbest, tokens), dim=1).indices  # (B, K)
    rows = torch.arange(batch)[:, None]
    pairs = (start[rows, starts][..., None] + bands[rows, starts]).flatten(1)  # (B, K * reach)
    score, place = _largest(pairs, min(nbest, pairs.shape[1]))  # (B, K)
    first = starts.gather(1, place // reach)
    return Candidates(first, first + place % reach, score, logits[:, 0].sum(dim=-1))


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """What topk gives over rows of hundreds; numpy's partition is more than twice as fast."""
    below = values.shape[1] - count
    places = torch.from_numpy(np.argpartition(values.numpy(), below, axis=1)[:, below:]) if below else None
    best, order = (values if places is None else values.gather(1, places)).sort(dim=1, descending=True)
    return best, order if places is None else places.gather(1, order)


def independent(logits: Tensor, context_at: Tensor, context_end: Tensor, nbest: int, answer_tokens: int) -> Candidates:
    """BERTVision's older rule: start and end argmax taken apart, over the context and [CLS].

    start > end, or either at [CLS], means "no answer". The window's score is the product of the two maxima (of
    the probabilities; here its logarithm), and the best window wins. A window bids once: with its one candidate, or
    with its null score where it says "no answer"; the other of the two is -inf.
    """
    start, end = _inside(logits, context_at, context_end)
    start[:, 0], end[:, 0] = logits[:, 0, 0], logits[:, 0, 1]
    start_log, first = start.log_softmax(dim=1).max(dim=1)  # (B,)
    end_log, last = end.log_softmax(dim=1).max(dim=1)
    answers = (first > 0) & (last > 0) & (first <= last)
    score = start_log + end_log
    return Candidates(
        first[:, None],
        last[:, None],
        score.masked_fill(~answers, IMPOSSIBLE)[:, None],
        score.masked_fill(answers, IMPOSSIBLE),
    )


RULES = {"joint": joint, "independent": independent}
