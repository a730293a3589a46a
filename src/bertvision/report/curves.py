"""Lines: scores along fine-tuning, scores by share of the training set, and how far a confidence can be believed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bertvision.report.ink import DASHES, INK, MARKERS, canvas, legend, legend_height, looks, styled
from bertvision.report.summary import ROLES, Metric, Row

Look = tuple[str, str, str, float]  # colour, marker, dashes, width
AT_FEW = 6  # so many points can each have their tick


@styled
def score_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """The metric against the epochs of fine-tuning, one line per member; shading is one standard deviation over seeds.

    rows: of one threshold kind, with checkpoints. Those of several variants go by their names, in a colour for each.
    """
    scored = [row for row in rows if metric.key in row.scores and row.checkpoint is not None]
    variants = list(dict.fromkeys(row.variant for row in scored))
    lines: dict[str, list[Row]] = {}
    for row in sorted(scored, key=lambda row: (variants.index(row.variant), ROLES.index(row.role))):
        lines.setdefault(f"{row.variant}: {row.member}" if len(variants) > 1 else row.member, []).append(row)
    styles = _by_variant(lines, variants) if len(variants) > 1 else _by_member(lines)
    figure, axes = canvas(3.2 + legend_height(list(lines)))
    drawn = [_line(axes, found, metric, lambda row: row.checkpoint or 0.0, styles[n]) for n, found in lines.items()]
    _ticks(axes, sorted({row.checkpoint for row in scored if row.checkpoint is not None}))
    axes.set(xlabel="epochs of fine-tuning", ylabel=metric.label)
    axes.grid(axis="y")
    legend(figure, drawn, list(lines))
    return figure


@styled
def share_figure(rows: Sequence[Row], metric: Metric) -> Figure:
    """The metric against the share of the training set that a head has seen; the backbone, which saw all, is level.

    rows: of one threshold kind and one checkpoint.
    """
    scored = [row for row in rows if metric.key in row.scores]
    lines: dict[str, list[Row]] = {}
    for row in sorted(scored, key=lambda row: row.fraction):
        if row.role == "head":
            lines.setdefault(row.family, []).append(row)
    lines = {name: found for name, found in lines.items() if len(found) > 1}
    styles = _by_member(lines)
    base = [row.scores[metric.key].mean for row in scored if row.role == "backbone"]
    names = [*lines, *(["backbone"] if base else [])]
    figure, axes = canvas(3.2 + legend_height(names))
    drawn = [_line(axes, found, metric, lambda row: row.fraction, styles[name]) for name, found in lines.items()]
    drawn += [axes.axhline(mean, color=INK, linewidth=2.6) for mean in base]
    shares = sorted({row.fraction for found in lines.values() for row in found})
    _ticks(axes, shares, [f"{100 * share:g} %" for share in shares])
    axes.set(xlabel="share of the training set", ylabel=metric.label)
    axes.grid(axis="y")
    legend(figure, drawn, names)
    return figure


@styled
def reliability_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """How often something came true against how probable the member held it; on the diagonal the two agree.

    curves: member -> [{"confidence", "observed", "questions"}], both from 0 to 1; the area of a point goes with its
    questions.
    """
    figure, axes = canvas(3.6 + legend_height(list(curves)))
    axes.plot([0, 1], [0, 1], ":", color=INK, linewidth=1.2)
    drawn = []
    for (colour, marker), points in zip(looks(len(curves)), curves.values()):
        x, y = [point["confidence"] for point in points], [point["observed"] for point in points]
        most = max((point.get("questions", 1) for point in points), default=1) or 1
        sizes = [12 + 60 * point.get("questions", 1) / most for point in points]
        axes.scatter(x, y, sizes, color=colour, marker=marker, alpha=0.8, linewidth=0)
        drawn += axes.plot(x, y, color=colour, marker=marker, markersize=3, linewidth=1.2)
    axes.set(xlabel="predicted probability", ylabel="observed share", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    axes.grid()
    legend(figure, drawn, list(curves))
    return figure


def _by_member(lines: Mapping[str, Sequence[Row]]) -> dict[str, Look]:
    """The backbone's line is thick and in the colour of the axes, an ensemble's dashed."""
    others = [name for name, rows in lines.items() if rows[0].role != "backbone"]
    found: dict[str, Look] = dict.fromkeys(lines, (INK, "o", "-", 2.6))
    for name, (colour, marker) in zip(others, looks(len(others))):
        found[name] = (colour, marker, DASHES[lines[name][0].role], 1.4)
    return found


def _by_variant(lines: Mapping[str, Sequence[Row]], variants: Sequence[str]) -> dict[str, Look]:
    """A colour for each variant; the backbone's line thick, an ensemble's dashed, and markers by role."""
    colours = {variant: colour for variant, (colour, _) in zip(variants, looks(len(variants)))}
    return {
        name: (
            colours[rows[0].variant],
            MARKERS[ROLES.index(rows[0].role)],
            DASHES[rows[0].role],
            2.6 if rows[0].role == "backbone" else 1.4,
        )
        for name, rows in lines.items()
    }


def _line(axes: Axes, rows: Sequence[Row], metric: Metric, place: Callable[[Row], float], look: Look) -> Line2D:
    colour, marker, dashes, width = look
    x, means = [place(row) for row in rows], [row.scores[metric.key].mean for row in rows]
    spread = [row.scores[metric.key].sd or 0.0 for row in rows]
    if any(spread):
        low = [mean - sd for mean, sd in zip(means, spread)]
        high = [mean + sd for mean, sd in zip(means, spread)]
        axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
    return axes.plot(x, means, dashes, color=colour, marker=marker, markersize=4.5, linewidth=width)[0]


def _ticks(axes: Axes, points: Sequence[float], labels: Sequence[str] = ()) -> None:
    if len(points) <= AT_FEW:
        axes.set_xticks(points, labels or [f"{point:g}" for point in points])
