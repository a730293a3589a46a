"""Batches: every window once per epoch, within the budget, the same from the same seed, and hardly any padding."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.data.batches import BatchPlan, Ragged, by_length, collate, cut, nested_fraction
from bertvision.data.squad import Record
from bertvision.data.windows import make_windows
from encoders import tiny_tokenizer
from real import minilm, needs_squad, squad

lengths_of_windows = st.lists(st.integers(1, 400), max_size=120).map(np.array).map(lambda a: a.astype(np.int64))
limits = st.fixed_dictionaries({"batch_size": st.integers(1, 20), "batch_tokens": st.integers(1, 1500)})


def check_budget(batches: list[np.ndarray], lengths: np.ndarray, batch_size: int, batch_tokens: int) -> None:
    for batch in batches:
        assert 1 <= len(batch) <= batch_size
        assert len(batch) * lengths[batch].max() <= batch_tokens or len(batch) == 1


def waste(batches: list[np.ndarray], lengths: np.ndarray) -> float:
    """The share of padding among the tokens of the batches."""
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1 - sum(int(lengths[batch].sum()) for batch in batches) / padded


@given(lengths=lengths_of_windows, limit=limits, epochs=st.integers(0, 3), seed=st.integers(0, 2**40))
def test_every_window_once_per_epoch_within_the_budget(lengths, limit, epochs, seed):
    plan = BatchPlan(lengths, epochs=epochs, seed=seed, **limit)
    check_budget(plan.batches, lengths, **limit)
    steps = [plan.steps_at(epoch) for epoch in range(epochs + 1)]
    assert steps[0] == 0
    assert steps[-1] == len(plan)
    for begin, end in pairwise(steps):
        seen = np.concatenate([plan[step] for step in range(begin, end)]) if end > begin else np.zeros(0)
        assert sorted(seen.tolist()) == list(range(len(lengths)))
    again = BatchPlan(lengths, epochs=epochs, seed=seed, **limit)
    assert [batch.tolist() for batch in plan.batches] == [batch.tolist() for batch in again.batches]


def test_epochs_and_seeds_differ():
    lengths = np.random.default_rng(0).integers(10, 300, 500)
    plan = BatchPlan(lengths, epochs=2, batch_size=8, batch_tokens=2048, seed=1)
    other = BatchPlan(lengths, epochs=2, batch_size=8, batch_tokens=2048, seed=2)
    half = plan.steps_at(1)
    first, second, seed_2 = plan.batches[:half], plan.batches[half:], other.batches[: other.steps_at(1)]
    as_sets = [{tuple(sorted(batch.tolist())) for batch in epoch} for epoch in (first, second, seed_2)]
    for other_set in as_sets[1:]:  # though 500 windows are few enough to be sorted all at once
        assert len(as_sets[0] & other_set) < len(as_sets[0]) / 4
    means = [lengths[batch].mean() for batch in first]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3  # the order does not follow the length


@given(
    lengths=lengths_of_windows,
    limit=limits,
    epochs=st.floats(0, 2.5),
    marks=st.lists(st.floats(0, 3), max_size=5).map(sorted),
)
def test_fractions_of_an_epoch(lengths, limit, epochs, marks):
    plan = BatchPlan(lengths, epochs=epochs, seed=3, **limit)
    whole = BatchPlan(lengths, epochs=3, seed=3, **limit)
    # a shorter training is the beginning of a longer one, and stops with the batch that reaches the mark
    assert [batch.tolist() for batch in plan.batches] == [batch.tolist() for batch in whole.batches[: len(plan)]]
    wanted = round(epochs * len(lengths))
    seen = sum(map(len, plan.batches))
    assert seen >= wanted
    assert not len(plan) or seen - len(plan[len(plan) - 1]) < wanted
    steps = [plan.steps_at(mark) for mark in marks]
    assert steps == sorted(steps)
    for mark, step in zip(marks, steps):
        assert 0 <= step <= len(plan)
        if mark <= epochs:
            assert sum(map(len, plan.batches[:step])) >= round(mark * len(lengths))
            assert step == whole.steps_at(mark)


def test_steps_by_hand():
    plan = BatchPlan(np.full(10, 5), epochs=1.5, batch_size=2, batch_tokens=100, seed=0)
    assert len(plan) == 8  # 15 windows in batches of two, five of them to an epoch
    assert [plan.steps_at(epoch) for epoch in (0, 0.1, 0.2, 0.3, 0.5, 1, 1.2, 1.5, 2)] == [0, 1, 1, 2, 3, 5, 6, 8, 8]
    assert plan.seen.tolist() == [2, 4, 6, 8, 10, 12, 14, 16]


def test_nothing_to_learn_from():
    for plan in (
        BatchPlan(np.zeros(0, np.int64), epochs=3, batch_size=2, batch_tokens=9, seed=0),
        BatchPlan(np.full(4, 5), epochs=0, batch_size=2, batch_tokens=9, seed=0),
    ):
        assert len(plan) == 0
        assert plan.steps_at(1) == 0
    assert by_length(np.zeros(0, np.int64), 100) == []


@given(lengths=lengths_of_windows, limit=limits)
def test_inference_takes_all_windows_once_longest_first(lengths, limit):
    batches = by_length(lengths, **limit)
    check_budget(batches, lengths, **limit)
    order = [window for batch in batches for window in batch.tolist()]
    assert sorted(order) == list(range(len(lengths)))
    assert lengths[order].tolist() == sorted(lengths.tolist(), reverse=True)


def test_cutting_is_greedy_and_a_window_over_the_budget_goes_alone():
    lengths = np.array([3, 3, 4, 5, 9])
    assert [batch.tolist() for batch in cut(np.arange(5), lengths, 3, 12)] == [[0, 1, 2], [3], [4]]
    assert [batch.tolist() for batch in cut(np.arange(5)[::-1], lengths, 3, 12)] == [[4], [3, 2], [1, 0]]
    assert [batch.tolist() for batch in cut(np.arange(4), np.array([5, 5, 50, 60]), 4, 10)] == [[0, 1], [2], [3]]


@given(
    count=st.integers(0, 300), fractions=st.lists(st.floats(0.0001, 1), min_size=2, max_size=4), seed=st.integers(0, 99)
)
def test_a_smaller_share_is_part_of_a_larger(count, fractions, seed):
    shares = [nested_fraction(count, fraction, seed).tolist() for fraction in sorted(fractions)]
    for fraction, share in zip(sorted(fractions), shares):
        assert share == sorted(set(share))
        assert len(share) == (max(1, round(fraction * count)) if count else 0)
        assert set(share) <= set(range(count))
    for smaller, larger in pairwise(shares):
        assert set(smaller) <= set(larger)
    tenths = [set(nested_fraction(1000, 0.1, each).tolist()) for each in (seed, seed + 1)]
    assert tenths[0] != tenths[1] and max(tenths[0]) > 800  # drawn from everywhere


@pytest.fixture(scope="module")
def windows():
    tokenizer = tiny_tokenizer("bert").backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    contexts = ["the king", "a river in the north " * 3, "", "1066", "the old city and the new " * 9]
    records = [
        Record(str(n), "who is it?", text, (text[:3],) * bool(text), (0,) * bool(text), "", n)
        for n, text in enumerate(contexts)
    ]
    return make_windows(tokenizer, records, 48, 8)


@given(data=st.data())
def test_a_batch_holds_its_windows_and_padding_behind_them(data, windows):
    index = np.array(data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, max_size=6)))
    pad = data.draw(st.integers(0, 3))
    batch = collate(windows, index, pad)
    width = int(windows.lengths[index].max())
    assert batch.ids.shape == batch.types.shape == batch.mask.shape == (len(index), width)
    assert (batch.ids.dtype, batch.types.dtype, batch.mask.dtype) == (torch.int64, torch.int64, torch.bool)
    assert batch.index is index
    assert batch.targets.tolist() == windows.targets[index].tolist()
    assert batch.tokens == int(windows.lengths[index].sum())
    for row, window in enumerate(index):
        begin, end = windows.starts[window], windows.starts[window + 1]
        length = int(end - begin)
        assert batch.ids[row].tolist() == windows.ids[begin:end].tolist() + [pad] * (width - length)
        assert batch.types[row].tolist() == windows.types[begin:end].tolist() + [0] * (width - length)
        assert batch.mask[row].tolist() == [True] * length + [False] * (width - length)


@pytest.mark.real
@needs_squad
def test_padding_on_real_questions():
    windows = make_windows(minilm().tokenizer, squad("squad2/train"))
    plan = BatchPlan(windows.lengths, epochs=1, batch_size=16, batch_tokens=4096, seed=1)
    training, inference = waste(plan.batches, windows.lengths), waste(by_length(windows.lengths, 8192), windows.lengths)
    assert training <= 0.05
    assert inference <= 0.05


def test_ragged_rows_find_their_place():
    ragged = Ragged(np.array([0, 2, 3, 6]), 1)
    ragged.add(np.array([2, 0]), torch.tensor([[3.0], [4], [5], [0], [1]]))
    ragged.add(np.array([1]), torch.tensor([[0.1]]))
    assert torch.equal(ragged.values[:, 0], torch.tensor([0, 1, 0.1, 3, 4, 5]))  # not a bit is lost
