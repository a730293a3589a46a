"""Cells of a study: eight on two processes of one thread against one after the other on two threads; Ray's overhead.

python bench/scale.py            # needs two idle cores; without the package ray its part is left out
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bertvision.backbone.backbone import Backbone
from bertvision.data.squad import Record, write_articles
from bertvision.recipe import from_table, load_recipe, to_toml
from bertvision.train.cells import Cells
from bertvision.train.series import make_run
from bertvision.train.workers import Processes, View, fill
from side_by_side import Finding, Race, main, seconds, squad

CELLS = 8
ON_RAY = 4
ALONE = "import sys; sys.path.insert(0, sys.argv[1]); import scale; print(scale.one_by_one(*sys.argv[2:]))"


def measure(windows: int, rounds: int) -> list[Finding]:
    with tempfile.TemporaryDirectory() as scratch:
        recipe = write_recipe(Path(scratch), windows)
        places = (Path(scratch) / f"run-{number}" for number in range(1000))
        race = Race(
            lambda: on_processes(recipe, next(places), 2, 1),
            lambda: alone(recipe, next(places), 2, CELLS),
            rounds=rounds,
        )
        ours, theirs = race.seconds(0), race.seconds(1)
        what = f"{CELLS} tunings of minilm on {windows} questions"
        says = f"{what}: two processes of one thread {ours:.1f} s, one process of two threads {theirs:.1f} s"
        found = [Finding("cells_side_by_side", race.ratio(), 1.2, f"{says}; starts of processes included")]
        if importlib.util.find_spec("ray"):
            start, ray = on_ray(recipe, next(places))
            local = alone(recipe, next(places), 1, ON_RAY)
            says = f"seconds per cell beyond those of one process of one thread: {ON_RAY} tunings {ray:.1f} s on Ray, "
            says += f"{local:.1f} s in one process that had imported everything; Ray's own start took {start:.1f} s"
            found.append(Finding("ray_seconds_per_cell", (ray - local) / ON_RAY, 3.0, says, at_most=True))
        return found


def write_recipe(place: Path, questions: int) -> Path:
    """A study of so many seeds, whose tunings are what is measured."""
    data = squad(questions, Backbone.load("minilm"))
    articles = [{"title": one.id, "paragraphs": [{"context": one.context, "qas": [_qa(one)]}]} for one in data.records]
    write_articles(place / "questions.json", articles)
    source = str(place / "questions.json")
    table = {
        "backbone": {"name": "minilm"},
        "seeds": list(range(1, CELLS + 1)),
        "data": {"train": source, "tune": source, "test": source},
        "finetune": {"epochs": 1},
        "heads": [],
    }
    (place / "scale.toml").write_text(to_toml(from_table(table)), encoding="utf-8")
    return place / "scale.toml"


def _qa(record: Record) -> dict:
    answers = [{"text": text, "answer_start": start} for text, start in zip(record.answers, record.starts)]
    return {"id": record.id, "question": record.question, "answers": answers, "is_impossible": not answers}


def tunings(recipe: str | Path, place: str | Path, count: int) -> tuple[Cells, list]:
    cells = Cells(make_run(load_recipe(Path(recipe)), Path(place), quiet=True))
    return cells, cells.all[:count]


def on_processes(recipe: Path, place: Path, jobs: int, threads: int) -> None:
    cells, wanted = tunings(recipe, place, CELLS)
    with cells.shared():
        fill(wanted, Processes(cells, jobs, threads), View(cells.whole.journal, "cells", CELLS, CELLS, None))


def on_ray(recipe: Path, place: Path) -> tuple[float, float]:
    """Seconds of Ray's start, and of the cells after it, one at a time."""
    from bertvision.train.on_ray import RayTasks, do_cell

    cells, wanted = tunings(recipe, place, ON_RAY)
    with cells.shared():
        began = time.perf_counter()
        how = {"threads": 1, "code": [], "address": "", "cpus": 1, "gpus": 0}
        pool = RayTasks(cells.whole.directory, do_cell, cells.whole.journal, **how)
        start = time.perf_counter() - began
        view = View(cells.whole.journal, "cells", ON_RAY, ON_RAY, None)
        return start, seconds(lambda: fill(wanted, OneAtATime(pool), view))


class OneAtATime:
    """A pool that has room for one piece."""

    def __init__(self, pool) -> None:
        self.pool = pool

    def __getattr__(self, name: str):
        return not self.pool.running if name == "free" else getattr(self.pool, name)


def alone(recipe: Path, place: Path, threads: int, count: int) -> float:
    """Seconds of tunings one after the other in a process of their own, without its start."""
    words = [sys.executable, "-c", ALONE, str(Path(__file__).parent), str(recipe), str(place), str(threads), str(count)]
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
    )
    return json.loads(done.stdout)


def one_by_one(recipe: str, place: str, threads: str, count: str) -> float:
    import torch

    torch.set_num_threads(int(threads))
    cells, wanted = tunings(recipe, place, int(count))
    return seconds(lambda: [cells.run(cell) for cell in wanted])


if __name__ == "__main__":
    main(measure, windows=96)
