import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.evaluate.pareto import efficiency, equal_cost, pareto_front

# The last two are dominated: one costs more for less, the other costs as much as the second for less.
COST = [1, 2, 4, 3, 2]
SCORE = [50, 60, 70, 55, 59]


def test_a_front_by_hand():
    assert pareto_front(COST, SCORE).tolist() == [True, True, True, False, False]


def test_equal_points_stand_together():
    assert pareto_front([1, 1, 2, 2], [5, 5, 5, 6]).tolist() == [True, True, False, True]


def test_what_is_unknown_is_not_on_the_front():
    assert pareto_front([1, math.nan, 1], [math.nan, 9, 3]).tolist() == [False, False, True]
    assert pareto_front([], []).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_is_what_a_search_over_all_pairs_finds(points):
    front = pareto_front([cost for cost, _ in points], [score for _, score in points])
    for (cost, score), on_front in zip(points, front):
        beaten = any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points)
        assert on_front == (not beaten)


@given(st.permutations(range(5)))
def test_order_does_not_matter(order):
    front = pareto_front(COST, SCORE)
    assert (pareto_front(np.array(COST)[order], np.array(SCORE)[order]) == front[order]).all()


def test_efficiency_of_published_models():
    assert efficiency(75.2, 42_548_738) == pytest.approx(3.30, abs=0.005)  # Hulburd's L6, printed as 3.3
    assert efficiency(76.3, 108_311_810) == pytest.approx(3.27, abs=0.005)  # L12
    assert efficiency(53.1, 39_938) == pytest.approx(3.1 / 4.60139, abs=1e-5)  # L0
    assert efficiency(40.0, 100) < 0


@pytest.mark.parametrize("parameters", [0, 1])
def test_efficiency_without_parameters_is_undefined(parameters):
    assert efficiency(76.0, parameters) is None


def test_the_checkpoint_of_equal_cost():
    tuned = {0.0: 0.0, 0.3: 30.0, 1.0: 100.0}
    assert equal_cost(tuned, 65.0) == ({0.3: 0.5, 1.0: 0.5}, pytest.approx(0.65), "interpolated")
    assert equal_cost(tuned, 99.0) == ({1.0: 1.0}, 1.0, "exact")  # within 2 %
    assert equal_cost(tuned, 10.0).weights == pytest.approx({0.0: 2 / 3, 0.3: 1 / 3})
    assert equal_cost(tuned, 130.0) == ({1.0: 1.0}, 1.3, "beyond")
    assert equal_cost({0.0: 0.0}, 5.0) == ({0.0: 1.0}, None, "beyond")  # nothing was tuned: no epochs to count in
