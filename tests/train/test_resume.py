"""A run that is killed at any moment, however often, ends in the same bits as one that is left alone."""

import json
import os
import random
from pathlib import Path

import pytest

from bertvision.files import SCRATCH
from runs import Command, tiny_recipe, without_times
from tunings import assert_same, tensors

FILES = ["log.jsonl", "metrics.json", "recipe.toml", "report.html", "report.md", "study.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    return finished(tmp_path_factory.mktemp("whole"))


def start(directory: Path, hold: str = "", **tables: object) -> Command:
    # snapshot_seconds = 0: a snapshot after every step, so that kills hit the writing as well
    recipe = tiny_recipe(directory / "study.toml", snapshot_seconds=0, **tables)
    return Command("study", recipe, "--out", directory / "run", cwd=directory, hold=hold and f"run/{hold}")


def finished(directory: Path, **tables: object) -> Path:
    done = start(directory, **tables).wait()
    assert done.code == 0, done.err
    return directory / "run"


def scores(run: Path) -> list[dict]:
    return without_times(json.loads((run / "metrics.json").read_text()))


def assert_same_run(run: Path, whole: Path) -> None:
    expected = tensors(whole)
    assert any("heads-0.5" in key for key in expected) and any("checkpoint-1/backbone" in key for key in expected)
    assert_same(tensors(run), expected)
    assert scores(run) == scores(whole)
    assert not litter(run)
    names = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
    assert names == {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    assert {str(name) for name in names} >= {*FILES, "seed-1/scores-0.5.json", "seed-1/scores-1.json"}


def litter(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.name.startswith(".") or "snapshot" in path.name]


def exists(run: Path, pattern: str) -> bool:
    return next(run.glob(pattern), None) is not None


@pytest.mark.device
@pytest.mark.parametrize(
    "moment",
    [
        "seed-1/finetune.snapshot.safetensors",  # in the middle of tuning
        "seed-1/heads-0.5.snapshot.safetensors",  # of head training, between two checkpoints
        "seed-1/predictions/1",  # of scoring
    ],
)
def test_a_kill_in_the_middle_of_a_stage(moment, whole, tmp_path):
    assert start(tmp_path, moment).kill_when(lambda: exists(tmp_path / "run", moment))
    assert not exists(tmp_path / "run", "report.html")
    assert_same_run(finished(tmp_path), whole)
    if moment.endswith(".safetensors"):
        assert "going on at step" in (tmp_path / "run" / "log.jsonl").read_text()


@pytest.mark.device
def test_kills_while_states_are_stored_and_read(tmp_path):
    """The frozen part below and the bank's states both come from stores; one kill at each, and one in training."""
    stored = {
        "finetune": {"epochs": 2, "checkpoints": [0.5], "train_layers": 1, "norms": "trained", "lower": "stored"},
        "bank": {"epochs": 2, "states": "stored", "patience": 3, "fractions": [1.0, 0.4]},
    }
    for part in ("whole", "killed"):
        (tmp_path / part).mkdir()
    whole = finished(tmp_path / "whole", **stored)
    run = tmp_path / "killed" / "run"
    for moment in (
        "seed-1/finetune.states",
        "seed-1/finetune.snapshot.safetensors",
        "seed-1/heads-0.5.states",
        "seed-1/heads-2.snapshot.safetensors",
    ):
        assert start(tmp_path / "killed", moment, **stored).kill_when(lambda moment=moment: exists(run, moment))
    assert finished(tmp_path / "killed", **stored) == run
    expected = tensors(whole)
    assert len(expected) > 20
    assert_same(tensors(run), expected)
    assert scores(run) == scores(whole)
    assert not litter(run) and not list(run.rglob("*.states"))


def test_kills_while_files_are_being_written(whole, tmp_path):
    """Each start is killed when it writes something that no earlier one was killed at."""
    run, seen = tmp_path / "run", set()

    def writing() -> bool:
        for _, directories, files in os.walk(run):
            for name in filter(SCRATCH.fullmatch, directories + files):
                what = name.lstrip(".").split(".safetensors")[0].split(".json")[0]
                if what not in seen and not what.startswith("tmp"):
                    seen.add(what)
                    return True
        return False

    kills = 0
    while kills < 6 and start(tmp_path).kill_when(writing):
        kills += 1
    assert kills >= 3 and len(seen) == kills
    assert_same_run(finished(tmp_path), whole)


def test_kills_at_random_moments(whole, tmp_path):
    chance, kills = random.Random(5), 0
    while (command := start(tmp_path)).process.join(timeout=chance.uniform(0.1, 0.5) * 1.2**kills) or command.running:
        command.kill()
        kills += 1
    assert kills >= 2
    assert_same_run(finished(tmp_path), whole)


def test_two_processes_cannot_work_in_one_run(tmp_path):
    first = start(tmp_path)
    while not exists(tmp_path / "run", "study.json"):
        assert first.running
    second = start(tmp_path).wait()
    assert first.wait().code == 0
    assert second.code == 2
    assert (
        second.err
        == f"bertvision: {tmp_path}/run: another process is at work here; wait for it, or choose another place\n"
    )
