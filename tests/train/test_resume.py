"""A run that is killed at any moment, however often, ends in the same bits as one that is left alone."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.files import SCRATCH
from runs import Command, bertvision, tiny_recipe

TIMES = {"train_seconds", "infer_seconds"}
FILES = ["log.jsonl", "metrics.json", "recipe.toml", "report.html", "report.md", "study.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nobody disturbed."""
    return finished(tmp_path_factory.mktemp("whole"))


def start(directory: Path) -> Command:
    # snapshot_seconds = 0: a snapshot after every step, so that kills hit the writing as well
    recipe = tiny_recipe(directory / "study.toml", snapshot_seconds=0)
    return Command("study", recipe, "--out", directory / "run", cwd=directory)


def finished(directory: Path) -> Path:
    done = start(directory).wait()
    assert done.code == 0, done.err
    return directory / "run"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.relative_to(run)} {key}": tensor
        for path in sorted(run.rglob("*.safetensors"))
        for key, tensor in load_file(path).items()
    }


def scores(run: Path) -> list[dict]:
    rows = json.loads((run / "metrics.json").read_text())
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def assert_same(run: Path, whole: Path) -> None:
    found, expected = weights(run), weights(whole)
    assert list(found) == list(expected)
    assert any("heads-0.5" in key for key in expected) and any("checkpoint-1/backbone" in key for key in expected)
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key
    assert scores(run) == scores(whole)
    assert not litter(run)
    names = {path.relative_to(run) for path in run.rglob("*") if path.is_file()}
    assert names == {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
    assert {str(name) for name in names} >= {*FILES, "seed-1/scores-0.5.json", "seed-1/scores-1.json"}


def litter(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.name.startswith(".") or "snapshot" in path.name]


def exists(run: Path, pattern: str) -> bool:
    return next(run.glob(pattern), None) is not None


@pytest.mark.parametrize(
    "moment",
    [
        "seed-1/finetune.snapshot.safetensors",  # in the middle of tuning
        "seed-1/heads-0.5.snapshot.safetensors",  # of head training, between two checkpoints
        "seed-1/predictions/1",  # of scoring
    ],
)
def test_a_kill_in_the_middle_of_a_stage(moment, whole, tmp_path):
    command = start(tmp_path)
    assert command.kill_when(lambda: exists(tmp_path / "run", moment))
    assert not exists(tmp_path / "run", "report.html")
    assert_same(finished(tmp_path), whole)
    if moment.endswith(".safetensors"):
        assert "going on at step" in (tmp_path / "run" / "log.jsonl").read_text()


def test_kills_while_files_are_being_written(whole, tmp_path):
    """Each start is killed when it writes something that an earlier one did not get to."""
    run, seen = tmp_path / "run", set()

    def writing() -> bool:
        for path in run.rglob(".*"):
            what = path.name.lstrip(".").split(".safetensors")[0].split(".json")[0]
            if SCRATCH.fullmatch(path.name) and what not in seen:
                seen.add(what)
                return True
        return False

    kills = 0
    while start(tmp_path).kill_when(writing):
        kills += 1
    assert kills >= 3 and len(seen) == kills
    assert_same(finished(tmp_path), whole)


def test_kills_at_random_moments(whole, tmp_path):
    chance = random.Random(5)
    kills = 0
    while True:
        command = start(tmp_path)
        command.process.join(timeout=chance.uniform(0.05, 1.2))
        if not command.running:
            break
        command.kill()
        kills += 1
        assert kills < 60, "it makes no progress"
    assert kills >= 2
    assert_same(finished(tmp_path), whole)
