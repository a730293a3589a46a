"""Decoding against brute force over all pairs and BERTVision's rule; windows merged; predictions as JSON."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.squad import Record
from bertvision.data.windows import Windows, make_windows
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.tasks.decode import CERTAIN, Candidates, SpanCollector, SpanPredictions, decode
from encoders import plain_tokenizer

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


def older_rule(start, stop, at: int, end: int) -> tuple[float, tuple[int, int] | None]:
    """What a window says as the paper tells it: the product of the two maxima, and the span or "no answer".

    start, stop: (S,) probabilities.
    """
    places = [0, *range(at, end)]
    first, last = (max(places, key=side.__getitem__) for side in (start, stop))
    return start[first] * stop[last], (first, last) if 0 < first <= last else None


@given(problem=problems(), nbest=st.integers(1, 30), answer_tokens=st.integers(1, 15))
def test_independent_decoding_keeps_the_n_best_and_a_null_score(problem, nbest, answer_tokens):
    logits, at, end = problem
    logits = logits + torch.arange(logits.numel()).view(logits.shape) / 4096  # no ties: argmax has no rule for them
    found = decode(logits, at, end, rule="independent", nbest=nbest, answer_tokens=answer_tokens)
    for row, one in enumerate(logits):
        possible = pairs(one, int(at[row]), int(end[row]), answer_tokens)
        product, said = older_rule(*one.exp().T.tolist(), int(at[row]), int(end[row]))
        if said and said[1] - said[0] >= answer_tokens:  # the older rule knows no limit of length
            possible.append((float(one[said[0], 0] + one[said[1], 1]), *said))
        ours = spans(found, row)
        assert set(ours) <= set(possible) and len(set(ours)) == len(ours)
        assert [score for score, _, _ in ours] == sorted((score for score, _, _ in possible), reverse=True)[:nbest]
        if said:
            assert ours[0][1:] == said and found.null[row] == one[0].sum() < ours[0][0]
        else:
            assert math.exp(found.null[row]) == pytest.approx(product, rel=1e-5)
            assert not ours or found.null[row] > ours[0][0]


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
    crossed = decode(logits, *bounds, nbest=3, rule="independent")
    assert spans(crossed, 0) == spans(found, 0) and crossed.null.tolist() == [9.0]


def test_half_precision_is_added_up_in_full():
    logits = torch.tensor([[[0.0, 0.0], [2048.0, 0.0], [0.0, 1.0]]], dtype=torch.float16)
    found = decode(logits, torch.tensor([1]), torch.tensor([3]), nbest=1)
    assert found.score.tolist() == [[2049.0]]  # which fp16 cannot hold


CONTEXTS = ["the king of the north was born in the old city", "a river", "", "in 1066 the war began"]
RECORDS = [Record(f"q{n}", "who was it?", text, (), (), "", n) for n, text in enumerate(CONTEXTS)]
WINDOWS = make_windows(plain_tokenizer(), RECORDS, 16, 4)  # nine tokens of context at most


def random_logits(windows: Windows, seed: int, scale: float = 1.0) -> list[torch.Tensor]:
    """Logits (S, 2) of every window."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(int(n), 2, generator=generator) * scale for n in windows.lengths]


def collect(
    logits: list[torch.Tensor], batches: list[list[int]], records=RECORDS, windows: Windows = WINDOWS, **options
) -> SpanPredictions:
    """Predictions from the logits of windows, given in these batches, padded with junk."""
    collector = SpanCollector(records, windows, **options)
    for batch in batches:
        width = max(len(logits[n]) for n in batch) + 3
        padded = torch.full((len(batch), width, 2), 1e3)
        for row, n in enumerate(batch):
            padded[row, : len(logits[n])] = logits[n]
        collector.add(np.array(batch), padded)
    return collector.finish()


def one_by_one(windows: Windows = WINDOWS) -> list[list[int]]:
    return [[n] for n in range(len(windows))]


def all_spans(logits: list[torch.Tensor], question: int, answer_tokens: int) -> dict[tuple[int, int], float]:
    """Best score of every character span over all windows of a question."""
    best: dict[tuple[int, int], float] = {}
    for n in np.flatnonzero(WINDOWS.example == question):
        for first in range(WINDOWS.context_at[n], WINDOWS.context_end[n]):
            for last in range(first, min(WINDOWS.context_end[n], first + answer_tokens)):
                chars = tuple(WINDOWS.span_chars(np.array(n), np.array(first), np.array(last)).tolist())
                score = float(logits[n][first, 0] + logits[n][last, 1])
                best[chars] = max(score, best.get(chars, -math.inf))
    return best


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), nbest=st.integers(1, 8), answer_tokens=st.integers(1, 12))
def test_windows_are_merged_as_brute_force_would(seed, nbest, answer_tokens):
    assert np.bincount(WINDOWS.example).tolist() == [2, 1, 1, 2]
    logits = [(each * 8).round() / 8 for each in random_logits(WINDOWS, seed)]  # sums are exact, and ties happen
    found = collect(logits, one_by_one(), nbest=nbest, answer_tokens=answer_tokens)
    for question, record in enumerate(RECORDS):
        best = all_spans(logits, question, answer_tokens)
        kept = int(np.isfinite(found.scores[question]).sum())
        chars = [tuple(each) for each in found.chars[question, :kept].tolist()]
        assert found.scores[question, :kept].tolist() == sorted(best.values(), reverse=True)[:nbest]
        assert [best[each] for each in chars] == found.scores[question, :kept].tolist()
        assert len(set(chars)) == kept  # the windows overlap, but no span is there twice
        assert found.texts[question] == [record.context[a:b] for a, b in chars] + [""] * (nbest - kept)
        null = min(float(logits[n][0].sum()) for n in np.flatnonzero(WINDOWS.example == question))
        assert found.no_answer[question] == (null - max(best.values()) if best else CERTAIN)


@settings(max_examples=150)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 3), scale=st.sampled_from([0.3, 1.0, 3.0]))
def test_under_the_older_rule_the_best_window_wins(seed, size, scale):
    """Members' probabilities over all tokens of a window, the larger of each token, then the older rule."""
    members = [random_logits(WINDOWS, seed * 7 + n, scale) for n in range(size)]
    ensemble = Ensemble(tuple(Member(str(n), 1, 1.0) for n in range(size)))
    blended = [ensemble.blend([one.log_softmax(dim=0) for one in window]) for window in zip(*members)]
    found = collect(blended, one_by_one(), nbest=100, rule="independent")
    for question, record in enumerate(RECORDS):
        bids, best = [], {}
        for n in np.flatnonzero(WINDOWS.example == question):
            shares = [torch.softmax(one[n].double(), dim=0) for one in members]
            start, end = torch.stack(shares).amax(dim=0).T.tolist()
            product, said = older_rule(start, end, int(WINDOWS.context_at[n]), int(WINDOWS.context_end[n]))
            bids.append((product, n, said))
            places = range(WINDOWS.context_at[n], WINDOWS.context_end[n])
            for first, last in [(one, other) for one in places for other in places if one <= other]:
                chars = tuple(WINDOWS.span_chars(np.array(n), np.array(first), np.array(last)).tolist())
                best[chars] = max(best.get(chars, 0.0), start[first] * end[last])
        _, n, said = max(bids)
        chars = (0, 0) if said is None else WINDOWS.span_chars(np.array(n), *map(np.array, said)).tolist()
        assert found.answers()[record.id] == record.context[slice(*chars)]
        ranked = sorted(best, key=best.__getitem__, reverse=True)
        spans = [tuple(chars) for chars in found.chars[question, : len(ranked)].tolist()]
        assert sorted(spans) == sorted(ranked)
        # in this order, but for rounding: two products may be equal in fp32
        assert [best[span] for span in spans] == pytest.approx([best[span] for span in ranked], rel=1e-5)
        assert [record.context[slice(*span)] for span in spans] == found.texts[question][: len(ranked)]
        assert np.exp(found.scores[question, : len(ranked)]) == pytest.approx([best[one] for one in ranked], rel=1e-4)
        assert abs(found.no_answer[question]) < 200 or not ranked


def planted(**places: tuple[int, int, float]) -> list[torch.Tensor]:
    """Logits of the two windows of the first question, zero but where planted: window=(first, last, logit)."""
    logits = [torch.zeros(int(n), 2) for n in WINDOWS.lengths]
    for name, (first, last, value) in places.items():
        logits[int(name[-1])][first, 0] = logits[int(name[-1])][last, 1] = value
    return logits


def test_the_best_window_wins_even_with_no_answer():
    at = int(WINDOWS.context_at[0])
    surer_answer = collect(planted(w0=(at + 1, at + 1, 9.0), w1=(0, 0, 5.0)), one_by_one(), rule="independent")
    assert surer_answer.answers()["q0"] == "king"
    surer_null = collect(planted(w0=(at + 1, at + 1, 5.0), w1=(0, 0, 9.0)), one_by_one(), rule="independent")
    assert surer_null.answers()["q0"] == ""
    assert surer_null.best()["q0"] == "king"  # what it would be, were an answer demanded


def test_a_question_is_unanswerable_only_if_every_window_says_so():
    at = int(WINDOWS.context_at[0])
    found = collect(planted(w0=(0, 0, 9.0), w1=(at, at, 3.0)), one_by_one())
    assert found.no_answer[0] == 0.0 - 6.0  # the second window's null score, against its span
    assert found.answers()["q0"] != ""


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), order=st.permutations(range(len(WINDOWS))), size=st.integers(1, 5))
def test_batches_do_not_matter(seed, order, size):
    logits = random_logits(WINDOWS, seed)
    batches = [list(order[start : start + size]) for start in range(0, len(order), size)]
    one, other = (collect(logits, each, nbest=4) for each in (one_by_one(), batches))
    assert one.to_json() == other.to_json()
    one, other = (collect(logits, each, rule="independent") for each in (one_by_one(), batches))
    assert one.answers() == other.answers()
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    np.testing.assert_allclose(one.no_answer, other.no_answer, atol=1e-5)


def test_an_empty_context_has_no_answer_and_a_finite_score():
    for rule in ("joint", "independent"):
        found = collect(random_logits(WINDOWS, 1), one_by_one(), rule=rule)
        assert found.answers()["q2"] == found.best()["q2"] == ""
        assert found.no_answer[2] == CERTAIN
        assert np.isfinite(found.no_answer).all()
        assert found.to_json()["q2"] == {"answer": "", "no_answer_score": CERTAIN, "nbest": []}


def test_thresholds():
    found = SpanPredictions(
        ["a", "b"], [["x"], ["y"]], np.zeros((2, 1, 2), np.int64), np.ones((2, 1)), np.array([-1.0, 2.0])
    )
    assert found.answers() == {"a": "x", "b": ""}
    assert found.answers(2.0) == {"a": "x", "b": "y"}  # above the threshold, not at it
    assert found.answers(-1.5) == {"a": "", "b": ""}
    assert found.best() == {"a": "x", "b": "y"}
    assert found.no_answer_scores() == {"a": -1.0, "b": 2.0}


def test_answers_have_no_white_space_around_them():
    """RoBERTa-like tokens bring the space before the word; tokens of space alone are no answers at all."""
    records = [Record("q", "who?", " the   king  \n of the north ", (), (), "", 0)]
    windows = make_windows(plain_tokenizer("roberta"), records)
    logits = random_logits(windows, 3)
    found = collect(logits, one_by_one(windows), records, windows, nbest=200)
    kept = int(np.isfinite(found.scores[0]).sum())
    texts, chars = found.texts[0][:kept], [tuple(each) for each in found.chars[0, :kept].tolist()]
    assert kept > 50
    assert all(text and text == text.strip() for text in texts)
    assert len(set(chars)) == kept
    assert [records[0].context[a:b] for a, b in chars] == texts


def test_a_head_that_has_burst_says_no_answer():
    for junk in (math.nan, math.inf, -math.inf):
        logits = [torch.full((int(n), 2), junk) for n in WINDOWS.lengths]
        found = collect(logits, one_by_one())
        assert np.isfinite(found.no_answer).all()
        assert set(found.answers().values()) == {""}
    logits = random_logits(WINDOWS, 1)
    logits[0][0] = math.nan  # only the null score
    assert np.isfinite(collect(logits, one_by_one()).no_answer).all()


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), nbest=st.integers(1, 6))
def test_predictions_come_back_from_json(seed, nbest):
    found = collect(random_logits(WINDOWS, seed), one_by_one(), nbest=nbest)
    text = json.dumps(found.to_json(), allow_nan=False)
    back = SpanPredictions.from_json(json.loads(text))
    assert back.ids == found.ids
    for threshold in (-3.0, 0.0, 3.0):
        assert back.answers(threshold) == found.answers(threshold)
    assert back.no_answer.tolist() == found.no_answer.tolist()
    width = back.scores.shape[1]
    assert back.texts == [texts[:width] for texts in found.texts]
    np.testing.assert_allclose(back.scores, found.scores[:, :width], atol=1e-6)
    assert back.to_json() == found.to_json()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        {"q": 3},
        {"q": {}},
        {"q": {"nbest": [], "no_answer_score": None}},
        {"q": {"nbest": [{"text": "x", "start": "a", "end": 2, "score": 1}], "no_answer_score": 0}},
        {"q": {"nbest": [{"text": 3, "start": 0, "end": 2, "score": 1}], "no_answer_score": 0}},
        {"q": {"nbest": [{"text": "x"}], "no_answer_score": 0}},
    ],
)
def test_other_json_is_refused(rows):
    with pytest.raises(UserError, match=r"a\.json: not a predictions file") as caught:
        SpanPredictions.from_json(rows, "a.json")
    assert "\n" not in str(caught.value)


def test_little_is_kept_of_a_window():
    records = [Record(str(n), f"who {n}?", "the king was born in the city " * 20, (), (), "", 0) for n in range(50)]
    windows = make_windows(plain_tokenizer(), records, 64, 16)
    collector = SpanCollector(records, windows, nbest=20)
    kept = sum(value.nbytes for value in vars(collector).values() if isinstance(value, np.ndarray))
    assert kept / len(windows) <= 20 * 12 + 8  # two positions and a score per candidate, and the null score
