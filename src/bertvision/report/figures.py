"""Figures of a report as matplotlib objects, without pyplot's global state, and their SVG and PNG files.

Backgrounds are transparent, axes mid-grey, and colours distinguishable for colour-blind readers, so that one file
serves light pages, dark pages and print. The same rows give the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from bertvision.evaluate.pareto import pareto_front
from bertvision.report import TEMPLATES
from bertvision.report.rows import ROLES, Metric, Row

INK = "#767676"  # equally far from white and from near-black; the page replaces it by its text colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow and black
MARKERS = ("o", "s", "^", "D", "v")  # five markers and six colours: the first thirty pairs differ
ROLE_LOOKS = {"backbone": (INK, "o"), "head": (COLOURS[0], "^"), "ensemble": (COLOURS[1], "s")}
CELL_HEIGHT = 0.54  # of a line of a heat map; the rest is for its name
NUMBERED_COLUMNS = 13  # a heat map with more columns has no room for numbers in its cells
TICKS = 6  # with more points than this, matplotlib places the ticks
styled = mpl.rc_context(fname=TEMPLATES / "figures.mplstyle")


class Gain(NamedTuple):
    """A difference to the backbone with its range; is_interval: the range is the 95 % interval."""

    mean: float
    low: float
    high: float
    is_interval: bool

    @property
    def clear(self) -> bool:
        """Whether there is an interval and it excludes zero."""
        return self.is_interval and (self.low > 0 or self.high < 0)


def gain_of(row: Row, key: str) -> Gain | None:
    """What a row gains in a score, with its interval if there is one, else plus or minus one standard deviation."""
    if (known := row.intervals.get(key)) is not None:
        return Gain(known.difference, known.low, known.high, True)
    if (spread := row.differences.get(key)) is not None:
        return Gain(spread.mean, spread.mean - (spread.sd or 0.0), spread.mean + (spread.sd or 0.0), False)
    return None


def render(figure: Figure, name: str) -> tuple[str, bytes]:
    """A figure as SVG and as PNG. The ids inside an SVG depend on its name only.

    `savefig` would lay out and draw the figure twice for each format.
    """
    svg, png = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # browsers have the glyphs our font lacks
        FigureCanvasSVG(figure).print_svg(svg, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        figure.set_layout_engine("none")  # the layout is final
        figure.dpi = 160
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    return svg.getvalue().decode(), png.getvalue()


def looks(count: int) -> list[tuple[str, str]]:
    """A colour and a marker for each of `count` things; the first thirty pairs differ."""
    return list(islice(zip(cycle(COLOURS), cycle(MARKERS)), count))


@styled
def forest_figure(gains: Mapping[str, Mapping[str, Gain]], xlabel: str) -> Figure:
    """Forest plot: one group per name, one line per kind of gain; points are filled if their interval excludes zero.

    gains: name -> kind -> gain.
    """
    kinds = list(dict.fromkeys(kind for found in gains.values() for kind in found))
    slot = len(kinds) + 1.5  # a line per kind, and room for the name above them
    figure, axes = _canvas(0.9 + 0.2 * slot * len(gains))
    for group, (name, found) in enumerate(gains.items()):
        top = group * slot - 0.5
        axes.vlines(0, top, top + len(kinds), color=INK, linewidth=1)  # zero, without crossing the names
        axes.text(0, top - 0.1, _short(name), transform=axes.get_yaxis_transform(), va="bottom", fontsize=9)
        for line, (kind, (colour, marker)) in enumerate(zip(kinds, looks(len(kinds)))):
            if gain := found.get(kind):
                place, face = group * slot + line, colour if gain.clear else "none"
                axes.plot([gain.low, gain.high], [place, place], color=colour, linewidth=2)
                axes.plot(gain.mean, place, marker, color=colour, markerfacecolor=face, markersize=6)
    axes.set(ylim=(len(gains) * slot - 1.0, -1.8), yticks=[], xlabel=xlabel)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.08)
    axes.grid(axis="x")
    if len(kinds) > 1:
        keys = [Line2D([], [], color=colour, marker=marker, linewidth=2) for colour, marker in looks(len(kinds))]
        figure.legend(keys, kinds, loc="outside upper left", ncols=_columns(kinds))
    return figure


@styled
def front_figure(rows: Sequence[Row], metric: Metric, cost: Metric) -> Figure:
    """The metric against a cost; the Pareto front is a line of filled, numbered points, named below.

    rows: of one threshold kind, with both numbers.
    """
    costs, scores = (np.array([row.scores[number.key].mean for row in rows]) for number in (cost, metric))
    front = pareto_front(costs.tolist(), scores.tolist())
    best = np.flatnonzero(front)[np.argsort(costs[front], kind="stable")].tolist()
    figure, axes = _canvas(3.7 + 0.19 * len(best))
    axes.step(costs[best], scores[best], where="post", color=INK, linewidth=1, alpha=0.7)
    for number, row in enumerate(rows):
        colour, marker = ROLE_LOOKS[row.role]
        face, size = (colour, 7) if front[number] else ("none", 5)
        axes.plot(costs[number], scores[number], marker, color=colour, markerfacecolor=face, markersize=size)
    for place, number in enumerate(best, 1):  # neighbours are close: their numbers alternate between the sides
        offset, side = ((-5, 5), "right") if place % 2 else ((6, -11), "left")
        point = (costs[number], scores[number])
        axes.annotate(str(place), point, offset, textcoords="offset points", ha=side, fontsize=8)
    if costs.max() > 20 * max(costs.min(), 1e-9):
        axes.set_xscale("symlog", linthresh=1)  # zero cost has a place too
    elif costs.max() >= 1e4:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 22.7M, not 2.27 with 1e7 in a corner
    axes.set(xlabel=cost.label, ylabel=metric.label)
    axes.margins(x=0.08, y=0.12)
    axes.grid()
    shown = {role: look for role, look in ROLE_LOOKS.items() if any(row.role == role for row in rows)}
    keys = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in shown.values()]
    figure.legend(keys, list(shown), loc="outside upper left", ncols=3)
    names = [f"{place}  {_short(_full_name(rows[number], rows))}" for place, number in enumerate(best, 1)]
    text = {"handlelength": 0, "handletextpad": 0, "title": "On the front", "alignment": "left"}
    figure.legend([Line2D([], [], linestyle="") for _ in names], names, loc="outside lower left", **text)
    return figure


@styled
def score_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """The metric against the epochs of fine-tuning, one line per member; shading is one standard deviation over seeds.

    rows: of one threshold kind. With several variants, each has a colour.
    """
    scored = [row for row in rows if metric.key in row.scores]
    variants = list(dict.fromkeys(row.variant for row in scored))
    lines: dict[str, list[Row]] = {}
    for row in sorted(scored, key=lambda row: (variants.index(row.variant), ROLES.index(row.role))):
        lines.setdefault(f"{row.variant}: {row.name}" if len(variants) > 1 else row.name, []).append(row)
    return _line_figure(lines, metric, "epochs of fine-tuning", lambda row: row.epoch)


@styled
def share_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """The metric against the share of the training set that a head has seen; the backbone is a horizontal line.

    rows: of one threshold kind and one checkpoint.
    """
    scored = [row for row in rows if metric.key in row.scores]
    lines: dict[str, list[Row]] = {}
    for row in sorted(scored, key=lambda row: row.fraction):
        if row.role == "head":
            lines.setdefault(row.family, []).append(row)
    lines = {name: found for name, found in lines.items() if len(found) > 1}
    level = next((row.scores[metric.key].mean for row in scored if row.role == "backbone"), None)
    return _line_figure(lines, metric, "share of the training set", lambda row: row.fraction, level)


@styled
def reliability_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Observed share against predicted probability; the area of a point grows with its questions.

    curves: member -> [{"confidence", "observed", "questions"}], both from 0 to 1.
    """
    figure, axes = _canvas(3.6, curves)
    axes.plot([0, 1], [0, 1], ":", color=INK, linewidth=1.2)
    drawn = []
    for (colour, marker), points in zip(looks(len(curves)), curves.values()):
        x, y = [point["confidence"] for point in points], [point["observed"] for point in points]
        counts = [point.get("questions", 1) for point in points]
        sizes = [12 + 60 * count / (max(counts) or 1) for count in counts]
        axes.scatter(x, y, sizes, color=colour, marker=marker, alpha=0.8, linewidth=0)
        drawn += axes.plot(x, y, color=colour, marker=marker, markersize=3, linewidth=1.2)
    axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.grid()
    figure.legend(drawn, list(map(_short, curves)), loc="outside lower left", ncols=_columns(curves))
    return figure


@styled
def layer_figure(weights: Mapping[str, Sequence[float]]) -> Figure:
    """Heat map of layer weights. weights: head -> one per layer, the embedding output first."""
    matrix = np.full((len(weights), max(map(len, weights.values()))), np.nan)  # (heads, layers)
    for line, shares in enumerate(weights.values()):
        matrix[line, : len(shares)] = shares
    return _heat_figure(matrix, list(weights), 0, "layer (0: embeddings)", 0.0)


@styled
def agreement_figure(members: Sequence[str], matrix: Sequence[Sequence[float]]) -> Figure:
    """Heat map of the share of questions to which two members give the same answer: (members, members), 0 to 1."""
    names = [f"{number} {_short(name, 40)}" for number, name in enumerate(members, 1)]
    cells = np.asarray(matrix, dtype=float)
    return _heat_figure(cells, names, 1, "the same members", float(np.nanmin(cells)))


def _line_figure(
    lines: Mapping[str, Sequence[Row]],
    metric: Metric,
    xlabel: str,
    place: Callable[[Row], float],
    level: float | None = None,
) -> Figure:
    """Lines of rows with shaded spread. place: the x of a row, in percent if there is a level, the backbone's score."""
    names = [*lines, *(["backbone"] if level is not None else [])]
    figure, axes = _canvas(3.2, names)
    others = [rows for rows in lines.values() if rows[0].role != "backbone"]
    variants = list(dict.fromkeys(rows[0].variant for rows in lines.values()))
    drawn = []
    for rows in lines.values():
        role, spreads = rows[0].role, [row.scores[metric.key] for row in rows]
        if len(variants) > 1:
            colour, marker = looks(len(variants))[variants.index(rows[0].variant)][0], MARKERS[ROLES.index(role)]
        else:
            colour, marker = (INK, "o") if role == "backbone" else looks(len(others))[others.index(rows)]
        x, means = [place(row) for row in rows], [spread.mean for spread in spreads]
        if any(spread.sd for spread in spreads):
            low, high = ([one.mean + sign * (one.sd or 0.0) for one in spreads] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
        look: dict[str, Any] = {"color": colour, "marker": marker, "linewidth": 2.6 if role == "backbone" else 1.4}
        drawn += axes.plot(x, means, "--" if role == "ensemble" else "-", markersize=4.5, **look)
    if level is not None:
        drawn.append(axes.axhline(level, color=INK, linewidth=2.6))
    points = sorted({place(row) for rows in lines.values() for row in rows})
    if len(points) <= TICKS:
        axes.set_xticks(points, [f"{point:g}" if level is None else f"{100 * point:g} %" for point in points])
    axes.set(xlabel=xlabel, ylabel=metric.label)
    axes.grid(axis="y")
    figure.legend(drawn, list(map(_short, names)), loc="outside lower left", ncols=_columns(names))
    return figure


def _heat_figure(matrix: NDArray[np.float64], rows: Sequence[str], first: int, xlabel: str, low: float) -> Figure:
    """Coloured cells with their lines' names above them. first: number of the first column; low: the darkest value."""
    figure, axes = _canvas(0.7 + 0.46 * len(rows))
    columns = matrix.shape[1]
    known = np.isfinite(matrix)
    line, column = np.nonzero(known)  # (cells,) each
    colours = colormaps["cividis"](Normalize(low, float(matrix[known].max(initial=low)))(matrix[known]))  # (cells, 4)
    axes.barh(line, 0.96, height=CELL_HEIGHT, left=column - 0.48, color=colours)
    if columns <= NUMBERED_COLUMNS:
        for y, x, value, colour in zip(line.tolist(), column.tolist(), matrix[known], colours):
            ink = "#000000" if colour[:3].mean() > 0.5 else "#ffffff"
            axes.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=8, color=ink)
    for number, name in enumerate(rows):
        axes.text(-0.5, number - CELL_HEIGHT / 2 - 0.03, _short(name), va="bottom", fontsize=9)
    ticks = range(0, columns, -(-columns // 26))
    axes.set_xticks(ticks, [str(first + tick) for tick in ticks], fontsize=8)
    axes.set(ylim=(len(rows) - 0.5, -0.8), xlim=(-0.5, columns - 0.5), yticks=[], xlabel=xlabel)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _canvas(height: float, names: Sequence[str] | Mapping[str, Any] = ()) -> tuple[Figure, Axes]:
    """A figure narrow enough for a phone, with one pair of axes and room for a legend of these names."""
    inches = height + 0.2 * -(-len(names) // _columns(names))
    figure = Figure(figsize=(5.2, inches), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def _columns(names: Sequence[str] | Mapping[str, Any]) -> int:
    """Columns of a legend: two if the names are short enough for a phone."""
    return 2 if max(map(len, names), default=0) <= 24 else 1


def _full_name(row: Row, rows: Sequence[Row]) -> str:
    """A member's name, with its variant and its epoch if the rows have several of them."""
    variant = f"{row.variant}: " if len({one.variant for one in rows}) > 1 else ""
    return f"{variant}{row.name}{f', epoch {row.epoch:g}' if len({one.epoch for one in rows}) > 1 else ''}"


def _short(name: str, width: int = 56) -> str:
    """A name that fits into a figure."""
    return textwrap.shorten(name, width, placeholder=" …") or f"{name[: width - 1]}…"
