"""Training within the process of the test, and a way to kill it.

from tunings import Killed, assert_same, bank_trained, job_of, killed_at, notes, tensors, tuned
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.backbone.backbone import Backbone
from bertvision.recipe import Recipe, reached
from bertvision.states import write
from bertvision.tasks import Dataset, Spans
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.finetune import Along, Checkpoint, finetune
from bertvision.train.learner import Learner
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from runs import load, recipe_of


@cache
def loaded() -> tuple[Backbone, Spans, dict[str, Dataset]]:
    """The untouched backbone of `recipe_of()`, its task and its data; tests only read them."""
    return load(recipe_of())


def job_of(
    directory: Path, name: str = "heads", *, seed: int = 1, identity: str = "this", snapshot_seconds: float = 1e9
) -> Job:
    return Job(directory, name, seed, identity, snapshot_seconds, Journal(directory / "log.jsonl", quiet=True))


def bank_trained(
    directory: Path, entries: Sequence[dict], *, seed: int = 1, snapshot_seconds: float = 1e9, **options: object
) -> HeadBank:
    """A bank trained as DIRECTORY/heads.safetensors. options: of the recipe's bank, and `tapped`."""
    directory.mkdir(exist_ok=True)
    backbone, task, data = loaded()
    tapped = options.pop("tapped", None)
    recipe = recipe_of(bank={"batch_size": 8, "learning_rate": 1e-2, **options}).bank
    bank = HeadBank(entries, layers=backbone.layers, width=backbone.width, task="spans", outputs=2, seed=seed)
    job = job_of(directory, seed=seed, snapshot_seconds=snapshot_seconds)
    feeds = bank_feeds(bank, backbone, recipe, job, tapped=tapped)
    train_bank(bank, feeds, task, data, job)
    assert sorted(one.name for one in directory.iterdir()) == ["heads.safetensors", "log.jsonl"]
    return bank


def tuned(
    recipe: Recipe, directory: Path, heads: Sequence[dict] = (), snapshot_seconds: float = 1e9, seed: int = 1
) -> dict[float, Checkpoint]:
    """The checkpoints of a recipe, left in `directory`. heads: those that learn along."""
    backbone, task, data = load(recipe)
    bank = HeadBank(heads, layers=backbone.layers, width=backbone.width, task="spans", seed=1) if heads else None
    job = job_of(directory, "finetune", seed=seed, snapshot_seconds=snapshot_seconds)
    epochs = reached(recipe.finetune.epochs, recipe.finetune.checkpoints)
    checkpoints = {epoch: Checkpoint(directory / f"checkpoint-{epoch:g}") for epoch in epochs}
    along = Along(bank, recipe.bank, lambda epoch: directory / f"heads-{epoch:g}.safetensors") if bank else None
    finetune(backbone, task, data["train"], recipe.finetune, job, checkpoints, along)
    return checkpoints


def notes(directory: Path) -> list[str]:
    """The notes in the log of a directory."""
    lines = (directory / "log.jsonl").read_text().splitlines()
    return [entry["text"] for entry in map(json.loads, lines) if entry["event"] == "note"]


class Killed(Exception):
    """Stands for the end of the process."""


@contextmanager
def killed_at(step: object) -> Iterator[None]:
    """Training within is killed when it would learn in this step, or, if that is "storing", while it stores states;
    that something has killed it is checked."""
    learn, written = Learner.learn, write.write_store

    def fatal(self: Learner, states, batch, task, number: int, *rest) -> None:
        if number == step:
            raise Killed
        learn(self, states, batch, task, number, *rest)

    def stop(tokens: int) -> None:
        raise Killed

    def half(*args, **options):
        return written(*args, **{**options, "batch_tokens": 64, "advance": stop})

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Learner, "learn", fatal)
        if step == "storing":
            patched.setattr(write, "write_store", half)
        yield


def tensors(directory: Path, pattern: str = "**/*.safetensors") -> dict[str, torch.Tensor]:
    """Everything in the safetensors files of a directory."""
    return {
        f"{path.relative_to(directory)} {key}": value
        for path in sorted(directory.glob(pattern))
        for key, value in load_file(path).items()
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one and one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key
