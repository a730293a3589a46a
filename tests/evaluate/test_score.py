"""Members, ensembles and score rows: display names are made from them, and JSON gives them back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import HOWS, Ensemble, Member
from bertvision.evaluate.score import Cost, Score, efficiency, equal_cost, pareto_front

BACKBONE, POOL = Member("", 1, 1.0), Member("pool", 1, 1.0)
names = some.text(min_size=1).filter(str.strip)
members = some.builds(
    Member,
    some.just("") | names,
    some.integers(0, 9),
    some.sampled_from([0.3, 1.0]),
    some.sampled_from([0.3, 1.0]),
    some.sampled_from([None, 0.5]),
)


@pytest.mark.parametrize(
    "ensemble, name, parts, role",
    [
        (Ensemble.of(BACKBONE), "backbone", "backbone", "backbone"),
        (Ensemble.of(POOL), "pool", "pool", "head"),
        (Ensemble.of(Member("pool", 1, 1.0, 0.3)), "pool @ 30 %", "pool @ 30 %", "head"),
        (Ensemble.of(Member("pool", 1, 1.0, 1.0, 0.5)), "pool, epoch 0.5", "pool, epoch 0.5", "head"),
        (Ensemble((BACKBONE, POOL), chosen="pair"), "backbone + pool", "backbone + pool", "ensemble"),
        (
            Ensemble((BACKBONE, POOL), how="mean", chosen="best"),
            "backbone + best head",
            "backbone + pool, mean",
            "ensemble",
        ),
        (Ensemble((POOL,), (1.0,), "mean", "greedy"), "greedy ensemble", "pool", "ensemble"),
        (
            Ensemble((BACKBONE, Member("a + b", 2, 0.5)), (0.5, 0.5), "max", "given"),
            "ensemble (max)",
            "backbone @ epoch 1, seed 1 + a + b @ epoch 0.5, seed 2",
            "ensemble",
        ),
    ],
)
def test_display_names(ensemble, name, parts, role):
    assert (ensemble.name, ensemble.parts, ensemble.role) == (name, parts, role)


@given(some.lists(members, min_size=1, max_size=3), some.sampled_from(HOWS), some.booleans())
def test_json_gives_a_row_back_whatever_the_names(found, how, weighted):
    chosen = "given" if len(found) > 1 else ""
    ensemble = Ensemble(tuple(found), (0.5,) * len(found) if weighted else (), how, chosen)
    row = Score(ensemble, 0.25, "tune", {"f1": 50.0, "total": 8}, Cost(7, 9), "f1", 51.0, {"f1": 3.0}, "a note", "L1")
    assert Score.from_json(row.to_json(), "here") == row
    assert row.to_json()["tune_f1"] == 51.0 and row.to_json()["member"] == ensemble.name


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ensemble": None}, "here: ensemble: must be a table"),
        ({"ensemble": {"members": []}}, "here: ensemble: members: there is none"),
        (
            {"ensemble": {"members": [{"head": "pool", "seed": "1", "epoch": 1.0}]}},
            "ensemble: members.0.seed: must be a whole number",
        ),
        (
            {"ensemble": {"members": [POOL.to_json()], "how": "median"}},
            "ensemble: how: must be 'max', 'mean' or 'product', not 'median'",
        ),
        ({"ensemble": {"members": [POOL.to_json()], "weights": [0.5, 0.5]}}, "ensemble: weights: "),
        ({"f1": "high"}, "here: f1: 'high'"),
        ({"threshold": True}, "here: threshold: True"),
        ({"threshold_from": 3}, "here: threshold_from: 3"),
    ],
)
def test_a_damaged_row_is_refused_by_its_key(change, message):
    row = Score(Ensemble.of(POOL), 0.0, "zero", {"f1": 50.0}).to_json() | change
    with pytest.raises(UserError) as error:
        Score.from_json(row, "here")
    assert message in str(error.value) and str(error.value).startswith("here: ")


def test_a_row_of_an_earlier_version_says_what_to_do():
    with pytest.raises(UserError, match="without its ensemble; delete the file and run"):
        Score.from_json({"member": "backbone + pool", "f1": 1.0}, "scores-1.json")


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
