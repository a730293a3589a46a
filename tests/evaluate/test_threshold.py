"""The chosen threshold is the best there is, by brute force over every place one could stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.evaluate.threshold import choose_threshold

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
