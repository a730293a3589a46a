"""A reader whose heads read the lower layers alone holds, runs, saves and exports no more blocks than these."""

import json
from pathlib import Path

import pytest

from bertvision.backbone.anatomy import blocks
from bertvision.errors import UserError
from bertvision.files import load_whole
from bertvision.serve.build import Wanted, build_reader
from bertvision.serve.export import export
from bertvision.serve.reader import Reader
from bertvision.train.study import Study
from checks import shown
from runs import recipe_of

HEADS = [{"kind": "last", "depth": 2}, {"kind": "compress", "size": 8, "depth": 1}, {"kind": "pool"}]
ASKED = [
    ("who was the king?", "the king was called old name, born in the north city."),
    ("when?", "the year was great"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("depth") / "run"
    Study(recipe_of(heads=HEADS, finetune={"checkpoints": []}), place, quiet=True).run()
    return place


def said(reader: Reader) -> list[dict]:
    return [one[0] for one in reader.answers(ASKED)]


@pytest.mark.parametrize(("name", "depth"), [("last depth=2", 2), ("compress size=8 depth=1", 1)])
def test_a_reader_at_a_depth_answers_as_it_was_scored(name, depth, run, tmp_path):
    place = build_reader(run, tmp_path / "reader", Wanted(members=[name]))
    reader = Reader.from_pretrained(place)
    assert len(blocks(reader.engine.backbone.model)) == depth
    kept = load_whole(place / "encoder.safetensors")[0]
    assert any("layer.0." in key for key in kept) and not any(f"layer.{depth}." in key for key in kept)
    again = Reader.from_pretrained(reader.save_pretrained(tmp_path / "again"))
    assert said(again) == said(reader)
    small = build_reader(run, tmp_path / "small", Wanted(members=[name]), compress="rank=16,fp32")
    assert [one["answer"] for one in said(Reader.from_pretrained(small))] == [one["answer"] for one in said(reader)]
    whole = build_reader(run, tmp_path / "whole", Wanted(members=["pool"]))
    assert len(blocks(Reader.from_pretrained(whole).engine.backbone.model)) == 3


def test_an_exported_reader_has_the_lower_blocks_alone(run, tmp_path):
    sizes = []
    for name in ("last depth=2", "pool"):
        place = build_reader(run, tmp_path / name, Wanted(members=[name]))
        reader = Reader.from_pretrained(place)
        graph = export(reader, tmp_path / f"{name}-onnx")
        sizes.append(graph.stat().st_size)
        exported = Reader.from_pretrained(graph.parent)
        for ours, theirs in zip(said(exported), said(reader)):
            assert ours["answer"] == theirs["answer"] and ours["score"] == pytest.approx(theirs["score"], abs=1e-4)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("how", [{"lower": "live"}, {"lower": "stored", "norms": "trained", "train_layers": 1}])
def test_tuning_stops_at_the_depth_of_its_head(how, tmp_path):
    own = {"checkpoints": [], "head": {"kind": "last", "depth": 2}}
    recipe = recipe_of(finetune=own | how, heads=[{"kind": "pool", "depth": 2}])
    Study(recipe, tmp_path / "run", quiet=True).run()
    tuned = load_whole(tmp_path / "run" / "seed-1" / "checkpoint-1" / "backbone.safetensors")[0]
    assert any("layer.1." in key for key in tuned) and not any("layer.2." in key for key in tuned)
    place = build_reader(tmp_path / "run", tmp_path / "reader", Wanted(members=["backbone"]))
    assert len(blocks(Reader.from_pretrained(place).engine.backbone.model)) == 2


def test_a_head_above_the_tuned_depth_is_refused():
    with pytest.raises(UserError, match=r"heads: finetune\.head stops at block 2: give every"):
        recipe_of(finetune={"head": {"kind": "last", "depth": 2}}, heads=[{"kind": "pool"}])


def test_a_study_that_starts_from_a_reader_and_tunes_nothing_keeps_its_encoder(run, tmp_path):
    start = build_reader(run, tmp_path / "start", Wanted(members=["pool"]))
    recipe = recipe_of(finetune={"epochs": 0, "checkpoints": [], "start": str(start)}, heads=[{"kind": "pool"}])
    Study(recipe, tmp_path / "run", quiet=True).run()
    place = build_reader(tmp_path / "run", tmp_path / "reader", Wanted(members=["pool"]))
    files = [load_whole(one / "encoder.safetensors")[0] for one in (start, place)]
    assert files[0].keys() == files[1].keys()
    assert all(files[0][key].equal(files[1][key]) for key in files[0])


def test_the_curve_of_score_against_depth(run, tmp_path):
    found = {one["member"]: one for one in json.loads(shown("depth", run, "--json"))}
    assert {name: one["depth"] for name, one in found.items()} == {
        "backbone": 3,
        "pool": 3,
        "last depth=2": 2,
        "compress size=8 depth=1": 1,
    }
    assert "<svg" in (run / "depth.svg").read_text()
    shallow = build_reader(run, tmp_path / "reader", Wanted(depth=2))
    assert len(blocks(Reader.from_pretrained(shallow).engine.backbone.model)) <= 2
