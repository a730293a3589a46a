"""Ten epochs of a [CLS] head: from a store, the pass that writes it included, against ten live passes."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from bertvision.backbone.backbone import Backbone
from bertvision.recipe import BankRecipe
from bertvision.tasks import Dataset, Labels
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from side_by_side import Finding, Race, main, squad

EPOCHS = 10


def measure(windows: int, rounds: int) -> list[Finding]:
    backbone = Backbone.load("minilm")
    found = squad(windows, backbone)
    unanswerable = (found.windows.targets[:, 0] == 0).astype(np.int64)  # the answer "nowhere" is [CLS]
    data = dataclasses.replace(found, windows=found.windows.with_targets(unanswerable))
    race = Race(lambda: train(backbone, data, "stored"), lambda: train(backbone, data, "live"), rounds=rounds)
    stored, live = race.seconds(0), race.seconds(1)
    says = f"{EPOCHS} epochs of a [CLS] head from a store {stored:.1f} s, the one pass included; live {live:.1f} s"
    size = f"{len(data.windows)} windows of {data.windows.lengths.mean():.0f} tokens"
    return [Finding("cls_epochs", race.ratio(), 8.0, f"{says}; {size}")]


def train(backbone: Backbone, data: Dataset, states: Literal["live", "stored"]) -> None:
    task = Labels(("answerable", "unanswerable"))
    bank = HeadBank(
        [{"kind": "pool"}], layers=backbone.layers, width=backbone.width, task=task.name, outputs=task.outputs
    )
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory), "heads", 1, "bench", 3600, Journal(quiet=True))
        feeds = bank_feeds(bank, backbone, BankRecipe(epochs=EPOCHS, states=states), job)
        train_bank(bank, feeds, task, {"train": data}, job)


if __name__ == "__main__":
    main(measure, windows=160)
