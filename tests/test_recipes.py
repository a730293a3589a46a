"""The recipes of the project: each opens with the command that runs it, says what was published, and runs."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from bertvision.backbone.tuning import Tuning
from bertvision.cli import app
from bertvision.evaluate.ensemble import GREEDY
from bertvision.heads import build_head
from bertvision.heads.catalog import parameter_table
from bertvision.recipe import Recipe, load_recipe, reached, to_toml
from bertvision.report.published import for_run
from bertvision.train.bank import at_fractions, unique_names
from encoders import save_tiny
from tables import conll, glue_folder, labelled

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
SCORES = {"exact", "f1", "accuracy", "matthews", "spearman"}
COSTS = {"parameters", "train_seconds", "infer_seconds"}

# A recipe as it is, but on two dozen short synthetic questions and a random encoder of three narrow blocks.
SHRUNK = (
    "data.train=sample:train:24",
    "data.tune=sample:tune:12",
    "data.test=sample:test:12",
    "data.fraction=1",
    "data.max_length=96",
    "data.overlap=16",
)
SHORTER = {
    "bertvision-figure6": ("finetune.epochs=1", "finetune.checkpoints=[0, 0.1]"),
    "answerability": ("finetune.epochs=1", "bank.epochs=1"),
    "pocket": ("finetune.adapters=8",),
    "pocket-further": ("finetune.adapters=8", "finetune.start=", "finetune.precision=fp32"),
    "pocket-study": (  # three blocks have no last six
        'variants=[{name = "last-2", finetune = {train_layers = 2}}, '
        '{name = "adapters", finetune = {train_layers = 0, adapters = 8}}]',
    ),
    "glue": ("data.tune=", "bank.epochs=1", "finetune.checkpoints=[]"),
    "tokens": ("data.tune=", "bank.epochs=1", "finetune.checkpoints=[]"),
    "table": ("data.tune=", 'data.text=["first", "second"]', "bank.epochs=1", "finetune.checkpoints=[]"),
}

each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("encoders")
    return {family: save_tiny(place / family, family) for family in ("bert", "albert")}


def commands(path: Path) -> list[list[str]]:
    """The commands in the comments above a recipe, as words without `bertvision`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("# bertvision ")]


def options(words: list[str], name: str) -> list[str]:
    return [value for key, value in pairwise(words) if key == name]


def members(recipe: Recipe) -> list[str]:
    return ["backbone", *unique_names(at_fractions(recipe.heads, recipe.bank.fractions))]


def run(*words: str) -> str:
    found = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


@each_recipe
def test_opens_with_the_command_that_runs_it(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# bertvision study recipes/{path.name}"


@each_recipe
def test_every_command_in_its_comments_can_be_given(path):
    places = []
    for verb, *words in commands(path):
        if verb == "params":
            assert run(verb, *words)
            continue
        assert (verb, words[0]) == ("study", f"recipes/{path.name}")
        settings = [setting for setting in options(words, "--set") if not setting.startswith("seeds=")]
        assert not settings or load_recipe(path, settings) != load_recipe(path)
        assert len(options(words, "--out")) == bool(settings)  # more seeds go where the others are
        places += options(words, "--out")
    assert len(set(places)) == len(places)  # no run in another's directory


@each_recipe
def test_published_results_have_a_place(path):
    recipe = load_recipe(path)
    known = {*members(recipe), *(["ensemble", "best head"] if recipe.heads else [])}
    for entry in recipe.paper:
        assert entry["checkpoint"] in reached(recipe.finetune.epochs, recipe.finetune.checkpoints)
        assert entry["member"] in known or entry["member"].endswith(("(two checkpoints)", "(BERT-large)"))
        assert set(entry) <= {"checkpoint", "member", "source", "on", "label", "when", "variant", *SCORES, *COSTS}
        assert entry.get("variant", "") in ("", *(variant["name"] for variant in recipe.variants))
        assert entry["source"] and set(entry) & (SCORES | COSTS)
        assert all(entry.get(key, 0) >= 0 for key in COSTS)
        assert all(1 < entry[key] <= 100 for key in {*entry} & SCORES)  # percentages, not shares
        assert entry.get("exact", 0) <= entry.get("f1", 100)
    places = [tuple(entry.get(key) for key in ("checkpoint", "member", "when", "variant")) for entry in recipe.paper]
    assert len(set(places)) == len(places)


@each_recipe
def test_results_of_several_runs_belong_to_one_each(path):
    labels = {entry["label"] for entry in load_recipe(path).paper if "when" in entry}
    reached = set()
    for verb, *words in commands(path):
        if verb != "study":
            continue
        recipe = load_recipe(path, options(words, "--set"))
        seen = for_run(recipe.paper, tomllib.loads(to_toml(recipe)))
        mine = [entry for entry, before in zip(seen, recipe.paper) if "when" in entry and entry == before]
        assert len({(entry["checkpoint"], entry["member"]) for entry in mine}) == len(mine)
        reached |= {entry["label"] for entry in mine}
    assert all("plain read-out" in label for label in labels - reached)  # those are the runs of another recipe


@pytest.mark.slow
@each_recipe
def test_runs_from_tuning_to_report(path, encoders, tmp_path):
    family = "albert" if "albert" in load_recipe(path).backbone.name else "bert"
    folder = f"data.glue={glue_folder(tmp_path / 'glue', 16)}"
    settings = [f"backbone.name={encoders[family]}", *SHRUNK, *SHORTER.get(path.stem, ()), folder]
    if path.stem == "table":
        settings += [
            f"data.train={labelled(tmp_path / 'a.csv', 30)}",
            f"data.test={labelled(tmp_path / 'b.csv', 16, 1)}",
        ]
    if path.stem == "tokens":
        settings += [f"data.train={conll(tmp_path / 'a.conll', 30)}", f"data.test={conll(tmp_path / 'b.conll', 16, 1)}"]
    recipe = load_recipe(path, settings)
    rows = json.loads(
        run("study", str(path), *(w for s in settings for w in ("--set", s)), "--out", str(tmp_path), "--json")
    )

    scored = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert [row for row in rows if row["member"] != GREEDY] == scored
    assert any(row["member"] == GREEDY for row in rows) == bool(recipe.heads)
    variants = [variant["name"] for variant in recipe.variants] or [None]
    for epoch, variant in product(reached(recipe.finetune.epochs, recipe.finetune.checkpoints), variants):
        here = [row for row in rows if row["checkpoint"] == epoch and row.get("variant") == variant]
        assert {row["member"] for row in here if row["role"] != "ensemble"} == set(members(recipe))
        assert any(row["role"] == "ensemble" for row in here) == bool(recipe.heads)
        assert all(-100 <= row[key] <= 100 for row in here for key in SCORES & {*row})
        assert all(SCORES & {*row} and row.get("exact", 0) <= row.get("f1", 100) for row in here)
        assert all(row["parameters"] > 0 for row in here if epoch or row["role"] == "head")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "not complete" not in page and bool(re.search(", paper[^<]*</button>", page)) == bool(recipe.paper)
    for entry in recipe.paper:
        if entry["member"].endswith("(BERT-large)"):  # beside none of ours
            continue
        assert entry["source"] in page
        assert all(f'data-value="{entry[key]!r}"' in page for key in {*SCORES, *COSTS} & {*entry})


def test_the_second_half_of_pocket_starts_from_the_reader_of_the_first(encoders, tmp_path):
    places = {name: tmp_path / name for name in ("pocket", "pocket-further")}
    for name, place in places.items():
        first = f"finetune.start={places['pocket'] / 'reader'}"
        own = () if name == "pocket" else (first, "finetune.learning_rate=0")  # so that nothing moves
        settings = (f"backbone.name={encoders['bert']}", *SHRUNK, *SHORTER[name], *own, "heads=[]")
        words = [word for setting in settings for word in ("--set", setting)]
        run("study", str(ROOT / "recipes" / f"{name}.toml"), *words, "--out", str(place), "--json")
    before, after = (load_file(place / "reader" / "encoder.safetensors") for place in places.values())
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


def test_a_published_result_stands_beside_the_run_it_belongs_to(encoders, tmp_path):
    settings = (f"backbone.name={encoders['bert']}", *SHRUNK, "finetune.train_layers=1")
    words = [word for setting in settings for word in ("--set", setting)]
    run("study", str(ROOT / "recipes" / "hulburd-table1.toml"), *words, "--out", str(tmp_path), "--json")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    ours, apart = text.split("## Published results without a counterpart here")
    assert "65.90" in ours and "7,124,738" in ours and "75.20" not in ours
    assert "| 3 | backbone, L6 | 72.30 | 75.20 | 42,548,738 | 13,080.0 |" in apart and "65.90" not in apart


def table_rows(heading: str) -> Iterator[list[str]]:
    """The cells of the tables under a heading of docs/papers.md, without their headings."""
    section = PAPERS.split(f"\n### {heading}\n")[1].split("\n#")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return (cells for cells in lines if not set("".join(cells)) <= set("- :") and cells[-1][0].isdecimal())


def toml_of(cell: str) -> dict:
    return tomllib.loads("\n".join(cell.strip("`").split("; ")))


@pytest.mark.parametrize(
    ("heading", "layers", "width", "task"),
    [
        ("BERTVision: heads for spans", 25, 1024, "spans"),
        ("BERTVision: heads for classification", 25, 1024, "labels"),
        ("Silva: merged layers", 13, 768, "spans"),
        ("Hulburd: context-aware CNN", 13, 768, "spans"),
    ],
)
def test_documented_sizes_of_heads(heading, layers, width, task):
    found = list(table_rows(heading))
    assert len(found) >= 2
    for _, cell, parameters in found:
        head = build_head(tomllib.loads(f"head = {cell.strip('`')}")["head"], layers=layers, width=width, task=task)
        assert f"{head.parameter_count():,}" == parameters, cell


def test_documented_sizes_of_tuning_plans():
    found = list(table_rows("Hulburd: tuning"))
    assert len(found) == 8
    for _, cell, parameters in found:
        counted = parameter_table("bert-base-cased", Tuning(**toml_of(cell)), {"kind": "last"})
        assert f"{counted['trainable']:,}" == parameters, cell


@each_recipe
def test_is_documented(path):
    assert f"`{path.name}`" in PAPERS
