"""Differences to the backbone with their intervals, one beneath the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bertvision.report.ink import COLOURS, INK, MARKERS, canvas, legend_columns, short, styled
from bertvision.report.summary import Row


@dataclass(frozen=True)
class Gain:
    """A difference to the backbone, from low to high; interval: whether that is its 95 % interval."""

    mean: float
    low: float
    high: float
    interval: bool

    @property
    def clear(self) -> bool:
        """Whether there is an interval and it leaves zero out."""
        return self.interval and (self.low > 0 or self.high < 0)


def gain_of(row: Row, key: str) -> Gain | None:
    """What a row gains in a score: with its interval where there is one, else give or take one standard deviation."""
    if (known := row.intervals.get(key)) is not None:
        return Gain(known.difference, known.low, known.high, True)
    if (apart := row.differences.get(key)) is not None:
        return Gain(apart.mean, apart.mean - (apart.sd or 0.0), apart.mean + (apart.sd or 0.0), False)
    return None


@styled
def forest_figure(gains: Mapping[str, Mapping[str, Gain]], xlabel: str) -> Figure:
    """One group per name, one line per kind of gain: a point, its interval, and zero to hold them against.

    gains: name -> kind -> gain. A point is filled where its interval leaves zero out.
    """
    kinds = list(dict.fromkeys(kind for found in gains.values() for kind in found))
    slot = len(kinds) + 1.5  # a line per kind, and room for the name above them
    figure, axes = canvas(0.9 + 0.2 * slot * len(gains))
    for group, (name, found) in enumerate(gains.items()):
        top = group * slot - 0.5
        axes.vlines(0, top, top + len(kinds), color=INK, linewidth=1)  # zero, without striking out the names
        axes.text(0, top - 0.1, short(name), transform=axes.get_yaxis_transform(), va="bottom", fontsize=9)
        for kind, gain in found.items():
            _point(axes, group * slot + kinds.index(kind), gain, kinds.index(kind))
    axes.set(ylim=(len(gains) * slot - 1.0, -1.8), yticks=[], xlabel=xlabel)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.08)
    axes.grid(axis="x")
    if len(kinds) > 1:
        figure.legend(_keys(len(kinds)), kinds, loc="outside upper left", ncols=legend_columns(kinds))
    return figure


def _point(axes: Axes, place: float, gain: Gain, kind: int) -> None:
    colour = COLOURS[kind % len(COLOURS)]
    axes.plot([gain.low, gain.high], [place, place], color=colour, linewidth=2)
    face = colour if gain.clear else "none"
    axes.plot(gain.mean, place, MARKERS[kind % len(MARKERS)], color=colour, markerfacecolor=face, markersize=6)


def _keys(kinds: int) -> Sequence[Line2D]:
    looks = [(COLOURS[kind % len(COLOURS)], MARKERS[kind % len(MARKERS)]) for kind in range(kinds)]
    return [Line2D([], [], color=colour, marker=marker, linewidth=2) for colour, marker in looks]
