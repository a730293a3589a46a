"""Figures say what the rows say, look the same each time, and leave no trace in matplotlib's global state."""

import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest

from bertvision.report.plots import difference_figure, render, score_figure
from bertvision.report.summary import Metric, summarise

F1 = Metric("f1", "F1", 2)


def study(seeds=(1, 2), members=("backbone", "pool", "compress size=64")):
    return summarise(
        {"seed": s, "checkpoint": c, "member": m, "f1": 60 + 10 * c + n + 0.5 * s * (n + 1), "threshold_from": "tune"}
        for s in seeds
        for c in (0.3, 0.5, 1.0)
        for n, m in enumerate(members)
    )


@pytest.mark.parametrize("draw", [score_figure, difference_figure])
@pytest.mark.parametrize("form", ["svg", "png"])
def test_same_rows_same_bytes(draw, form):
    before = dict(mpl.rcParams)
    assert render(draw(study(), F1), form, "x") == render(draw(study(), F1), form, "x")
    assert dict(mpl.rcParams) == before


def test_lines_and_shading():
    axes = score_figure(study(), F1).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.3, 0.5, 1.0]] * 3
    assert list(axes.lines[1].get_ydata()) == [65.5, 67.5, 72.5]  # pool: 61 + 10 c + (1 + 2) / 2
    assert len(axes.collections) == 3
    assert len(score_figure(study(seeds=(1,)), F1).axes[0].collections) == 0  # a single run has no spread to shade
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines}
    assert len(looks) == 3


def test_bars_of_first_and_last_checkpoint():
    axes = difference_figure(study(), F1).axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([1.75, 3.5, 1.75, 3.5])  # n + 0.5 * 1.5 * n, at 0.3 and at 1.0
    assert [text.get_text() for text in axes.texts] == ["pool", "compress size=64"]


def test_svg_is_plain_and_names_are_taken_literally():
    names = ("backbone", "$x_1$ <b>&", "_hidden", "池", "long " * 30)
    for draw in (score_figure, difference_figure):
        svg = render(draw(study(members=names), F1), "svg", "x").decode()
        words = " ".join(ET.fromstring(svg).itertext())
        assert all(name in words for name in ("$x_1$ <b>&", "_hidden", "池", "long …"))
        assert "<metadata" not in svg and not re.search(r"20\d\d-\d\d-\d\d", svg)
        assert render(draw(study(members=names), F1), "png", "x").startswith(b"\x89PNG")


def test_thirty_members_look_different():
    rows = study(seeds=(1,), members=("backbone", *(f"head {n}" for n in range(30))))
    looks = [(line.get_color(), line.get_marker()) for line in score_figure(rows, F1).axes[0].lines]
    assert len(set(looks)) == 31
