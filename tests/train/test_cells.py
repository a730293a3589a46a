"""Cells of a study in processes of their own: the same bits as the study in one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.files import Busy, claim, release, write_json
from bertvision.train import make_run
from bertvision.train.cells import Cells, StudyCell
from bertvision.train.workers import PiecesView, Processes, run_pieces
from runs import Command, bertvision, processes, recipe_of, tiny_recipe, without_times
from tunings import assert_same, tensors

SMALL = {"seeds": [1, 2], "snapshot_seconds": 0}


def plain(run) -> list[dict]:
    return without_times(json.loads((run / "metrics.json").read_text()))


def names(run) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}


def assert_same_run(run, whole) -> None:
    assert_same(tensors(run), tensors(whole))
    assert plain(run) == plain(whole)
    assert names(run) == names(whole)
    for file in ("greedy.json", "analysis.json"):
        ours, theirs = (json.loads((place / file).read_text()) for place in (run, whole))
        assert ours.keys() == theirs.keys()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study of two seeds in one process."""
    place = tmp_path_factory.mktemp("whole")
    done = bertvision("study", tiny_recipe(place / "study.toml", **SMALL), "--out", place / "run", cwd=place)
    assert done.code == 0, done.err
    return place / "run"


def test_cells_one_by_one_complete_the_run(tmp_path, whole):
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    rows = json.loads(bertvision("cells", recipe, "--out", tmp_path / "run", "--json", cwd=tmp_path).out)
    assert [row["id"] for row in rows] == [
        *("seed-1", "seed-2"),
        *("seed-1/epoch-0.5", "seed-1/epoch-1", "seed-2/epoch-0.5", "seed-2/epoch-1"),
    ]
    assert [row["ready"] for row in rows] == [True, True, False, False, False, False]
    assert rows[0]["flops"] == rows[1]["flops"] > 0 and all(row["hours"] > 0 for row in rows)
    early = bertvision("cell", recipe, "--only", 2, "--out", tmp_path / "run", cwd=tmp_path)
    assert early.code == 2 and "seed-1/epoch-0.5: its checkpoint is missing; run --only seed-1 first" in early.err
    for number in (1, 0, 5, 2, 4, 3):
        done = bertvision("cell", recipe, "--only", number, "--out", tmp_path / "run", "--json", cwd=tmp_path)
        assert done.code == 0, done.err
        assert (tmp_path / "run" / "report.html").is_file() == (number == 3)
    assert_same_run(tmp_path / "run", whole)
    facts = json.loads((tmp_path / "run" / "study.json").read_text())
    assert facts["finished"] and facts["data"]["train"]["questions"] == 48 and facts["peak"]["memory_gib"] > 0


def test_on_processes_with_kills(tmp_path, whole):
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    words = ("study", recipe, "--out", tmp_path / "run", "--on", "processes", "--jobs", 2, "--threads", 1)
    (tmp_path / "bertvision.py").write_text("raise SystemExit('code of the working folder')")  # is never run
    study = Command(*words, cwd=tmp_path)
    killed = []
    for pattern in ("seed-*/finetune.snapshot.safetensors", "seed-*/heads-*.snapshot.safetensors"):
        end = time.monotonic() + 120
        while study.running and time.monotonic() < end and len(killed) < 2:
            if next((tmp_path / "run").glob(pattern), None) and (found := children(study.process.pid)):
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
                break
            time.sleep(0.02)
    done = study.wait()
    assert done.code == 0, done.err
    assert killed and f"its worker died (process {killed[0]}: SIGKILL)" in done.err
    assert_same_run(tmp_path / "run", whole)
    assert json.loads((tmp_path / "run" / "study.json").read_text())["cells"] == {
        "on": "processes",
        "jobs": 2,
        "threads": 1,
    }


def test_a_process_does_one_cell_after_the_other(tmp_path):
    recipe = recipe_of(**SMALL)
    cells = Cells(make_run(recipe, tmp_path / "run", quiet=True))
    pool, done = Processes(cells, 1, 1), []
    with cells.shared():
        run_pieces(
            cells.all[:3],
            pool,
            PiecesView(cells.whole.journal, "cells", 3, 3, None),
            cells.is_ready,
            lambda *_: done.extend(pool.idle),
        )
    assert [cells.is_done(cell) for cell in cells.all] == [True, True, True, False, False, False]
    assert len(done) == 3 and len(set(done)) == 1 and done[0].process.poll() is not None


def test_cells_from_standard_input(tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    words = [sys.executable, "-m", "bertvision", "cell", recipe, "--only", "-", "--out", tmp_path / "run", "--json"]
    done = subprocess.run(words, input="seed-2\n2\n", capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "run --only seed-1 first" in done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"id": "seed-2", "done": True}]


def children(parent: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_an_error_of_a_cell_ends_the_study(tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", data={"train": "missing.json"})
    done = bertvision("study", recipe, "--out", tmp_path / "run", "--on", "processes", cwd=tmp_path)
    assert done.code == 2 and done.err.count("missing.json") == 1 and "Traceback" not in done.err
    unknown = bertvision("study", recipe, "--on", "proceses", cwd=tmp_path)
    assert unknown.code == 2 and "did you mean 'processes'" in unknown.err


def test_cells_are_listed_where_their_cost_cannot_be_counted(tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", data={"train": "missing.json"})
    done = bertvision("cells", recipe, "--device", "a100", cwd=tmp_path)
    assert done.code == 0 and "no forecast: missing.json: no such file" in done.err
    assert [line.split()[1] for line in done.out.splitlines()[1:]] == ["seed-1", "seed-1/epoch-0.5", "seed-1/epoch-1"]


def test_a_device_that_only_workers_have(tmp_path, whole):
    """Once all cells are done the rest needs none."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "metrics.json").unlink()
    facts = json.loads((run / "study.json").read_text())
    write_json(run / "study.json", {key: value for key, value in facts.items() if key != "finished"})
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL, runtime={"device": "cuda"})
    done = bertvision("study", recipe, "--out", run, "--on", "processes", cwd=tmp_path)
    assert done.code == 0, done.err
    assert plain(run) == plain(whole)
    assert json.loads((run / "study.json").read_text())["runtime"] == facts["runtime"]


def test_variants(tmp_path):
    recipe = recipe_of(variants=[{"name": "a b"}, {"name": "c", "finetune": {"epochs": 0, "checkpoints": []}}])
    cells = Cells(make_run(recipe, tmp_path, quiet=True))
    assert [cell.id for cell in cells.all] == [
        *("a-b/seed-1", "c/seed-1", "a-b/seed-1/epoch-0.5", "a-b/seed-1/epoch-1", "c/seed-1/epoch-0")
    ]
    with pytest.raises(UserError, match="run --only c/seed-1 first"):
        cells.run(cells.named("c/seed-1/epoch-0"))
    for cell in (cells.named("c/seed-1"), cells.named("4")):
        cells.run(cell)
        assert cells.is_done(cell) and not cells.complete()
    with pytest.raises(UserError, match="lists all 5"):
        cells.named("d")


def _hold(directory, shared, ready, end) -> None:
    claim(directory, shared=shared)
    ready.set()
    end.wait(60)


def test_locks_of_cells_and_of_a_whole_study(tmp_path):
    """Processes that do cells share a run; a study has it alone."""
    ready, end = processes.Event(), processes.Event()
    other = processes.Process(target=_hold, args=(tmp_path, True, ready, end))
    other.start()
    ready.wait(60)
    litter = tmp_path / ".unfinished.1-0123abcd"
    litter.mkdir()
    assert claim(tmp_path, shared=True) and not claim(tmp_path, shared=True)
    assert litter.is_dir()  # it may be the other's
    release(tmp_path)
    with pytest.raises(Busy, match="another process is at work here"):
        claim(tmp_path)
    end.set()
    claim(tmp_path, patience=60)  # waits for the other to end
    other.join()
    assert not litter.exists()
    release(tmp_path)


def test_a_cell_that_another_process_is_at(tmp_path):
    cells = Cells(make_run(recipe_of(finetune={"epochs": 0, "checkpoints": []}), tmp_path, quiet=True))
    ready, end = processes.Event(), processes.Event()
    other = processes.Process(target=_hold, args=(cells.notes(StudyCell(1)), False, ready, end))
    other.start()
    ready.wait(60)
    with pytest.raises(Busy):
        cells.run(StudyCell(1))
    end.set()
    cells.run(StudyCell(1), patience=60)
    other.join()
    assert cells.is_done(StudyCell(1))
