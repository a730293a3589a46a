"""Ray, for real: a study on it ends in the bits of the study in one process, whoever is killed on the way.

`make ray` runs all of this file; the rest of the suite only its first test.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertvision.recipe import load_recipe
from bertvision.states.layout import Manifest
from bertvision.train.study import Study
from bertvision.train.tap import Tap
from clusters import ENV, kill, needs_ray, nodes, tasks
from runs import Command, Done, bertvision, questions, tiny_recipe, without_times
from states.stores import contents
from train.test_cells import assert_same_run
from train.test_search import TABLES as SEARCHED

pytestmark = needs_ray
SMALL = {"seeds": [1, 2], "snapshot_seconds": 0, "data": {"train": questions(240)}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A study of two seeds in one process."""
    place = tmp_path_factory.mktemp("whole")
    done = bertvision("study", tiny_recipe(place / "study.toml", **SMALL), "--out", place / "run", cwd=place)
    assert done.code == 0, done.err
    return place / "run"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two nodes."""
    with nodes(2) as collected:
        yield collected


def test_a_study_on_a_ray_of_its_own(tmp_path, whole):
    """Nobody outside this machine can reach it, and it is gone in the end."""
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    study = Command("study", recipe, "--out", tmp_path / "run", "--on", "ray", cwd=tmp_path)
    heard = set[str]()
    while study.running:
        heard |= listening(study.process.pid)
        time.sleep(0.2)
    done = study.wait()
    assert done.code == 0, done.err
    assert heard and all(one.endswith("0100007F") for one in heard)
    assert_same_run(tmp_path / "run", whole)
    facts = json.loads((tmp_path / "run" / "study.json").read_text())
    assert facts["cells"] == {"on": "ray", "nodes": 1, "threads": 1, "cpus": 1.0, "gpus": 0.0}
    assert facts["command"].startswith("bertvision study") and facts["machine"]["threads"] == 1
    assert done.err.count(": done; ") == 6 and "6 of 6 cells" in done.err
    end = time.monotonic() + 60
    while below(study.process.pid) and time.monotonic() < end:
        time.sleep(0.2)
    assert not below(study.process.pid)


def below(parent: int) -> set[int]:
    """The processes that a process has started, and those they have."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
    collected, new = set[int](), {parent}
    while new:
        new = {process for process, above in parents.items() if above in new}
        collected |= new
    return collected


def listening(parent: int) -> set[str]:
    """Addresses, as /proc writes them, on which a process or one below it accepts connections."""
    sockets = set()
    for process in {parent} | below(parent):
        with contextlib.suppress(OSError):
            links = [str(one.readlink()) for one in Path(f"/proc/{process}/fd").iterdir()]
            sockets |= {link.removeprefix("socket:[").removesuffix("]") for link in links if "socket" in link}
    lines = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[9] in sockets}


def phase(run: Path, name: str) -> str:
    """The cell that is in a phase, if one is: its tuning or its heads have a snapshot, or its heads await scores."""
    collected = {
        "tuning": [f"seed-{path.parent.name[5:]}" for path in run.glob("seed-*/finetune.snapshot.safetensors")],
        "heads": [cell_of(path) for path in run.glob("seed-*/heads-*.snapshot.safetensors")],
        "scoring": [
            cell_of(path)
            for path in run.glob("seed-*/heads-*.safetensors")
            if "snapshot" not in path.name and not path.with_name(f"scores-{path.stem[6:]}.json").exists()
        ],
    }
    running = tasks()
    return next((cell for cell in collected[name] if cell in running), "")


def cell_of(heads: Path) -> str:
    return f"{heads.parent.name}/epoch-{heads.name[6:].removesuffix('.safetensors').removesuffix('.snapshot')}"


def wait_for(condition: Callable[[], str], study: Command, seconds: float = 900) -> str:
    end = time.monotonic() + seconds
    while study.running and time.monotonic() < end:
        if collected := condition():
            return collected
        time.sleep(0.01)
    return ""


PHASES = ("tuning", "heads", "scoring")


@contextlib.contextmanager
def driver(*words: object, cwd: Path) -> Iterator[Command]:
    """`bertvision WORDS`, which does not outlive the block."""
    command = Command(*words, cwd=cwd, env=ENV)
    try:
        yield command
    finally:
        if command.running:
            command.kill()


def run(*words: object, cwd: Path) -> Done:
    with driver(*words, cwd=cwd) as command:
        return command.wait()


@pytest.mark.ray
def test_workers_on_two_nodes_are_killed(tmp_path, whole, address):
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    place, parents, killed = tmp_path / "run", set[str](), []
    with driver("study", recipe, "--out", place, "--on", "ray", "--address", address, cwd=tmp_path) as study:
        for name in PHASES:
            cell = wait_for(lambda name=name: phase(place, name), study)
            assert cell, f"{name}: {[path.read_text() for path in study.streams]}"
            running = {task: pid for task, pid in tasks().items() if task.startswith("seed-")}
            parents |= {parent_of(pid) for pid in running.values()}
            kill(running[cell])
            killed.append(cell)
        done = study.wait()
    assert done.code == 0, done.err
    assert len(parents - {""}) == 2, "both nodes had work"
    for cell in killed:
        assert f"{cell}: its worker died (WorkerCrashedError); it goes on in another" in done.err
    assert_same_run(place, whole)
    assert json.loads((place / "study.json").read_text())["cells"]["nodes"] == 2


def parent_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
    return ""


@pytest.mark.ray
def test_the_driver_is_killed(tmp_path, whole, address):
    """In every phase; the same command then waits for what is left of its workers, and goes on."""
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    place = tmp_path / "run"
    words = ("study", recipe, "--out", place, "--on", "ray", "--address", address)
    for name in PHASES:
        with driver(*words, cwd=tmp_path) as study:
            assert wait_for(lambda name=name: phase(place, name), study), name
            study.kill()
        assert not (place / "metrics.json").exists()
    done = run(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    assert_same_run(place, whole)
    again = run(*words, cwd=tmp_path)
    assert again.code == 0 and "already finished" in again.err


@pytest.mark.ray
def test_tap_on_two_nodes_with_kills(tmp_path, address):
    """A worker, then the driver; the store is that of one process."""
    stores = {}
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        recipe = load_recipe(tiny_recipe(tmp_path / name / "study.toml", data={"train": questions(1500)}))
        tap = Tap(Study(recipe, tmp_path / name / "run", quiet=True))
        stores[name] = tap.directory
        Manifest.of(tap.backbone, tap.windows, tap.selection, 50_000).save(tap.directory)  # many small shards
    words, ray = ("tap", "study.toml", "--out", "run"), ("--on", "ray", "--address", address)
    assert bertvision(*words, cwd=tmp_path / "here").code == 0
    count = len(Manifest.load(stores["here"]).shards)

    def underway(done: int) -> str:
        """A shard that is being written, once some are done."""
        enough = len([*stores["there"].glob("shard-*.bin")]) >= done
        return next((task for task in tasks() if task.startswith("shard-")), "") if enough else ""

    with driver(*words, *ray, cwd=tmp_path / "there") as command:
        assert wait_for(lambda: underway(1), command)
        kill(next(process for task, process in tasks().items() if task.startswith("shard-")))
        assert wait_for(lambda: underway(count // 2), command)
        command.kill()
        assert "its worker died (WorkerCrashedError); it goes on in another" in command.streams[1].read_text()
    assert not all(shard.checksum for shard in Manifest.load(stores["there"]).shards)
    done = run(*words, *ray, "--json", cwd=tmp_path / "there")
    assert done.code == 0, done.err
    assert json.loads(done.out)["workers"]["nodes"] == 2
    assert contents(stores["there"]) == contents(stores["here"])


@pytest.mark.ray
def test_a_search_on_two_nodes_with_kills(tmp_path, address):
    """A worker in the first round, the driver in the second; the trials are those of one process."""
    tables = {**SEARCHED, "snapshot_seconds": 0, "data": {"train": questions(240)}}
    words = ("search", "study.toml", "--out", "run", "--trials", 6, "--round", 4)
    ray = ("--on", "ray", "--address", address)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        tiny_recipe(tmp_path / name / "study.toml", **tables)
    here = bertvision(*words, "--json", cwd=tmp_path / "here")
    assert here.code == 0, here.err
    place = tmp_path / "there" / "run" / "search"

    def underway(number: int) -> str:
        """A part of a round that has learnt something."""
        begun = place.glob(f"round-{number}.parts/*/*.snapshot.safetensors")
        names = [f"round-{number}/{path.parent.name}" for path in begun]
        return next((name for name in names if name in tasks()), "")

    with driver(*words, *ray, cwd=tmp_path / "there") as command:
        part = wait_for(lambda: underway(0), command)
        assert part == "round-0/0-of-2" or part == "round-0/1-of-2", command.streams[1].read_text()
        kill(tasks()[part])
        assert wait_for(lambda: underway(1), command)
        command.kill()
        assert f"{part}: its worker died (WorkerCrashedError)" in command.streams[1].read_text()
    there = run(*words, *ray, "--json", cwd=tmp_path / "there")
    assert there.code == 0, there.err
    collected = [json.loads(done.out)["trials"] for done in (here, there)]
    assert len(collected[0]) == 6 and without_times(collected[1]) == without_times(collected[0])
    names = [sorted(path.name for path in (tmp_path / one / "run" / "search").iterdir()) for one in ("here", "there")]
    assert names[0] == names[1]
    for file in ("best.toml", "round-0.json", "round-1.json"):
        one, other = (tmp_path / name / "run" / "search" / file for name in ("here", "there"))
        assert one.suffix == ".json" or one.read_text() == other.read_text()
        assert one.suffix != ".json" or json.loads(one.read_text()) == json.loads(other.read_text())


def complaint(done: Done) -> str:
    """The one line that an error is; before it, there may be lines of progress."""
    *before, last = done.err.splitlines()
    assert done.code == 2 and last.startswith("bertvision: "), done.err
    assert all(" of 3 cells" in line or " of 6 cells" in line for line in before), done.err
    return last


@pytest.mark.ray
def test_an_error_of_ours_is_one_line_and_not_tried_again(tmp_path, address):
    recipe = tiny_recipe(tmp_path / "study.toml", data={"train": "missing.json"})
    words = ("study", recipe, "--on", "ray", "--address")
    done = run(*words, address, cwd=tmp_path)
    assert "missing.json" in complaint(done)
    assert not list((tmp_path / "runs" / "study").glob(".probe"))
    nobody = run(*words, "127.0.0.1:1", cwd=tmp_path)
    assert nobody.code == 2 and "--address 127.0.0.1:1: no Ray cluster answers there" in nobody.err


@pytest.mark.ray
def test_workers_that_see_another_folder_refuse(tmp_path, address):
    """As on a node that does not share the storage: there the probe is missing, or another driver's."""
    recipe = tiny_recipe(tmp_path / "study.toml", **SMALL)
    probe = tmp_path / "run" / ".probe"
    with driver("study", recipe, "--out", "run", "--on", "ray", "--address", address, cwd=tmp_path) as study:
        assert wait_for(lambda: "there" if probe.exists() else "", study)
        probe.write_text("another")
        done = study.wait()
    assert "is not the same folder on" in complaint(done)
