"""The members of a checkpoint: what each cost, and heads as they were after some epochs of their training."""

import pytest

from bertvision.train.study import Study
from runs import recipe_of


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    directory = tmp_path_factory.mktemp("members") / "run"
    brief = {"epochs": 1, "checkpoints": [], "batch_size": 8}
    bank = {"fractions": [1.0, 0.5], "checkpoints": [0.5, 1]}
    found = Study(recipe_of(finetune=brief, heads=[{"kind": "pool"}], bank=bank), directory, quiet=True)
    found.begin()
    found.tune(1)
    found.train(1, 1.0)
    found.score(1, 1.0)
    return found


def test_heads_of_an_earlier_epoch_are_scored_beside_those_of_the_last(study):
    rows = {row["member"]: row for row in study.rows() if row["threshold_from"] == "tune"}
    assert set(rows) == {
        *("backbone", "pool", "pool @ 50 %", "pool, epoch 0.5", "pool @ 50 %, epoch 0.5", "backbone + best head")
    }
    assert rows["pool, epoch 0.5"]["head_epochs"] == 0.5 and "head_epochs" not in rows["pool"]
    assert rows["pool @ 50 %"]["fraction"] == 0.5 and "fraction" not in rows["pool"]
    heads = study.members(1, 1.0).heads
    early, last = (heads[name].readout.weight for name in ("pool, epoch 0.5", "pool"))
    assert early.shape == last.shape and not early.equal(last)  # it went on learning
    assert rows["pool, epoch 0.5"]["head_seconds"] < rows["pool"]["head_seconds"]
    assert set(study.members(1, 1.0).pairs) == {"backbone + pool"}  # with what has seen everything, to the end


def test_what_members_take(study):
    rows = {row["member"]: row for row in study.rows() if row["threshold_from"] == "tune"}
    members = study.members(1, 1.0)
    head = members.heads["pool"].parameter_count()
    backbone, pool, both = rows["backbone"], rows["pool"], rows["backbone + best head"]
    assert pool["parameters"] == head and backbone["parameters"] == backbone["total_parameters"]  # all of it trains
    assert both["total_parameters"] == backbone["total_parameters"] + head
    assert both["disk_bytes"] == backbone["disk_bytes"] + 4 * head
    assert backbone["head_seconds"] == 0 and backbone["train_seconds"] == backbone["tuning_seconds"] > 0
    assert pool["tuning_seconds"] == backbone["tuning_seconds"] and pool["head_seconds"] > 0
    assert pool["train_seconds"] == pytest.approx(pool["tuning_seconds"] + pool["head_seconds"], abs=2e-3)
