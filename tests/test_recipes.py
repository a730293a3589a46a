"""The recipes of the project: each opens with the command that runs it, says what was published, and runs."""

import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.backbone.tuning import Tuning
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import GREEDY
from bertvision.heads import build_head
from bertvision.heads.catalog import parameter_table
from bertvision.recipe import Recipe, has_heads, load_recipe, reached
from bertvision.report import TEXTS
from bertvision.toml import literal
from bertvision.train.bank import at_fractions, unique_names
from bertvision.train.study_variants import variant_recipes
from checks import shown
from encoders import save_tiny
from tables import conll, glue_folder, labelled

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ANALYSED = {key.replace(".", "_") for key in TEXTS["analysis"]}
SCORES = {"exact", "f1", "accuracy", "matthews", "pearson", "spearman"}
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
    "bertvision-figure5": ("finetune.epochs=0.5", "finetune.checkpoints=[0]"),
    "bertvision-table4": ("finetune.epochs=1", "finetune.checkpoints=[]", "bank.epochs=1", "bank.checkpoints=[]"),
    **dict.fromkeys(("hulburd-table1", "hulburd-table2", "hulburd-table3"), ("finetune.epochs=0.5",)),
    **dict.fromkeys(("silva-table1", "silva-table2", "silva-table3"), ("finetune.epochs=0.5",)),
    "pocket": ("finetune.precision=fp32", "finetune.checkpoints=[]"),
    **dict.fromkeys(
        ("pocket-second", "pocket-third"),
        ("finetune.precision=fp32", "finetune.checkpoints=[]", "finetune.start="),
    ),
    **dict.fromkeys(
        ("pocket-ablation", "pocket-encoders"),
        (
            *("finetune.precision=fp32", "runtime.precision=fp32"),
            'variants=[{name = "all"}, {name = "adapters", finetune = {train_layers = 0, adapters = 8}}]',
        ),
    ),
    "reproduction": (
        *("finetune.precision=fp32", "runtime.precision=fp32", "bank.precision=fp32", "seeds=[1]"),
        *("finetune.epochs=1", "finetune.checkpoints=[0, 0.3]", "bank.at=[0.3, 1]"),
    ),
    "pocket-study": (  # three blocks have no last six
        'variants=[{name = "last-2", finetune = {train_layers = 2}}, '
        '{name = "adapters", finetune = {train_layers = 0, adapters = 8}}]',
    ),
    "pocket-heads": ("finetune.start=", "runtime.precision=fp32"),
    "depth": ("finetune.start=", 'heads=[{kind = "last"}, {kind = "cacnn", depth = 2}]'),
    "probing": ('heads=[{kind = "probe", layer = 0}, {kind = "probe", layer = 3, cumulative = true}]',),
    "merges": ("finetune.precision=fp32", "runtime.precision=fp32", "seeds=[1]"),
    "tuning": (  # three blocks have no last six
        *("finetune.precision=fp32", "runtime.precision=fp32", "seeds=[1]", "paper=[]"),
        'variants=[{name = "L1", finetune = {train_layers = 1}}, '
        '{name = "BitFit", finetune = {train_layers = 0, biases = true, norms = "trained"}}, '
        '{name = "LoRA-8", finetune = {train_layers = 0, lora = 8, norms = "trained"}}]',
    ),
    "precision": ('variants=[{name = "fp32"}, {name = "again", finetune = {batch_size = 8}}]',),  # not all have bf16
    "glue": (
        *("finetune.precision=fp32", "runtime.precision=fp32"),
        *("data.tune=", "bank.epochs=1", "finetune.checkpoints=[]"),
    ),
    "tokens": ("data.tune=", "bank.epochs=1", "finetune.checkpoints=[]"),
    "table": ("data.tune=", 'data.text=["first", "second"]', "bank.epochs=1", "finetune.checkpoints=[]"),
}

each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("encoders")
    deep = save_tiny(place / "deep", "bert", num_hidden_layers=12)  # for the last six blocks of twelve
    return {family: save_tiny(place / family, family) for family in ("bert", "albert")} | {"deep": deep}


def commands(path: Path) -> list[list[str]]:
    """The commands in the comments above a recipe, as words without `bertvision`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [shlex.split(line)[2:] for line in lines if line.startswith("# bertvision ")]


def options(words: list[str], name: str) -> list[str]:
    return [value for key, value in pairwise(words) if key == name]


def members(recipe: Recipe) -> list[str]:
    return ["backbone", *unique_names(at_fractions(recipe.heads, recipe.bank.fractions))]


def test_a_recipe_of_the_package_is_found_from_any_folder(tmp_path, monkeypatch):
    here = load_recipe(ROOT / "recipes" / "quickstart.toml")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("recipes/quickstart.toml") == here
    with pytest.raises(UserError, match="no such recipe"):
        load_recipe("elsewhere/quickstart.toml")


def test_a_wheel_holds_the_recipes(tmp_path):
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    (tmp_path / "src" / "bertvision").mkdir(parents=True)
    (tmp_path / "src" / "bertvision" / "__init__.py").touch()
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]).namelist()
    assert {f"bertvision/recipes/{path.name}" for path in RECIPES} <= set(names)


@each_recipe
def test_opens_with_the_command_that_runs_it(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# bertvision study recipes/{path.name}"


@each_recipe
def test_every_command_in_its_comments_can_be_given(path):
    places = []
    for verb, *words in commands(path):
        if verb == "params":
            assert shown(verb, *words)
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
    studies = variant_recipes(recipe) if recipe.variants else {}
    for entry in recipe.paper:
        study = studies[entry["variant"]] if "variant" in entry else recipe
        known = {*members(study), *(["ensemble", "best head"] if study.heads else [])}
        assert entry["checkpoint"] in reached(study.finetune.epochs, study.finetune.checkpoints)
        assert entry["member"] in known or entry["member"].endswith(
            ("(two checkpoints)", "(BERT-base)", "(BERT-large)", "(as printed)")
        )
        assert set(entry) <= {"checkpoint", "member", "source", "on", "variant", "loss", *SCORES, *COSTS, *ANALYSED}
        assert entry["source"] and set(entry) & (SCORES | COSTS)
        assert all(entry.get(key, 0) >= 0 for key in COSTS)
        assert all(1 < entry[key] <= 100 for key in {*entry} & SCORES)  # percentages, not shares
        assert entry.get("exact", 0) <= entry.get("f1", 100)
    places = [tuple(entry.get(key) for key in ("checkpoint", "member", "variant")) for entry in recipe.paper]
    assert len(set(places)) == len(places)


@pytest.mark.slow
@each_recipe
def test_runs_from_tuning_to_report(path, encoders, tmp_path):
    name = load_recipe(path).backbone.name
    family = "albert" if "albert" in name else "deep" if path.stem.startswith("hulburd") else "bert"
    folder = f"data.glue={glue_folder(tmp_path / 'glue', 16)}"
    settings = [f"backbone.name={encoders[family]}", *SHRUNK, *SHORTER.get(path.stem, ()), folder]
    if path.stem == "table":
        settings += [
            f"data.train={labelled(tmp_path / 'a.csv', 30)}",
            f"data.test={labelled(tmp_path / 'b.csv', 16, 1)}",
        ]
    if path.stem == "tokens":
        settings += [f"data.train={conll(tmp_path / 'a.conll', 30)}", f"data.test={conll(tmp_path / 'b.conll', 16, 1)}"]
    if any("backbone" in variant for variant in load_recipe(path).variants):
        own = {"backbone": {"name": str(encoders["bert"])}}
        variants = [variant | (own if "backbone" in variant else {}) for variant in load_recipe(path).variants]
        settings.append(f"variants={literal(variants)}")
    recipe = load_recipe(path, settings)
    rows = json.loads(
        shown("study", str(path), *(w for s in settings for w in ("--set", s)), "--out", str(tmp_path), "--json")
    )

    scored = json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert [row for row in rows if row["member"] != GREEDY] == scored
    assert any(row["member"] == GREEDY for row in rows) == bool(recipe.heads)
    studies = variant_recipes(recipe) if recipe.variants else {None: recipe}
    planned = [
        (variant, study, epoch)
        for variant, study in studies.items()
        for epoch in reached(study.finetune.epochs, study.finetune.checkpoints)
    ]
    for variant, study, epoch in planned:
        here = [row for row in rows if row["checkpoint"] == epoch and row.get("variant") == variant]
        expected = set(members(study)) if has_heads(study, epoch) else {"backbone"}
        assert {row["member"] for row in here if row["role"] != "ensemble"} == expected
        assert any(row["role"] == "ensemble" for row in here) == has_heads(study, epoch)
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


def test_tuning_starts_from_the_reader_of_an_earlier_run(encoders, tmp_path):
    places = [tmp_path / name for name in ("first", "second")]
    first = (f"finetune.start={places[0] / 'reader'}", "finetune.learning_rate=0", "finetune.weight_decay=0")
    for place, own in zip(places, ((), first)):  # the second moves nothing
        settings = (f"backbone.name={encoders['bert']}", *SHRUNK, *SHORTER["pocket"], *own)
        words = [word for setting in settings for word in ("--set", setting)]
        shown("study", str(ROOT / "recipes" / "pocket.toml"), *words, "--out", str(place), "--json")
    before, after = (load_file(place / "reader" / "encoder.safetensors") for place in places)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)

    average = runpy.run_path(str(ROOT / "recipes" / "pocket_average.py"))["average"]
    checkpoint = next(places[1].glob("seed-1/checkpoint-*"))
    average(str(encoders["bert"]), places[0] / "reader", checkpoint, tmp_path / "mean")
    mean = load_file(tmp_path / "mean" / "backbone.safetensors")
    assert all(torch.equal(mean[key], tensor) for key, tensor in load_file(checkpoint / "backbone.safetensors").items())
    earlier = load_file(places[0] / "reader" / "heads.safetensors")["spans/backbone/readout.weight"]
    later, found = (load_file(folder / "head.safetensors") for folder in (checkpoint, tmp_path / "mean"))
    assert torch.equal(found["readout.weight"], (later["readout.weight"] + earlier) / 2)
    assert not torch.equal(earlier, later["readout.weight"])


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
