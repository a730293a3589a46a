"""A newcomer's path: the built wheel in an empty environment, `fit` on a table, `serve` and `ask` of what it left."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from real import DATA, has
from runs import encoder
from tables import labelled

ROOT = Path(__file__).parents[1]
SST2 = DATA / "glue" / "SST-2" / "dev.tsv"


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """`bertvision` as installed from the wheel; the packages it depends on are those of this environment."""
    place = tmp_path_factory.mktemp("newcomer")
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("src", "recipes"):
        shutil.copytree(ROOT / name, place / "tree" / name, ignore=kept)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, place / "tree")
    build = "from setuptools import build_meta; print(build_meta.build_wheel('..'))"
    told = run(sys.executable, "-c", build, cwd=place / "tree").stdout
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    home = place / "venv" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", place / told.splitlines()[-1])
    run(sys.executable, "-m", "pip", "--python", home, *install, cwd=place)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    others = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")  # behind it: its own bertvision is first
    where = run(home, "-c", "import bertvision; print(bertvision.__file__)", cwd=place).stdout
    assert Path(where.strip()).is_relative_to(place)
    return place / "venv" / "bin" / "bertvision"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def table(path: Path) -> Path:
    """A CSV of real sentences and their labels where there are any, else of made ones."""
    if not SST2.is_file():
        return labelled(path, 60)
    lines = SST2.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines[:121], delimiter="\t", quoting=csv.QUOTE_NONE))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "liked"])
        writer.writerows([row["sentence"], "yes" if row["label"] == "1" else "no"] for row in rows)
    return path


def test_from_a_wheel_to_answers(program, tmp_path):
    data, own = table(tmp_path / "reviews.csv"), [] if has("minilm") else ["--encoder", encoder()]
    found = json.loads(run(program, "fit", data, "--steps", 1, *own, "--json", cwd=tmp_path).stdout)
    model = tmp_path / found["directory"] / "model"
    assert found["low"] <= found["test"] <= found["high"] and (model / "README.md").is_file()
    words = [str(program), "serve", str(model), "--port", "0"]
    server = subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = next(match[0] for line in server.stdout if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        labels = httpx.post(f"{url}/classify", json={"text": ["a great film", "a bad film"]}, timeout=60).json()[
            "labels"
        ]
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert len(labels) == 2 and {one["label"] for one in labels} <= {"yes", "no", "north", "south"}


@pytest.mark.skipif(not has("marco"), reason="needs the packaged encoder of pocket")
def test_the_packaged_reader_and_recipes_come_along(program, tmp_path):
    done = run(
        program, "ask", "Who built the bridge?", "--context", "Ada Moss built the bridge.", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["answers"][0]["answer"] == "Ada Moss"
    assert run(program, "cells", "recipes/quickstart.toml", cwd=tmp_path).stdout
