"""Every verb with `--device`, on the test device: it computes there, and ends well.

`fit` takes what `auto` finds; `depth` and `export` are for CPUs.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import bertvision
from bertvision.cli import app
from bertvision.serve import server
from devices import DEVICE
from finished import finished_texts
from runs import encoder, questions, tiny_recipe
from serve.servers import serving

pytestmark = pytest.mark.device
LIVE = {"bank": {"states": "live"}, "finetune": {"checkpoints": [], "adapters": 4}}
STORED = {
    "bank": {"epochs": 2, "states": "stored", "patience": 1, "checks": 2},
    "finetune": {"checkpoints": [], "train_layers": 1, "norms": "trained", "lower": "stored"},
}
TEXT = "the king was called old name, born in the north city."


@contextmanager
def computing() -> Iterator[None]:
    """Something within is computed on the device; only the test device can tell."""
    if DEVICE != "ghost":
        yield
        return
    from ghost import ghost

    before = ghost.fetches
    yield
    assert ghost.fetches > before, "nothing came from the device"


def run(*words: object) -> str:
    """`bertvision WORDS --device DEVICE` of a recipe or run that says cpu: what it prints."""
    with computing():
        done = CliRunner().invoke(app, [*map(str, words), "--device", DEVICE], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def recipe_in(place: Path, **tables: object) -> tuple[Path, Path]:
    """A recipe that names the CPU, and the directory of its run."""
    return tiny_recipe(place / "study.toml", runtime={"device": "cpu"}, **tables), place / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The directory of a study, by its parts and then as a whole; states are live."""
    recipe, place = recipe_in(tmp_path_factory.mktemp("live"), **LIVE)
    for verb in ("finetune", "train", "study"):
        run(verb, recipe, "--out", place)
    return place


@pytest.fixture(scope="module")
def reader(finished) -> Path:
    words = ("--members", "pool", "--threshold-data", questions(24, 1), "--json")
    return Path(json.loads(run("reader", finished, "--out", finished.parent / "reader", *words))["path"])


def test_a_study_and_its_parts(finished):
    facts = json.loads((finished / "study.json").read_text())
    assert facts["runtime"]["device"] == DEVICE
    assert {row["member"] for row in json.loads((finished / "metrics.json").read_text())} > {"backbone", "pool"}


def test_stored_states(tmp_path):
    recipe, place = recipe_in(tmp_path, **STORED)
    run("study", recipe, "--out", place)
    log = (place / "log.jsonl").read_text()
    assert "storing states of train" in log and "storing states of tune" in log


def test_tap(finished):
    words = ("tap", finished / "recipe.toml", "--out", finished, "--split", "test", "--json")
    assert json.loads(run(*words, "--forecast"))
    assert Path(json.loads(run(*words))["store"]).is_dir()


def test_evaluate_a_run(finished):
    rows = json.loads(run("evaluate", finished, "--json"))
    scores = {(row["member"], row["threshold_from"]): row["f1"] for row in rows}
    for row in json.loads((finished / "metrics.json").read_text()):
        if row["member"] in ("backbone", "pool"):
            assert scores[row["member"], row["threshold_from"]] == pytest.approx(row["f1"])


def test_search(finished):
    words = ("--out", finished, "--trials", 2, "--round", 2, "--json")
    assert len(json.loads(run("search", finished / "recipe.toml", *words))["trials"]) == 2


def test_evaluate_a_reader(reader):
    (found,) = json.loads(run("evaluate", reader, "--data", questions(24, 2), "--json"))
    assert "f1" in found


def test_ask(reader):
    found = json.loads(run("ask", "who was the king?", "--context", TEXT, "--reader", reader, "--json"))
    assert found["question"] == "who was the king?" and found["answers"]


def test_serve(reader, monkeypatch):
    replies = []

    def serve_once(load, **options) -> None:
        with serving(load()) as url:
            replies.append(httpx.post(f"{url}/answer", json={"question": "who?", "context": TEXT}, timeout=60))

    monkeypatch.setattr(server, "serve", serve_once)
    run("serve", reader)
    assert replies[0].status_code == 200 and replies[0].json()["answers"]


@pytest.mark.parametrize("task", ["labels", "score"])
def test_texts(task):
    with computing():
        assert (finished_texts(task) / "metrics.json").is_file()
    run("evaluate", finished_texts(task))


def test_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("bertvision.runtime.find_device", lambda *_: DEVICE)  # as `auto` does where there is a GPU
    with computing():
        found = bertvision.fit(questions(60), out=tmp_path / "fit", steps=1, encoder=encoder(), quiet=True)
    facts = json.loads((found.directory / "steps" / found.step / "study.json").read_text())
    assert facts["runtime"]["device"] == DEVICE
