"""Figures say what the rows say, look the same each time, and leave no trace in matplotlib's global state."""

import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from bertvision.report.figures import (
    Panel,
    cost_figure,
    curve_figure,
    front_figure,
    layer_figure,
    looks,
    reliability_figure,
    render,
    score_figure,
)
from bertvision.report.rows import Metric, with_intervals
from report.rows import comparison, row, summarised

F1 = Metric("f1", "F1", 2)
PRICE = Metric("parameters", "trained parameters", 0)


def study(seeds=(1, 2), members=("backbone", "pool", "compress size=64"), variants=("",)):
    return summarised(
        {"seed": s, "checkpoint": c, "member": m, "f1": 60 + 10 * c + n + 0.5 * s * (n + 1), "threshold_from": "tune"}
        | {"parameters": 10 ** (6 - n), "variant": v}
        for v in variants
        for s in seeds
        for c in (0.3, 0.5, 1.0)
        for n, m in enumerate(members)
    )


DRAWN = {
    "score": lambda names: score_figure(study(members=names), F1),
    "front": lambda names: front_figure(Panel("", F1, study(members=names)), PRICE),
    "cost": lambda names: cost_figure([Panel("A", F1, study(members=names))] * 3, PRICE),
    "loss": lambda names: curve_figure({name: [(0.0, 3.0), (1.0, 2.0)] for name in names}, "epochs", "loss"),
    "layers": lambda names: layer_figure({name: [0.25, 0.75] for name in names}),
    "reliability": lambda names: reliability_figure(
        {name: [{"confidence": 0.2, "observed": 0.3, "questions": 5}] for name in names}
    ),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_same_rows_same_bytes_and_names_are_taken_literally(draw):
    before = dict(mpl.rcParams)
    svg, png = render(draw(["backbone", "pool"]), "x")
    assert (svg, png) == render(draw(["backbone", "pool"]), "x")
    assert png.startswith(b"\x89PNG") and dict(mpl.rcParams) == before
    names = ("$x_1$ <b>&", "_hidden", "池", "long " * 30)
    svg, _ = render(draw(names), "x")
    words = " ".join(ET.fromstring(svg).itertext())
    wanted = ("$x_1$ <b>&", "_hidden", "池", "long …")
    shown = [name for name in wanted if name in words]
    assert shown == (["long …"] if "On the front" in words else list(wanted))  # of a front only its members are named
    assert "<metadata" not in svg and not re.search(r"20\d\d-\d\d-\d\d", svg)
    assert "<image" not in svg  # drawn, not painted


def test_lines_and_shading():
    axes = score_figure(study(), F1).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.3, 0.5, 1.0]] * 3
    assert list(axes.lines[1].get_ydata()) == [65.5, 67.5, 72.5]  # pool: 61 + 10 c + (1 + 2) / 2
    assert len(axes.collections) == 3
    assert len(score_figure(study(seeds=(1,)), F1).axes[0].collections) == 0  # a single run has no spread to shade
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 3
    assert len(set(looks(30))) == 30
    figure = score_figure(study(members=("backbone", "pool"), variants=("L0", "L3")), F1)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["L0: backbone", "L0: pool", "L3: backbone", "L3: pool"]
    colours = [line.get_color() for line in figure.axes[0].lines]
    assert colours[0] == colours[1] != colours[2] == colours[3]


def test_score_by_share_of_the_data():
    rows = summarised(
        {"seed": 1, "checkpoint": 1.0, "member": m, "f1": f1, **more}
        for m, f1, more in (
            ("backbone", 70.0, {}),
            ("pool", 71.0, {"fraction": 1.0}),
            ("pool", 68.0, {"fraction": 0.3}),
            ("conv", 72.0, {}),  # seen with all the data only: no line
        )
    )
    axes = score_figure(rows, F1, by_share=True).axes[0]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([0.3, 1.0], [68.0, 71.0]),
        ([0, 1], [70.0, 70.0]),  # the backbone, from edge to edge
    ]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["30 %", "100 %"]


def test_a_score_against_its_cost_is_above_or_below_the_line_of_the_backbone():
    seconds = Metric("train_seconds", "s", 0)
    known = {0.3: (30, 50, 62, 52), 1.0: (100, 60, 140, 61)}  # seconds and F1 of the backbone and of a head
    rows = [
        row(member, f1, checkpoint=epoch, train_seconds=spent)
        for epoch, (a, b, c, d) in known.items()
        for member, spent, f1 in (("backbone", a, b), ("pool", c, d))
    ]
    equal = {"by": "train_seconds", "how": "interpolated", "epoch": 0.6}
    gap = comparison(-2.5, -4.0, -1.0, checkpoint=0.3, **equal)
    panel = Panel("Threshold tuned", F1, with_intervals(summarised(rows), [], [gap]), [(70.0, 77.0)])
    figure = cost_figure([panel], seconds)
    drawn = [
        (line.get_linestyle(), list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
        for line in figure.axes[0].lines
    ]
    assert ("-", [30, 100], [50, 60]) in drawn
    assert ("--", [100, 140], [60, 60]) in drawn  # the backbone was not tuned for 140 s
    assert (":", [30, 62], [50, 52]) in drawn and (":", [100, 140], [60, 61]) in drawn
    assert ("-", [62, 62], [50.5, 53.5]) in drawn  # the backbone of 62 s has 54.5: out of reach of the bar
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in hollow] == [([70.0], [77.0])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["backbone", "pool", "published"]
    wide, narrow = (cost_figure([panel] * 3, seconds, across).get_size_inches() for across in (True, False))
    assert wide[0] > wide[1] and narrow[0] < narrow[1]


def test_published_results_are_open_marks_beside_the_curves():
    paper = [{"checkpoint": 0.3, "member": "pool", "f1": 71.2}, {"checkpoint": 0.3, "member": "other", "f1": 9.0}]
    figure = score_figure(study(), F1, paper)
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in hollow] == [([0.3], [71.2])]
    assert figure.legends[0].get_texts()[-1].get_text() == "published"


def test_a_front_has_what_nothing_cheaper_beats():
    rows = summarised(
        {"seed": 1, "member": m, "f1": f1, "parameters": p}
        for m, f1, p in (("backbone", 70.0, 1000), ("cheap", 60.0, 0), ("good", 71.0, 50), ("worse", 59.0, 10))
    )
    figure = front_figure(Panel("", F1, rows), PRICE)
    assert [text.get_text() for text in figure.legends[1].get_texts()] == ["1  cheap", "2  good"]
    step, *points = figure.axes[0].lines
    assert list(step.get_xdata()) == [0, 50] and list(step.get_ydata()) == [60.0, 71.0]
    large = {float(point.get_xdata()[0]) for point in points if point.get_markersize() > 5}
    assert large == {0.0, 50.0}


def test_large_costs_are_written_out():
    rows = summarised(
        {"checkpoint": 1.0, "member": m, "f1": 70.0, "parameters": p}
        for m, p in (("backbone", 22_700_000), ("pool", 22_990_000))
    )
    figure = front_figure(Panel("", F1, rows), PRICE)
    figure.draw_without_rendering()
    axis = figure.axes[0].xaxis
    assert axis.get_offset_text().get_text() == ""
    labels = [label.get_text() for label in axis.get_ticklabels()]
    assert "22.8M" in labels and len(set(labels)) == len(labels)


def test_cells_have_a_colour_each_and_missing_ones_none():
    axes = layer_figure({"pool": [0.1, 0.9], "attend": [0.5]}).axes[0]
    assert len(axes.patches) == 3
    assert [text.get_text() for text in axes.texts] == [".10", ".90", ".50", "pool", "attend"]
