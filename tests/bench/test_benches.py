"""Every bench runs and finds the ratios it is there for; how large they are is for a quiet machine to say."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from bertvision.devices import has_bf16
from real import minilm, needs_squad

BENCH = Path(__file__).parents[2] / "bench"
RATIOS = {
    "finetune": ["finetune", *(["finetune_bf16"] if has_bf16() else [])],
    "tap": ["tap"],
    "bank": ["bank", "cheap_bank_over_backbone"],
    "store": ["store_fp16", "store_int8", "stored_epoch"],
    "epochs": ["cls_epochs"],
    "decode": ["decode"],
}


@needs_squad
@pytest.mark.parametrize("name", RATIOS)
def test_a_bench_runs_and_finds_its_ratios(name, bench):
    minilm()
    found = bench(name).measure(1, 1)
    assert [each.name for each in found] == RATIOS[name]
    assert all(math.isfinite(each.ratio) and each.ratio > 0 for each in found)


@needs_squad
def test_both_ways_to_decode_find_the_same_answers(bench):
    backbone, decode = minilm(), bench("decode")
    data = decode.squad(60, backbone, "squad1/train-subset.json")
    logits = decode.likely_logits(data.windows)
    batches = decode.by_length(data.windows.lengths, 2048)
    parts = [torch.from_numpy(logits[index, : data.windows.lengths[index].max()]) for index in batches]
    ours = decode.our_answers(data, batches, parts)
    assert len(ours) == 60
    assert any(ours.values())
    assert ours == decode.plain_answers(data, decode.offsets_of(data.windows), logits)


def test_a_race_is_timed_by_the_clock_it_is_given(bench):
    now = [0.0]

    def takes(length):
        now[0] += length

    race = bench("side_by_side").Race(lambda: takes(2), lambda: takes(5), rounds=3, clock=lambda: now[0])
    assert (race.seconds(0), race.seconds(1), race.ratio()) == (2, 5, 2.5)


def test_without_data_a_bench_says_what_to_do(bench, monkeypatch, tmp_path, capsys):
    side_by_side = bench("side_by_side")
    monkeypatch.setenv("BERTVISION_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tap.py", "--quick"])
    with pytest.raises(SystemExit) as ended:
        side_by_side.main(lambda windows, rounds: side_by_side.squad(windows, None), windows=1)
    assert "set BERTVISION_DATA" in str(ended.value)


def test_what_was_found_becomes_a_table_between_the_marks(bench, monkeypatch, capsys):
    side_by_side, run = bench("side_by_side"), bench("run")
    found = [
        side_by_side.Finding("tap", 0.7, 0.75, "as fast as it gets; 3 windows"),
        side_by_side.Finding("cheap", 1.1, 1.15, "little", at_most=True),
    ]
    monkeypatch.setattr(sys, "argv", ["tap.py", "--json"])
    side_by_side.main(lambda windows, rounds: found, windows=1)
    said = json.loads(capsys.readouterr().out)
    assert said["ratios"] == {"tap": 0.7, "cheap": 1.1}
    rows = dict(map(run.row_of, said["lines"]))
    page = run.with_results("before\n<!-- results -->\nold\n<!-- end of results -->\nafter", run.table(rows))
    assert run.rows_of(page) == rows
    assert page.startswith("before\n") and page.endswith("\nafter") and "old" not in page
    assert "| `tap` | 0.70 | at least 0.75 | MISSED | as fast as it gets; 3 windows;" in page
    assert "| `cheap` | 1.10 | at most 1.15 | reached | little;" in page


def test_a_bench_that_is_not_there_is_named(bench, monkeypatch, capsys):
    run = bench("run")
    monkeypatch.setattr(sys, "argv", ["run.py", "tapp"])
    with pytest.raises(SystemExit):
        run.main()
    assert "no such bench: tapp; there is: finetune, tap" in capsys.readouterr().err


def test_the_page_has_room_for_the_results():
    page = (BENCH / "README.md").read_text(encoding="utf-8")
    assert page.index("<!-- results -->") < page.index("<!-- end of results -->")
    assert all(f"`{name}`" in page for names in RATIOS.values() for name in names)
