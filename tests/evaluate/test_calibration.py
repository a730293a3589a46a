import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bertvision.evaluate.calibration import auroc, calibration_error, null_probability, reliability


def test_a_curve_by_hand():
    curve = reliability([0.1, 0.3, 0.6, 1.0], [False, True, True, True], bins=2)
    assert curve == [
        {"confidence": pytest.approx(0.2), "observed": 0.5, "questions": 2},
        {"confidence": pytest.approx(0.8), "observed": 1.0, "questions": 2},
    ]
    assert calibration_error(curve) == pytest.approx((2 * 0.3 + 2 * 0.2) / 4)


def test_empty_ranges_are_left_out():
    assert [point["questions"] for point in reliability([0.05, 0.95], [False, True])] == [1, 1]
    assert reliability([], []) == []
    assert calibration_error([]) is None


def test_a_calibrated_score_lies_on_the_diagonal():
    random = np.random.default_rng(0)
    chance = random.random(20_000)
    curve = reliability(chance, random.random(20_000) < chance)
    assert len(curve) == 10
    assert all(abs(point["confidence"] - point["observed"]) < 0.04 for point in curve)
    assert calibration_error(curve) < 0.02


def test_a_score_of_zero_means_that_both_are_as_likely():
    found = null_probability(np.array([-1e4, 0.0, 1.0, 1e4]))
    assert found == pytest.approx([0.0, 0.5, 1 / (1 + np.exp(-1.0)), 1.0])


def test_auroc_by_hand():
    # Of the four pairs (happened, did not) three are in the right order.
    assert auroc([1, 2, 3, 4], [False, True, False, True]) == 0.75
    assert auroc([1, 1], [False, True]) == 0.5
    assert auroc([1, 2], [True, True]) is None
    assert auroc([], []) is None


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=30))
def test_auroc_is_that_of_scikit_learn(points):
    scores, happened = [score for score, _ in points], [flag for _, flag in points]
    if len(set(happened)) == 2:
        assert auroc(scores, happened) == pytest.approx(roc_auc_score(happened, scores))
