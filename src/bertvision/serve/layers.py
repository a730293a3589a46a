"""Which layers an answer rests on: shares that sum to 1, embedding output first."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from bertvision.backbone.states import States
from bertvision.data.batches import by_length, collate
from bertvision.data.windows import Windows
from bertvision.heads import Head
from bertvision.serve.engine import TorchEngine
from bertvision.serve.spans import Spot

BATCH_TOKENS = 2048  # a gradient of all layers is kept beside the states


def layer_shares(engine: TorchEngine, name: str, windows: Windows, spots: Sequence[Spot]) -> list[list[float]]:
    """Of each spot the share of every layer in its start and end logits, (spots, L): the weighted mean of the members'.

    A head that has learned layer weights gives those. Of any other it is gradient times activation: how the sum of the
    span's two logits depends on the states of each layer, |sum over the width of d logit / d h * h| over all tokens.
    """
    layers, ensemble = engine.backbone.layers, engine.tasks[name].ensemble
    total = torch.zeros(len(spots), layers)
    open_heads: list[tuple[Head, float]] = []
    for key, weight in zip(ensemble.members, ensemble.weights):
        learned = engine.heads[name][key].layer_weights()
        if learned is None:
            open_heads.append((engine.heads[name][key], weight))
        else:
            total += weight * learned.float().cpu()
    if open_heads:
        index = np.array([spot.window for spot in spots], dtype=np.int64)
        for part in by_length(windows.lengths[index], BATCH_TOKENS):
            states = engine.states(collate(windows, index[part], engine.pad), [name])
            chosen = [spots[row] for row in part]
            for head, weight in open_heads:
                total[part] += weight * _attributed(head, states, chosen, layers)
    return (total / total.sum(dim=1, keepdim=True)).tolist()


def _attributed(head: Head, states: States, spots: Sequence[Spot], layers: int) -> Tensor:
    """Gradient times activation as shares, (B, layers); equal ones where nothing has any influence. A row per spot."""
    with torch.enable_grad():
        leaf = states.layers.detach().requires_grad_()  # (B, L', S, H)
        logits = head(States(leaf, states.mask))  # (B, S, 2)
        rows = torch.arange(len(spots))
        first, last = torch.tensor([(spot.first, spot.last) for spot in spots]).T
        (gradient,) = torch.autograd.grad((logits[rows, first, 0] + logits[rows, last, 1]).sum(), leaf)
    influence = (gradient * leaf).sum(dim=-1).abs()  # (B, L', S)
    found = (influence * states.mask[:, None]).sum(dim=-1)  # (B, L')
    below = layers - found.shape[1]  # a source that delivers the last layer alone leaves out those below
    shares = torch.nn.functional.pad(found, (below, 0))  # (B, L)
    total = shares.sum(dim=1, keepdim=True)
    return torch.where(total > 0, shares / total.clamp_min(torch.finfo(total.dtype).tiny), 1 / layers)
