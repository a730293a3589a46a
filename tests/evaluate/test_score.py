"""Members, ensembles and score rows: display names are made from them, and JSON gives them back."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import HOWS, Ensemble, Member
from bertvision.evaluate.score import Cost, Score

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
        ({"ensemble": None}, "here: ensemble: not a table"),
        ({"ensemble": {"members": []}}, "ensemble.members: there is none"),
        ({"ensemble": {"members": [{"head": "pool", "seed": "1", "epoch": 1.0}]}}, "wrong or incomplete at 'seed'"),
        ({"ensemble": {"members": [POOL.to_json()], "how": "median"}}, "ensemble.how: 'median'"),
        ({"ensemble": {"members": [POOL.to_json()], "weights": [0.5, 0.5]}}, "ensemble.weights"),
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
