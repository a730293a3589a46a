"""Decoding against brute force over all pairs, and against BERTVision's rule spelled out."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.evaluate.decode import Candidates, decode

INF = math.inf


@st.composite
def problems(draw):
    """Logits (B, S, 2) in eighths, so that sums are exact and ties happen, and the bounds of the contexts."""
    batch, tokens = draw(st.integers(1, 3)), draw(st.integers(2, 12))
    flat = draw(st.lists(st.integers(-16, 16), min_size=batch * tokens * 2, max_size=batch * tokens * 2))
    logits = torch.tensor(flat).view(batch, tokens, 2) / 8
    at = [draw(st.integers(1, tokens)) for _ in range(batch)]
    end = [draw(st.integers(low, tokens)) for low in at]
    return logits, torch.tensor(at), torch.tensor(end)


def pairs(logits, at: int, end: int, answer_tokens: int) -> list[tuple[float, int, int]]:
    """(score, first, last) of every possible span of one window."""
    return [
        (float(logits[first, 0] + logits[last, 1]), first, last)
        for first in range(at, end)
        for last in range(first, min(end, first + answer_tokens))
    ]


def spans(found: Candidates, row: int) -> list[tuple[float, int, int]]:
    columns = (found.score[row], found.first[row], found.last[row])
    return [each for each in zip(*(column.tolist() for column in columns)) if each[0] > -INF]


@given(problem=problems(), nbest=st.integers(1, 30), answer_tokens=st.integers(1, 15))
def test_joint_decoding_is_the_best_of_all_pairs(problem, nbest, answer_tokens):
    logits, at, end = problem
    found = decode(logits, at, end, nbest=nbest, answer_tokens=answer_tokens)
    for row in range(len(logits)):
        possible = pairs(logits[row], int(at[row]), int(end[row]), answer_tokens)
        ours = spans(found, row)
        assert set(ours) <= set(possible)  # inside the context, not too long, end never before start, the right score
        assert len(set(ours)) == len(ours)
        assert [score for score, _, _ in ours] == sorted((score for score, _, _ in possible), reverse=True)[:nbest]
        assert found.null[row] == logits[row, 0].sum()


def older_rule(logits, at: int, end: int) -> tuple[bool, float, int, int]:
    """(answers?, product of the two maxima, start, end) as the paper tells it."""
    places = [0, *range(at, end)]
    start, stop = (torch.softmax(logits[places, side], dim=0) for side in (0, 1))
    first, last = places[int(start.argmax())], places[int(stop.argmax())]
    return first > 0 and last > 0 and first <= last, float(start.max() * stop.max()), first, last


@given(problem=problems())
def test_independent_decoding_is_the_older_rule(problem):
    logits, at, end = problem
    logits = logits + torch.arange(logits.numel()).view(logits.shape) / 4096  # no ties: argmax has no rule for them
    found = decode(logits, at, end, rule="independent")
    assert found.score.shape == (len(logits), 1)
    for row in range(len(logits)):
        answers, product, first, last = older_rule(logits[row], int(at[row]), int(end[row]))
        if answers:
            assert (int(found.first[row, 0]), int(found.last[row, 0])) == (first, last)
            assert math.exp(found.score[row, 0]) == pytest.approx(product, rel=1e-5)
            assert found.null[row] == -INF
        else:
            assert found.score[row, 0] == -INF
            assert math.exp(found.null[row]) == pytest.approx(product, rel=1e-5)


@given(
    problem=problems(),
    rule=st.sampled_from(["joint", "independent"]),
    padding=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_padding_changes_nothing(problem, rule, padding, seed):
    logits, at, end = problem
    junk = torch.randn(len(logits), padding, 2, generator=torch.Generator().manual_seed(seed)) * 100
    one = decode(logits, at, end, nbest=4, answer_tokens=5, rule=rule)
    other = decode(torch.cat([logits, junk], dim=1), at, end, nbest=4, answer_tokens=5, rule=rule)
    for row in range(len(logits)):
        ours, theirs = spans(one, row), spans(other, row)
        assert [score for score, _, _ in ours] == pytest.approx([score for score, _, _ in theirs], abs=1e-6)
    torch.testing.assert_close(one.null, other.null)


@given(problem=problems(), rule=st.sampled_from(["joint", "independent"]))
def test_a_window_is_decoded_as_if_alone(problem, rule):
    logits, at, end = problem
    together = decode(logits, at, end, rule=rule)
    for row in range(len(logits)):
        alone = decode(logits[row : row + 1], at[row : row + 1], end[row : row + 1], rule=rule)
        assert spans(alone, 0) == spans(together, row)


def test_by_hand():
    logits = torch.zeros(1, 6, 2)
    logits[0, :, 0] = torch.tensor([1.0, 9.0, 2.0, 0.0, 5.0, 9.0])  # the 9s stand outside the context
    logits[0, :, 1] = torch.tensor([2.0, 9.0, 1.0, 4.0, 0.0, 9.0])
    bounds = torch.tensor([2]), torch.tensor([5])
    found = decode(logits, *bounds, nbest=3)
    assert spans(found, 0) == [(6.0, 2, 3), (5.0, 4, 4), (4.0, 3, 3)]
    assert found.null.tolist() == [3.0]
    assert spans(decode(logits, *bounds, nbest=3, answer_tokens=1), 0) == [(5.0, 4, 4), (4.0, 3, 3), (3.0, 2, 2)]
    # start's argmax is 4, end's is 3: they cross, which the older rule reads as "no answer"
    assert spans(decode(logits, *bounds, rule="independent"), 0) == []


def test_an_empty_context_has_no_candidate():
    logits = torch.randn(1, 3, 2)
    for rule in ("joint", "independent"):
        found = decode(logits, torch.tensor([2]), torch.tensor([2]), rule=rule)
        assert spans(found, 0) == []
        assert bool(found.null.isfinite().all())


def test_half_precision_is_added_up_in_full():
    logits = torch.tensor([[[0.0, 0.0], [2048.0, 0.0], [0.0, 1.0]]], dtype=torch.float16)
    found = decode(logits, torch.tensor([1]), torch.tensor([3]), nbest=1)
    assert found.score.tolist() == [[2049.0]]  # which fp16 cannot hold


def test_logits_are_left_alone():
    logits = torch.randn(2, 9, 2)
    before = logits.clone()
    for rule in ("joint", "independent"):
        decode(logits, torch.tensor([3, 3]), torch.tensor([9, 7]), rule=rule)
    assert torch.equal(logits, before)


def test_twelve_thousand_windows_are_quick():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(48, 384, 2, generator=generator)
    at, end = torch.full((48,), 15), torch.from_numpy(np.random.default_rng(0).integers(100, 384, 48))
    began = time.perf_counter()
    for _ in range(12_000 // 48):
        decode(logits, at, end)
    seconds = time.perf_counter() - began
    print(f"\n12,000 windows of 384 tokens in {seconds:.2f} s")
    assert seconds < 20
