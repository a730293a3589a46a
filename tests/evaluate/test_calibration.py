"""The chosen threshold is the best there is, by brute force over every place one could stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bertvision.evaluate.calibration import (
    Calibration,
    auroc,
    calibration_error,
    choose_threshold,
    fit_calibration,
    null_probability,
    reliability,
)


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


@given(
    slope=st.floats(0.3, 3),
    intercept=st.floats(-2, 2),
    seed=st.integers(0, 99),
)
def test_a_fit_finds_the_curve_that_made_the_data(slope, intercept, seed):
    random = np.random.default_rng(seed)
    scores = random.normal(0, 2, 20_000)
    unanswerable = random.random(20_000) < null_probability(slope * scores + intercept)
    found = fit_calibration(scores, ~unanswerable)
    assert found.slope == pytest.approx(slope, rel=0.1)
    assert found.intercept == pytest.approx(intercept, abs=0.15)
    assert found.answerable == pytest.approx(1 - unanswerable.mean())
    curve = reliability([found.probability(score) for score in scores[:5000]], unanswerable[:5000])
    assert calibration_error(curve) < 0.03


def test_a_fit_of_separated_alike_or_senseless_scores():
    apart = fit_calibration([-1e4, -2.0, 2.0, 1e4], [True, True, False, False])
    assert np.isfinite(apart.slope) and apart.probability(-2) < 0.5 < apart.probability(2)
    assert fit_calibration([1.0, 2.0], [True, True]) is None
    assert fit_calibration([1.0, 2.0], [False, False]) is None
    assert fit_calibration([3.0, 2.0, 1.0], [True, True, False]) is None  # the wrong way round
    assert fit_calibration([], []) is None


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(-8, 8))
def test_another_share_of_answerable_questions_changes_the_odds_by_bayes_rule(before, after, score):
    calibration = Calibration(1.5, 0.3, before)
    moved = calibration.assuming(after)
    old, new = calibration.probability(score), moved.probability(score)
    factor = (1 - after) / after / ((1 - before) / before)
    assert new == pytest.approx(old * factor / (old * factor + 1 - old), rel=1e-6)
    threshold = calibration.move(score, moved)
    assert moved.probability(threshold) == pytest.approx(old, rel=1e-6)
    assert moved.assuming(before).probability(score) == pytest.approx(old, rel=1e-6)


questions = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),  # scored as answered
        st.sampled_from([0.0, 1.0]),  # scored as "no answer"
        st.integers(-6, 6).map(float) | st.floats(-1e4, 1e4),  # whole numbers for ties
    ),
    min_size=1,
    max_size=25,
)


def mean(answered, emptied, doubts, threshold: float) -> float:
    return float(np.mean([e if doubt > threshold else a for a, e, doubt in zip(answered, emptied, doubts)]))


@given(questions)
def test_no_threshold_is_better(rows):
    answered, emptied, doubts = zip(*rows)
    threshold, score = choose_threshold(answered, emptied, doubts)
    assert score == pytest.approx(mean(answered, emptied, doubts, threshold))
    everywhere = [-np.inf, *doubts, *np.nextafter(doubts, -np.inf), np.inf]
    assert score == pytest.approx(max(mean(answered, emptied, doubts, place) for place in everywhere))
    assert np.isfinite(threshold)


@given(questions, st.sampled_from([0.25, 2.0, 1024.0]))
def test_any_scale_will_do(rows, factor):
    answered, emptied, doubts = zip(*rows)
    threshold, score = choose_threshold(answered, emptied, doubts)
    scaled, same = choose_threshold(answered, emptied, [doubt * factor for doubt in doubts])
    assert same == score
    assert scaled == pytest.approx(threshold * factor, abs=1e-300)


def test_by_hand():
    answered, emptied, doubts = [1, 1, 0, 0], [0, 0, 1, 1], [-2, -1, 1, 4]
    assert choose_threshold(answered, emptied, doubts) == (0.0, 1.0)  # halfway between -1 and 1
    assert choose_threshold([1, 1], [0, 0], [3, 5]) == (5.0, 1.0)  # everything stands
    threshold, score = choose_threshold([0, 0], [1, 1], [3, 5])
    assert threshold < 3
    assert score == 1.0


def test_equal_doubts_stay_together():
    threshold, score = choose_threshold([1, 0], [0, 1], [2.0, 2.0])
    assert score == 0.5
    assert threshold < 2.0  # of equally good ones the lowest


def test_nothing_to_choose_from():
    with pytest.raises(ValueError, match="at least one"):
        choose_threshold([], [], [])
    with pytest.raises(ValueError, match="finite"):
        choose_threshold([1], [0], [float("nan")])
