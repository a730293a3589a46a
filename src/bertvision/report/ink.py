"""How figures look, and how they become files.

Drawn with matplotlib's own objects, never with pyplot's global ones. Transparent with mid-grey axes, in colours that
colour-blind eyes tell apart: one file serves light pages, dark pages and paper. The same rows give the same bytes.
"""

import io
import textwrap
import warnings
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK = "#767676"  # equally far from white and from near-black; the page puts its own text colour in this one's place
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito, without yellow and black
MARKERS = ("o", "s", "^", "D", "v")  # five against six colours: thirty members before a pair comes again
DASHES = {"backbone": "-", "head": "-", "ensemble": "--"}
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
styled = mpl.rc_context(STYLE)


def canvas(height: float) -> tuple[Figure, Axes]:
    """A figure of the usual width with one pair of axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def looks(count: int) -> list[tuple[str, str]]:
    """A colour and a marker for each of `count` things; the first thirty pairs differ."""
    return list(islice(zip(cycle(COLOURS), cycle(MARKERS)), count))


def legend_columns(names: Sequence[str]) -> int:
    """Two columns where the names are short enough for a phone."""
    return 2 if max(map(len, names), default=0) <= 24 else 1


def legend_height(names: Sequence[str]) -> float:
    """Inches that a legend of these names takes."""
    return 0.2 * -(-len(names) // legend_columns(names))


def legend(figure: Figure, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """A legend below the axes."""
    figure.legend(handles, [short(name) for name in names], loc="outside lower left", ncols=legend_columns(names))


def render(figure: Figure, name: str) -> tuple[str, bytes]:
    """A figure as SVG and as PNG. The name keeps the ids inside an SVG the same each time, and unlike those of others.

    `savefig` would lay the figure out and draw it twice for each.
    """
    svg, png = io.BytesIO(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a browser has the letters our font lacks
        FigureCanvasSVG(figure).print_svg(svg, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        figure.set_layout_engine("none")  # its parts have found their places
        figure.dpi = 160
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    return svg.getvalue().decode(), png.getvalue()


def short(name: str, width: int = 56) -> str:
    """A name that fits into a figure."""
    return textwrap.shorten(name, width, placeholder=" …") or f"{name[: width - 1]}…"
