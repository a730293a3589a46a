"""The metrics of labels and scores: equal to scikit-learn and scipy, and defined where those are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from bertvision.evaluate import metrics

classes = st.integers(2, 4)
labelled = classes.flatmap(
    lambda count: st.tuples(
        st.just(count), st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), min_size=1)
    )
)
quick = settings(max_examples=40, deadline=None)


def columns(pairs) -> tuple[np.ndarray, np.ndarray]:
    gold, predicted = np.array(pairs).T
    return gold, predicted


@quick
@given(labelled)
def test_labels_agree_with_scikit_learn(drawn):
    count, pairs = drawn
    gold, predicted = columns(pairs)
    assert metrics.accuracy(gold, predicted) == pytest.approx(100 * accuracy_score(gold, predicted))
    average = {"average": "binary", "pos_label": 1} if count == 2 else {"average": "macro"}
    expected = f1_score(gold, predicted, zero_division=0, **average)
    assert metrics.f1(gold, predicted, count) == pytest.approx(100 * expected)
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert metrics.matthews(gold, predicted, count) == pytest.approx(100 * matthews_corrcoef(gold, predicted))
    else:
        assert metrics.matthews(gold, predicted, count) == 0.0


values = st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=2)


@quick
@given(values)
def test_correlations_agree_with_scipy(pairs):
    gold, predicted = (side / 10 for side in columns(pairs))
    if len(set(gold)) > 1 and len(set(predicted)) > 1:
        assert metrics.pearson(gold, predicted) == pytest.approx(100 * stats.pearsonr(gold, predicted)[0], abs=1e-8)
        assert metrics.spearman(gold, predicted) == pytest.approx(100 * stats.spearmanr(gold, predicted)[0], abs=1e-8)
    else:
        assert metrics.pearson(gold, predicted) == metrics.spearman(gold, predicted) == 0.0
    assert metrics.ranks(gold) == pytest.approx(stats.rankdata(gold))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_constants_and_tiny_sets_are_zero_and_never_warn(count):
    same, other = np.full(count, 0.1 + 0.2), np.arange(count, dtype=float)
    assert metrics.pearson(same, other) == metrics.spearman(other, same) == 0.0
    ones = np.ones(count, dtype=int)
    assert metrics.matthews(ones, ones) == 0.0
    assert metrics.f1(ones * 0, ones * 0) == 0.0


def test_what_is_constant_but_for_rounding_has_no_correlation():
    almost = 0.3 + np.array([0.0, 1e-17, 2e-16, 0.0])
    assert metrics.is_constant(almost)
    assert metrics.pearson(almost, np.arange(4.0)) == 0.0
    assert metrics.pearson(np.arange(4) * 1e-30, np.arange(4.0)) == pytest.approx(100)  # small is not constant


def test_perfect_and_opposite():
    gold = np.array([0, 1, 1, 0])
    assert [f(gold, gold) for f in (metrics.accuracy, metrics.f1, metrics.matthews)] == [100.0] * 3
    assert metrics.matthews(gold, 1 - gold) == -100.0
    assert metrics.spearman(gold, -gold) == -100.0


def test_confusion_counts_rows_of_gold():
    found = metrics.confusion(np.array([0, 0, 2]), np.array([1, 1, 2]), 3)
    assert found.tolist() == [[0, 2, 0], [0, 0, 0], [0, 0, 1]]
