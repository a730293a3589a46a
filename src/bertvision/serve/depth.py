"""Score against depth: how much of the encoder a head needs, and what fewer blocks save."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.data.batches import collate
from bertvision.errors import UserError
from bertvision.files import write_json, write_text
from bertvision.report.figures import render, styled
from bertvision.serve.build import head_depths
from bertvision.tasks import Dataset
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import StoredResults, task_of

TOKENS = 2048  # of the windows that speed is measured on
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Point:
    """A member of a run. depth: blocks it needs. tune, test: the main metric. speed: of the encoder, tokens a second
    of processor time; faster: how many times that is the speed of all blocks."""

    member: str
    depth: int
    tune: float | None
    test: float
    speed: float
    faster: float


def depth_curve(run: Path) -> tuple[str, list[Point]]:
    """The main metric and a point for every single member of a run's last checkpoint, the deepest first.

    Also written to depth.json and, as a figure, to depth.svg in the run.
    """
    opened = RunDir.open(run, variants=False)
    depths = head_depths(opened.recipe())
    rows = [row for row in opened.rows() if row.ensemble.is_single and row.threshold_from in ("tune", "")]
    if not rows or not any(depths.values()):
        raise UserError(f"{run}: no head with a depth was scored; give heads of the recipe a depth, such as depth = 6")
    last = max((row.epoch for row in rows), default=0.0)
    rows = [row for row in rows if row.epoch == last and row.seed == min(one.seed for one in rows)]
    backbone = Backbone.load(opened.recipe().backbone.name)
    blocks = backbone.layers - 1
    needed = {depths[row.name] or blocks for row in rows if row.name in depths} | {blocks}
    speeds = _speeds(backbone, StoredResults(opened, task_of(opened)).sets("test")["test"], sorted(needed))
    points = [
        Point(row.name, depth, row.tune, row.metrics[row.main], speeds[depth], speeds[depth] / speeds[blocks])
        for row in rows
        if row.name in depths
        for depth in [depths[row.name] or blocks]
    ]
    points.sort(key=lambda point: (-point.depth, point.member))
    metric = rows[0].main
    table: list[dict[str, Any]] = [{name: getattr(one, name) for name in Point.__slots__} for one in points]
    write_json(opened.depth_file, {"metric": metric, "points": table})
    write_text(opened.depth_file.with_suffix(".svg"), render(_figure(points, metric), "depth")[0])
    return metric, points


@styled
def _figure(points: list[Point], metric: str) -> Figure:
    """Score against speed; every point has its depth beside it."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none")
    axes.plot([point.faster for point in points], [point.test for point in points], "o")
    for point in points:
        axes.annotate(str(point.depth), (point.faster, point.test), textcoords="offset points", xytext=(4, 4))
    axes.set(xlabel="speed of the encoder (1 = all blocks)", ylabel=f"{metric} on test")
    axes.grid()
    return figure


@torch.no_grad()
def _speeds(backbone: Backbone, dataset: Dataset, depths: list[int]) -> dict[int, float]:
    """{depth: tokens a second}, the best of some rounds, in processor time: others may use the machine."""
    windows = dataset.windows
    middle = np.argsort(windows.lengths, kind="stable")[len(windows) // 2 :]
    count = max(1, TOKENS // max(1, int(windows.lengths[middle[0]])))
    batch = collate(windows, middle[:count], backbone.pad)
    run = frozen(backbone)
    seconds = dict.fromkeys(depths, float("inf"))
    for _ in range(ROUNDS):
        for depth in depths:
            began = time.process_time()
            run(batch, (depth,))
            seconds[depth] = min(seconds[depth], time.process_time() - began)
    return {depth: int(batch.mask.sum()) / max(took, 1e-9) for depth, took in seconds.items()}
