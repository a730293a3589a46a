"""Several processes: a tuning that two of them share, cells of a study side by side, Ray's overhead.

python bench/scale.py            # needs two idle cores; without the package ray its part is left out
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bertvision import toml
from bertvision.backbone.backbone import Backbone
from bertvision.data.squad import Record, write_articles
from bertvision.recipe import from_table, load_recipe
from bertvision.train import make_run
from bertvision.train.cells import Cells
from bertvision.train.workers import PiecesView, Processes, run_pieces
from side_by_side import Finding, Race, main, seconds, squad

CELLS = 8
ON_RAY = 4
CALL = "import sys; sys.path.insert(0, sys.argv[1]); import scale; print(getattr(scale, sys.argv[2])(*sys.argv[3:]))"
WAYS = {"two": (2, 1, "exact"), "one": (1, 2, "exact"), "fast": (2, 1, "fast")}  # processes, threads of each, reduce


def measure(windows: int, rounds: int) -> list[Finding]:
    with tempfile.TemporaryDirectory() as scratch:
        recipe = write_recipe(Path(scratch), windows)
        places = (Path(scratch) / f"run-{number}" for number in range(1000))
        found = [*one_tuning(recipe, places, windows, (rounds + 1) // 2), many_tunings(recipe, places, windows)]
        return [*found, ray_overhead(recipe, places)] if importlib.util.find_spec("ray") else found


def one_tuning(recipe: Path, places: Iterator[Path], windows: int, rounds: int) -> list[Finding]:
    """Two processes of one thread that share each step, by gloo, against one of two threads; the cost of exactness."""
    taken = [{name: tuned(recipe, next(places), *way) for name, way in WAYS.items()} for _ in range(rounds)]
    two, one, fast = (median(each[name] for each in taken) for name in WAYS)
    says = f"a tuning of minilm on {windows} questions in two micro-batches a step: two processes of one thread "
    says += f"{two:.1f} s, one process of two threads {one:.1f} s"
    shared = median(each["one"] / each["two"] for each in taken)
    exact = median(each["two"] / each["fast"] for each in taken)
    tree = f"two processes that add gradients as a tree {two:.1f} s, by all_reduce {fast:.1f} s"
    return [
        Finding("processes_share_tuning", shared, 0.9, says),
        Finding("tree_over_all_reduce", exact, 1.1, tree, at_most=True),
    ]


def many_tunings(recipe: Path, places: Iterator[Path], windows: int) -> Finding:
    race = Race(
        lambda: on_processes(recipe, next(places), 2, 1),
        lambda: alone(recipe, next(places), 2, CELLS),
        rounds=1,
    )
    ours, theirs = race.seconds(0), race.seconds(1)
    what = f"{CELLS} tunings of minilm on {windows} questions"
    says = f"{what}: two processes of one thread {ours:.1f} s, one process of two threads {theirs:.1f} s"
    return Finding("cells_side_by_side", race.ratio(), 1.2, f"{says}; starts of processes included")


def ray_overhead(recipe: Path, places: Iterator[Path]) -> Finding:
    start, ray = on_ray(recipe, next(places))
    local = alone(recipe, next(places), 1, ON_RAY)
    says = f"seconds per cell beyond those of one process of one thread: {ON_RAY} tunings {ray:.1f} s on Ray, "
    says += f"{local:.1f} s in one process that had imported everything; Ray's own start took {start:.1f} s"
    return Finding("ray_seconds_per_cell", (ray - local) / ON_RAY, 3.0, says, at_most=True)


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
    (place / "scale.toml").write_text(toml.write(from_table(table)), encoding="utf-8")
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
        run_pieces(
            wanted, Processes(cells, jobs, threads), PiecesView(cells.whole.journal, "cells", CELLS, CELLS, None)
        )


def on_ray(recipe: Path, place: Path) -> tuple[float, float]:
    """Seconds of Ray's start, and of the cells after it, one at a time."""
    from bertvision.train.on_ray import RayTasks, do_cell

    cells, wanted = tunings(recipe, place, ON_RAY)
    with cells.shared():
        began = time.perf_counter()
        how = {"threads": 1, "code": [], "address": "", "cpus": 1, "gpus": 0}
        pool = RayTasks(cells.whole.directory, do_cell, cells.whole.journal, **how)
        start = time.perf_counter() - began
        view = PiecesView(cells.whole.journal, "cells", ON_RAY, ON_RAY, None)
        return start, seconds(lambda: run_pieces(wanted, OneAtATime(pool), view))


class OneAtATime:
    """A pool that has room for one piece."""

    def __init__(self, pool) -> None:
        self.pool = pool

    def __getattr__(self, name: str):
        return not self.pool.running if name == "free" else getattr(self.pool, name)


def alone(recipe: Path, place: Path, threads: int, count: int) -> float:
    """Seconds of tunings one after the other in a process of their own, without its start."""
    return _finished(_started("one_by_one", recipe, place, threads, count, threads=threads))


def tuned(recipe: Path, place: Path, processes: int, threads: int, reduce: str) -> float:
    """Seconds of one tuning that some processes share, without their start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    words = ("one_of_several", recipe, place, threads, reduce)
    started = [_started(*words, threads=threads, **shared, RANK=str(rank)) for rank in range(processes)]
    first, *_ = [_finished(one) for one in started]
    return first


def _started(*words: object, threads: int, **env: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CALL, str(Path(__file__).parent), *map(str, words)]
    env = os.environ | {"OMP_NUM_THREADS": str(threads)} | env
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def _finished(process: "subprocess.Popen[str]") -> float:
    said = process.communicate()[0]
    if process.returncode:
        sys.exit("a process failed; its error stands above")
    return json.loads(said)


def one_of_several(recipe: str, place: str, threads: str, reduce: str) -> float:
    import torch

    torch.set_num_threads(int(threads))
    settings = ["seeds=[1]", "runtime.device=cpu", "runtime.accumulate=2", f"runtime.reduce={reduce}"]
    study = make_run(load_recipe(Path(recipe), settings), Path(place), quiet=True)
    study.begin()
    assert study.identity  # loads encoder and data
    study.runtime.wait()
    return seconds(lambda: study.tune(1))


def one_by_one(recipe: str, place: str, threads: str, count: str) -> float:
    import torch

    torch.set_num_threads(int(threads))
    cells, wanted = tunings(recipe, place, int(count))
    return seconds(lambda: [cells.run(cell) for cell in wanted])


if __name__ == "__main__":
    main(measure, windows=96)
