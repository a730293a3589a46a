"""Encoders that cannot be loaded say why in one line, and an encoder of the hub is fetched once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertvision.backbone.backbone import Backbone
from checks import error_of
from encoders import save_tiny
from hubs import Hub


@pytest.fixture
def encoder(tmp_path) -> Path:
    return save_tiny(tmp_path / "encoder", "bert")


def refused(name: object) -> str:
    message = error_of(Backbone.load, str(name))
    assert len(message) < 500
    return message


def test_a_directory_may_be_relative_or_in_the_home(encoder, monkeypatch):
    monkeypatch.chdir(encoder.parent)
    monkeypatch.setenv("HOME", str(encoder.parent))
    assert (
        Backbone.load("encoder").layers == Backbone.load("./encoder").layers == Backbone.load("~/encoder").layers == 4
    )


def test_no_such_directory(tmp_path):
    assert "no such directory; name one with config.json and *.safetensors, or an alias: minilm" in refused("./none")
    assert str(tmp_path / "none") in refused(tmp_path / "none")


def test_files_that_are_missing_or_could_run_code(encoder):
    torch.save({"x": torch.zeros(2)}, encoder / "pytorch_model.bin")
    (encoder / "model.safetensors").rename(encoder / "adapter.safetensors")
    assert "model.safetensors" in refused(encoder)
    (encoder / "adapter.safetensors").unlink()
    assert "no *.safetensors" in refused(encoder)
    (encoder / "config.json").unlink()
    assert "no config.json" in refused(encoder)


@pytest.mark.parametrize("content", ["", "hello", "3", "null", "[1]", "{}", '{"model_type": "zzz"}', "\ud800"])
def test_a_configuration_that_is_nonsense(content, encoder):
    (encoder / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    assert refused(encoder).startswith(f"{encoder}: cannot be loaded: ")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"hidden_size": "x"}, "hidden_size"),
        ({"hidden_size": -4}, "-4"),
        ({"num_attention_heads": 5}, "attention heads"),
        ({"hidden_act": "nope"}, "KeyError 'nope'"),
        ({"hidden_size": 64}, "has not the shape that config.json says"),
        ({"num_hidden_layers": 5}, "32 weights that config.json asks for are missing, first encoder.layer.3.attention"),
        ({"model_type": "distilbert"}, "weights that config.json asks for are missing"),
    ],
)
def test_a_configuration_that_does_not_fit(change, part, encoder):
    path = encoder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert part in refused(encoder)


def test_fewer_layers_than_the_file_holds_is_a_choice(encoder):
    path = encoder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 2}))
    assert Backbone.load(str(encoder)).layers == 3


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_a_truncated_weight_file(keep, encoder):
    path = encoder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "its weight file is damaged or incomplete" in refused(encoder)


def test_a_missing_weight_is_never_random(encoder):
    path = encoder / "model.safetensors"
    weights = load_file(path)
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, path)
    message = refused(encoder)
    assert "1 weights that config.json asks for are missing, first encoder.layer.1.output.dense.weight" in message


def test_weights_saved_with_a_head_or_in_half_precision(encoder):
    """Checkpoints of whole models put the encoder's name before its weights, and have no pooler."""
    plain = Backbone.load(str(encoder)).model.state_dict()
    saved = {f"bert.{key}": value.half() for key, value in plain.items() if "pooler" not in key}
    save_file(saved, encoder / "model.safetensors")
    found = Backbone.load(str(encoder)).model.state_dict()
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert all(torch.equal(found[key], plain[key].half().float()) for key in plain if "pooler" not in key)


def test_tokenizers_that_do_not_belong_to_the_encoder(encoder, tmp_path):
    for vocabulary in (100, 1000):
        other = save_tiny(tmp_path / str(vocabulary), "bert", vocab_size=vocabulary)
        assert f"knows 156 tokens and its encoder {vocabulary}" in refused(other)
    for content in ("", "{}", "[]", '{"model": 3}'):
        (encoder / "tokenizer.json").write_text(content)
        assert refused(encoder).startswith(f"{encoder}: ")
    for path in [*encoder.glob("*token*"), *encoder.glob("vocab*")]:
        path.unlink()
    assert "tokenizer.json is missing or belongs to another encoder" in refused(encoder)  # never made up


def test_padding_and_truncation_of_the_file_are_switched_off(encoder):
    from tokenizers import Tokenizer

    path = str(encoder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    tokenizer.save(path)
    loaded = Backbone.load(str(encoder)).tokenizer
    assert loaded.padding is None
    assert loaded.truncation is None
    assert len(loaded.encode("the city " * 200).ids) == 402


def test_an_encoder_with_a_decoder_is_none(tmp_path):
    from transformers import AutoConfig, AutoModel

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 50}
    AutoModel.from_config(AutoConfig.for_model("bart", **sizes, **heads)).save_pretrained(tmp_path)
    assert "a 'bart' model is not an encoder" in refused(tmp_path)


# Asked twice in one process: with a hub, and once more when the line on stdin says that it is gone.
ASK = """
import sys
from bertvision import Backbone
from bertvision.errors import UserError
for _ in range(2):
    for name in ("someone/encoder", "someone/else"):
        try:
            print(Backbone.load(name).fingerprint, flush=True)
        except UserError as error:
            print(error, flush=True)
    sys.stdin.readline()
"""


def test_an_encoder_of_the_hub_is_fetched_once(encoder, tmp_path):
    (encoder / "pytorch_model.bin").write_bytes(b"never fetched")
    hub = Hub("someone/encoder", encoder)
    settings = hub.settings(tmp_path / "hub")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, "-c", ASK], env=os.environ | settings, **pipes) as process:
        try:
            found, unknown = process.stdout.readline(), process.stdout.readline()
        finally:
            hub.close()
        found_again, still_unknown, *_ = process.communicate("\n\n")[0].splitlines()
    assert found.strip() == found_again == Backbone.load(str(encoder)).fingerprint
    assert not list((tmp_path / "hub").rglob("*.bin"))
    assert unknown.startswith("someone/else: neither a directory nor in the hub (")
    assert still_unknown == (
        "someone/else: neither a directory nor in the hub's cache, and the hub cannot be reached; "
        "name a local directory, or an alias: minilm, marco"
    )
