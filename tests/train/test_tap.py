"""`bertvision tap`: a forecast, then a store of a checkpoint's states, whatever happens to the process or the disk."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import collate
from bertvision.recipe import load_recipe
from bertvision.states.store import Store
from bertvision.tasks import Spans
from bertvision.train.finetune import Checkpoint
from bertvision.train.run_dir import RunDir
from runs import Command, Done, bertvision, questions, tiny_recipe
from states.stores import contents

HEADS = [{"kind": "pool"}, {"kind": "last"}]


def recipe_in(directory: Path, **tables: object) -> Path:
    return tiny_recipe(directory / "study.toml", heads=HEADS, **tables)


def tap(directory: Path, *options: object) -> Done:
    return bertvision("tap", directory / "study.toml", "--out", directory / "run", *options, cwd=directory)


def complaint(done: Done) -> str:
    assert done.code == 2 and done.err.startswith("bertvision: ") and done.err.count("\n") == 1, done
    return done.err


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """A directory with a recipe and the checkpoints it leaves; tests copy it."""
    directory = tmp_path_factory.mktemp("tuned")
    done = bertvision("finetune", recipe_in(directory), "--out", directory / "run", cwd=directory)
    assert done.code == 0, done.err
    return directory


def test_a_forecast_writes_nothing(tmp_path):
    recipe_in(tmp_path)
    told = tap(tmp_path, "--forecast")
    assert told.code == 0 and told.err == ""
    words = [line.split(":")[0] for line in told.out.splitlines()]
    assert words == ["windows", "store", "one epoch", "1 epochs of 2 heads", "memory", "choice"]
    forecast = json.loads(tap(tmp_path, "--forecast", "--json", "--layers", "last", "--dtype", "int8").out)
    assert (
        forecast["windows"] == 48 and forecast["heads"] == 1 and forecast["dtype"] == "int8"
    )  # `pool` reads all layers
    assert (
        forecast["choice"] in ("live", "stored")
        and forecast["why"]
        and forecast["bytes"]["int8"] < forecast["padded_bytes"]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.toml"]


def test_states_of_the_encoder_as_it_came(tmp_path):
    recipe = load_recipe(recipe_in(tmp_path))
    done = tap(tmp_path, "--split", "tune", "--positions", "cls", "--dtype", "fp32")
    assert done.code == 0 and "windows: 24 of" in done.out and "the encoder as it came" in done.out
    directory = tmp_path / "run" / "states" / "untuned-tune-all-cls-fp32"
    backbone = Backbone.load(recipe.backbone.name)
    windows = Spans().load(recipe.data, backbone.tokenizer, seed=0)["tune"].windows
    store = Store.open(directory, backbone, windows)
    index = np.arange(len(windows))
    with torch.no_grad():
        wanted = backbone(collate(windows, index, backbone.pad)).layers[:, :, :1]
    torch.testing.assert_close(store.states(index).layers, wanted, rtol=0, atol=1e-5)


def test_states_of_chosen_layers(tmp_path):
    recipe_in(tmp_path)
    facts = {
        layers: json.loads(tap(tmp_path, "--json", "--layers", layers).out) for layers in ("3,1", "all", "0,1,2,3")
    }
    assert Path(facts["3,1"]["store"]).name == "untuned-train-1,3-all-fp16" and facts["3,1"]["layers"] == 2
    assert facts["3,1"]["bytes"] < 0.51 * facts["all"]["bytes"]
    assert facts["0,1,2,3"]["store"] == facts["all"]["store"]
    assert json.loads(tap(tmp_path, "--json", "--layers", "1,3", "--forecast").out)["heads"] == 1  # `last` alone


@pytest.mark.device
def test_states_of_a_checkpoint(tuned, tmp_path):
    copy = Path(shutil.copytree(tuned, tmp_path / "copy"))
    last, first = json.loads(tap(copy, "--json").out), json.loads(tap(copy, "--json", "--checkpoint", "0.5").out)
    assert [last["states"], first["states"]] == ["epoch 1, seed 1", "epoch 0.5, seed 1"]
    assert last["windows"] == 48 and last["layers"] == 4 and last["bytes"] < last["padded_fp32_bytes"] / 2
    recipe = load_recipe(copy / "study.toml")
    checkpoint = Checkpoint(RunDir(copy / "run").checkpoint(1, 0.5))
    backbone, _, _ = checkpoint.load(Spans(), recipe.backbone.name)
    windows = Spans().load(recipe.data, backbone.tokenizer, seed=0)["train"].windows
    Store.open(Path(first["store"]), backbone, windows).verify()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--split", "dev"], "--split dev: there is: test, train, tune"),
        (["--layers", "first"], "--layers first: name all, last, or numbers such as 0,3"),
        (["--layers", "0,9"], "layers 0,9: name some of 0 to 3"),
        (["--positions", "CLS"], "--positions CLS: "),
        (["--dtype", "fp61"], "--dtype fp61: did you mean 'fp16'?"),
        (["--checkpoint", "0.5"], "no such checkpoint; `bertvision finetune` makes it"),
        (["--seed", "7"], "--seed 7: the recipe has seeds [1]"),
        (["--set", "data.max_length=600"], "data.max_length: 600 is more than"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(options, says, tmp_path):
    recipe_in(tmp_path)
    assert says in complaint(tap(tmp_path, *options))
    assert not (tmp_path / "run").exists()


def test_training_reads_what_was_tapped(tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    once.mkdir()
    recipe_in(once, bank={"epochs": 2, "states": "stored"}, finetune={"epochs": 0.5, "checkpoints": []})
    assert bertvision("finetune", once / "study.toml", "--out", once / "run", cwd=once).code == 0
    shutil.copytree(once, twice)
    store = Path(json.loads(tap(once, "--json").out)["store"])
    for place, passes in ((once, 0), (twice, 1)):
        (place / "run" / "log.jsonl").unlink()
        assert bertvision("train", place / "study.toml", "--out", place / "run", cwd=place).code == 0
        log = (place / "run" / "log.jsonl").read_text()
        assert log.count('"event": "storing states of train"') == passes
        assert (f"states of train: read from {store.name}" in log) == (not passes)
    heads = [load_file(place / "run" / "seed-1" / "heads-0.5.safetensors") for place in (once, twice)]
    assert all(torch.equal(value, heads[1][key]) for key, value in heads[0].items())
    assert sorted(contents(store)) == ["manifest.json", "shard-00000.bin"]


def test_another_recipe_is_refused(tuned, tmp_path):
    copy = Path(shutil.copytree(tuned, tmp_path / "copy"))
    assert "differs in data.max_length" in complaint(tap(copy, "--set", "data.max_length=48"))


def test_killed_in_the_middle_it_goes_on(tmp_path):
    places = [tmp_path / part for part in ("whole", "killed")]
    for place in places:
        place.mkdir()
        recipe_in(place, data={"train": questions(600)})
    assert tap(places[0]).code == 0
    store = places[1] / "run" / "states" / "untuned-train-all-all-fp16"
    words = ("tap", places[1] / "study.toml", "--out", places[1] / "run")
    command = Command(*words, cwd=places[1], hold="run/states/*/.shard-*")
    assert command.kill_when(lambda: any(store.glob(".shard-*")))
    assert not any(store.glob("shard-*"))
    assert tap(places[1]).code == 0
    assert contents(store) == contents(places[0] / "run" / "states" / store.name)


def test_where_there_is_no_room_it_stops_with_one_line_and_goes_on_later(tmp_path):
    recipe_in(tmp_path)
    done = bertvision("tap", "study.toml", "--out", "run", "--json", cwd=tmp_path, largest=50_000)
    assert done.code == 2 and done.out == ""
    assert done.err.count("\n") == 1 and "shard-00000.bin: no room for it (File too large)" in done.err
    done = tap(tmp_path, "--json")
    assert done.code == 0
    assert not list((tmp_path / "run").rglob(".*"))
    assert sorted(contents(Path(json.loads(done.out)["store"]))) == ["manifest.json", "shard-00000.bin"]


def test_damage_is_mended_by_the_same_command(tmp_path):
    recipe_in(tmp_path)
    store = Path(json.loads(tap(tmp_path, "--json").out)["store"])
    whole, shard = contents(store), store / "shard-00000.bin"
    shard.write_bytes(bytes([whole[shard.name][0] ^ 1]) + whole[shard.name][1:])
    assert tap(tmp_path, "--json").code == 0
    assert contents(store) == whole
    (store / "manifest.json").write_bytes(whole["manifest.json"].replace(b'"fp16"', b'"fp32"'))
    assert "manifest.json: damaged" in complaint(tap(tmp_path))
