"""The store: how small it is beside padded fp32 states, and how much faster than a live pass it reads, shuffled."""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import Batch, BatchPlan, collate
from bertvision.data.windows import Windows
from bertvision.recipe import BankRecipe
from bertvision.states.layout import Dtype, Selection, padded_bytes
from bertvision.states.store import Source, live, stored
from bertvision.states.write import write_store
from side_by_side import Finding, Race, main, squad

LONGEST = 384
WANTED: dict[Dtype, float] = {"fp16": 4.0, "int8": 7.0}


def measure(windows: int, rounds: int) -> list[Finding]:
    backbone = Backbone.load("minilm")
    data = squad(windows, backbone).windows
    padded = padded_bytes(len(data), LONGEST, backbone.layers, backbone.width)
    size = f"{len(data)} windows of {data.lengths.mean():.0f} tokens"
    found = []
    with tempfile.TemporaryDirectory() as directory:
        stores = {dtype: write_store(Path(directory) / dtype, backbone, data, Selection(dtype)) for dtype in WANTED}
        for dtype, store in stores.items():
            says = f"{store.bytes / 1e6:.0f} MB, padded to {LONGEST} as fp32 {padded / 1e6:.0f} MB; {size}"
            found.append(Finding(f"store_{dtype}", padded / store.bytes, WANTED[dtype], says))
        shuffled = [collate(data, index, backbone.pad) for index in training_batches(data)]
        kept, made = stored(stores["fp16"]), live(backbone)
        race = Race(lambda: epoch(kept, shuffled), lambda: epoch(made, shuffled), rounds=rounds)
    rates = f"{len(data) / race.seconds(0):,.0f} windows per second from fp16, {len(data) / race.seconds(1):.1f} live"
    return [*found, Finding("stored_epoch", race.ratio(), 5.0, f"{rates}, shuffled; {size}")]


def training_batches(windows: Windows) -> list[NDArray[np.int64]]:
    """One epoch in the random order in which heads are trained."""
    recipe = BankRecipe()
    limits = {"batch_size": recipe.batch_size, "batch_tokens": recipe.batch_tokens}
    return BatchPlan(windows.lengths, epochs=1, seed=1, **limits).batches


def epoch(feed: Source, batches: list[Batch]) -> None:
    for batch in batches:
        feed(batch)


if __name__ == "__main__":
    main(measure, windows=200)
