"""`bertvision ask`: answers from texts, files and stdin; as text, and as JSON."""

import dataclasses
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bertvision.errors import UserError
from bertvision.evaluate.calibration import Calibration
from bertvision.serve.ask import (
    Query,
    best_of,
    excerpt,
    gather,
    json_line,
    printable,
    replace_unencodable,
    show_answers,
)
from bertvision.serve.documents import from_text
from encoders import save_tiny
from pages import pdf
from readers import tiny_reader
from runs import Done, bertvision

TEXT = "the first line\nthe king of the north\r\nwas born in the old city 🎉\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with a reader in runs/ and some files."""
    place = tmp_path_factory.mktemp("ask")
    made = tiny_reader()
    made.config = dataclasses.replace(made.config, backbone=str(save_tiny(place / "encoder", "bert")))
    made.save_pretrained(place / "runs" / "tiny" / "reader")
    (place / "doc.txt").write_bytes(TEXT.encode())
    (place / "book.pdf").write_bytes(pdf(["the old city", "the king was born in the north"]))
    (place / "latin.txt").write_bytes(b"caf\xe9")
    lines = ["[1] who was king", "", "where was it", '{"question": "what is it", "context": "it is a river"}']
    (place / "questions.txt").write_text("\n".join(lines))
    (place / "broken.jsonl").write_text('{"question": "who"')
    (place / "list.json").write_text('[{"question": "who", "context": "the king"}]')
    (place / "deep.jsonl").write_text('{"question":' + "[" * 200_000)
    return place


def ask(place: Path, *words: object) -> Done:
    named = () if "--reader" in words else ("--reader", "runs/tiny/reader")
    return bertvision("ask", *words, *named, cwd=place)


def rows(done: Done) -> list[dict]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.split("\n") if line]


def test_json_from_a_text(place):
    (row,) = rows(ask(place, "who was king", "--context", TEXT, "--json"))
    (found,) = row["answers"]
    assert row["question"] == "who was king"
    assert TEXT[found["start"] : found["end"]] == found["answer"]
    assert TEXT[: found["start"]].count("\n") + 1 == found["line"]
    assert ask(place, "who", "--context", TEXT, "--threshold", 0).out.startswith("no answer")


def test_one_text_is_expected_to_hold_the_answer(place):
    """To 80 % of the questions; of several texts, none in particular."""
    made = tiny_reader(calibration=Calibration(1.0, 0.0, 0.5))
    made.save_pretrained(place / "runs" / "calibrated")

    def doubt(*words: object) -> float:
        words = ("who", *words, "--reader", "runs/calibrated", "--json", "--threshold", 0)
        return rows(bertvision("ask", *words, cwd=place))[0]["answers"][0]["no_answer_score"]

    own = made("who", TEXT)["no_answer_score"]
    odds = own / (1 - own)
    for expected, words in ((0.8, ()), (0.5, ("--answerable", 0.5)), (0.99, ("--answerable", 0.99))):
        moved = odds * (1 - expected) / expected
        assert doubt("--context", TEXT, *words) == pytest.approx(moved / (1 + moved))
    (place / "same.txt").write_bytes(TEXT.encode())
    assert doubt("doc.txt", "same.txt") == pytest.approx(own)
    wrong = ask(place, "who", "--context", TEXT, "--answerable", 0.9)
    assert wrong.code == 2 and "answerable: this reader does not know" in wrong.err
    wrong = bertvision("ask", "who", "doc.txt", "--reader", "runs/calibrated", "--answerable", 1, cwd=place)
    assert wrong.code == 2 and "answerable: must be a share between 0 and 1, not 1.0" in wrong.err


def test_several_files_and_the_places_in_them(place):
    words = ("doc.txt", "--file", "book.pdf", "--top-k", 50, "--json")
    found = rows(ask(place, "who was king", *words))[0]["answers"]
    assert {one["file"] for one in found} == {"doc.txt", "book.pdf"}
    assert {"line" in one for one in found if one["file"] == "doc.txt"} == {True}
    assert {one["page"] for one in found if one["file"] == "book.pdf"} <= {1, 2}
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)


def test_a_batch_of_questions(place):
    found = rows(ask(place, "--questions", "questions.txt", "doc.txt", "--json", "--threshold", 1))
    assert [row["question"] for row in found] == ["[1] who was king", "where was it", "what is it"]
    assert found[2]["answers"][0]["answer"] in "it is a river"
    shown = ask(place, "--questions", "questions.txt", "doc.txt")
    assert shown.code == 0
    assert [line for line in shown.out.splitlines() if line in ("[1] who was king", "what is it")]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("who", "none.txt"), "none.txt: no such file"),
        (("who", "runs"), "runs: is a directory"),
        (("who", "latin.txt"), "latin.txt: not UTF-8"),
        (("who", "--context", " "), "--context: is empty"),
        (("who", "doc.txt", "--context", "a"), "either --context or files"),
        ((" ", "doc.txt"), "the question is empty"),
        (("--questions", "broken.jsonl", "doc.txt"), "broken.jsonl: line 1 is not a JSON object"),
        (("--questions", "deep.jsonl", "doc.txt"), "deep.jsonl: line 1 is not a JSON object"),
        (("--questions", "list.json", "doc.txt"), "list.json: line 1 is not a JSON object"),
        (("--questions", "questions.txt"), "give a text to look in"),
        (("who", "doc.txt", "--reader", "nowhere"), "nowhere: no such reader"),
        (("who", "doc.txt", "--threshold", "3"), "threshold"),
        (("--context", "a"), "give a question"),
    ],
)
def test_errors_are_one_line(words, part, place):
    done = ask(place, *words)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert part in done.err


def test_odd_characters_in_questions_are_no_trouble(place):
    """Half a character, an escape of the terminal, a separator that only Python takes for the end of a line."""
    odd = ["who \ud800 was king", "who \x1b[31m was king", "who\u2028was\x85king"]
    lines = [json.dumps({"question": one}, ensure_ascii=number < 2) for number, one in enumerate(odd)]
    (place / "odd.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert [row["question"] for row in rows(ask(place, "--questions", "odd.jsonl", "doc.txt", "--json"))] == odd
    shown = ask(place, "--questions", "odd.jsonl", "doc.txt")
    assert shown.code == 0, shown.err
    assert "\x1b" not in shown.out and "who  was king" in shown.out


def test_a_stdout_that_knows_only_ascii(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    assert json.loads(json_line({"answer": "café"})) == {"answer": "café"} and json_line("é") == '"\\u00e9"'
    replace_unencodable(narrow)
    answers = [candidate("café", 0.5, 0.1)]
    show_answers(Console(), Query("who", [from_text("café …")]), answers, titled=False)
    narrow.flush()
    assert narrow.buffer.getvalue().startswith(b"caf?  50%")


def test_the_encoder_may_be_named(place, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(place / "encoder", moved / "encoder")
    shutil.copytree(place / "runs" / "tiny" / "reader", moved / "reader")
    config = json.loads((moved / "reader" / "config.json").read_text())
    config["backbone"]["name"] = "/nowhere"
    (moved / "reader" / "config.json").write_text(json.dumps(config))
    words = ("who", "--context", TEXT, "--json", "--reader", "reader")
    assert "or give --backbone PATH" in ask(moved, *words).err
    assert rows(ask(moved, *words, "--backbone", "encoder", "--engine", "torch"))
    assert "has no model.onnx" in ask(moved, *words, "--engine", "onnx").err


def candidate(answer: str, score: float, nothing: float, start: int = 0) -> dict:
    return {"answer": answer, "score": score, "start": start, "end": start + len(answer), "no_answer_score": nothing}


def test_the_best_of_several_documents():
    documents = [from_text("one", "a"), from_text("two", "b"), from_text("six", "c")]
    silent, sure = [candidate("", 0.9, 0.9), candidate("one", 0.8, 0.9)], [candidate("two", 0.4, 0.1)]
    found = best_of(documents, [silent, sure, [candidate("six", 0.6, 0.1)]], 5)
    assert [(one["answer"], one["file"]) for one in found] == [("six", "c"), ("two", "b"), ("one", "a")]
    unsure = [candidate("", 0.6, 0.6), candidate("two", 0.3, 0.6)]
    found = best_of(documents[:2], [silent, unsure], 2)
    assert [(one["answer"], one["no_answer_score"]) for one in found] == [("", 0.6), ("one", 0.9)]


def test_the_answer_is_highlighted_where_it_stands():
    text = "word " * 100 + "the\tking\u202e\x1b[31m" + " more" * 100
    start = text.index("the\tking")
    shown = excerpt(from_text(text), start, start + 8)
    assert shown.plain.startswith("…word")
    assert shown.plain.endswith("more…")
    assert len(shown.plain) < 400
    (span,) = [one for one in shown.spans if "green" in str(one.style)]
    assert shown.plain[span.start : span.end] == "the king"
    assert "\x1b" not in shown.plain
    assert printable("a\r\nb\x07") == "a  b"
    console = Console(file=io.StringIO(), width=200)
    document = from_text("the [b]king[/b]", "notes.txt")
    answers = [candidate("[b]king", 0.5, 0.1, 4) | {"file": "notes.txt", "line": 1}]
    show_answers(console, Query("who [x]", [document]), answers, titled=True)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.strip() for line in lines] == ["who [x]", "[b]king  50%  (notes.txt, line 1)", "the [b]king[/b]", ""]


@pytest.mark.parametrize(
    ("stdin", "files", "questions", "expected"),
    [
        (TEXT, ["-"], None, TEXT),
        (TEXT, [], None, TEXT),
        (TEXT, ["-", "-"], None, TEXT),  # read once
        (None, [], None, "give a text to look in"),
        ("", [], None, "stdin: there is no text in it; give --context TEXT or --file PATH"),
        ("who was king", ["-"], Path("-"), "stdin: cannot hold both the questions and the text"),
    ],
)
def test_stdin(stdin, files, questions, expected, monkeypatch):
    given = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin.encode()))
    monkeypatch.setattr(sys, "stdin", given)
    question = None if questions else "who"
    if expected == TEXT:
        (query,) = gather(question, None, files, questions)
        assert [(one.name, one.text) for one in query.documents] == [("-", TEXT)]
    else:
        with pytest.raises(UserError, match=expected):
            gather(question, None, files, questions)
