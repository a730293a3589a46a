"""The bank: ten heads trained in the same passes, against one after the other, each with its own live pass.

And what a bank of four cheap heads costs beyond a bare backbone pass over the same batches.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import BatchPlan, collate
from bertvision.recipe import BankRecipe
from bertvision.states.store import live
from bertvision.tasks import Dataset, Spans
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from side_by_side import Finding, Race, main, squad

CHEAP = [
    {"kind": "pool"},
    {"kind": "pool", "weights": "mean"},
    {"kind": "last"},
    {"kind": "attend", "form": "dot"},
]
TEN = [
    *CHEAP,
    {"kind": "compress", "size": 64},
    {"kind": "compress", "size": 64, "skip": True},
    {"kind": "compress", "size": 64, "shared": False},
    {"kind": "compress", "size": 386},
    {"kind": "compress", "size": 386, "skip": True},
    {"kind": "conv", "form": "grid", "input": "pooled"},
]
FOUR = [*CHEAP[:3], {"kind": "compress", "size": 64}]
RECIPE = BankRecipe(states="live")
SEED = 1


def measure(windows: int, rounds: int) -> list[Finding]:
    backbone = Backbone.load("minilm")
    few, many = squad(windows, backbone), squad(3 * windows, backbone)

    def apart() -> None:
        for entry in TEN:
            train([entry], backbone, few)

    ten = Race(lambda: train(TEN, backbone, few), apart, rounds=rounds)
    cheap = Race(lambda: bare_pass(backbone, many), lambda: train(FOUR, backbone, many), rounds=rounds)
    together = f"ten heads together {ten.seconds(0):.1f} s, one after the other {ten.seconds(1):.1f} s"
    four = f"four cheap heads {cheap.seconds(1):.2f} s, the backbone alone {cheap.seconds(0):.2f} s"
    return [
        Finding("bank", ten.ratio(), 5.0, f"{together}; {size_of(few)}"),
        Finding("cheap_bank_over_backbone", cheap.ratio(), 1.15, f"{four}; {size_of(many)}", at_most=True),
    ]


def size_of(data: Dataset) -> str:
    return f"{len(data.windows)} windows of {data.windows.lengths.mean():.0f} tokens"


def train(entries: Sequence[dict[str, Any]], backbone: Backbone, data: Dataset) -> None:
    """One epoch of all these heads in the same passes."""
    bank = HeadBank(entries, layers=backbone.layers, width=backbone.width, task="spans", seed=SEED)
    with tempfile.TemporaryDirectory() as directory:
        job = Job(Path(directory), "heads", SEED, "bench", 3600, Journal(quiet=True))
        train_bank(bank, bank_feeds(bank, backbone, RECIPE, job), Spans(), {"train": data}, job)


def bare_pass(backbone: Backbone, data: Dataset) -> None:
    """The same batches through the encoder, by the same kernels; nothing but the last layer is kept."""
    plan = BatchPlan(
        data.windows.lengths,
        epochs=RECIPE.epochs,
        batch_size=RECIPE.batch_size,
        batch_tokens=RECIPE.batch_tokens,
        seed=SEED,
    )
    feed = live(backbone, "last")
    for index in plan.batches:
        feed(collate(data.windows, index, backbone.pad))


if __name__ == "__main__":
    main(measure, windows=64)
