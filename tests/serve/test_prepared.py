"""Graphs in the user's cache: `export READER` makes one, `ask` uses it without torch, and a changed reader has none."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.errors import UserError
from bertvision.serve.prepared import SPEED, prepared_path
from bertvision.serve.reader import Reader
from readers import tiny_reader

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

TEXT = "the first king of the old city was born in the north by the great river"
LIGHT = """
import sys
from bertvision.cli import main
sys.argv = ["bertvision", "ask", "who was the king", "--context", {text!r}, "--reader", {reader!r}, "--verbose"]
try:
    main()
except SystemExit as end:
    assert not end.code
print([name for name in ("torch", "transformers", "scipy", "matplotlib") if name in sys.modules])
"""

LEAN = """
import sys
from bertvision.cli import main
sys.argv = ["bertvision", *{words}]
try:
    main()
except SystemExit as end:
    assert not end.code
print([name for name in ("torch._dynamo", "sympy", "scipy", "accelerate") if name in sys.modules])
import torch, scipy.special
compiled = torch.compile(torch.nn.Linear(2, 3), backend="eager")
print(torch.distributed.is_available() and compiled(torch.ones(2)).shape == (3,))
"""


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "cache"))
    return tiny_reader().save_pretrained(tmp_path / "reader")


def run(*words: object):
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0
    return done


def ask(reader, *more: str):
    return run("ask", "who was the king", "--context", TEXT, "--reader", reader, "--verbose", "--json", *more)


def test_ask_uses_the_graph_until_the_reader_changes(reader):
    plain = ask(reader)
    assert "reader: engine torch (`bertvision export" in plain.stderr
    found = json.loads(run("export", reader, "--json").stdout)
    assert found["path"] == str(prepared_path(reader) / "model.onnx") and set(found["seconds"]) == {"torch", "onnx"}
    (prepared_path(reader) / SPEED).write_text('{"torch": 0.02, "onnx": 0.01}')
    quick = ask(reader)
    assert "engine onnx fp32" in quick.stderr and "10 ms a batch when it was made, torch 20 ms" in quick.stderr
    ours, theirs = (json.loads(one.stdout)["answers"][0] for one in (quick, plain))
    assert ours["answer"] == theirs["answer"] and ours["score"] == pytest.approx(theirs["score"], abs=1e-5)
    assert "engine torch (the options" in ask(reader, "--engine", "torch").stderr
    assert Reader.from_pretrained(reader, engine="onnx")("who", TEXT)["answer"]
    assert Reader.from_pretrained(reader).torch_engine("layers")  # Python and `serve` keep what torch alone can do

    (prepared_path(reader) / SPEED).write_text('{"torch": 0.01, "onnx": 0.02}')
    assert "engine torch (the prepared graph is slower: 20 ms" in ask(reader).stderr
    tiny_reader(seed=5).save_pretrained(reader)
    assert not prepared_path(reader).exists()
    assert "engine torch (`bertvision export" in ask(reader).stderr
    with pytest.raises(UserError, match=r"has no model\.onnx"):
        Reader.from_pretrained(reader, engine="onnx")


def test_a_damaged_graph_is_not_used_and_said_to_be(reader):
    run("export", reader, "--int8")
    (prepared_path(reader) / SPEED).write_text('{"torch": 0.02, "onnx": 0.01}')
    assert "engine onnx int8" in ask(reader).stderr
    graph = prepared_path(reader) / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-9] + b"\0" * 9)
    found = ask(reader)
    assert "prepared graph not used" in found.stderr and "digest does not match" in found.stderr
    assert "engine torch" in found.stderr and json.loads(found.stdout)["answers"]


def test_ask_on_an_exported_reader_imports_no_torch(reader, tmp_path):
    run("export", reader, "--out", tmp_path / "out", "--int8")
    code = LIGHT.format(text=TEXT, reader=str(tmp_path / "out"))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "engine onnx int8 (the reader is an exported one)" in done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("family", ["bert", "distilbert", "deberta-v2", "roberta"])
def test_ask_by_itself_imports_no_compiler_and_answers_alike(family, tmp_path):
    reader = tiny_reader(family=family).save_pretrained(tmp_path / "reader")
    asked = tmp_path / "asked"  # of several lengths, so that some are padded
    asked.write_text(f"who was the king\nwhere was he born\n{json.dumps({'question': 'who', 'context': 'the king'})}\n")
    (tmp_path / "text").write_text(TEXT)
    words = ["ask", str(tmp_path / "text"), "--questions", str(asked), "--reader", str(reader), "--json"]
    done = subprocess.run([sys.executable, "-c", LEAN.format(words=words)], check=True, capture_output=True, text=True)
    *answers, imported, works = done.stdout.splitlines()
    assert imported == "[]" or family != "bert"  # others need more of transformers
    assert works == "True"
    assert answers == run(*words).stdout.splitlines()
