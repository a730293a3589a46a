"""Summary rows -> figures: scores along fine-tuning, and what each member adds to the backbone.

Drawn with matplotlib's own objects, never with pyplot's global ones. Transparent with mid-grey axes, in colours that
colour-blind eyes tell apart: one file serves light pages, dark pages and paper. The same rows give the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bertvision.report.summary import ROLES, Metric, Row

INK = "#767676"  # equally far from white and from near-black; the page puts its own text colour in this one's place
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow and black
MARKERS = ("o", "s", "^", "D", "v")  # five against six colours: thirty members before a pair comes again
WIDTH = 5.2  # inches: narrow enough to be read on a phone
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@mpl.rc_context(STYLE)
def score_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """The metric against the epochs of fine-tuning, one line per member; shading is one standard deviation over seeds.

    rows: of one threshold kind, with checkpoints.
    """
    scored = [row for row in rows if metric.key in row.scores and row.checkpoint is not None]
    members: dict[str, list[Row]] = {}
    for row in sorted(scored, key=lambda row: ROLES.index(row.role)):
        members.setdefault(row.member, []).append(row)
    columns = 2 if max(map(len, members), default=0) <= 24 else 1
    figure = Figure(figsize=(WIDTH, 3.2 + 0.2 * -(-len(members) // columns)), layout="constrained")
    axes = figure.add_subplot()
    looks = zip(cycle(COLOURS), cycle(MARKERS))
    lines = [_line(axes, found, metric, found[0].role == "backbone", looks) for found in members.values()]
    points = sorted({row.checkpoint for row in scored if row.checkpoint is not None})
    if len(points) <= 6:
        axes.set_xticks(points, [f"{point:g}" for point in points])
    axes.set(xlabel="epochs of fine-tuning", ylabel=metric.label)
    axes.grid(axis="y")
    figure.legend(lines, [_short(name) for name in members], loc="outside lower left", ncols=columns)
    return figure


@mpl.rc_context(STYLE)
def difference_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """Bars: the metric minus the backbone's at the same checkpoint, of which the first and the last are shown.

    rows: of one threshold kind. Whiskers are one standard deviation of the paired differences.
    """
    compared = [row for row in rows if metric.key in row.differences]
    points = list(dict.fromkeys(row.checkpoint for row in compared))
    points = list(dict.fromkeys([*points[:1], *points[-1:]]))
    members = list(dict.fromkeys(row.member for row in compared if row.checkpoint in points))
    slot = len(points) + 1.4  # one bar per checkpoint, and room for the name above them
    figure = Figure(figsize=(WIDTH, 0.9 + 0.19 * slot * len(members)), layout="constrained")
    axes = figure.add_subplot()
    for row in compared:
        if row.checkpoint in points:
            number = points.index(row.checkpoint)
            _bar(axes, members.index(row.member) * slot + number, row, metric, COLOURS[number])
    for number, member in enumerate(members):
        top, name = number * slot - 0.5, _short(member)
        axes.vlines(0, top, top + len(points), color=INK, linewidth=1)  # zero, without striking out the names
        axes.text(0, top - 0.1, name, transform=axes.get_yaxis_transform(), va="bottom", fontsize=9)
    axes.set(ylim=(len(members) * slot - 1.0, -1.7), yticks=[], xlabel=f"{metric.label} minus the backbone's")
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.08)
    axes.grid(axis="x")
    if points != [None]:
        patches = [Patch(color=colour) for colour in COLOURS[: len(points)]]
        figure.legend(patches, [f"epoch {point:g}" for point in points], loc="outside upper left", ncols=2)
    return figure


def render(figure: Figure, form: Literal["svg", "png"], name: str) -> bytes:
    """A figure's file. The name keeps the ids inside an SVG the same each time, and unlike those of other figures."""
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type") if form == "svg" else ("Software",))
    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a browser has the letters our font lacks
        figure.savefig(buffer, format=form, dpi=160, transparent=True, metadata=metadata)
    return buffer.getvalue()


def _line(axes: Axes, rows: Sequence[Row], metric: Metric, base: bool, looks: Iterator[tuple[str, str]]) -> Line2D:
    """A member's line; the backbone's is thick and in the colour of the axes, an ensemble's dashed."""
    colour, marker = (INK, "o") if base else next(looks)
    epochs = [row.checkpoint or 0.0 for row in rows]
    means = [row.scores[metric.key].mean for row in rows]
    dashes = "--" if rows[0].role == "ensemble" else "-"
    spread = [row.scores[metric.key].sd or 0.0 for row in rows]
    if any(spread):
        low = [mean - sd for mean, sd in zip(means, spread)]
        high = [mean + sd for mean, sd in zip(means, spread)]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.1, linewidth=0)
    width = 2.6 if base else 1.4
    return axes.plot(epochs, means, dashes, color=colour, marker=marker, markersize=4.5, linewidth=width)[0]


def _bar(axes: Axes, place: float, row: Row, metric: Metric, colour: str) -> None:
    apart = row.differences[metric.key]
    axes.barh(place, apart.mean, height=0.86, color=colour)
    if apart.sd is not None:
        axes.errorbar(apart.mean, place, xerr=apart.sd, color=INK, linewidth=1.2, capsize=2.5)


def _short(name: str) -> str:
    return textwrap.shorten(name, 56, placeholder=" …") or name[:56]
