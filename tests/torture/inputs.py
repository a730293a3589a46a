"""Hostile inputs: recipes, settings, data files, readers' directories and arguments, changed at random."""

import json
import random
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bertvision import toml
from bertvision.backbone.loading import tokenizer_of
from bertvision.data.conll import load_conll
from bertvision.data.sources import load_articles, read_examples
from bertvision.files import write_json
from bertvision.recipe import DataRecipe, Recipe, load_recipe
from bertvision.schema import keys
from bertvision.serve.reader import Reader
from bertvision.serve.reader_dir import read_config
from bertvision.tasks import Spans
from readers import tiny_reader
from runs import LENGTHS, articles, encoder, recipe_of
from torture.damage import broken, change
from torture.outcomes import Tally, command, refusing

VALUES = (
    *(
        "1",
        "-1",
        "0",
        "1e400",
        "-0.0",
        "9" * 5000,
        "0x7fffffffffffffff",
        "1e18",
        "[]",
        "{}",
        '"a\\u0000b"',
        "nan",
        "inf",
    ),
    *("true", "[[[[", "x" * 3000, "'", "\u2028", "", '""', '"../../x"', "[1, 'a']", "{a = {b = [1]}}", "1979-05-27"),
    *('"all"', '"stored"', '"sample:train:99999999999"', "[0.1, 0.1]", '"\\ud800"', '"\U0001f600"', "\x00", "\ufeff"),
)
WAYS = ("bit", "bits", "cut", "noise", "twice")
VERBS = ("params", "heads", "recipe", "forecast", "cells", "data", "report", "ask", "reader", "analyze", "nonsense")
OPTIONS = ("--task", "--head", "--backbone", "--layers", "--width", "--adapters", "--set", "--out", "--json", "-", "--")
TABLE = "text\tlabel\n" + "".join(f"the {word} river\t{'good' if len(word) > 3 else 'bad'}\n" for word in "abcdefgh")
CONLL = "".join(f"{word} {tag}\n" for word, tag in [("the", "O"), ("north", "B-LOC"), ("river", "I-LOC")]) + "\n"
TURN = ("recipe", "--set", "data", "recipe", "--set", "reader", "data", "recipe", "--set", "table", "tagged", "data")
SELDOM = 40  # one input in so many goes further: through windows, a whole reader, the command line


@cache
def originals() -> dict[str, bytes]:
    """Sound files, by target."""
    rich = recipe_of(
        seeds=[1, 2],
        title="a study",
        variants=[{"name": "a"}, {"name": "b", "finetune": {"train_layers": 1}}],
        search=[{"key": "learning_rate", "low": 1e-5, "high": 1e-1, "log": True}],
    )
    return {
        "recipe": toml.write(rich).encode(),
        "data": json.dumps({"version": "2.0", "data": articles(3)}).encode(),
        "reader": json.dumps(tiny_reader().config.to_json()).encode(),
        "table": TABLE.encode(),
        "tagged": CONLL.encode() * 4,
    }


@cache
def sound_reader(place: Path) -> Path:
    return tiny_reader().save_pretrained(place / "sound-reader")


def attack(tally: Tally, place: Path, seed: int) -> None:
    """One input, of each target in turn."""
    chance = random.Random(f"inputs {seed}")
    if seed % SELDOM == 0:
        further = (_arguments, _windows, _whole_reader)[seed // SELDOM % 3]
        further(tally, place, seed, chance)
        return
    target = TURN[seed % len(TURN)]
    if target == "--set":
        (place / "recipe.toml").write_bytes(originals()["recipe"])
        setting = _setting(chance)
        with refusing(tally, "input", target, setting):
            load_recipe(place / "recipe.toml", [setting])
        return
    path = place / _name(target)
    path.write_bytes(_changed(target, chance))
    read: dict[str, Callable[[], Any]] = {
        "recipe": lambda: load_recipe(path),
        "data": lambda: load_articles(str(path)),
        "reader": lambda: read_config(place),
        "table": lambda: read_examples(str(path), DataRecipe(text=("text",), label="label")),
        "tagged": lambda: load_conll(path),
    }
    with refusing(tally, "input", target, f"seed {seed}"):
        read[target]()


def _name(target: str) -> str:
    names = {"recipe": "recipe.toml", "data": "data.json", "reader": "config.json", "table": "table.tsv"}
    return names.get(target, "tagged.conll")


def _setting(chance: random.Random) -> str:
    key = chance.choice([chance.choice([*keys(Recipe)]), "heads.0.size", "heads.9", "variants.0.name", "a", ""])
    return f"{key}{chance.choice(['=', '=', '=', '', '.x=', '=='])}{chance.choice(VALUES)}"


def _changed(target: str, chance: random.Random) -> bytes:
    """A sound file, changed in its bytes or in its values."""
    content = originals()[target]
    if chance.random() < 0.4:
        return broken(content, chance.choice(WAYS), chance)
    if target in ("data", "reader"):
        table = json.loads(content)
        change(table, chance, remove_key=chance.random() < 0.3)
        return json.dumps(table).encode()
    lines = content.decode().split("\n")
    place = chance.randrange(len(lines))
    key = re.match(r"[\w.\"]+ = ", lines[place])
    lines[place] = (key[0] if key else lines[place][: chance.randrange(9)]) + chance.choice(VALUES)
    if chance.random() < 0.3:
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return "\n".join(lines).encode(errors="surrogatepass")


def _arguments(tally: Tally, place: Path, seed: int, chance: random.Random) -> None:
    """Words on the command line, of verbs that compute nothing for long."""
    words = [chance.choice(VERBS), *chance.choices([*OPTIONS, *VALUES, encoder()], k=chance.randint(0, 3))]
    done = command(*words)
    outcome = "accepted" if not done.code else "refused" if done.is_refusal else "traceback"
    tally.add("input", "arguments", "traceback" if done.error else outcome, f"seed {seed}: {words!r:.300} {done.error}")


def _windows(tally: Tally, place: Path, seed: int, chance: random.Random) -> None:
    """Data, cut into windows."""
    path = place / "data.json"
    path.write_bytes(_changed("data", chance))
    with refusing(tally, "input", "data, cut", f"seed {seed}"):
        Spans().from_articles(str(path), load_articles(str(path)), tokenizer_of(encoder()), DataRecipe(**LENGTHS))


def _whole_reader(tally: Tally, place: Path, seed: int, chance: random.Random) -> None:
    """A reader's directory with a changed configuration, loaded and asked."""
    path = place / "changed-reader"
    shutil.copytree(sound_reader(place), path, dirs_exist_ok=True)
    table = json.loads(originals()["reader"])
    where = change(table, chance, remove_key=chance.random() < 0.3)
    write_json(path / "config.json", table)
    with refusing(tally, "input", "reader, asked", f"seed {seed}: {where}"):
        Reader.from_pretrained(path)(question="who was the king", context="the old king was born")
