"""The loop: order of events, snapshots, resuming, and early stopping."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertvision.data.batches import BatchPlan, by_length, collate
from bertvision.errors import UserError
from bertvision.files import load_tensors, save_tensors
from bertvision.recipe import BankRecipe, Training
from bertvision.states.store import live
from bertvision.train.bank import HeadBank
from bertvision.train.learner import Learner
from bertvision.train.loop import Feed, Plan, check_steps, fit
from devices import RUNTIME
from tunings import Killed, bank_trained, job_of, killed_at, loaded, notes

BACKBONE, TASK, DATA = loaded()
WINDOWS = DATA["train"].windows
ENTRIES = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.3}]
BATCHES = BatchPlan(WINDOWS.lengths, epochs=1, batch_size=8, batch_tokens=4096, seed=1)
STEADY = {"kind": "pool", "learning_rate": 1e-3, "name": "steady"}
WILD = {"kind": "compress", "size": 8, "learning_rate": 1.0, "name": "wild"}  # worse on tune from the first step on


class Training6:
    """Two heads, six steps; what `fit` is given."""

    def __init__(self, directory: Path, *, kill_at: int = 0, entries=ENTRIES, identity: str = "this") -> None:
        bank = HeadBank(entries, layers=BACKBONE.layers, width=BACKBONE.width, task="spans", seed=1)
        self.bank = RUNTIME.to(bank)
        self.learners = [
            Learner(name, head.train(), Training(learning_rate=entry.get("learning_rate", 1e-3)), steps=6, seed=1)
            for (name, head), entry in zip(self.bank.items(), entries)
        ]
        self.feed = Feed(WINDOWS, live(BACKBONE, self.bank.reads), BACKBONE.pad)
        job = job_of(directory, snapshot_seconds=0, identity=identity)
        self.snapshot, self.kill_at = job.snapshot, kill_at
        self.plan = Plan(TASK, BATCHES, job, self.at_step)

    def at_step(self, done: int) -> None:
        if done == self.kill_at:
            raise Killed

    def run(self, **changes: object) -> HeadBank:
        fit(self.learners, self.feed, replace(self.plan, **changes), RUNTIME)
        return self.bank


def killed(directory: Path, step: int, **options: object) -> Training6:
    training = Training6(directory, kill_at=step, **options)
    with pytest.raises(Killed):
        training.run()
    return training


def same(one: HeadBank, other: HeadBank) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key].cpu(), b[key].cpu()) for key in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> HeadBank:
    return Training6(tmp_path_factory.mktemp("whole")).run()


@pytest.mark.device
@pytest.mark.parametrize("step", range(1, 7))
def test_it_resumes_after_any_step(step, whole, tmp_path):
    assert killed(tmp_path, step).snapshot.exists() is (step > 1)
    assert same(Training6(tmp_path).run(), whole)


def test_steps_are_told_in_order_and_before_their_snapshot(tmp_path):
    training, seen = Training6(tmp_path), []

    def at_step(step: int) -> None:
        seen.append((step, load_tensors(training.snapshot)[1]["step"] if training.snapshot.exists() else 0))

    training.run(at_step=at_step)
    assert seen == [(step + 1, step) for step in range(6)]
    assert load_tensors(training.snapshot)[1]["step"] == 5  # none after the last step: the results are written then


def test_snapshots_are_as_rare_as_asked_for(tmp_path):
    training = Training6(tmp_path)
    training.run(job=replace(training.plan.job, snapshot_seconds=1e9))
    assert not training.snapshot.exists()


def test_a_snapshot_of_something_else_is_not_used(whole, tmp_path):
    killed(tmp_path, 4, identity="that")
    assert same(Training6(tmp_path).run(), whole)
    assert "belongs to other data or settings" in notes(tmp_path)[0]
    training = Training6(tmp_path)
    save_tensors(training.snapshot, {"x": torch.zeros(1)}, {"step": 3})
    assert same(training.run(), whole)


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0{}", b"not at all", bytes(64)])
def test_a_damaged_snapshot_is_an_error_in_one_line(content, tmp_path):
    training = Training6(tmp_path)
    training.snapshot.write_bytes(content)
    with pytest.raises(UserError, match=r"heads\.snapshot\.safetensors: damaged, .* delete it") as caught:
        training.run()
    assert "\n" not in str(caught.value)


def test_times_are_counted_over_the_kill(tmp_path):
    about = load_tensors(killed(tmp_path, 4).snapshot)[1]
    training = Training6(tmp_path)
    training.run()
    assert training.feed.seconds > about["feed_seconds"] > 0
    assert all(one.seconds > before["seconds"] > 0 for one, before in zip(training.learners, about["learners"]))


@pytest.mark.device
def test_a_dropped_head_stays_dropped_after_a_kill(tmp_path):
    entries = [*ENTRIES, {"kind": "compress", "size": 4, "learning_rate": 1e30}]
    why = killed(tmp_path, 4, entries=entries).learners[2].stopped
    assert "became" in why
    training = Training6(tmp_path, entries=entries)
    training.run()
    assert [one.stopped for one in training.learners] == ["", "", why]
    assert sum("is dropped" in text for text in notes(tmp_path)) == 1


def test_no_steps_at_all_and_the_callers_random_numbers(tmp_path):
    training = Training6(tmp_path)
    before = {key: value.clone() for key, value in training.bank.state_dict().items()}
    training.run(batches=BatchPlan(WINDOWS.lengths, epochs=0, batch_size=8, batch_tokens=4096, seed=1))
    assert all(torch.equal(value, before[key]) for key, value in training.bank.state_dict().items())
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    training.run()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("moves", [False, True])
def test_there_are_never_two_batches_of_states(moves, tmp_path):
    """A check before something is saved costs a pass only where training has changed the states."""
    training, made = Training6(tmp_path), []
    source: Callable = training.feed.source

    def tracked(batch):
        assert not any(reference() is not None for reference in made)
        states = source(batch)
        made.append(weakref.ref(states.layers))
        return states

    training.feed.source, training.feed.moves = tracked, moves
    training.run(marks=[3])
    assert len(made) == 6 + 2 * moves


def early(directory: Path, entries=(STEADY, WILD), **options: object) -> dict:
    """The notes saved with a bank that is checked twice per epoch."""
    wanted = {"epochs": 4, "learning_rate": 1e-3, "patience": 2, "checks": 2, "states": "live", **options}
    bank_trained(directory, entries, **wanted)
    return HeadBank.load(directory / "heads.safetensors")[1]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return HeadBank.load(directory / "heads.safetensors")[0].state_dict()


def tune_loss(directory: Path, name: str) -> float:
    head = HeadBank.load(directory / "heads.safetensors")[0][name]
    windows, source, total = DATA["tune"].windows, live(BACKBONE), 0.0
    for index in by_length(windows.lengths, BankRecipe().batch_tokens):
        batch = collate(windows, index, BACKBONE.pad)
        with torch.no_grad():
            total += TASK.loss(head(source(batch)), batch).item() * len(index)
    return total / len(windows)


def test_a_head_that_gets_worse_stops_and_its_best_is_kept(tmp_path):
    about = early(tmp_path / "both")
    best = about["best"]
    assert 0 < best["wild"]["step"] < 24 and best["steady"]["step"] == 24 and about["stopped"] == {}
    (told,) = [text for text in notes(tmp_path / "both") if "stops early" in text]
    assert told.startswith("wild stops early: no better on tune at step ")
    for name in ("steady", "wild"):
        assert tune_loss(tmp_path / "both", name) == pytest.approx(best[name]["loss"], rel=1e-5)
    early(tmp_path / "alone", [STEADY], patience=0)  # a head trains the same whether others stop or not
    both = weights(tmp_path / "both")
    assert all(torch.equal(both[key], value) for key, value in weights(tmp_path / "alone").items())


def test_when_all_have_stopped_training_ends(tmp_path):
    assert early(tmp_path, [WILD], epochs=40)["best"]["wild"]["step"] < 24
    assert '"step": 120' not in (tmp_path / "log.jsonl").read_text()


@pytest.mark.device
def test_a_head_that_breaks_is_dropped_not_stopped(tmp_path):
    assert list(early(tmp_path, [STEADY, {**WILD, "learning_rate": 1e30}])["stopped"]) == ["wild"]
    assert any(text.startswith("wild is dropped: its") for text in notes(tmp_path))


def test_without_updates_a_check_does_not_count(tmp_path):
    """A share too small for an update between checks is not stopped before it has begun."""
    about = early(tmp_path, [{**STEADY, "fraction": 0.05}], epochs=1, checks=8, patience=1)
    assert about["best"]["steady"]["step"] == 6  # the only update is the one at the end
    assert not any("stops early" in text for text in notes(tmp_path))


@pytest.mark.device
@pytest.mark.parametrize("step", [5, 6, 14])
def test_early_stopping_killed_at_any_step_ends_the_same(step, tmp_path):
    entries = [STEADY, WILD, {**STEADY, "name": "part", "fraction": 0.3}]
    whole = early(tmp_path / "whole", entries)
    with killed_at(step):
        early(tmp_path / "killed", entries, snapshot_seconds=0)
    assert job_of(tmp_path / "killed").snapshot.exists()
    assert early(tmp_path / "killed", entries, snapshot_seconds=0)["best"] == whole["best"]
    expected = weights(tmp_path / "whole")
    assert all(torch.equal(value, expected[key]) for key, value in weights(tmp_path / "killed").items())


@pytest.mark.parametrize(
    ("epochs", "checks", "expected"), [(1, 2, {3, 6}), (0.5, 4, {2, 3}), (2, 1, {6, 12}), (0.1, 1, {1})]
)
def test_when_checks_are(epochs, checks, expected):
    plan = BatchPlan(WINDOWS.lengths, epochs=epochs, batch_size=8, batch_tokens=4096, seed=1)
    assert check_steps(plan, epochs, checks) == expected
