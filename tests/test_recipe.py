"""Recipes: what a file may say, what is refused and how, settings, the way back to TOML, and docs/recipe.md."""

import dataclasses
import tomllib
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision import toml
from bertvision.errors import UserError
from bertvision.recipe import HeadEntry, Recipe, from_table, head_spec, load_recipe
from bertvision.reference import json_schema, reference
from bertvision.schema import keys
from checks import error_of

ROOT = Path(__file__).parents[1]


@pytest.fixture
def written(tmp_path):
    """Writes a recipe and gives its path."""

    def write(text: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(text: str, written, *settings: str) -> str:
    return error_of(load_recipe, written(text), settings)


def test_an_empty_file_is_the_default_recipe(written):
    assert load_recipe(written("")) == Recipe()


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_the_recipes_of_the_project_are_right(path):
    recipe = load_recipe(path)
    assert from_table(tomllib.loads(toml.write(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("[finetune]\nepoch = 1", "finetune.epoch", "'epochs'"),
        ("[evalute]\nnbest = 3", "evalute", "'evaluate'"),
        ("max_length = 384", "max_length", "'data.max_length'"),  # the right key in the wrong table
        ("epochs = 3", "epochs", "'finetune.epochs' or 'bank.epochs'"),
        ("[bank]\nadapters = 3", "bank.adapters", "'finetune.adapters'"),
        ("zzz = 1", "zzz", "backbone, bank, data"),  # nothing is near: what there is
        ('[data]\n"q\\nz" = 1', 'data."q\\nz"', "there is"),
    ],
)
def test_an_unknown_key_is_answered_with_the_right_one(text, key, hint, written):
    message = refusal(text, written)
    assert message.startswith(f"{written(text)}: {key}: unknown key; ")
    assert hint in message.partition("unknown key; ")[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 3", "data: must be a table, not 3"),
        ("seeds = 1", "seeds: must be a list, not 1"),
        ("seeds = [1, 2.5]", "seeds.1: must be a whole number, not 2.5"),
        ('[finetune]\nepochs = "1"', "finetune.epochs: must be a number, not '1'"),
        ("[finetune]\nepochs = true", "finetune.epochs: must be a number, not True"),
        ("[finetune]\nbatch_size = 8.0", "finetune.batch_size: must be a whole number, not 8.0"),
        ("[finetune]\nhead = 3", "finetune.head: must be a string or a table, not 3"),
        ("heads = ['pool']", "heads.0: must be a table, not 'pool'"),
        ("[[heads]]\nkind = 'pool'\nlearning_rate = 'fast'", "heads.0.learning_rate: must be a number, not 'fast'"),
        ("[[paper]]\nwhen = []", "paper.0.when: must be a whole number or a number or a string, not []"),
        # impossible values
        ("[finetune]\nepochs = -1", "finetune.epochs: must be at least 0, not -1"),
        ("[finetune]\nepochs = nan", "finetune.epochs: must be at most 9.22337e+18, not nan"),
        (f"[bank]\nbatch_size = {2**63}", f"bank.batch_size: must be at most 9.22337e+18, not {2**63}"),
        ("[finetune]\ntrain_layers = -1", "finetune.train_layers: must be at least 0 or 'all', not -1"),
        (
            "[finetune]\ntrain_layers = 'al'",
            "finetune.train_layers: must be a whole number or 'all', not 'al'; did you mean 'all'?",
        ),
        ("[finetune]\ncheckpoints = [0.5, -1]", "finetune.checkpoints.1: must be at least 0, not -1"),
        ("[evaluate]\ndecoding = 3", "evaluate.decoding: must be 'joint' or 'independent', not 3"),
        ("[data]\nfraction = 0", "data.fraction: must be at least 0.0001, not 0"),
        ("[[heads]]\nkind = 'pool'\nlearning_rate = -1", "heads.0.learning_rate: must be at least 0, not -1"),
    ],
)
def test_a_wrong_value_names_the_key_and_the_right_kind(text, message, written):
    assert refusal(text, written) == f"{written(text)}: {message}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"[finetune]\nepochs = 1{'0' * 400}", ["finetune.epochs", "at most", "1000"]),
        ("[finetune]\nschedule = 'linaer'", ["finetune.schedule: must be 'constant',", "did you mean 'linear'?"]),
        ("task = 'labels!'", ["task: no task", "did you mean 'labels'?"]),
        ("[data]\nlabels = ['a', '']", ["data.labels: give at least two, each once, none of them empty"]),
        ("seeds = [1, 2, 1]", ["seeds: give at least one, each once"]),
        ("[data]\nmax_length = 160", ["data.overlap: 128 must be at most three quarters of data.max_length"]),
        ("[data]\ntrain = ''", ["data.train: must not be empty"]),
        ("[bank]\nfractions = [0.5, 0.5]", ["bank.fractions: give at least one, each once"]),
        ("[data]\ntext = ['a', 'b', 'c']", ["data.text: one column, or two"]),
        (
            "[finetune]\nlower = 'stored'\nnorms = 'trained'\nprecision = 'bf16'",
            ["finetune.precision", '"fp32"'],
        ),
        ("[finetune]\nlower = 'stored'", ["finetune.lower", 'needs norms = "trained"']),
        (
            "[finetune]\nlower = 'stored'\nnorms = 'trained'\nadapters = 8",
            ["finetune.lower", "neither adapters nor LoRA"],
        ),
        ("[bank]\nfeed = 'along'\npatience = 2", ["bank.patience", "no early stop"]),
        ("[bank]\nfeed = 'along'\ncheckpoints = [0.5]", ["bank.checkpoints", "finetune.checkpoints"]),
        ("[bank]\nfeed = 'along'\nstates = 'stored'", ["bank.states", "reads no store"]),
        ("[[heads]]\nsize = 3", ["heads.0: a head needs a kind", "pool"]),
        ("[[heads]]\nkind = 'pol'", ["heads.0.kind", "'pool'"]),
        ("[[heads]]\nkind = 'pool'\n[[heads]]\nkind = 'compress'\nsise = 3", ["heads.1.sise", "size"]),
        ("[[heads]]\nkind = 'compress'\nsize = 0", ["heads.0.size", "at least 1"]),
        ("[finetune]\nhead = 'lst'", ["finetune.head.kind", "'last'"]),
        # a rate here would be ignored: finetune.head_learning_rate is the one
        ("[finetune]\nhead = {kind = 'last', learning_rate = 1e-3}", ["finetune.head.learning_rate"]),
    ],
)
def test_an_impossible_value_is_refused(text, parts, written):
    message = refusal(text, written)
    assert message.startswith(str(written(text)))
    for part in parts:
        assert part in message
    assert len(message) < 400


@pytest.mark.parametrize("content", [b"a = ", b"\xff\xfe", b"x = " + b"[" * 3000, b"x = 1" + b"0" * 5000])
def test_a_file_that_is_not_toml_is_refused(content, tmp_path):
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a TOML file") as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such recipe; see recipes/"):
        load_recipe(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe(tmp_path)


HEADS = "[[heads]]\nkind = 'pool'\n[[heads]]\nkind = 'compress'\nsize = 386\n"


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("finetune.epochs=0.5", "finetune.epochs", 0.5),
        ("finetune.train_layers=3", "finetune.train_layers", 3),
        ("finetune.train_layers=all", "finetune.train_layers", "all"),
        ("finetune.checkpoints=[0.3, 1]", "finetune.checkpoints", (0.3, 1.0)),
        ("seeds=[3,4]", "seeds", (3, 4)),
        ("seeds.0=7", "seeds", (7,)),
        ("backbone.name=./models/my-encoder", "backbone.name", "./models/my-encoder"),
        ('backbone.name="123"', "backbone.name", "123"),
        ("title=Two words = one # title", "title", "Two words = one # title"),
        ("title='a'\ntask = 'b'", "title", "'a'\ntask = 'b'"),  # one setting sets one key
        ("heads.1.size=64", "heads.1", {"kind": "compress", "size": 64}),
        ("heads.1.skip=true", "heads.1", {"kind": "compress", "size": 386, "skip": True}),
        ("heads.0={kind='last'}", "heads.0", {"kind": "last"}),
        ("finetune.head={kind='pool', weights='mean'}", "finetune.head", {"kind": "pool", "weights": "mean"}),
        ("finetune.head.kind=pool", "finetune.head", {"kind": "pool"}),
    ],
)
def test_a_setting_overrides_one_value(setting, path, value, written):
    text = f"seeds = [1]\n{HEADS}"
    found = load_recipe(written(text), [setting])
    for name in path.split("."):
        found = found[int(name)] if isinstance(found, tuple) else getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_settings_apply_in_order(written):
    recipe = load_recipe(written(""), ["heads=[{kind='compress', size=1}]", "heads.0.size=2", "heads.0.size=3"])
    assert recipe.heads == ({"kind": "compress", "size": 3},)


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("epochs", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("finetune.epoch=3", "finetune.epoch: unknown key; did you mean 'epochs'?"),
        ("finetune.epochs=fast", "finetune.epochs: must be a number, not 'fast'"),
        ("heads.2.size=64", "'2' is not the number of an entry; there are 2"),
        ("heads.size=64", "'size' is not the number of an entry"),
        ("title.x=1", "'title' is not a table"),
        ("data.train.x=1", "data.train: must be a string, not {'x': 1}"),
    ],
)
def test_a_wrong_setting_is_refused(setting, part, written):
    assert part in refusal(f"title = 'x'\n{HEADS}", written, setting)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(0, 1e6) | st.integers(0, 1000)


@given(
    title=texts,
    train=texts.filter(lambda text: text.strip() and "\0" not in text),
    seeds=st.lists(st.integers(0, 2**40), min_size=1, max_size=4, unique=True),
    epochs=numbers,
    checkpoints=st.lists(st.floats(0, 10), max_size=3),
    layers=st.integers(0, 24) | st.just("all"),
    name=texts,
    skip=st.booleans(),
    paper=st.lists(st.dictionaries(texts, texts | st.floats(-1e9, 1e9) | st.integers(-9, 9), max_size=3), max_size=2),
)
def test_a_recipe_survives_the_way_to_toml_and_back(
    title, train, seeds, epochs, checkpoints, layers, name, skip, paper
):
    recipe = from_table(
        {
            "title": title,
            "seeds": seeds,
            "data": {"train": train},
            "finetune": {
                "epochs": epochs,
                "checkpoints": checkpoints,
                "train_layers": layers,
                "head": {"kind": "last"},
            },
            "heads": [{"kind": "compress", "skip": skip, "name": name, "learning_rate": 1e-5}, {"kind": "pool"}],
            "paper": paper,
        }
    )
    assert from_table(tomllib.loads(toml.write(recipe))) == recipe


@pytest.mark.parametrize("text", ["\x7f", "\x00\x1f", "\u2028\x85", '"""', "\\", "\r\n\t", "# [x]", "é😀"])
def test_awkward_texts_survive_too(text):
    recipe = from_table({"title": text, "paper": [{text: text}]})
    assert from_table(tomllib.loads(toml.write(recipe))) == recipe


def test_a_recipe_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().title = "x"  # type: ignore[misc]


def test_a_head_spec_is_the_architecture_alone():
    assert head_spec("last") == {"kind": "last"}
    assert head_spec({"kind": "pool", "name": "mine", "learning_rate": 1e-3, "weights": "mean"}) == {
        "kind": "pool",
        "weights": "mean",
    }


def test_the_schema_describes_every_key_and_accepts_the_recipes():
    found = json_schema()
    for table in (found, *found["$defs"].values()):
        assert not table["additionalProperties"]
        assert all(node["description"].endswith(".") for node in table["properties"].values())
    assert found["$defs"]["FinetuneRecipe"]["properties"]["learning_rate"]["description"].endswith("of the backbone.")
    for path in (ROOT / "recipes").glob("*.toml"):
        jsonschema_rs.validator_for(found).validate(tomllib.loads(path.read_text(encoding="utf-8")))
    with pytest.raises(jsonschema_rs.ValidationError, match="epoch"):
        jsonschema_rs.validator_for(found).validate({"finetune": {"epoch": 1}})


def test_the_page_of_the_recipe_is_up_to_date():
    page = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    assert page == reference(), "run: bertvision recipe > docs/recipe.md"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(keys(Recipe))) + len(dataclasses.fields(HeadEntry))
    assert all(row.replace(r"\|", "").count("|") == 5 for row in rows)
    assert "| `learning_rate` | a number (at least 0) | `5e-05` | The peak learning rate of the backbone. |" in rows
