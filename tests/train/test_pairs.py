"""Pairs of texts that are encoded apart: heads that compare them, stores, studies, and the readers they leave."""

import json

import httpx
import numpy as np
import pytest
import torch

from bertvision import Reader
from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import collate
from bertvision.data.windows import make_text_windows
from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.serve.build import build_reader
from bertvision.serve.export import export
from bertvision.states.layout import Selection
from bertvision.states.store import Store, live, stored
from bertvision.states.write import write_store
from bertvision.train.run_results import trained_part
from bertvision.train.study import Study
from checks import error_of
from runs import encoder, recipe_of
from serve.servers import serving
from tables import alike, labelled, scored

COMPARE = {"reduce": "compare"}
APART = {"pairs": "apart"}


def study_of(tmp_path, count=120, **tables):
    train, test = alike(tmp_path / "train.csv", count), alike(tmp_path / "test.csv", 60, 1)
    columns = {"text": ["first", "second"], "label": "label"}
    data = {"train": train, "tune": test, "test": test, "max_length": 16, "overlap": 4, **APART, **columns}
    tuning = {"epochs": 0, "checkpoints": [], "head": {"kind": "last", **COMPARE}}
    tables = {"finetune": tuning | tables.pop("finetune", {}), **tables}
    return Study(recipe_of(task="labels", data=data, **tables), tmp_path / "run", quiet=True)


def pairs_of(study):
    return [record.texts for record in study.data["test"].records]


def test_a_head_that_compares_reads_both_texts_and_what_lies_between_them():
    backbone = Backbone.load(encoder())
    windows = make_text_windows(backbone.tokenizer, [("king", "river city"), ("king", "king")], np.zeros(2), apart=True)
    states = backbone(collate(windows, np.arange(2), backbone.pad), "last").detach()
    row = states.compared()
    assert row.layers.shape == (2, 1, 1, 4 * backbone.width + 1) and row.mask.shape == (2, 1)
    u, v, apart, _, cosine = row.layers[:, 0, 0].split([*[backbone.width] * 4, 1], dim=1)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(2))
    torch.testing.assert_close((u - v).abs(), apart)
    assert float(apart[1].max()) == 0 and float(apart[0].max()) > 0
    torch.testing.assert_close(cosine[:, 0] / cosine[1, 0], torch.nn.functional.cosine_similarity(u, v))
    shape = {"layers": backbone.layers, "width": backbone.width, "task": "labels"}
    head = build_head({"kind": "last", **COMPARE}, **shape)
    assert head.positions == "all" and head.parameter_count() == 2 * (4 * backbone.width + 2)
    assert head.logits(states).shape == (2, 2)
    for kind in ({"kind": "cacnn"}, {"kind": "compress", "tokens": "all"}):
        with pytest.raises(UserError, match=r"compare|every token"):
            build_head(kind | COMPARE, **shape)


def test_a_store_keeps_two_tokens_of_a_pair(tmp_path):
    backbone = Backbone.load(encoder())
    texts = [("king of the river", "old city"), ("north", "the great people of the world"), ("year", "king")]
    windows = make_text_windows(backbone.tokenizer, texts, np.zeros(3), apart=True)
    write_store(tmp_path / "store", backbone, windows, Selection("fp32"))
    store = Store.open(tmp_path / "store", backbone, windows)
    batch = collate(windows, np.array([2, 0]), backbone.pad)
    kept, alive = stored(store)(batch), live(backbone)(batch)
    assert kept.layers.shape == alive.layers.shape == (2, backbone.layers, 2, backbone.width)
    torch.testing.assert_close(kept.layers, alive.layers, atol=2e-6, rtol=1e-5)
    together = make_text_windows(backbone.tokenizer, texts, np.zeros(3))
    with pytest.raises(UserError, match="other data, or of windows cut otherwise"):
        Store.open(tmp_path / "store", backbone, together)


def test_solved_heads_learn_what_lies_between_two_texts(tmp_path):
    study = study_of(tmp_path, 400, bank={"solve": True}, heads=[{"kind": "last", **COMPARE}])
    study.run()
    (row,) = [row for row in study.run_dir.rows() if row.ensemble.members[0].head]
    assert row.metrics["accuracy"] > 90


@pytest.mark.device
@pytest.mark.parametrize("bank", [{"states": "stored"}, {"states": "live"}, {"feed": "along"}])
def test_a_study_of_pairs_apart_leaves_a_reader_that_says_the_same(tmp_path, bank):
    heads = [{"kind": "pool", **COMPARE}, {"kind": "compress", "name": "small", "size": 8, **COMPARE}]
    tuning = {"epochs": 0.5, "batch_size": 8, "learning_rate": 1e-3}
    study = study_of(tmp_path, finetune=tuning, bank={"epochs": 2, "batch_size": 8, **bank}, heads=heads)
    study.run()
    score = next(row for row in study.run_dir.rows() if row.ensemble.parts == "small")
    place = build_reader(study.directory, tmp_path / "reader", score)
    config = json.loads((place / "config.json").read_text())
    assert config["format"] == 5 and config["tasks"]["labels"]["windows"]["pairs"] == "apart"
    reader, pairs = Reader.from_pretrained(place), pairs_of(study)
    said = [one["label"] for one in reader.classify(*map(list, zip(*pairs, strict=True)))]
    right = np.mean([label == record.target for label, record in zip(said, study.data["test"].records, strict=True)])
    assert 100 * right == pytest.approx(score.metrics["accuracy"])
    alone = [reader.classify(*pair)["score"] for pair in pairs]
    together = [one["score"] for one in reader.classify(*map(list, zip(*pairs, strict=True)))]
    assert alone == pytest.approx(together, abs=1e-5)
    assert "give two texts" in error_of(lambda: reader.classify("king"))
    assert "apart" in error_of(lambda: export(reader, tmp_path / "onnx"))
    assert "apart" in error_of(lambda: build_reader_with_exits(study, tmp_path / "exits"))


def build_reader_with_exits(study, place):
    from bertvision.serve.build import Wanted

    return build_reader(study.directory, place, Wanted(members="backbone", exits=["small"]))


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    place = tmp_path_factory.mktemp("apart")
    study = study_of(place, heads=[{"kind": "pool", **COMPARE}], bank={"epochs": 1})
    study.run()
    return Reader.from_pretrained(build_reader(study.directory, place / "reader"))


def test_a_server_labels_pairs_apart_and_refuses_single_texts(apart):
    with serving(apart) as url:
        given = {"text": ["king king", "river"], "pair": ["king", "the old city"]}
        reply = httpx.post(f"{url}/classify", json=given)
        single = httpx.post(f"{url}/classify", json={"text": ["king"]})
    assert [one["label"] for one in reply.json()["labels"]] == [
        one["label"] for one in apart.classify(given["text"], given["pair"])
    ]
    assert single.status_code == 422 and "give two texts" in single.text


def test_readers_that_encode_pairs_in_both_ways_cannot_be_joined(apart, tmp_path):
    columns = {"text": ["first", "second"], "label": "label"}
    path = labelled(tmp_path / "other.csv", 60)
    data = {"train": path, "tune": path, "test": path, "max_length": 32, "overlap": 8, **columns}
    other = Study(recipe_of(task="labels", data=data, finetune={"epochs": 0, "checkpoints": []}), tmp_path / "other")
    other.run()
    together = Reader.from_pretrained(build_reader(other.directory, tmp_path / "together"))
    config = json.loads((tmp_path / "together" / "config.json").read_text())
    assert config["format"] == 4 and "pairs" not in config["tasks"]["labels"]["windows"]  # as before there was a choice
    assert "encoded apart" in error_of(lambda: Reader.join({"one": apart, "other": together}))


def test_what_cannot_go_with_pairs_apart_is_refused(tmp_path):
    compare = {"finetune": {"head": {"kind": "last", **COMPARE}}, "heads": [{"kind": "pool", **COMPARE}]}
    columns = {"data": {"text": ["first", "second"], "label": "label", **APART}}
    recipe_of(task="labels", **compare, **columns)
    for tables, message in (
        ({"task": "labels", **columns}, r"finetune\.head: .* go together"),
        ({"task": "labels", **compare}, r"finetune\.head: .* go together"),
        ({"task": "labels", **columns, **compare, "heads": [{"kind": "pool"}]}, r"heads\.0: .* go together"),
        ({"task": "spans", **columns}, r"data\.pairs: is for labels and scores"),
        (
            {
                "task": "labels",
                **columns,
                **compare,
                "finetune": compare["finetune"] | {"lower": "stored", "norms": "trained"},
            },
            r"data\.pairs: .*live",
        ),
    ):
        with pytest.raises(UserError, match=message):
            recipe_of(**tables)
    path = scored(tmp_path / "a.jsonl", 30)
    single = {"train": path, "tune": path, "test": path, "text": ["text"], "label": "y", **APART}
    with pytest.raises(UserError, match=r"data\.pairs: .* has no pairs of texts"):
        Study(recipe_of(task="score", data=single, **compare), tmp_path / "run", quiet=True).run()


def test_a_recipe_that_does_not_name_pairs_trains_what_it_did():
    assert "pairs" not in trained_part(recipe_of(), {})["data"]
