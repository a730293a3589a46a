import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.recipe import BankRecipe
from bertvision.states.forecast import Forecast, Seconds, forecast
from bertvision.states.layout import Positions, Selection
from bertvision.states.write import write_store
from states.stores import LENGTHS, tiny_backbone, windows_of

KNOWN = Forecast(
    windows=1000,
    tokens=150_000,
    longest=384,
    epochs=3,
    heads=2,
    dtype="fp16",
    bytes={"fp16": 2_000_000_000, "int8": 1_010_000_000},
    padded_bytes=10_000_000_000,
    epoch=Seconds(encoder=600, heads=60, write=30, check=10, read=20),
    held_bytes=3_000_000_000,
    free_bytes=50_000_000_000,
)


def measured(directory: Path, positions: Positions = "all") -> Forecast:
    """Two heads; those of [CLS] are for labels."""
    backbone, task = tiny_backbone(), "spans" if positions == "all" else "labels"
    shape = {"layers": backbone.layers, "width": backbone.width, "task": task}
    heads = [build_head({"kind": kind}, **shape) for kind in ("pool", "last")]
    return forecast(
        backbone,
        windows_of(LENGTHS),
        heads,
        BankRecipe(epochs=2),
        directory=directory / "not" / "yet",
        selection=Selection(positions=positions),
    )


@pytest.mark.parametrize("positions", ["all", "cls"])
@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_its_sizes_are_those_of_the_store(tmp_path, dtype, positions):
    found = measured(tmp_path, positions)
    store = write_store(tmp_path, tiny_backbone(), windows_of(LENGTHS), Selection(dtype, positions=positions))
    assert found.bytes[dtype] == store.bytes
    assert (found.windows, found.tokens, found.longest) == (len(LENGTHS), sum(LENGTHS), max(LENGTHS))
    longest = max(LENGTHS) if positions == "all" else 1
    assert found.padded_bytes == len(LENGTHS) * longest * 4 * 32 * 4


def test_it_measures_all_parts_and_leaves_nothing_behind(tmp_path):
    backbone = tiny_backbone()
    head = build_head({"kind": "compress", "size": 8}, layers=backbone.layers, width=backbone.width, task="spans")
    before = {key: value.clone() for key, value in head.state_dict().items()}
    random = torch.random.get_rng_state()
    found = forecast(backbone, windows_of(LENGTHS), [head], BankRecipe(epochs=2), directory=tmp_path)
    assert all(0 < seconds < 60 for seconds in asdict(found.epoch).values())
    assert found.held_bytes > 1 << 20 and found.free_bytes > 0
    assert not list(tmp_path.iterdir())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())
    assert all(parameter.grad is None for parameter in head.parameters())


def test_looks_at_a_tuning_set_count_too(tmp_path):
    look = Seconds(encoder=50, evaluate=2, write=3, check=1, read=2)
    found = replace(KNOWN, looks=5, looked_at=100, look=look)
    assert found.live_seconds == KNOWN.live_seconds + 5 * 52
    assert found.stored_seconds == KNOWN.stored_seconds + 50 + 3 + 1 + 5 * 4
    assert replace(KNOWN, epochs=1).choose()[0] == "live" and replace(found, epochs=1).choose()[0] == "stored"
    assert "evaluations: 100 windows, 5 times" in found.lines()
    backbone, trained, tuned = tiny_backbone(), windows_of(LENGTHS), windows_of([40, 2])
    found = forecast(backbone, trained, [], BankRecipe(), directory=tmp_path, looked_at=tuned, looks=3)
    stores = [write_store(tmp_path / str(len(one)), backbone, one) for one in (trained, tuned)]
    assert found.bytes["fp16"] == sum(store.bytes for store in stores)
    assert found.padded_bytes == (len(LENGTHS) * max(LENGTHS) + 2 * 40) * 4 * 32 * 4
    assert found.looks == 3 and 0 < found.look.encoder < found.epoch.encoder
    json.dumps(found.to_json(), allow_nan=False)


def test_it_chooses_the_quicker_way_that_has_room():
    assert KNOWN.live_seconds == 3 * 660
    assert KNOWN.stored_seconds == 600 + 30 + 10 + 3 * 80
    assert KNOWN.choose()[0] == "stored"
    assert replace(KNOWN, epochs=1).choose()[0] == "live"
    choice, why = replace(KNOWN, free_bytes=2_000_000_000).choose()
    assert choice == "live" and "needs 2.0 GB and 2.0 GB are free" in why


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a read-only directory")
def test_where_nothing_can_be_written_states_are_live():
    found = measured(Path("/proc"))
    choice, why = found.choose()
    assert choice == "live" and "cannot be written" in why
    assert found.to_json()["stored_seconds"] is None and "stored impossible" in "\n".join(found.lines())


def test_its_words(tmp_path):
    assert KNOWN.lines() == [
        "windows: 1,000 of 150 tokens, the longest 384; together 150,000",
        "store: 2.0 GB as fp16 (1/5.0), 1.0 GB as int8 (1/9.9); padded fp32 would be 10.0 GB; 50.0 GB are free",
        "one epoch: encoder 10.0 min, heads 1.0 min, reading fp16 20 s",
        "3 epochs of 2 heads: live 33.0 min, stored 14.7 min",
        "memory: peak so far 3.0 GB",
        "choice: stored, for live takes 33.0 min, stored 14.7 min; the store needs 2.0 GB of 50.0 GB that are free",
    ]
    with pytest.raises(UserError, match="nothing to read"):
        forecast(tiny_backbone(), windows_of([]), [], BankRecipe(), directory=tmp_path)


def test_processes_share_heads_and_the_writing_of_a_store_but_no_live_pass():
    epoch = Seconds(encoder=8.0, heads=4.0, evaluate=0.0, write=1.0, check=0.5, read=0.5)
    facts = {"windows": 1, "tokens": 1, "longest": 1, "epochs": 1.0, "heads": 2, "dtype": "fp16"}
    sizes = {"bytes": {"fp16": 1}, "padded_bytes": 1, "held_bytes": 0, "free_bytes": 9}
    one, two = (Forecast(**facts, **sizes, epoch=epoch, processes=count) for count in (1, 2))
    assert (one.live_seconds, one.stored_seconds, one.choose()[0]) == (12.0, 14.0, "live")
    assert (two.live_seconds, two.stored_seconds, two.choose()[0]) == (10.0, 7.5, "stored")
