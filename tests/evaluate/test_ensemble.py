import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.evaluate.ensemble import HOWS, combine, greedy_selection

A = torch.tensor([0.2, 0.8])
B = torch.tensor([0.6, 0.4])


@pytest.mark.parametrize(
    "how, expected", [("max", [0.6, 0.8]), ("mean", [0.4, 0.6]), ("product", [math.sqrt(0.12), math.sqrt(0.32)])]
)
def test_two_members_by_hand(how, expected):
    found = combine([(A.log(), 0.5), (B.log(), 0.5)], how).exp()
    assert found.tolist() == pytest.approx(expected)


def test_weights_by_hand():
    assert combine([(A.log(), 0.75), (B.log(), 0.25)], "mean").exp().tolist() == pytest.approx([0.3, 0.7])
    found = combine([(A.log(), 0.75), (B.log(), 0.25)], "product").exp()
    assert found.tolist() == pytest.approx([0.2**0.75 * 0.6**0.25, 0.8**0.75 * 0.4**0.25])
    assert combine([(A.log(), 0.75), (B.log(), 0.25)], "max").exp().tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("how", HOWS)
def test_one_member_stays_as_it_is_and_so_do_equal_ones(how):
    assert combine([(A.log(), 3.0)], how).tolist() == pytest.approx(A.log().tolist())
    assert combine([(A.log(), 1.0)] * 3, how).tolist() == pytest.approx(A.log().tolist(), abs=1e-6)


@pytest.mark.parametrize("how", HOWS)
def test_half_precision_in_full_precision_out_and_nothing_is_changed(how):
    stored = A.log().half()
    before = stored.clone()
    assert combine([(stored, 0.5), (B.log().half(), 0.5)], how).dtype == torch.float32
    assert torch.equal(stored, before)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        combine([], "max")
    with pytest.raises(ValueError, match="positive weight"):
        combine([(A.log(), 0.0)], "mean")
    with pytest.raises(ValueError, match="nothing to select"):
        greedy_selection([], lambda weights: 0.0)


def test_greedy_selection_by_hand():
    # What is to be hit is 0.7: a (0.4) is nearest, then b (1.0) brings the mean to 0.7, and nothing helps any more.
    value = {"a": 0.4, "b": 1.0, "c": 0.2}

    def score(weights):
        return -abs(sum(value[name] * weight for name, weight in weights.items()) - 0.7)

    weights, best = greedy_selection(list(value), score)
    assert weights == {"a": 0.5, "b": 0.5}
    assert best == pytest.approx(0)


def test_a_member_may_sit_twice():
    # 0.8 is between two parts of a and one of b, which only repeating reaches.
    value = {"a": 1.0, "b": 0.4}

    def score(weights):
        return -abs(sum(value[name] * weight for name, weight in weights.items()) - 0.8)

    assert greedy_selection(list(value), score)[0] == {"a": pytest.approx(2 / 3), "b": pytest.approx(1 / 3)}
    assert greedy_selection(list(value), score, repeats=False)[0] == {"a": 0.5, "b": 0.5}


def test_what_does_not_help_is_not_added():
    assert greedy_selection(["a", "b"], lambda weights: 1.0) == ({"a": 1.0}, 1.0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.randoms(use_true_random=False), st.booleans())
def test_greedy_is_never_worse_than_the_best_single(singles, random, repeats):
    names = [str(number) for number in range(len(singles))]
    scores: dict = {}

    def score(weights):
        if len(weights) == 1:
            return singles[int(next(iter(weights)))]
        return scores.setdefault(tuple(sorted(weights.items())), random.randint(-1, 6))

    weights, best = greedy_selection(names, score, repeats=repeats)
    assert best >= max(singles)
    assert best == score(weights)
    assert sum(weights.values()) == pytest.approx(1)
    assert all(weight > 0 for weight in weights.values())
