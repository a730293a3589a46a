"""Figures of a report as matplotlib objects, without pyplot's global state, and their SVG and PNG files.

Backgrounds are transparent, axes mid-grey, and colours distinguishable for colour-blind readers, so that one file
serves light pages, dark pages and print. The same rows give the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
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

from bertvision.evaluate.score import pareto_front
from bertvision.report import TEMPLATES
from bertvision.report.rows import ROLES, Entry, Metric, Row, beside, is_number

GREY = "#767676"  # equally far from white and from near-black; the page replaces it by its text colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow and black
MARKERS = ("o", "s", "^", "D", "v")  # five markers and six colours: the first thirty pairs differ
ROLE_LOOKS = {"backbone": (GREY, "o"), "head": (COLOURS[0], "^"), "ensemble": (COLOURS[1], "s")}
CELL_HEIGHT = 0.54  # of a line of a heat map; the rest is for its name
PUBLISHED = Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor="none", markersize=6)
Curves = Mapping[str, Sequence[tuple[float, float]]]  # name -> points (x, y)
styled = mpl.rc_context(fname=TEMPLATES / "figures.mplstyle")


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


class Panel(NamedTuple):
    """Part of a figure. rows: of one threshold kind. published: published (cost, score)."""

    title: str
    metric: Metric
    rows: Sequence[Row]
    published: Sequence[tuple[float, float]] = ()


@styled
def cost_figure(panels: Sequence[Panel], cost: Metric, across: bool = True) -> Figure:
    """A score against a cost of training: the backbone is a line, heads and ensembles are points above or below it.

    A dotted line leads from a checkpoint to each member trained on it. Bars: the 95 % interval of the difference to
    the backbone of equal cost, so that a bar that does not reach the line means a clear difference. The line is dashed
    where the backbone was not tuned that long. Published results are open marks. across: panels side by side.
    """
    names = list(dict.fromkeys(row.name for panel in panels for row in panel.rows if row.role != "backbone"))
    look = dict(zip(names, looks(len(names))))
    columns = 3 if across and len(panels) > 1 else _columns(names)
    legend = 0.2 * -(-(len(names) + 2) // columns) + 0.1
    size = (3.6 * len(panels), 3.5 + legend) if across and len(panels) > 1 else (5.2, 3.2 * len(panels) + legend)
    figure = Figure(figsize=size, layout="constrained", facecolor="none")
    grid = figure.subplots(*((1, len(panels)) if across else (len(panels), 1)), squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        _draw_panel(axes, panel, cost, look)
    keys = [Line2D([], [], color=GREY, marker="o", linewidth=2.6, markersize=4.5)]
    keys += [Line2D([], [], color=colour, marker=mark, linestyle="", markersize=6) for colour, mark in look.values()]
    published = [PUBLISHED] if any(panel.published for panel in panels) else []
    labels = ["backbone", *map(_short, names), *["published" for _ in published]]
    figure.legend([*keys, *published], labels, loc="outside lower left", ncols=columns)
    return figure


def _draw_panel(axes: Axes, panel: Panel, cost: Metric, look: Mapping[str, tuple[str, str]]) -> None:
    point_of = {id(row): (row.scores[cost.key].mean, row.scores[panel.metric.key].mean) for row in panel.rows}
    backbone = sorted((row for row in panel.rows if row.role == "backbone"), key=lambda row: row.epoch)
    others = [row for row in panel.rows if row.role != "backbone"]
    line, starts = [point_of[id(row)] for row in backbone], {row.epoch: point_of[id(row)] for row in backbone}
    if line:
        axes.plot(*zip(*line), "o-", color=GREY, linewidth=2.6, markersize=4.5)
        ends = [line[-1][0], max(x for x, _ in point_of.values())]
        axes.plot(ends, [line[-1][1]] * 2, "--", color=GREY, linewidth=1.2, alpha=0.7)
    for row in backbone:  # beside the line; the first is close to the axis
        offset, side = ((5, -11), "left") if row is backbone[0] else ((-6, 4), "right")
        label = f"epoch {row.epoch:g}"
        axes.annotate(label, point_of[id(row)], offset, textcoords="offset points", ha=side, fontsize=8)
    for row in others:
        (x, y), (colour, marker) = point_of[id(row)], look[row.name]
        if row.epoch in starts:
            axes.plot(*zip(starts[row.epoch], (x, y)), ":", color=colour, linewidth=0.9, alpha=0.6)
        if equal := row.at_equal(cost.key, panel.metric.key):
            rival = y - equal.interval.difference
            bar = [rival + equal.interval.low, rival + equal.interval.high]
            axes.plot([x, x], bar, color=colour, linewidth=1.6, alpha=0.55, solid_capstyle="butt")
        axes.plot(x, y, marker, color=colour, markersize=6)
    for x, y in panel.published:
        _draw_published(axes, x, y)
    _cost_axis(axes, [x for x, _ in [*point_of.values(), *panel.published]])
    axes.set(xlabel=cost.label, ylabel=panel.metric.label)
    axes.set_title(panel.title, fontsize=10, loc="left")
    axes.margins(x=0.08, y=0.1)
    axes.grid()


def _cost_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Logarithmic if the costs differ much; zero has a place too."""
    positive = [cost for cost in costs if cost > 0]
    if positive and max(positive) > 30 * min(positive):
        axes.set_xscale("symlog", linthresh=min(positive))
    elif max(costs, default=0) >= 1e4:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 22.7M, not 2.27 with 1e7 in a corner


@styled
def front_figure(panel: Panel, cost: Metric) -> Figure:
    """The metric against a cost; the Pareto front is a line of larger, numbered points, named below. Published results
    are open marks."""
    rows, metric = panel.rows, panel.metric
    costs, scores = (np.array([row.scores[key].mean for row in rows]) for key in (cost.key, metric.key))
    front = pareto_front(costs.tolist(), scores.tolist())
    best = np.flatnonzero(front)[np.argsort(costs[front], kind="stable")].tolist()
    figure, axes = _canvas(3.7 + 0.19 * len(best))
    axes.step(costs[best], scores[best], where="post", color=GREY, linewidth=1, alpha=0.7)
    for index, row in enumerate(rows):
        colour, marker = ROLE_LOOKS[row.role]
        axes.plot(costs[index], scores[index], marker, color=colour, markersize=7 if front[index] else 4)
    for x, y in panel.published:
        _draw_published(axes, x, y)
    for rank, index in enumerate(best, 1):  # neighbours are close: their numbers alternate between the sides
        offset, side = ((-5, 5), "right") if rank % 2 else ((6, -11), "left")
        point = costs[index], scores[index]
        axes.annotate(str(rank), point, offset, textcoords="offset points", ha=side, fontsize=8)
    _cost_axis(axes, [*costs.tolist(), *(x for x, _ in panel.published)])
    axes.set(xlabel=cost.label, ylabel=metric.label)
    axes.margins(x=0.08, y=0.12)
    axes.grid()
    shown = {role: look for role, look in ROLE_LOOKS.items() if any(row.role == role for row in rows)}
    keys = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in shown.values()]
    more = {"published": PUBLISHED} if panel.published else {}
    figure.legend([*keys, *more.values()], [*shown, *more], loc="outside upper left", ncols=4)
    names = [f"{rank}  {_short(_full_name(rows[index], rows))}" for rank, index in enumerate(best, 1)]
    text = {"handlelength": 0, "handletextpad": 0, "title": "On the front", "alignment": "left"}
    figure.legend([Line2D([], [], linestyle="") for _ in names], names, loc="outside lower left", **text)
    return figure


@styled
def score_figure(rows: Sequence[Row], metric: Metric, paper: Sequence[Entry] = (), by_share: bool = False) -> Figure:
    """The metric against the epochs of fine-tuning, one line per member; shading is one standard deviation over seeds.

    rows: of one threshold kind. With several variants, each has a colour. Published results are open marks. by_share:
    against the share of the training set that a head has seen, at one checkpoint; the backbone is a horizontal line.
    """
    scored = [row for row in rows if metric.key in row.scores]
    lines: dict[str, list[Row]] = {}
    if by_share:
        for row in sorted((row for row in scored if row.role == "head"), key=lambda row: row.fraction):
            lines.setdefault(row.family, []).append(row)
        lines = {name: points for name, points in lines.items() if len(points) > 1}
        level = next((row.scores[metric.key].mean for row in scored if row.role == "backbone"), None)
        return _line_figure(lines, metric, "share of the training set", paper, level)
    variants = list(dict.fromkeys(row.variant for row in scored))
    for row in sorted(scored, key=lambda row: (variants.index(row.variant), ROLES.index(row.role))):
        lines.setdefault(f"{row.variant}: {row.name}" if len(variants) > 1 else row.name, []).append(row)
    return _line_figure(lines, metric, "epochs of fine-tuning", paper)


@styled
def curve_figure(
    curves: Curves, xlabel: str, ylabel: str, marked: bool = False, expected: float | None = None
) -> Figure:
    """Lines through points (x, y), by name. marked: points are marked, x is whole. expected: a vertical line."""
    figure, axes = _canvas(3.2, curves)
    drawn = []
    for (colour, marker), points in zip(looks(len(curves)), curves.values()):
        look: dict[str, Any] = {"marker": marker, "markersize": 4.5, "linewidth": 1.4} if marked else {"linewidth": 1.2}
        drawn += axes.plot(*zip(*points), color=colour, **look)
    if expected is not None:
        axes.axvline(expected, color=GREY, linewidth=1, linestyle=":")
    if marked:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(axis="y" if marked else "both")
    _legend(figure, drawn, curves)
    return figure


@styled
def type_figure(shares: Mapping[str, Mapping[str, float]], published: Mapping[str, Mapping[str, float]]) -> Figure:
    """Percentages, a line of points per member; published ones are open marks. shares: member -> type -> percentage."""
    types = list(next(iter(shares.values())))
    figure, axes = _canvas(1.1 + 0.34 * len(shares), types)
    for line, (name, own_shares) in enumerate(shares.items()):
        axes.text(0, line - 0.16, _short(name), transform=axes.get_yaxis_transform(), va="bottom", fontsize=9)
        for (colour, marker), kind in zip(looks(len(types)), types):
            axes.plot(own_shares[kind], line, marker, color=colour, markersize=6)
            if kind in published.get(name, {}):
                _draw_published(axes, published[name][kind], line, marker, colour)
    axes.set(ylim=(len(shares) - 0.5, -0.8), yticks=[], xlabel="right, percent")
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    keys = [Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in looks(len(types))]
    more = {"published": PUBLISHED} if published else {}
    figure.legend([*keys, *more.values()], [*types, *more], loc="outside upper left", ncols=3)
    return figure


@styled
def reliability_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Observed share against predicted probability; the area of a point grows with its questions.

    curves: member -> [{"confidence", "observed", "questions"}], both from 0 to 1.
    """
    figure, axes = _canvas(3.6, curves)
    axes.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.2)
    drawn = []
    for (colour, marker), points in zip(looks(len(curves)), curves.values()):
        x, y = [point["confidence"] for point in points], [point["observed"] for point in points]
        counts = [point.get("questions", 1) for point in points]
        sizes = [12 + 60 * count / (max(counts) or 1) for count in counts]
        axes.scatter(x, y, sizes, color=colour, marker=marker, alpha=0.8, linewidth=0)
        drawn += axes.plot(x, y, color=colour, marker=marker, markersize=3, linewidth=1.2)
    axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.grid()
    _legend(figure, drawn, curves)
    return figure


@styled
def layer_figure(weights: Mapping[str, Sequence[float]]) -> Figure:
    """Heat map of layer weights, coloured cells with their heads' names above them.

    weights: head -> one per layer, the embedding output first.
    """
    matrix = np.full((len(weights), max(map(len, weights.values()))), np.nan)  # (heads, layers)
    for number, shares in enumerate(weights.values()):
        matrix[number, : len(shares)] = shares
    figure, axes = _canvas(0.7 + 0.46 * len(weights))
    columns = matrix.shape[1]
    present = np.isfinite(matrix)
    line, column = np.nonzero(present)  # (cells,) each
    weight = matrix[present]  # (cells,)
    colours = colormaps["cividis"](Normalize(0.0, float(weight.max(initial=0.0)))(weight))  # (cells, 4)
    axes.barh(line, 0.96, height=CELL_HEIGHT, left=column - 0.48, color=colours)
    if columns <= 13:  # more leave no room for numbers
        for y, x, value, colour in zip(line.tolist(), column.tolist(), weight, colours):
            ink = "#000000" if colour[:3].mean() > 0.5 else "#ffffff"
            axes.text(x, y, f"{value:.2f}".removeprefix("0"), ha="center", va="center", fontsize=8, color=ink)
    for number, name in enumerate(weights):
        axes.text(-0.5, number - CELL_HEIGHT / 2 - 0.03, _short(name), va="bottom", fontsize=9)
    ticks = range(0, columns, -(-columns // 26))
    axes.set_xticks(ticks, list(map(str, ticks)), fontsize=8)
    axes.set(ylim=(len(weights) - 0.5, -0.8), xlim=(-0.5, columns - 0.5), yticks=[], xlabel="layer (0: embeddings)")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _line_figure(
    lines: Mapping[str, Sequence[Row]], metric: Metric, xlabel: str, paper: Sequence[Entry], level: float | None = None
) -> Figure:
    """Lines of rows over epochs with shaded spread; level: the backbone's score, if they are over shares instead."""

    def position(row: Row) -> float:
        return row.epoch if level is None else row.fraction

    published = {name: beside(rows, paper) for name, rows in lines.items()}
    shown = any(metric.key in entry for entries in published.values() for entry in entries)
    names = [*lines, *(["backbone"] if level is not None else []), *(["published"] if shown else [])]
    figure, axes = _canvas(3.2, names)
    others = [rows for rows in lines.values() if rows[0].role != "backbone"]
    variants = list(dict.fromkeys(rows[0].variant for rows in lines.values()))
    drawn = []
    for name, rows in lines.items():
        role, spreads = rows[0].role, [row.scores[metric.key] for row in rows]
        if len(variants) > 1:
            colour, marker = looks(len(variants))[variants.index(rows[0].variant)][0], MARKERS[ROLES.index(role)]
        else:
            colour, marker = (GREY, "o") if role == "backbone" else looks(len(others))[others.index(rows)]
        xs, means = [position(row) for row in rows], [spread.mean for spread in spreads]
        if any(spread.sd for spread in spreads):
            low, high = ([spread.mean + sign * (spread.sd or 0.0) for spread in spreads] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=colour, alpha=0.1, linewidth=0)
        look: dict[str, Any] = {"color": colour, "marker": marker, "linewidth": 2.6 if role == "backbone" else 1.4}
        drawn += axes.plot(xs, means, "--" if role == "ensemble" else "-", markersize=4.5, **look)
        for x, entry in zip(xs, published[name]):
            if is_number(entry.get(metric.key)):
                _draw_published(axes, x, entry[metric.key], marker, colour)
    drawn += [axes.axhline(level, color=GREY, linewidth=2.6)] if level is not None else []
    drawn += [PUBLISHED] if shown else []
    points = sorted({position(row) for rows in lines.values() for row in rows})
    if len(points) <= 6:  # else matplotlib places the ticks
        axes.set_xticks(points, [f"{point:g}" if level is None else f"{100 * point:g} %" for point in points])
    axes.set(xlabel=xlabel, ylabel=metric.label)
    axes.grid(axis="y")
    _legend(figure, drawn, names)
    return figure


def _canvas(height: float, names: Sequence[str] | Mapping[str, Any] = ()) -> tuple[Figure, Axes]:
    """A figure narrow enough for a phone, with one pair of axes and room for a legend of these names."""
    inches = height + 0.2 * -(-len(names) // _columns(names))
    figure = Figure(figsize=(5.2, inches), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def _draw_published(axes: Axes, x: float, y: float, marker: str = "o", colour: str = GREY) -> None:
    axes.plot(x, y, marker, color=colour, markerfacecolor="none", markersize=6)


def _legend(figure: Figure, drawn: Sequence[Line2D], names: Sequence[str] | Mapping[str, Any]) -> None:
    figure.legend(drawn, list(map(_short, names)), loc="outside lower left", ncols=_columns(names))


def _columns(names: Sequence[str] | Mapping[str, Any]) -> int:
    """Columns of a legend: two if the names are short enough for a phone."""
    return 2 if max(map(len, names), default=0) <= 24 else 1


def _full_name(row: Row, rows: Sequence[Row]) -> str:
    """A member's name, with its variant and its epoch if the rows have several of them."""
    variants, epochs = {other.variant for other in rows}, {other.epoch for other in rows}
    return f"{row.variant}: " * (len(variants) > 1) + row.name + f", epoch {row.epoch:g}" * (len(epochs) > 1)


def _short(name: str, width: int = 56) -> str:
    """A name that fits into a figure."""
    return textwrap.shorten(name, width, placeholder=" …") or f"{name[: width - 1]}…"
