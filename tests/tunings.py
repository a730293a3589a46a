"""Tuning within the process of the test, and a way to kill it.

from tunings import Killed, killed_at, tuned
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.recipe import Recipe
from bertvision.train.bank import HeadBank
from bertvision.train.finetune import Along, Checkpoint, finetune
from bertvision.train.loop import Loop
from bertvision.train.progress import Journal
from runs import load


def tuned(
    recipe: Recipe, directory: Path, heads: Sequence[dict] = (), snapshot_seconds: float = 1e9
) -> dict[float, Checkpoint]:
    """The checkpoints of a recipe, left in `directory`. heads: those that learn along."""
    backbone, task, data = load(recipe)
    bank = HeadBank(heads, layers=backbone.layers, width=backbone.width, task="spans", seed=1) if heads else None
    return finetune(
        backbone,
        task,
        data["train"],
        recipe.finetune,
        seed=1,
        directory=directory,
        identity="this",
        snapshot_seconds=snapshot_seconds,
        journal=Journal(directory / "log.jsonl", quiet=True),
        along=Along(bank, recipe.bank) if bank else None,
    )


class Killed(Exception):
    """Stands for the end of the process."""


@contextmanager
def killed_at(step: object) -> Iterator[None]:
    """Training within is killed when it would learn in this step; that something has killed it is checked."""
    learn = Loop._learn

    def fatal(self: Loop, batch: Batch, states: States, number: int) -> None:
        if number == step:
            raise Killed
        learn(self, batch, states, number)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Loop, "_learn", fatal)
        yield
