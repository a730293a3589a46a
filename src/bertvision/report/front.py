"""Score against cost: every member a point, and the front of those that nothing both cheaper and better beats."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from bertvision.evaluate.pareto import pareto_front
from bertvision.report.ink import COLOURS, INK, canvas, short, styled
from bertvision.report.summary import Metric, Row

LOOKS = {"backbone": (INK, "o"), "head": (COLOURS[0], "^"), "ensemble": (COLOURS[1], "s")}


@styled
def front_figure(rows: Sequence[Row], metric: Metric, cost: Metric) -> Figure:
    """The metric against a cost of rows that have both; the front is a line of filled points, numbered and named below.

    rows: of one threshold kind, of any checkpoints and variants.
    """
    price, value = ([row.scores[number.key].mean for row in rows] for number in (cost, metric))
    front = pareto_front(price, value)
    costs, scores = np.array(price), np.array(value)
    best = np.flatnonzero(front)[np.argsort(costs[front], kind="stable")].tolist()
    figure, axes = canvas(3.7 + 0.19 * len(best))
    axes.step(costs[best], scores[best], where="post", color=INK, linewidth=1, alpha=0.7)
    for number, row in enumerate(rows):
        colour, marker = LOOKS[row.role]
        face, size = (colour, 7) if front[number] else ("none", 5)
        axes.plot(costs[number], scores[number], marker, color=colour, markerfacecolor=face, markersize=size)
    for place, number in enumerate(best, 1):
        above = place % 2  # neighbours lie close: their numbers stand on different sides of the line
        offset, side = ((-5, 5), "right") if above else ((6, -11), "left")
        axes.annotate(
            str(place), (costs[number], scores[number]), offset, textcoords="offset points", ha=side, fontsize=8
        )
    if costs.max() > 20 * max(costs.min(), 1e-9):
        axes.set_xscale("symlog", linthresh=1)  # a member that trained nothing has a place too
    elif costs.max() >= 1e4:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 22.7M, not 2.27 with 1e7 in a corner
    axes.set(xlabel=cost.label, ylabel=metric.label)
    axes.margins(x=0.08, y=0.12)
    axes.grid()
    names = [f"{place}  {short(label(rows[number], rows))}" for place, number in enumerate(best, 1)]
    shown = [role for role in LOOKS if any(row.role == role for row in rows)]
    keys = [Line2D([], [], color=LOOKS[role][0], marker=LOOKS[role][1], linestyle="") for role in shown]
    figure.legend(keys, shown, loc="outside upper left", ncols=3)
    blank = [Line2D([], [], linestyle="") for _ in names]
    figure.legend(
        blank, names, loc="outside lower left", handlelength=0, handletextpad=0, title="On the front", alignment="left"
    )
    return figure


def label(row: Row, rows: Sequence[Row]) -> str:
    """A member's name, with its variant and its epoch where the rows have several of them."""
    variant = f"{row.variant}: " if len({one.variant for one in rows}) > 1 else ""
    epoch = f", epoch {row.checkpoint:g}" if row.checkpoint is not None else ""
    return f"{variant}{row.member}{epoch if len({one.checkpoint for one in rows}) > 1 else ''}"
