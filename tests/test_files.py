"""Files are written whole or not at all, and what is read is either right or refused in one line."""

import os
import stat
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from bertvision.errors import UserError
from bertvision.files import claim, load_tensors, read_json, remove, replacing, save_tensors, write_json, write_text


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "deep" / "er" / "a.txt"
    write_text(path, "old")
    write_text(path, "näw\n")
    assert path.read_bytes() == "näw\n".encode() and names(path.parent) == ["a.txt"]
    for wrong in (path / "b.json", path.parent, path.with_name("x" * 300)):
        for write in (write_json, partial(save_tensors, about={})):
            with pytest.raises(UserError, match=r"cannot be written .*; choose another place"):
                write(wrong, {})
    with pytest.raises(UserError, match=r"cannot be written .*; choose another place"):
        claim(path / "run")


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_alone(error, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as scratch:
        scratch.write_text("half of the new o")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_get_the_mode_that_the_umask_asks_for(mask, tmp_path):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "x")
        save_tensors(tmp_path / "b.safetensors", {"x": torch.zeros(2)}, {})
    finally:
        os.umask(before)
    for name in ("a.txt", "b.safetensors"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_says_so(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(UserError, match=r"a\.txt: the disk is full; make room"), replacing(path) as scratch:
        scratch.unlink()
        scratch.symlink_to("/dev/full")
        scratch.write_text("x" * 100_000)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_write_error_of_safetensors_is_one_of_the_disk(tmp_path):
    """The library hides the errno in its text; a file over the process's limit is refused by the kernel."""
    code = """
    import resource, sys, torch
    from pathlib import Path
    from bertvision.errors import UserError
    from bertvision.files import save_tensors
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        save_tensors(Path(sys.argv[1]), {"x": torch.zeros(10_000)}, {})
    except UserError as error:
        print(error)
    """
    path = tmp_path / "a.safetensors"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True)
    assert "a.safetensors: no room for it (File too large); make room" in done.stdout, done.stderr
    assert names(tmp_path) == []


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    code = """
    import sys, torch
    from pathlib import Path
    from bertvision.files import save_tensors
    number = 0
    while True:
        save_tensors(Path(sys.argv[1]), {"x": torch.full((300_000,), float(number))}, {"number": number})
        if not number:
            print("begun", flush=True)
        number += 1
    """
    path = tmp_path / "a.safetensors"
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(0.3)
        finally:
            process.kill()
    tensors, about = load_tensors(path)
    assert about["number"] > 0
    assert bool((tensors["x"] == about["number"]).all())
    claim(tmp_path)  # whoever goes on with it finds nothing of what was under way
    assert names(tmp_path) == ["a.safetensors"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="reads the names of open files")
def test_what_must_outlast_a_power_loss_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    """The content is synced before the rename, the folder after it."""
    synced, path = [], tmp_path / "a"
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    for write in (partial(save_tensors, tensors={}, about={}), partial(write_json, value=[], durable=True)):
        write(path)
        (content, before), (folder, after) = synced
        assert content.name == "a" and content.parent.parent == folder == tmp_path
        assert not before and after
        path.unlink()
        synced.clear()
    write_json(path, [])
    assert not synced  # what can be made again is not waited for


def test_tensors_and_notes_come_back(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "transposed": torch.arange(6.0).view(2, 3).T,
        "half": torch.randn(3).half(),
        "step": torch.tensor(7),
        "none": torch.zeros(0, 4),
        "learned": torch.nn.Parameter(torch.ones(2)),
        "flags": torch.tensor([True, False]),
    }
    about = {"name": "Größe \n", "numbers": [1, 2.5], "nested": {"a": None}}
    save_tensors(path, tensors, about)
    found, notes = load_tensors(path)
    assert notes == about
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert torch.equal(found[key], tensor)
        assert found[key].dtype == tensor.dtype
        assert not found[key].requires_grad


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"ü": [1, 2.5, None, True, "\n"], "b": {}}, '{\n "ü": [1, 2.5, null, true, "\\n"],\n "b": {}\n}\n'),
        ([{"a": 1}, [2]], '[\n {"a": 1},\n [2]\n]\n'),
        ({}, "{}\n"),
        ([], "[]\n"),
        ("x", '"x"\n'),
    ],
)
def test_json_comes_back(value, text, tmp_path):
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert (tmp_path / "a.json").read_text(encoding="utf-8").rstrip(" \t\n") == text.rstrip()


CLAIM = """
import sys
from pathlib import Path
from bertvision.errors import UserError
from bertvision.files import claim
try:
    claim(Path(sys.argv[1]))
    print("claimed", flush=True)
    sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def claiming(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLAIM, str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_directory_belongs_to_one_process_until_it_ends(tmp_path):
    place = tmp_path / "new" / "run"
    with claiming(place) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == "claimed\n"
            with pytest.raises(UserError, match="another process is at work here"):
                claim(place)
        finally:
            first.kill()
    claim(place)
    claim(place)  # one's own is one's own
    with claiming(place) as second:
        assert second.communicate("\n")[0].startswith(f"{place}: another process is at work here")


def test_claiming_removes_only_what_this_program_left_unfinished(tmp_path):
    kept = [".tmpabc123", ".film.part", ".a.json.1-1", "a.json.12-0123abcd", "seed-1/scores.json", ".hidden/.b.json"]
    for name in [*kept, "seed-1/.scores.json.12-0123abcd/scores.json", "seed-1/.checkpoint-0.3.part/head.safetensors"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    claim(tmp_path)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == sorted(kept)
    assert names(tmp_path / "seed-1") == ["scores.json"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files")
def test_what_is_removed_is_claimed_no_more(tmp_path):
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(3):
        claim(tmp_path / "run" / "states")
        claim(tmp_path / "running")
        assert count() == before + 2
        remove(tmp_path / "run")
        assert count() == before + 1 and not (tmp_path / "run").exists()
        remove(tmp_path / "running")
        remove(tmp_path / "running")  # nothing there is fine
    assert count() == before


def refused(read, path: Path, what: str) -> str:
    with pytest.raises(UserError) as caught:
        read(path, what)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("read", [read_json, load_tensors])
def test_what_is_not_there_or_no_file_is_refused(read, tmp_path):
    (tmp_path / "file").write_text("x")
    assert refused(read, tmp_path / "none", "snapshot").endswith("no such snapshot")
    assert refused(read, tmp_path, "snapshot").endswith("is a directory, not a snapshot")
    assert refused(read, tmp_path / "file" / "x", "snapshot")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a"
    for content in (b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b"1" * 5000):
        path.write_bytes(content)
        assert "damaged, or not a scores file" in refused(read_json, path, "scores file")
    save_tensors(path, {"x": torch.zeros(100)}, {"a": 1})
    whole = path.read_bytes()
    for content in (b"", whole[:4], whole[:40], whole[:-1], b"PK\x03\x04" + whole, b"\xff" * 100):
        path.write_bytes(content)
        assert "damaged, or not a bank of heads" in refused(load_tensors, path, "bank of heads")
    for notes in (None, {"format": "pt"}, {"about": "not json"}):  # written by another program
        save_file({"x": torch.zeros(3)}, path, metadata=notes)
        assert "damaged, or not a head" in refused(load_tensors, path, "head")


def flipped(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]


def test_a_flipped_bit_anywhere_in_a_file_is_found(tmp_path):
    """Every byte of a file is covered: header, notes, tensors, text, and the digest itself."""
    tensors, about = {"x": torch.arange(20.0), "y": torch.tensor([True])}, {"step": 3, "name": "ü"}
    value = {"a": [1, 2.5], "ü": {"b": "text"}}
    save_tensors(tmp_path / "a.safetensors", tensors, about)
    write_json(tmp_path / "a.json", value)
    for path, read in ((tmp_path / "a.safetensors", load_tensors), (tmp_path / "a.json", read_json)):
        whole = path.read_bytes()
        silent = []
        for place in range(len(whole)):
            path.write_bytes(flipped(whole, place))
            try:
                found = read(path)
            except UserError:
                continue
            same = found == value if read is read_json else (torch.equal(found[0]["x"], tensors["x"]), found[1])
            silent += [] if same in (True, (True, about)) else [place]
        assert not silent


def test_the_digest_says_what_to_do_and_older_files_have_none(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, [1, 2])
    path.write_text(path.read_text().replace("2", "3"))
    way_out = "remove the blank line at its end if you changed it yourself"
    assert way_out in refused(read_json, path, "scores file")
    for text in ("[1, 3]\n", "[1, 3]\n\n", "[1,\n3]\n  \t\n", path.read_text().replace("\n", "\r\n").rstrip()):
        path.write_text(text)  # written by hand, or by version 0.1
        assert read_json(path) == [1, 3]
    save_file({"x": torch.zeros(3)}, path, metadata={"about": "{}"})
    assert load_tensors(path)[1] == {}
    save_tensors(path, {"x": torch.tensor([1.0, 2.0, torch.nan])}, {})
    assert load_tensors(path)[0]["x"][1] == 2
    assert "x holds numbers that are not finite" in refused(partial(load_tensors, finite=True), path, "head")
    path.write_bytes(path.read_bytes()[:-1] + b"\x3f")
    assert "its digest does not match" in refused(load_tensors, path, "head")
