"""Early stop: every head by itself, on the tune set, keeping what was best; and the same after any kill."""

import json
from pathlib import Path

import pytest
import torch

from bertvision.data.batches import BatchPlan, by_length, collate
from bertvision.recipe import BankRecipe
from bertvision.states.store import live
from bertvision.train.bank import HeadBank, snapshot_of, train_bank
from bertvision.train.early import check_steps
from bertvision.train.progress import Journal
from runs import load, recipe_of
from tunings import killed_at

BACKBONE, TASK, DATA = load(recipe_of())
SHAPE = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "spans"}
STEADY = {"kind": "pool", "learning_rate": 1e-3, "name": "steady"}
WILD = {"kind": "compress", "size": 8, "learning_rate": 1.0, "name": "wild"}  # worse on tune from the first step on


def train(directory: Path, entries=(STEADY, WILD), snapshot_seconds: float = 1e9, **options: object) -> dict:
    """The notes of a bank trained with these options."""
    wanted = {"epochs": 4, "batch_size": 8, "patience": 2, "checks": 2, "states": "live", **options}
    path = directory / "heads.safetensors"
    train_bank(
        HeadBank(entries, **SHAPE, seed=1),
        BACKBONE,
        TASK,
        DATA["train"],
        recipe_of(bank=wanted).bank,
        seed=1,
        path=path,
        identity="this",
        snapshot_seconds=snapshot_seconds,
        journal=Journal(directory / "log.jsonl", quiet=True),
        tune=DATA["tune"],
    )
    assert sorted(one.name for one in directory.iterdir()) == ["heads.safetensors", "log.jsonl"]
    return HeadBank.load(path)[1]


def notes(directory: Path) -> list[str]:
    lines = (directory / "log.jsonl").read_text().splitlines()
    return [entry["text"] for entry in map(json.loads, lines) if entry["event"] == "note"]


def tune_loss(path: Path, name: str) -> float:
    bank, _ = HeadBank.load(path)
    windows, source = DATA["tune"].windows, live(BACKBONE)
    total = 0.0
    for index in by_length(windows.lengths, BankRecipe().batch_tokens):
        batch = collate(windows, index, BACKBONE.pad)
        with torch.no_grad():
            total += TASK.loss(bank[name](source(batch)), batch).item() * len(index)
    return total / len(windows)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return HeadBank.load(path)[0].state_dict()


def test_a_head_that_gets_worse_stops_and_its_best_is_kept(tmp_path):
    about = train(tmp_path)
    best = about["best"]
    assert 0 < best["wild"]["step"] < 24 and best["steady"]["step"] == 24
    assert about["stopped"] == {}
    told = [text for text in notes(tmp_path) if "stops early" in text]
    assert len(told) == 1 and told[0].startswith("wild stops early: no better on tune at step ")
    for name in ("steady", "wild"):
        assert tune_loss(tmp_path / "heads.safetensors", name) == pytest.approx(best[name]["loss"], rel=1e-5)


def test_a_head_does_not_notice_that_others_stop(tmp_path):
    for part in ("both", "alone"):
        (tmp_path / part).mkdir()
    train(tmp_path / "both")
    train(tmp_path / "alone", [STEADY], patience=0)
    both, alone = (weights(tmp_path / part / "heads.safetensors") for part in ("both", "alone"))
    assert all(torch.equal(both[key], value) for key, value in alone.items())


def test_when_all_have_stopped_training_ends(tmp_path):
    about = train(tmp_path, [WILD], epochs=40)
    assert about["best"]["wild"]["step"] < 24
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(entry.get("step", 0) < 120 for entry in log)


def test_a_head_that_breaks_is_dropped_not_stopped(tmp_path):
    about = train(tmp_path, [STEADY, {**WILD, "learning_rate": 1e30}])
    assert list(about["stopped"]) == ["wild"]
    assert any(text.startswith("wild is dropped: its") for text in notes(tmp_path))


def test_without_updates_a_check_does_not_count(tmp_path):
    """A share too small for an update between checks is not stopped before it has begun."""
    about = train(tmp_path, [{**STEADY, "fraction": 0.05}], epochs=1, checks=8, patience=1, batch_size=8)
    assert about["best"]["steady"]["step"] == 6  # the only update is the one at the end
    assert not any("stops early" in text for text in notes(tmp_path))


@pytest.mark.parametrize("step", [5, 6, 14])
def test_killed_at_any_step_it_ends_the_same(step, tmp_path):
    entries = [STEADY, WILD, {**STEADY, "name": "part", "fraction": 0.3}]
    for part in ("whole", "killed"):
        (tmp_path / part).mkdir()
    whole = train(tmp_path / "whole", entries)
    with killed_at(step):
        train(tmp_path / "killed", entries, snapshot_seconds=0)
    path = tmp_path / "killed" / "heads.safetensors"
    assert snapshot_of(path).exists()
    about = train(tmp_path / "killed", entries, snapshot_seconds=0)
    assert about["best"] == whole["best"]
    expected = weights(tmp_path / "whole" / "heads.safetensors")
    assert all(torch.equal(value, expected[key]) for key, value in weights(path).items())


@pytest.mark.parametrize(
    ("epochs", "checks", "expected"), [(1, 2, {3, 6}), (0.5, 4, {2, 3}), (2, 1, {6, 12}), (0.1, 1, {1})]
)
def test_when_checks_are(epochs, checks, expected):
    plan = BatchPlan(DATA["train"].windows.lengths, epochs=epochs, batch_size=8, batch_tokens=4096, seed=1)
    assert check_steps(plan, epochs, checks) == expected
