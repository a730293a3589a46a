import math
from dataclasses import astuple, dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.evaluate.bootstrap import Interval, Mean, bootstrap, resample_counts


@dataclass
class Run:
    values: np.ndarray
    metrics: dict = field(default_factory=lambda: {"score": Mean(0)})


def run(*scores: float, metrics: dict | None = None) -> Run:
    values = np.array(scores, float).reshape(len(scores), -1)
    return Run(values, metrics) if metrics else Run(values)


def paired_bootstrap(members, backbone, **options):
    """{member: {metric: member minus backbone}}, seed by seed."""
    pairs = {name: [[(1.0, a), (-1.0, b)] for a, b in zip(runs, backbone)] for name, runs in members.items()}
    return bootstrap(pairs, **options)


def plain(values: np.ndarray) -> float:
    """The mean again, as a metric that the bootstrap knows nothing about."""
    return 100 * float(values[:, 0].mean())


def test_the_difference_is_that_of_the_whole_set():
    found = paired_bootstrap({"head": [run(1, 1, 0, 1)]}, [run(1, 0, 0, 0)])["head"]["score"]
    assert found.difference == 50.0  # two of four questions more
    assert found.low <= 50.0 <= found.high


def test_a_constant_gain_has_an_interval_of_no_width():
    found = paired_bootstrap({"head": [run(0.5, 0.75, 1.0)]}, [run(0.25, 0.5, 0.75)])["head"]["score"]
    assert found == Interval(25.0, 25.0, 25.0)  # every resample gives the same


def test_two_questions_by_hand():
    # A resample of (gain 1, gain 0) has a mean gain of 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    found = paired_bootstrap({"head": [run(1, 0)]}, [run(0, 0)], draws=4000)["head"]["score"]
    assert (found.difference, found.low, found.high) == (50.0, 0.0, 100.0)
    drawn = np.concatenate([counts[:, 0] / 2 for counts in resample_counts(2, 4000, 0)])
    assert [np.mean(drawn == share) for share in (0, 0.5, 1)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_the_interval_is_that_of_the_normal_approximation_where_that_holds():
    gains = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=2000)
    found = paired_bootstrap({"head": [Run(gains[:, None])]}, [Run(np.zeros((2000, 1)))], draws=4000)["head"]["score"]
    half = 1.96 * 100 * gains.std() / math.sqrt(2000)
    assert found.low == pytest.approx(found.difference - half, abs=0.2)
    assert found.high == pytest.approx(found.difference + half, abs=0.2)


def test_pairing_matters():
    """Members that differ on few questions are told apart, however much the questions differ among themselves."""
    hard = np.random.default_rng(0).random((500, 1))
    better = np.clip(hard + 0.01, 0, 1.01)
    found = paired_bootstrap({"head": [Run(better)]}, [Run(hard)])["head"]["score"]
    assert 0.9 < found.low <= found.high < 1.1


def test_only_the_questions_that_count_are_averaged():
    metrics = {"HasAns": Mean(0, among=1), "NoAns": Mean(0, among=2)}
    member = run([1, 1, 0], [0, 1, 0], [1, 0, 1], metrics=metrics)
    backbone = run([0, 1, 0], [0, 1, 0], [0, 0, 1], metrics=metrics)
    found = paired_bootstrap({"head": [member]}, [backbone])["head"]
    assert found["HasAns"].difference == 50.0
    assert found["NoAns"] == Interval(100.0, 100.0, 100.0)  # resamples without such a question say nothing


def test_a_metric_that_no_question_defines_is_left_out():
    metrics = {"all": Mean(0), "none": Mean(0, among=1)}
    member, backbone = run([1, 0], [0, 0], metrics=metrics), run([0, 0], [0, 0], metrics=metrics)
    assert set(paired_bootstrap({"head": [member]}, [backbone])["head"]) == {"all"}
    assert math.isnan(metrics["none"](member.values))


def test_seeds_are_averaged_within_a_resample():
    # Seed 1 gains on the first question, seed 2 on the second: on average half of each, in every resample.
    members, backbones = [run(1, 0), run(0, 1)], [run(0, 0), run(0, 0)]
    assert paired_bootstrap({"head": members}, backbones)["head"]["score"] == Interval(50.0, 50.0, 50.0)
    general = {"score": plain}
    members, backbones = (
        [Run(one.values, general) for one in members],
        [Run(one.values, general) for one in backbones],
    )
    assert paired_bootstrap({"head": members}, backbones)["head"]["score"] == Interval(50.0, 50.0, 50.0)


scores = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(scores, st.data())
@settings(max_examples=25, deadline=None)
def test_the_quick_way_and_the_general_one_agree(ours, data):
    theirs = data.draw(st.lists(st.floats(0, 1), min_size=len(ours), max_size=len(ours)))
    both = {"quick": Mean(0), "general": plain}
    found = paired_bootstrap({"head": [run(*ours, metrics=both)]}, [run(*theirs, metrics=both)], draws=60)["head"]
    for end in ("difference", "low", "high"):
        assert getattr(found["quick"], end) == pytest.approx(getattr(found["general"], end), abs=1e-9)


@given(scores, st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_identical_members_differ_by_exactly_nothing(own, seeds):
    runs = [run(*own, metrics={"quick": Mean(0), "general": plain}) for _ in range(seeds)]
    found = paired_bootstrap({"head": runs}, runs, draws=40)["head"]
    assert set(found.values()) == {Interval(0.0, 0.0, 0.0)}


def test_a_metric_that_is_no_mean_is_computed_on_each_resample():
    def spread(values: np.ndarray) -> float:
        return float(values[:, 0].max() - values[:, 0].min())

    member, backbone = run(0, 3, metrics={"spread": spread}), run(0, 1, metrics={"spread": spread})
    found = paired_bootstrap({"head": [member]}, [backbone])["head"]["spread"]
    assert (found.difference, found.low, found.high) == (2.0, 0.0, 2.0)  # 3 - 1, or 0 where one question is drawn twice


def test_the_same_seed_draws_the_same_and_members_share_the_draws():
    random = np.random.default_rng(1)
    one, other, base = (Run(random.random((50, 1))) for _ in range(3))
    together = paired_bootstrap({"a": [one], "b": [other]}, [base])
    assert together == paired_bootstrap({"a": [one], "b": [other]}, [base])
    alone = paired_bootstrap({"b": [other]}, [base])["b"]["score"]
    assert astuple(together["b"]["score"]) == pytest.approx(astuple(alone), abs=1e-9)
    assert together["a"] != paired_bootstrap({"a": [one]}, [base], seed=1)["a"]


def test_counts_are_samples_of_the_questions_with_replacement():
    counts = np.concatenate(list(resample_counts(7, 300, 5)))
    assert counts.shape == (300, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert counts.mean() == 1
    assert counts.max() > 1


def test_a_large_set_is_drawn_in_parts(monkeypatch):
    whole = np.concatenate(list(resample_counts(100, 50, 2)))
    monkeypatch.setattr("bertvision.evaluate.bootstrap.CELLS", 700)
    parts = list(resample_counts(100, 50, 2))
    assert len(parts) == 8
    assert (np.concatenate(parts) == whole).all()


def test_without_members_there_is_nothing_to_compare():
    assert paired_bootstrap({}, [run(1, 0)]) == {}


def test_a_contrast_may_have_several_parts():
    """A member against what lies a quarter of the way between two others, in means and in other metrics."""
    both = {"score": Mean(0), "plain": plain}
    member, low, high = (run(*values, metrics=both) for values in ((1, 1, 0), (0, 1, 0), (1, 1, 1)))
    found = bootstrap({"head": [[(1.0, member), (-0.75, low), (-0.25, high)]]}, draws=200)["head"]
    assert found["score"].difference == pytest.approx(200 / 3 - 0.75 * 100 / 3 - 0.25 * 100)
    assert astuple(found["score"]) == pytest.approx(astuple(found["plain"]))


def test_all_parts_are_of_the_same_questions():
    with pytest.raises(ValueError, match="same questions"):
        paired_bootstrap({"head": [run(1, 0)]}, [run(1)])
