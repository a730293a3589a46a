"""Stores that `bertvision tap` has left in a run: which of them, if any, holds the states that heads are to read."""

import os
from pathlib import Path

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.layout import NAME, Dtype, Positions, fingerprints
from bertvision.states.store import Store


def place_of(run: Path) -> Path:
    """The directory of these stores in the directory of a run."""
    return run / "states"


def find_store(
    place: Path, backbone: Backbone, windows: Windows, *, dtype: Dtype, reads: Reads, positions: Positions
) -> tuple[Store | None, list[str]]:
    """A store of these windows, whole and sound, that was kept as `dtype` and holds at least what is read; the
    smallest of several. If there is none: why each of those there was passed over."""
    manifests = sorted(place.glob(f"*/{NAME}"))
    made_from = fingerprints(backbone, windows) if manifests else ("", "", "")  # all weights are read for that: once
    fitting: list[Store] = []
    others: list[str] = []
    for manifest in manifests:
        try:
            store = Store.open(manifest.parent, backbone, windows, made_from)
            if store.manifest.dtype != dtype or not store.offers(reads, positions):
                raise UserError(f"{store.directory}: holds {store.manifest.selection}")
            store.verify()
            fitting.append(store)
        except UserError as error:
            others.append(str(error).removeprefix(f"{place}{os.sep}"))
    return min(fitting, key=lambda store: store.bytes, default=None), others
