import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import collate
from bertvision.errors import UserError
from bertvision.states.layout import Layout, Selection, encode
from bertvision.states.store import OpenShard, Store, live
from bertvision.states.write import write_shard, write_store
from encoders import save_tiny
from runs import encoder, processes
from states.stores import LENGTHS, SHARD_BYTES, contents, digests, slow_store, tiny_backbone, windows_of

LAYERS, WIDTH = 3, 5  # odd, so that nothing is aligned by chance
DTYPES = ["fp32", "fp16", "int8"]
ragged = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def padded(lengths: list[int], seed: int, spread: float) -> torch.Tensor:
    """Random states (B, L, S, H) with rows of very different sizes, and noise in the padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(lengths), LAYERS, max(lengths), WIDTH
    sizes = 10.0 ** (spread * torch.rand(*shape[:3], 1, generator=generator))
    return torch.randn(shape, generator=generator) * sizes


@pytest.mark.parametrize("dtype", DTYPES)
@given(lengths=ragged, data=st.data(), seed=st.integers(0, 99), spread=st.sampled_from([-30.0, 0.0, 3.0]))
@example(lengths=[1, 1, 1], data=None, seed=0, spread=0.0)
@settings(max_examples=30)
def test_any_windows_in_any_order_come_back(dtype, lengths, data, seed, spread):
    kept = np.array(lengths)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1)) if data else [2, 0, 2]
    states = padded(lengths, seed, spread)
    with TemporaryDirectory() as directory:
        path, layout = Path(directory) / "shard.bin", Layout(kept, LAYERS, WIDTH, dtype)
        half = len(lengths) // 2
        pieces = [(part, encode(states[part], dtype)) for part in (np.arange(half, len(kept)), np.arange(half))]
        shard = OpenShard(path, layout, write_shard(path, layout, pieces))
        assert path.stat().st_size == layout.bytes
        rows = np.arange(len(chosen))
        out = torch.full((len(chosen), LAYERS, max(lengths), WIDTH), torch.nan)
        shard.read(np.array(chosen), kept[chosen], out, rows)
    for row, window in enumerate(chosen):
        found, wanted = out[row, :, : lengths[window]], states[window, :, : lengths[window]]
        assert (out[row, :, lengths[window] :] == 0).all()
        if dtype == "int8":  # the bound: half a step of that token's own scale; and what float division itself loses
            step = wanted.abs().amax(-1, keepdim=True) / 127
            assert ((found - wanted).abs() <= step * 0.5001 + 1e-38).all()
        else:
            assert torch.equal(found, wanted.half().float() if dtype == "fp16" else wanted)


@pytest.mark.parametrize("reads", ["all", "last", (0, 2), (3,)])
@pytest.mark.parametrize("positions", ["all", "cls"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_store_gives_what_the_encoder_gives(tmp_path, dtype, positions, reads):
    backbone, windows = tiny_backbone(), windows_of(LENGTHS)
    write_store(tmp_path, backbone, windows, Selection(dtype, reads, positions), shard_bytes=1000)
    store = Store.open(tmp_path, backbone, windows)
    store.verify()
    assert len(store.shards) > 1
    assert store.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.bin"))
    index = np.random.default_rng(0).permutation(len(windows))[:17]
    found, wanted = store.states(index), live(backbone, reads, positions)(collate(windows, index, backbone.pad))
    assert torch.equal(found.mask, wanted.mask) and found.numbers == wanted.numbers
    real = wanted.mask[:, None, :, None]
    tolerance = {"fp32": 1e-5, "fp16": 4e-3, "int8": 4 / 254 + 1e-5}[dtype]  # states of a LayerNorm: below 4
    torch.testing.assert_close(found.layers, wanted.layers * real, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_less_than_is_kept_can_be_read(tmp_path, dtype):
    backbone, windows = tiny_backbone(), windows_of(LENGTHS)
    store = write_store(tmp_path, backbone, windows, Selection(dtype), shard_bytes=SHARD_BYTES)
    index = np.array([5, 0, 30, 5, 1])
    whole = store.states(index).layers
    assert torch.equal(store.states(index, reads="last").layers, whole[:, -1:])
    assert torch.equal(store.states(index, positions="cls").layers, whole[:, :, :1])
    assert torch.equal(store.states(index, "last", "cls").layers, whole[:, -1:, :1])
    assert torch.equal(store.states(index, (1, 2)).layers, whole[:, 1:3])
    assert torch.equal(store.states(index, (0, 2), "cls").layers, whole[:, [0, 2], :1])
    some = write_store(tmp_path / "some", backbone, windows, Selection(dtype, (0, 2, 3)), shard_bytes=SHARD_BYTES)
    three = some.states(index).layers
    torch.testing.assert_close(three, whole[:, [0, 2, 3]], rtol=0, atol=4 / 127)  # in other company
    assert torch.equal(some.states(index, (0, 3)).layers, three[:, [0, 2]])
    assert torch.equal(some.states(index, "last").layer(3), three[:, 2])
    offered = {reads: some.offers(reads, "all") for reads in ("all", "last", (0,), (0, 2), (1,))}
    assert offered == {"all": False, "last": True, (0,): True, (0, 2): True, (1,): False}
    assert store.states(index[:0]).layers.shape == (0, backbone.layers, 1, backbone.width)
    write_store(tmp_path / "empty", backbone, windows_of([]))
    assert len(Store.open(tmp_path / "empty", backbone, windows_of([]))) == 0


def test_states_too_large_for_fp16_are_refused():
    large = torch.full((1, 1, 1, 2), 1e6)
    with pytest.raises(UserError, match="too large for fp16"):
        encode(large, "fp16")
    assert encode(large, "int8")[0].tolist() == [[[[127, 127]]]]
    with pytest.raises(UserError, match="not finite"):
        encode(large / 0, "int8")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A finished store; tests copy it."""
    directory = tmp_path_factory.mktemp("written")
    write_store(directory, tiny_backbone(), windows_of(LENGTHS), batch_tokens=64, shard_bytes=SHARD_BYTES)
    return directory


def refused(directory: Path) -> str:
    """The one line with which opening the store or reading all of it is refused."""
    with pytest.raises(UserError) as caught:
        store = Store.open(directory, tiny_backbone(), windows_of(LENGTHS))
        store.states(np.arange(len(LENGTHS)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=40)
def test_a_changed_byte_is_found_wherever_it_is(written, place, flip):
    with TemporaryDirectory() as directory:
        copy = Path(shutil.copytree(written, Path(directory) / "store"))
        shard = copy / "shard-00001.bin"
        data = bytearray(shard.read_bytes())
        data[int(place * len(data))] ^= flip
        shard.write_bytes(data)
        assert "shard-00001.bin: damaged" in refused(copy)


@pytest.mark.parametrize("keep", [0, 1, -1])
def test_a_cut_shard_is_refused_and_written_anew(written, tmp_path, keep):
    copy = Path(shutil.copytree(written, tmp_path / "store"))
    shard = copy / "shard-00001.bin"
    shard.write_bytes(shard.read_bytes()[:keep])
    assert "shard-00001.bin: damaged" in refused(copy)
    untouched = (copy / "shard-00000.bin").stat().st_mtime_ns
    write_store(copy, tiny_backbone(), windows_of(LENGTHS), batch_tokens=64, shard_bytes=SHARD_BYTES)
    assert contents(copy) == contents(written)
    assert (copy / "shard-00000.bin").stat().st_mtime_ns == untouched


def test_lost_shards_and_those_of_another_store_are_refused(written, tmp_path):
    copy, other = Path(shutil.copytree(written, tmp_path / "store")), tmp_path / "other"
    (copy / "shard-00001.bin").unlink()
    assert "shard-00001.bin" in refused(copy)
    shutil.copy(copy / "shard-00000.bin", copy / "shard-00001.bin")
    assert "shard-00001.bin: damaged" in refused(copy)
    write_store(other, tiny_backbone(), windows_of(LENGTHS), Selection("int8"), shard_bytes=SHARD_BYTES)
    shutil.copy(other / "manifest.json", copy)
    assert "shard-00000.bin: damaged" in refused(copy)


@pytest.mark.parametrize(
    "change", [('"fp16"', '"fp32"'), ('"width": 32', '"width": 16'), ('"end": ', '"end": 1'), ("{", "["), ("", "\x00")]
)
def test_a_changed_manifest_is_refused(written, tmp_path, change):
    copy = Path(shutil.copytree(written, tmp_path / "store"))
    manifest = copy / "manifest.json"
    text = manifest.read_text()
    assert change[0] in text
    manifest.write_text(text.replace(*change, 1))
    assert "manifest.json: damaged" in refused(copy)


def test_a_store_of_something_else_is_refused(written, tmp_path):
    same = tiny_backbone()
    with pytest.raises(UserError, match="no store of states"):
        Store.open(tmp_path, same, windows_of(LENGTHS))
    tuned = Backbone.load(encoder())
    with torch.no_grad():
        next(tuned.model.parameters())[3, 3] += 1e-3
    others = [
        ("other weights", tuned, windows_of(LENGTHS)),
        ("another tokenizer", Backbone.load(str(save_tiny(tmp_path / "roberta", "roberta"))), windows_of(LENGTHS)),
        ("other data", same, windows_of(LENGTHS, seed=1)),
        ("other data", same, windows_of(LENGTHS[::-1])),
    ]
    before = contents(written)
    for why, backbone, windows in others:
        with pytest.raises(UserError, match=why):
            Store.open(written, backbone, windows)
        with pytest.raises(UserError, match=why):
            write_store(written, backbone, windows)
    with pytest.raises(UserError, match="holds fp16 states"):
        write_store(written, same, windows_of(LENGTHS), Selection("int8"))
    assert contents(written) == before


def test_killed_while_writing_it_goes_on_and_ends_the_same(written, tmp_path):
    process = processes.Process(target=slow_store, args=(str(tmp_path), encoder()))
    process.start()
    patience = time.monotonic() + 60
    while not (tmp_path / "shard-00001.bin").exists() and time.monotonic() < patience:
        time.sleep(0.005)
    time.sleep(0.1)  # in the middle of the next shard
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert "is not complete" in refused(tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.bin")}
    assert 2 <= len(kept) < len(list(written.glob("*.bin")))
    done: list[int] = []
    backbone, windows = tiny_backbone(), windows_of(LENGTHS)
    # with another wish for the size of shards, the store still goes on as it began
    write_store(tmp_path, backbone, windows, batch_tokens=64, shard_bytes=2 * SHARD_BYTES, advance=done.append)
    assert contents(tmp_path) == contents(written)
    first, second = sorted(kept)[:2]
    assert first.stat().st_mtime_ns == kept[first]
    assert second.stat().st_mtime_ns >= kept[second]  # its line in the manifest may have been lost to the kill
    assert sum(done) == sum(LENGTHS)


def test_an_interrupted_pass_leaves_no_litter(tmp_path):
    def stop(tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path, tiny_backbone(), windows_of(LENGTHS), batch_tokens=64, advance=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_full_disk_stops_with_one_line_and_the_store_goes_on(written, tmp_path):
    alone = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--mount", "sh", "-c"]
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=1m tmpfs '{disk}'"
    if shutil.which("unshare") is None or subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("a small disk of its own cannot be mounted here")
    script = f"from states.stores import full_disk; full_disk({str(disk)!r}, {encoder()!r})"
    path = os.pathsep.join(sys.path)
    command = [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    before, during, left, after, found = done.stdout.splitlines()
    assert "the disk is too full" in before
    assert "shard-00002.bin: the disk is full; make room and run the same command again" in during
    assert left == "manifest.json shard-00000.bin shard-00001.bin"
    assert after == "written"
    assert found == digests(written)
