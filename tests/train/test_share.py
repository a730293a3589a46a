"""A share of the training set within a plan for all of it: which rows, and when there are enough for an update."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.backbone.states import States
from bertvision.data.batches import BatchPlan, collate
from bertvision.train.learner import Share
from runs import load, recipe_of

BACKBONE, TASK, DATA = load(recipe_of(data={"max_length": 16, "overlap": 2}))
WINDOWS = DATA["train"].windows  # several per question


def plan_of(epochs: float, batch_size: int) -> BatchPlan:
    return BatchPlan(WINDOWS.lengths, epochs=epochs, batch_size=batch_size, batch_tokens=4096, seed=3)


@given(
    fraction=st.floats(0.01, 0.99),
    epochs=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_updates_use_every_window_of_the_share_once_per_pass(fraction, epochs, batch_size, seed):
    plan = plan_of(epochs, 8)
    share = Share(WINDOWS, plan, fraction, batch_size=batch_size, seed=seed)
    steps, (numbers, sizes) = list(share.updates), zip(*share.updates.values()) if share.updates else ((), ())
    assert list(numbers) == list(range(len(steps))) and steps == sorted(steps)
    assert sum(sizes) == sum(int(share.seen[index].sum()) for index in plan.batches)
    assert all(batch_size <= size < batch_size + 8 for size in sizes[:-1])
    assert not sizes or 0 < sizes[-1] < batch_size + 8


@given(small=st.floats(0.01, 1), large=st.floats(0.01, 1), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_shares_are_nested_and_hold_whole_examples(small, large, seed):
    small, large = sorted([small, large])
    one, other = (Share(WINDOWS, plan_of(1, 8), f, batch_size=8, seed=seed) for f in (small, large))
    assert not (one.seen & ~other.seen).any()
    assert set(WINDOWS.example[one.seen]).isdisjoint(WINDOWS.example[~one.seen])
    questions = len(set(WINDOWS.example[one.seen]))
    assert questions == max(1, round(small * len(DATA["train"].records)))
    assert len(WINDOWS) > len(DATA["train"].records)


def test_rows_of_a_batch():
    plan = plan_of(1, 16)
    share = Share(WINDOWS, plan, 0.5, batch_size=8, seed=0)
    batch = collate(WINDOWS, plan[0], BACKBONE.pad)
    layers = BACKBONE(batch, "last").layers.detach()
    states, part = share.of(States(layers, batch.mask), batch)
    rows = share.seen[batch.index]
    assert 0 < rows.sum() < len(rows)
    assert np.array_equal(part.index, batch.index[rows])
    for whole, own in ((batch.ids, part.ids), (batch.types, part.types), (batch.targets, part.targets)):
        assert np.array_equal(whole[rows], own)
    assert np.array_equal(layers[rows], states.layers)
    assert np.array_equal(batch.mask[rows], states.mask) and np.array_equal(part.mask, states.mask)
