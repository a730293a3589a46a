"""The commands and the Python of the README and CONTRIBUTING are run, on tiny data and a tiny encoder."""

import re
import shlex
import shutil
from pathlib import Path

import torch

from bertvision import States
from bertvision.cli import app
from bertvision.heads import HEADS, build_head
from bertvision.registry import SOURCES
from real import has
from runs import bertvision, encoder

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LINES = [line for kind, text in BLOCKS if kind == "sh" for line in text.replace("\\\n", " ").splitlines()]
COMMANDS = [shlex.split(line, comments=True)[1:] for line in LINES if line.startswith("bertvision ")]

TRAINING = {"study", "finetune", "train"}
OUTSIDE = {("data", "fetch"), ("serve",)}  # need the network, or never end: only that they exist is looked at
SHRUNK = {
    "data.train": "sample:train:24",
    "data.tune": "sample:tune:12",
    "data.test": "sample:test:12",
    "data.max_length": "128",
    "data.overlap": "32",
}


def shrunk(words: list[str]) -> list[str]:
    """The command as it stands there; if it trains, with a tiny encoder and little data laid over its recipe."""
    outside = tuple(words[:2]) in OUTSIDE or tuple(words[:1]) in OUTSIDE
    if outside or (words[0] == "ask" and "--reader" not in words and not has("marco")):
        return [*words[:2], "--help"]
    if words[0] not in TRAINING:
        return words
    settings = SHRUNK | {"backbone.name": encoder()}
    return [*words, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def test_the_commands_work_one_after_the_other(tmp_path):
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copy(ROOT / "README.md", tmp_path)
    assert len(COMMANDS) >= 4
    for words in COMMANDS:
        done = bertvision(*shrunk(words), cwd=tmp_path)
        assert done.code == 0, f"bertvision {shlex.join(words)}\n{done.err}"
        assert done.out.strip()
    for page in tmp_path.glob("runs/*/report.html"):
        assert page.stat().st_size > 10_000
    assert list(tmp_path.glob("runs/*/report.html"))


def test_what_is_to_be_made_can_be_made():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wanted = {words[1] for line in LINES if (words := shlex.split(line, comments=True)) and words[0] == "make"}
    assert {"demo", "test"} <= wanted <= targets


def test_the_verbs_of_the_table_exist():
    known = {command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    shown = [cell for line in README.splitlines() if line.startswith("| `") for cell in line.split("|")[1:2]]
    named = {word.split()[0] for cell in shown for word in re.findall(r"`([^`]+)`", cell)}
    assert len(named) >= 6 and named <= known


def test_the_files_it_points_to_are_there():
    links = {link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link}
    recipes = set(re.findall(r"recipes/[\w-]+\.toml", README))
    assert recipes
    assert [name for name in sorted(links | recipes) if name and not (ROOT / name).exists()] == []


def test_the_python_in_it_runs():
    """Each piece by itself; a head that it registers can be built and used, and is taken out again."""
    guide = re.findall(r"^```(\w*)\n(.*?)^```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    pieces = [text for kind, text in [*BLOCKS, *guide] if kind == "python" and ('"pocket"' not in text or has("marco"))]
    known = set(HEADS)
    try:
        for piece in pieces:
            exec(compile(piece.replace('"minilm"', repr(encoder())), "README.md", "exec"), {"__name__": "readme"})
        for kind in set(HEADS) - known:
            head = build_head({"kind": kind}, layers=4, width=8, task="spans")
            logits = head(States(torch.zeros(2, 4, 5, 8), torch.ones(2, 5, dtype=torch.bool)))
            assert logits.shape == (2, 5, 2)
    finally:
        for kind in set(HEADS) - known:
            del HEADS[kind]
        SOURCES.pop("reviews", None)
    assert pieces


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"\b(TODO|FIXME|XXX|RESULTS)\b", README)
