"""An exported reader answers as the one it came from: any batch, any length, adapters, ensembles, several tasks."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertvision.backbone.tuning import Tuning
from bertvision.errors import UserError
from bertvision.serve.reader import Reader
from bertvision.serve.reader_dir import FILES
from readers import tiny_reader

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
from bertvision.serve.export import export
from checks import error_of, shown

TEXT = "the first king of the old city was born in the north by the great river, and his name was called world. "
PAIRS = [("who", "the king"), ("who was the first king", TEXT), ("where was he born", TEXT * 4), ("when", "")]


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reader, Path]:
    """A reader with three tasks, and the directory it was exported to."""
    spans = tiny_reader("spans", [{"kind": "pool"}, {"kind": "compress", "size": 8}], how="mean")
    reader = Reader.join({"spans": spans, "labels": tiny_reader("labels"), "score": tiny_reader("score")})
    out = tmp_path_factory.mktemp("exported")
    assert export(reader, out) == out / "model.onnx"
    return reader, out


def same(ours: list[list[dict[str, Any]]], theirs: list[list[dict[str, Any]]], off: float) -> None:
    """The same spans in the same order, and probabilities that differ by no more than `off`."""
    for candidates, expected in zip(ours, theirs, strict=True):
        places = [(one["start"], one["end"], one["answer"]) for one in candidates]
        assert places == [(one["start"], one["end"], one["answer"]) for one in expected]
        for one, wanted in zip(candidates, expected):
            assert one["score"] == pytest.approx(wanted["score"], abs=off)
            assert one["no_answer_score"] == pytest.approx(wanted["no_answer_score"], abs=off)


def test_spans_labels_and_scores_are_those_of_torch(joined):
    reader, out = joined
    exported = Reader.from_pretrained(out, engine="onnx")
    assert exported.tasks == reader.tasks
    assert {path.name for path in out.iterdir()} <= set(FILES)
    assert exported.tokens(PAIRS) == reader.tokens(PAIRS)
    same(exported.answers(PAIRS, top_k=3), reader.answers(PAIRS, top_k=3), off=1e-5)
    for pair in PAIRS:
        same(exported.answers([pair]), reader.answers([pair]), off=1e-5)
    texts = ["the great king", TEXT]
    for ours, theirs in zip(exported.classify(texts), reader.classify(texts)):
        assert ours["label"] == theirs["label"]
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-5)
    assert exported.similarity(texts, texts[::-1]) == pytest.approx(reader.similarity(texts, texts[::-1]), abs=1e-4)


def test_entities_are_those_of_torch(tmp_path):
    reader = tiny_reader("tokens", [{"kind": "pool"}, {"kind": "last"}])
    export(reader, tmp_path)
    texts = ["the old king of the north", TEXT, TEXT * 3]
    for ours, theirs in zip(Reader.from_pretrained(tmp_path, engine="onnx").entities(texts), reader.entities(texts)):
        assert [entity | {"score": 0} for entity in ours] == [entity | {"score": 0} for entity in theirs]
        assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


def test_adapters_go_along(tmp_path):
    """With an encoder that knows no types, and heads that look at neighbours or at the last layer alone."""
    heads = [{"kind": "cacnn"}, {"kind": "last"}]
    reader = tiny_reader("spans", heads, family="roberta", tuning=Tuning(train_layers=1, adapters=4))
    export(reader, tmp_path)
    same(Reader.from_pretrained(tmp_path, engine="onnx").answers(PAIRS), reader.answers(PAIRS), off=1e-5)


def test_int8_from_the_command_line(tmp_path, joined):
    reader = tiny_reader("spans", [{"kind": "pool"}])
    reader.save_pretrained(tmp_path / "reader")
    out = tmp_path / "out"
    found = json.loads(shown("export", tmp_path / "reader", "--out", out, "--int8", "--json"))
    assert found == {"path": str(out / "model.onnx"), "bytes": (out / "model.onnx").stat().st_size}
    assert found["bytes"] < (joined[1] / "model.onnx").stat().st_size
    exported = Reader.from_pretrained(out)  # the only engine this directory is for
    for ours, theirs in zip(exported.answers(PAIRS[:3]), reader.answers(PAIRS[:3])):
        assert ours[0]["no_answer_score"] == pytest.approx(theirs[0]["no_answer_score"], abs=0.05)
        assert ours[0]["score"] != theirs[0]["score"]  # it is quantised indeed


def test_what_an_exported_reader_cannot_do_is_said(joined, tmp_path):
    exported = Reader.from_pretrained(joined[1], engine="onnx")
    assert "ONNX already" in error_of(lambda: export(exported, tmp_path))
    assert 'engine="torch"' in error_of(lambda: exported.save_pretrained(tmp_path))
    assert "push_to_hub: an exported reader cannot" in error_of(lambda: exported.push_to_hub("a/b"))
    assert "is an exported reader" in error_of(lambda: Reader.from_pretrained(joined[1], engine="torch"))
    assert 'engine="torch"' in error_of(lambda: exported.answers(PAIRS[:1], layers=True))
    assert "carries its own" in error_of(lambda: Reader.from_pretrained(joined[1], engine="onnx", backbone="minilm"))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.onnx", None, "has no model.onnx; `bertvision export"),
        ("model.onnx", b"not a graph", "onnxruntime cannot load it"),
        ("tokenizer.json", None, "no such file"),
        ("tokenizer.json", b"{}", "not an exported reader"),
    ],
)
def test_a_damaged_directory_is_refused(joined, tmp_path, name, content, says):
    place = shutil.copytree(joined[1], tmp_path / "reader")
    (place / name).unlink()
    if content is not None:
        (place / name).write_bytes(content)
        (place / "digests.json").unlink()
    assert says in error_of(lambda: Reader.from_pretrained(place, engine="onnx"))


def test_a_graph_does_not_outlive_its_reader(tmp_path):
    first, second = tiny_reader(), tiny_reader(seed=5)
    first.save_pretrained(tmp_path)
    graph = export(first, tmp_path).read_bytes()
    assert Reader.from_pretrained(tmp_path, engine="onnx")("who", TEXT)["answer"] == first("who", TEXT)["answer"]
    assert "holds another reader" in error_of(lambda: export(second, tmp_path))
    second.save_pretrained(tmp_path, storage="fp16")
    assert "has no model.onnx" in error_of(lambda: Reader.from_pretrained(tmp_path, engine="onnx"))
    export(Reader.from_pretrained(tmp_path), tmp_path)
    assert Reader.from_pretrained(tmp_path, engine="onnx")
    (tmp_path / "model.onnx").write_bytes(graph)
    (tmp_path / "digests.json").unlink()
    assert "was made from another reader" in error_of(lambda: Reader.from_pretrained(tmp_path, engine="onnx"))


def test_transformers_is_not_loaded_for_it(joined):
    code = f"from bertvision import Reader; Reader.from_pretrained({str(joined[1])!r})('who', 'the king')"
    code += "; import sys; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_changed_file_is_refused(joined, name, tmp_path):
    copy = shutil.copytree(joined[1], tmp_path / "copy")
    whole = bytearray((copy / name).read_bytes())
    place = len(whole) // 2 if name == "model.onnx" else whole.index(b'"king"') + 2
    whole[place] ^= 1
    (copy / name).write_bytes(whole)
    with pytest.raises(UserError, match=f"{name}: its digest does not match; copy or export the reader again"):
        Reader.from_pretrained(copy, engine="onnx")
    (copy / "digests.json").unlink()  # an export of version 0.1
    (copy / name).write_bytes((joined[1] / name).read_bytes())
    assert Reader.from_pretrained(copy, engine="onnx").tasks
