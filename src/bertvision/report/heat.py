"""Matrices as coloured cells: which layers heads look at, and how far members agree."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertvision.report.ink import canvas, short, styled

COLOURS = "cividis"  # made to look the same to colour-blind eyes
HEIGHT = 0.54  # of a cell; the rest of a line is for its name
WRITTEN = 13  # so many columns leave room for a number in each cell


@styled
def layer_figure(weights: Mapping[str, Sequence[float]]) -> Figure:
    """The share each layer has in what a head reads. weights: head -> one per layer, the embedding output first."""
    matrix = np.full((len(weights), max(map(len, weights.values()))), np.nan)  # (heads, layers)
    for line, shares in enumerate(weights.values()):
        matrix[line, : len(shares)] = shares
    return _cells(matrix, list(weights), [str(layer) for layer in range(matrix.shape[1])], "layer (0: embeddings)", 0.0)


@styled
def agreement_figure(members: Sequence[str], matrix: Sequence[Sequence[float]]) -> Figure:
    """The share of questions to which two members give the same answer: (members, members), from 0 to 1."""
    names = [f"{number} {short(name, 40)}" for number, name in enumerate(members, 1)]
    numbers = [str(number) for number in range(1, len(members) + 1)]
    cells = np.asarray(matrix, dtype=float)
    return _cells(cells, names, numbers, "the same members", float(np.nanmin(cells)))


def _cells(matrix: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str], xlabel: str, low: float) -> Figure:
    """Names stand above their line, not beside it: on a phone the cells need the width. low: what is darkest."""
    figure, axes = canvas(0.7 + 0.46 * len(rows))
    known = np.isfinite(matrix)
    shade = Normalize(low, float(matrix[known].max(initial=low)))
    line, column = np.nonzero(known)  # (cells,) each
    colours = colormaps[COLOURS](shade(matrix[known]))  # (cells, 4)
    axes.barh(line, 0.96, height=HEIGHT, left=column - 0.48, color=colours)
    if matrix.shape[1] <= WRITTEN:
        for y, x, value, colour in zip(line.tolist(), column.tolist(), matrix[known], colours):
            ink = "#000000" if colour[:3].mean() > 0.5 else "#ffffff"
            axes.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=8, color=ink)
    for number, name in enumerate(rows):
        axes.text(-0.5, number - HEIGHT / 2 - 0.03, short(name), va="bottom", fontsize=9)
    every = -(-len(columns) // 26)
    axes.set_xticks(range(0, len(columns), every), columns[::every], fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.8), xlim=(-0.5, len(columns) - 0.5), yticks=[], xlabel=xlabel)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure
