"""Where heads get their states from: a live backbone, or a store. Either way a function batch -> States.

The same batches in the same order give the same numbers: a batch in the company it was stored in exactly, as fp32; in
other company up to the rounding of a matrix product, which depends on the shape of the batch (about 1e-6).
"""

from collections.abc import Callable

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.packed import packed
from bertvision.backbone.states import Reads, States, spelt
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.states.layout import Positions
from bertvision.states.store import Store

Source = Callable[[Batch], States]


def live(backbone: Backbone, reads: Reads = "all", positions: Positions = "all") -> Source:
    """States from a backbone that does not learn, by its weights as they are now; it is put into eval mode.

    reads: all layers, the last, or some. positions: all tokens, or [CLS] alone: (B, L, 1, H).
    """
    frozen = packed(backbone)

    def states(batch: Batch) -> States:
        with torch.no_grad():
            found = frozen(batch, reads)
        if positions == "all":
            return found
        return States(found.layers[:, :, :1].contiguous(), found.mask[:, :1], found.numbers)

    return states


def stored(store: Store, reads: Reads = "all", positions: Positions = "all") -> Source:
    """States from a store, of which only what is asked for is read. UserError if it was not kept.

    batch.index must count the windows the store was written for. Padding holds zeros.
    """
    if not store.offers(reads, positions):
        raise UserError(
            f"{store.directory}: holds {store.manifest.kind}, these heads read {spelt(reads)} layers and {positions} "
            "positions; "
            "write another store, or use live states"
        )
    return lambda batch: store.states(batch.index, reads, positions)
