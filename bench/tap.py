"""Tapping: how much of this machine's own matrix-product speed a backbone pass reaches.

Counted are the products of real tokens alone: padding, LayerNorm, GELU, softmax and copies earn nothing.
"""

from statistics import median

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import by_length, collate
from bertvision.data.windows import Windows
from bertvision.recipe import EvaluateRecipe
from bertvision.states.store import live
from side_by_side import Finding, main, seconds, squad

SHAPES = ((4096, 384, 1536), (4096, 1536, 384), (2048, 2048, 2048), (1024, 1024, 1024))  # (rows, inner, columns)
REPEATS = 8


def measure(windows: int, rounds: int) -> list[Finding]:
    backbone = Backbone.load("minilm")
    data = squad(windows, backbone)
    work = flops(backbone, data.windows)
    rates = []
    for _ in range(rounds):
        before = peak()
        rate = work / seconds(lambda: tap(backbone, data.windows))
        rates.append((rate / max(before, peak()), rate))  # a peak on either side, lest a busy moment looks like speed
    ratio, rate = median(each for each, _ in rates), median(each for _, each in rates)
    says = f"{rate / 1e9:.0f} GFLOP/s; {len(data.windows)} windows of {data.windows.lengths.mean():.0f} tokens"
    return [Finding("tap", ratio, 0.75, f"{says}, all layers")]


def tap(backbone: Backbone, windows: Windows) -> None:
    """All states of all windows, as they are made for a store or for heads."""
    feed = live(backbone)
    for index in by_length(windows.lengths, EvaluateRecipe().batch_tokens):
        feed(collate(windows, index, backbone.pad))


def flops(backbone: Backbone, windows: Windows) -> float:
    """Of the linear maps, and of queries x keys and weights x values, over real tokens."""
    blocks, width, inner = backbone.layers - 1, backbone.width, backbone.model.config.intermediate_size
    tokens = windows.lengths.astype(float)
    linear = 2 * tokens * (4 * width * width + 2 * width * inner)
    attention = 4 * tokens**2 * width
    return blocks * float((linear + attention).sum())


def peak() -> float:
    """FLOP/s of the quickest of a few products."""
    return max(_rate(*shape) for shape in SHAPES)


def _rate(rows: int, inner: int, columns: int) -> float:
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    return 2 * rows * inner * columns / median(seconds(lambda: a @ b) for _ in range(REPEATS))


if __name__ == "__main__":
    main(measure, windows=300)
