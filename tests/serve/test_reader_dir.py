"""A reader on disk: it comes back as it was, small if asked, and what is wrong with a directory is said in one line."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from bertvision.backbone.tuning import Tuning
from bertvision.errors import UserError
from bertvision.serve.reader import Reader
from bertvision.serve.reader_dir import PACKAGED, find_reader
from checks import error_of
from encoders import save_tiny
from hubs import Hub
from readers import tiny_reader

PAIRS = [("who was the king", "the first king of the old city was born in the north " * 4), ("where", "by the river")]
TUNINGS = [None, Tuning(), Tuning(train_layers=0, adapters=4), Tuning(train_layers=1)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("readers")
    made = tiny_reader(heads=[{"kind": "pool"}, {"kind": "last"}], tuning=Tuning(train_layers=1))
    made.config = dataclasses.replace(made.config, backbone=str(save_tiny(place / "encoder", "bert")))
    return made.save_pretrained(place / "reader")


@pytest.fixture
def copy(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "reader"))


def refused(place: object, **options: str) -> str:
    return error_of(Reader.from_pretrained, str(place), **options)


@pytest.mark.parametrize("tuning", TUNINGS)
def test_a_round_trip(tuning, tmp_path):
    made = tiny_reader(heads=[{"kind": "compress", "size": 8}, {"kind": "last"}], tuning=tuning)
    place = made.save_pretrained(tmp_path / "reader")
    files = {"config.json", "heads.safetensors", "README.md"} | ({"encoder.safetensors"} if tuning else set())
    assert {path.name for path in place.iterdir()} == files
    back = Reader.from_pretrained(place)
    assert back.answers(PAIRS, top_k=3, layers=True) == made.answers(PAIRS, top_k=3, layers=True)
    assert (back.config, back.card, back.name) == (made.config, made.card, "reader")
    again = Reader.from_pretrained(back.save_pretrained(tmp_path / "again"))
    assert again.answers(PAIRS) == made.answers(PAIRS)


def test_what_a_killed_process_left_is_removed(saved, tmp_path):
    (tmp_path / ".heads.safetensors.12-0123abcd").mkdir()
    (tmp_path / ".heads.safetensors.12-0123abcd" / "heads.safetensors").write_text("half")
    Reader.from_pretrained(saved).save_pretrained(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_half_the_size_and_almost_the_same(saved, tmp_path):
    made = Reader.from_pretrained(saved)
    small = made.save_pretrained(tmp_path / "small", storage="fp16")
    for name in ("heads.safetensors", "encoder.safetensors"):
        with safe_open(small / name, framework="pt") as file:
            assert {str(file.get_tensor(key).dtype) for key in file.keys()} == {"torch.float16"}  # noqa: SIM118
    for one, other in zip(made.answers(PAIRS), Reader.from_pretrained(small).answers(PAIRS)):
        assert one[0]["score"] == pytest.approx(other[0]["score"], abs=0.01)
    with pytest.raises(UserError, match="neither fp32 nor fp16"):
        made.save_pretrained(tmp_path / "x", storage="int4")  # type: ignore[arg-type]
    tiny_reader().save_pretrained(small)  # nothing of the earlier reader stays
    assert not (small / "encoder.safetensors").exists() and Reader.from_pretrained(small).config.tuning == {}


def test_joined_readers_come_back(tmp_path):
    parts = {"spans": tiny_reader(), "mood": tiny_reader("labels"), "tone": tiny_reader("labels", seed=1)}
    parts["mood"].card = "---\nlicense: apache-2.0\n---\n\n# Moods\n\n## Licence\n\nApache\n"
    parts["tone"].card = "---\nlicense: mit\n---\n\n# Tones\n"
    joined = Reader.join(parts)
    front = "---\nlibrary_name: bertvision\nlicense: other\nlicense_name: apache-2.0 and mit\n---\n"
    assert joined.card.startswith(front)
    assert "# mood\n\n## Moods\n\n### Licence\n\nApache\n\n# tone\n\n## Tones\n" in joined.card
    place = joined.save_pretrained(tmp_path / "reader")
    back = Reader.from_pretrained(place)
    assert back.tasks == ("spans", "mood", "tone")
    for name in ("mood", "tone"):
        assert back.classify("the king", task=name) == parts[name].classify("the king")
    with pytest.raises(UserError, match="name one of mood, tone"):
        back.classify("the king")


def test_the_encoder_may_have_moved(copy, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    moved = shutil.copytree(config["backbone"]["name"], tmp_path / "moved")
    config["backbone"]["name"] = str(tmp_path / "gone")
    (copy / "config.json").write_text(json.dumps(config))
    message = refused(copy)
    assert message.startswith(f"{copy}: its backbone is missing: {tmp_path / 'gone'}: no such directory")
    assert "--backbone PATH" in message
    found = Reader.from_pretrained(copy, backbone=str(moved))
    assert found.answers(PAIRS)
    assert Reader.from_pretrained(found.save_pretrained(tmp_path / "again")).config.backbone == str(moved)


def test_another_encoder_is_refused(copy, tmp_path):
    other = save_tiny(tmp_path / "other", "bert", seed=1)
    message = refused(copy, backbone=str(other))
    assert "has other weights (fingerprint " in message and "get that one (" in message
    config = json.loads((copy / "config.json").read_text())
    config["backbone"]["fingerprint"] = "0" * 64
    (copy / "config.json").write_text(json.dumps(config))
    assert "the one this reader was made with (000000000000…)" in refused(copy)


@pytest.mark.parametrize("name", ["heads.safetensors", "encoder.safetensors"])
def test_files_that_are_missing_cut_short_or_of_another_reader(name, copy, tmp_path):
    whole = (copy / name).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"hello", whole[:4]):
        (copy / name).write_bytes(content)
        assert str(copy / name) in refused(copy)
    (copy / name).unlink()
    assert f"{copy / name}: no such" in refused(copy)
    (copy / name).write_bytes(whole)
    other = tiny_reader(heads=[{"kind": "compress", "size": 4}]).save_pretrained(tmp_path / "other")
    shutil.copyfile(other / "heads.safetensors", copy / "heads.safetensors")
    assert f"{copy / 'heads.safetensors'}: damaged, or not a file of heads" in refused(copy)


@pytest.mark.parametrize(
    ("place", "change", "part"),
    [
        ("", {"format": 9, "version": "9.0"}, "format 9 (made by bertvision 9.0), this version reads 5; upgrade"),
        ("", {"format": "x"}, "upgrade"),
        ("", {"tasks": None}, "not the configuration of a reader"),
        ("", {"tasks": {}}, "tasks: there is none"),
        ("", {"backbone": None}, "backbone: must be a table"),
        ("", {"colour": "red"}, "colour: unknown key; there is: backbone"),
        ("", {"format": 1, "tasks": {"juggling": {"ensemble": {"members": ["a"]}}}}, "tasks.juggling.task: must be"),
        ("backbone", {"nane": "x"}, "backbone.nane: unknown key; did you mean 'name'?"),
        ("tuning", {"adapters": 64}, "tuning: is not the plan that encoder.safetensors was tuned by"),
        ("tuning", {"colour": "red"}, "tuning: is not the plan"),
        ("tasks", {"spans": None}, "tasks.spans: must be a table"),
        ("tasks", {"spans": {}}, "tasks.spans.task: missing"),
        ("tasks.spans", {"treshold": 1}, "tasks.spans.treshold: unknown key; did you mean 'threshold'?"),
        ("tasks.spans", {"threshold": float("nan")}, "tasks.spans.threshold: must be"),
        ("tasks.spans", {"threshold": "3"}, "tasks.spans.threshold: must be a number"),
        ("tasks.spans", {"scale": [0.0]}, "tasks.spans.scale"),
        ("tasks.spans.ensemble", {"how": "median"}, "tasks.spans.ensemble.how: must be 'max', 'mean' or 'product'"),
        ("tasks.spans.ensemble", {"members": ["who"]}, "tasks.spans.ensemble.members.0: must be a table"),
        ("tasks.spans.decoding", {"rule": "dice"}, "tasks.spans.decoding.rule: must be 'joint' or 'independent'"),
        ("tasks.spans.decoding", {"nbest": 0}, "tasks.spans.decoding.nbest: must be at least 1"),
        ("tasks.spans.decoding", {"answer_tokens": -1}, "tasks.spans.decoding.answer_tokens: must be at least 1"),
        ("tasks.spans.windows", {"overlap": 48}, "tasks.spans.windows: 48 tokens of which 48 overlap leave no room"),
        ("tasks.spans.windows", {"max_length": 9999}, "tasks.spans.windows.max_length: 9999 tokens are more"),
        ("tasks.spans.windows", {"too_long": "x"}, "tasks.spans.windows.too_long: must be 'windows' or 'trim'"),
    ],
)
def test_a_configuration_that_is_wrong(place, change, part, copy):
    config = table = json.loads((copy / "config.json").read_text())
    for key in filter(None, place.split(".")):
        table = table[key]
    table.update(change)
    (copy / "config.json").write_text(json.dumps(config))
    message = refused(copy)
    assert message.startswith(f"{copy / 'config.json'}: ")
    assert part in message


def test_formats_1_and_2_still_load_and_answer_the_same(copy):
    expected = Reader.from_pretrained(copy).answers(PAIRS, top_k=3)
    config = json.loads((copy / "config.json").read_text())
    task = config["tasks"]["spans"]
    del task["calibration"]
    (copy / "config.json").write_text(json.dumps(config | {"format": 2}))
    found = Reader.from_pretrained(copy)
    assert found.answers(PAIRS, top_k=3) == expected
    with pytest.raises(UserError, match="answerable: this reader does not know how probable its answers are; build it"):
        found.answers(PAIRS, answerable=0.9)
    names = [member["head"] for member in task["ensemble"]["members"]]
    task["ensemble"] = {"how": "max", "members": names, "weights": [0.5, 0.5]}
    (copy / "config.json").write_text(json.dumps(config | {"format": 1, "tasks": {"spans": task | {"heads": names}}}))
    assert Reader.from_pretrained(copy).answers(PAIRS, top_k=3) == expected


@pytest.mark.parametrize("content", ["", "hello", "3", "[1]", "{}", '{"model_type": "bert"}'])
def test_a_configuration_of_something_else(content, copy):
    (copy / "config.json").write_text(content)
    assert refused(copy).startswith(str(copy / "config.json"))


def test_no_reader_there(tmp_path, saved):
    assert "engine: there is none called 'steam'" in refused(saved, engine="steam")
    assert "not a reader (no config.json)" in refused(tmp_path)
    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path / "file")
    assert "no such reader" in refused(tmp_path / "none")
    assert "no such reader" in refused("none")


def test_a_folder_that_is_only_called_like_a_packaged_reader_is_not_meant(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pocket").mkdir()
    assert find_reader("pocket") == PACKAGED / "pocket"
    assert find_reader("./pocket") == Path("pocket")
    shutil.copytree(copy, tmp_path / "pocket", dirs_exist_ok=True)
    assert find_reader("pocket") == Path("pocket")


def test_without_a_hub(saved, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    made = Reader.from_pretrained(saved)
    with pytest.raises(UserError, match=r"push_to_hub: its backbone is /.*, which only this machine has"):
        made.push_to_hub("someone/reader")
    made.config = dataclasses.replace(made.config, backbone="someone/encoder")
    with pytest.raises(UserError) as caught:
        made.push_to_hub("someone/reader")
    assert str(caught.value).startswith("someone/reader: the hub cannot be reached; save the reader to a directory")
    assert refused("someone/reader").startswith("someone/reader: no such reader, neither a directory nor on the hub")


def test_a_reader_of_the_hub_comes_whole_and_alone(saved, copy, tmp_path):
    whole = {*(path.name for path in copy.iterdir()), "model.onnx", "tokenizer.json"}
    for name in ("model.onnx", "tokenizer.json", "optimizer.safetensors", "pytorch_model.bin"):
        (copy / name).write_text(f"stands for {name}")
    hub = Hub("someone/reader", copy)
    script = "from bertvision.serve.reader_dir import find_reader; print(find_reader('someone/reader'))"
    try:
        environment = os.environ | hub.settings(tmp_path / "hub")
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        hub.close()
    fetched = Path(done.stdout.strip())
    assert {path.name for path in fetched.iterdir()} == whole
    assert Reader.from_pretrained(fetched).answers(PAIRS) == Reader.from_pretrained(saved).answers(PAIRS)
