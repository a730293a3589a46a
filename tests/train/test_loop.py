"""The loop: in what order things happen, when a snapshot is written, and when one is used."""

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bertvision.backbone.states import States
from bertvision.data.batches import Batch, BatchPlan
from bertvision.errors import UserError
from bertvision.files import load_tensors, save_tensors
from bertvision.states.store import live
from bertvision.train.bank import HeadBank
from bertvision.train.learner import Learner
from bertvision.train.loop import Loop
from bertvision.train.progress import Journal
from runs import load, recipe_of
from tunings import Killed

RECIPE = recipe_of(bank={"epochs": 1, "batch_size": 8, "learning_rate": 1e-3})
BACKBONE, TASK, DATA = load(RECIPE)
ENTRIES = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.3}]


def make(
    directory: Path,
    *,
    identity: str = "this",
    snapshot_seconds: float = 0,
    at_step: Callable[[int], None] = lambda step: None,
    entries=ENTRIES,
    epochs: float = 1,
) -> tuple[Loop, HeadBank]:
    windows = DATA["train"].windows
    plan = BatchPlan(windows.lengths, epochs=epochs, batch_size=8, batch_tokens=4096, seed=1)
    bank = HeadBank(entries, layers=BACKBONE.layers, width=BACKBONE.width, task="spans", seed=1)
    learners = [
        Learner(name, head.train(), RECIPE.bank, steps=len(plan), seed=1, rate=entry.get("learning_rate", 1e-3))
        for (name, head), entry in zip(bank.items(), bank.entries)
    ]
    loop = Loop(
        TASK,
        windows,
        plan,
        learners,
        live(BACKBONE, bank.reads),
        pad=BACKBONE.pad,
        seed=1,
        snapshot=directory / "a.snapshot.safetensors",
        identity=identity,
        snapshot_seconds=snapshot_seconds,
        journal=Journal(directory / "log.jsonl", quiet=True),
        at_step=at_step,
    )
    return loop, bank


def kill_at(step: int) -> Callable[[int], None]:
    def at_step(done: int) -> None:
        if done == step:
            raise Killed

    return at_step


def same(one: HeadBank, other: HeadBank) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> HeadBank:
    loop, bank = make(tmp_path_factory.mktemp("whole"), snapshot_seconds=1e9)
    loop.run("training")
    return bank


@pytest.mark.parametrize("step", range(1, 7))
def test_it_goes_on_after_any_step(step, whole, tmp_path):
    loop, _ = make(tmp_path, at_step=kill_at(step))
    with pytest.raises(Killed):
        loop.run("training")
    assert loop.snapshot.exists() is (step > 1)
    loop, bank = make(tmp_path)
    loop.run("training")
    assert same(bank, whole)


def test_steps_are_told_in_order_and_before_their_snapshot(tmp_path):
    seen = []

    def at_step(step: int) -> None:
        seen.append((step, load_tensors(loop.snapshot)[1]["step"] if loop.snapshot.exists() else 0))

    loop, _ = make(tmp_path, at_step=at_step)
    loop.run("training")
    assert seen == [(step + 1, step) for step in range(6)]
    assert load_tensors(loop.snapshot)[1]["step"] == 5  # none after the last step: the results are written then


def test_snapshots_are_as_rare_as_asked_for(tmp_path):
    loop, _ = make(tmp_path, snapshot_seconds=1e9)
    loop.run("training")
    assert not loop.snapshot.exists()


def test_a_snapshot_of_other_settings_is_not_used(whole, tmp_path):
    loop, _ = make(tmp_path, identity="that", at_step=kill_at(4))
    with pytest.raises(Killed):
        loop.run("training")
    loop, bank = make(tmp_path)
    loop.run("training")
    assert same(bank, whole)
    assert "belongs to other data or settings and is not used" in (tmp_path / "log.jsonl").read_text()


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0{}", b"not at all", bytes(64)])
def test_a_damaged_snapshot_is_an_error_in_one_line(content, tmp_path):
    loop, _ = make(tmp_path)
    loop.snapshot.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.snapshot\.safetensors: damaged, .* delete it") as caught:
        loop.run("training")
    assert "\n" not in str(caught.value)


def test_a_snapshot_that_never_was_one_is_not_used(whole, tmp_path):
    loop, bank = make(tmp_path)
    save_tensors(loop.snapshot, {"x": torch.zeros(1)}, {"step": 3})
    loop.run("training")
    assert same(bank, whole)


def test_times_are_counted_over_the_kill(tmp_path):
    loop, _ = make(tmp_path, at_step=kill_at(4))
    with pytest.raises(Killed):
        loop.run("training")
    about = load_tensors(loop.snapshot)[1]
    seconds = [notes["seconds"] for notes in about["learners"]]
    loop, _ = make(tmp_path)
    loop.run("training")
    assert loop.feed_seconds > about["feed_seconds"] > 0
    assert all(one.seconds > before > 0 for one, before in zip(loop.learners, seconds))


def test_a_dropped_head_stays_dropped_after_a_kill(tmp_path):
    entries = [*ENTRIES, {"kind": "compress", "size": 4, "learning_rate": 1e30}]
    loop, _ = make(tmp_path, entries=entries, at_step=kill_at(4))
    with pytest.raises(Killed):
        loop.run("training")
    why = loop.learners[2].stopped
    assert "became" in why
    loop, _ = make(tmp_path, entries=entries)
    loop.run("training")
    assert [one.stopped for one in loop.learners] == ["", "", why]
    assert (tmp_path / "log.jsonl").read_text().count("is dropped") == 1


def test_no_steps_at_all(tmp_path):
    loop, bank = make(tmp_path, epochs=0)
    before = {key: value.clone() for key, value in bank.state_dict().items()}
    loop.run("training")
    assert all(torch.equal(value, before[key]) for key, value in bank.state_dict().items())


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    loop, _ = make(tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    loop.run("training")
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("moving", [False, True])
def test_a_last_look_costs_a_pass_only_where_the_feed_has_moved(moving, tmp_path):
    loop, _ = make(tmp_path)
    passes, feed = [], loop.feed
    loop.moving = moving
    loop.feed = lambda batch: passes.append(batch) or feed(batch)
    loop.run("training")
    assert len(passes) == len(loop.plan) + moving


@pytest.mark.parametrize("moving", [False, True])
def test_there_are_never_two_batches_of_states(moving, tmp_path):
    made: list[weakref.ref] = []

    def fed(batch: Batch) -> States:
        assert not any(reference() is not None for reference in made)
        states = feed(batch)
        made.append(weakref.ref(states.layers))
        return states

    loop, _ = make(tmp_path)
    feed, loop.feed, loop.moving, loop.marks = loop.feed, fed, moving, {3, 6}
    loop.run("training")
    assert len(made) == 6 + 2 * moving
