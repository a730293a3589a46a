"""Hostile arguments, values and files: one line and exit code 2 before any work begins, never a traceback."""

import json
import shutil
from pathlib import Path

import pytest

from encoders import save_tiny
from runs import encoder, tiny_recipe
from torture.outcomes import command

DIGITS, HUGE = "9" * 5000, 10**18
NESTED = '{"kind": ' * 100_000


def refused(*words: object) -> str:
    done = command(*words)
    assert not done.error, done.error
    assert done.is_refusal, done.err or done.out[:200]
    return done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("heads", "--task", "sp\udcffns"), "argument 3 is not UTF-8"),
        (("report", "runs/\udcff"), "argument 2 is not UTF-8"),
        (("params", "--train-layers", DIGITS), "train_layers"),
        (("params", "--adapters", DIGITS), "--adapters"),
        (("params", "--head", f'{{"kind": "compress", "size": {DIGITS}}}'), "--head"),
        (("params", "--head", NESTED), "--head"),
        (("params", "--head", f'{{"kind": "compress", "size": {HUGE}}}'), "too large"),
        (("params", "--adapters", HUGE, "--backbone", "ENCODER"), "too large"),
        (("params", "--lora", HUGE), "too large"),
        (("heads", "--layers", HUGE), "too large"),
        (("heads", "--width", HUGE), "too large"),
        (("data", "stats", f"sample:train:{HUGE}"), "sample"),
        (("data", "stats", f"sample:train:{DIGITS}"), "sample"),
    ],
)
def test_arguments(words, says):
    assert says in refused(*(encoder() if word == "ENCODER" else word for word in words))


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (f"heads.{DIGITS}.size=1", "heads"),
        (f"heads.1.size={HUGE}", "heads.1: too large"),
        (f"finetune.adapters={HUGE}", "finetune.adapters: too large"),
        (f"finetune.lora={HUGE}", "finetune.lora: too large"),
        (f"evaluate.nbest={HUGE}", "evaluate.nbest: too large"),
        ("finetune.epochs=1e7", "finetune.epochs: too large"),
        ("bank.epochs=1e7", "bank.epochs: too large"),
        (f"bank={{patience = 1, checks = {HUGE}}}", "bank.checks: too large"),
        (f"data.train=sample:train:{HUGE}", "sample"),
        ('data.train="a\\u0000b"', "data.train: holds a NUL character"),
        ('backbone.name="a\\u0000b"', "backbone.name: holds a NUL character"),
    ],
)
def test_settings(setting, says, tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml")
    assert says in refused("study", recipe, "--out", tmp_path / "run", "--set", setting)
    assert not list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(
    "change",
    [
        {"pad_token_id": "x"},
        {"pad_token_id": 10**9},
        {"pad_token_id": -5},
        {"pad_token_id": [1]},
        {"dtype": "nonsense"},
        {"dtype": 7},
        {"torch_dtype": {"a": 1}},
        {"max_position_embeddings": "many"},
        {"type_vocab_size": "two"},
    ],
)
def test_odd_entries_in_the_configuration_of_an_encoder(change, tmp_path):
    place = Path(shutil.copytree(encoder(), tmp_path / "odd"))
    table = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(table | change))
    recipe = tiny_recipe(tmp_path / "study.toml", backbone={"name": str(place)})
    done = command("finetune", recipe, "--out", tmp_path / "run", "--set", "finetune.epochs=0.1")
    assert not done.error, done.error
    assert done.code == 0 or done.is_refusal


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "YWJj"}},  # when it is loaded
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},  # when it is used
    ],
)
def test_a_tokenizer_that_panics(change, tmp_path):
    """tokenizers is Rust: some damaged files make it panic, which Python sees as no Exception."""
    place = save_tiny(tmp_path / "odd", "bert")
    table = json.loads((place / "tokenizer.json").read_text())
    (place / "tokenizer.json").write_text(json.dumps(table | change))
    recipe = tiny_recipe(tmp_path / "study.toml", backbone={"name": str(place)})
    assert "okenizer" in refused("finetune", recipe, "--out", tmp_path / "run")
