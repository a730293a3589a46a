"""SQuAD files: reading, checks and writing."""

import json
import logging
import stat
from pathlib import Path

import pytest

from bertvision.data.squad import normalize, question_word, read_articles, records, write_articles
from bertvision.errors import UserError

CONTEXT = "The mill was built in 1820 by Ada Bell. In 1901 the mill was sold."


def qa(id_: str, question: str, *answers: tuple[str, int], **more: object) -> dict:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": question, "answers": found, **more}


def small() -> list[dict]:
    """Two articles, three paragraphs, four questions of which one has no answer; SQuAD 1.1 and 2.0 entries mixed."""
    plausible = [{"text": "Ada Bell", "answer_start": CONTEXT.index("Ada")}]
    mill = [
        qa("a", "When was the mill built?", ("1820", 22), ("1820", 22)),
        qa("b", "In what town is it?", is_impossible=True, plausible_answers=plausible),
    ]
    bells = [qa("c", "What ring?", ("Bells", 0)), qa("d", "Name it!", ("ring", 6))]
    mills = [{"context": CONTEXT, "qas": mill}, {"context": "Nobody asked.", "qas": []}]
    return [
        {"title": "Mills", "paragraphs": mills},
        {"title": "Bells", "paragraphs": [{"context": "Bells ring. “Who's there?”", "qas": bells}]},
    ]


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_written_file_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "set.json"
    write_articles(path, small())
    assert read_articles(path) == small()
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == "v2.0"
    assert "“" in path.read_text(encoding="utf-8")
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_what_cannot_be_written_or_read(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    write_articles(path, small())
    with pytest.raises(TypeError):
        write_articles(path, [{"title": {1, 2}}])
    assert read_articles(path) == small()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot be written"):
        write_articles(path / "below.json", small())
    with pytest.raises(UserError, match="no such file"):
        read_articles(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_articles(tmp_path)


def test_records_follow_the_file() -> None:
    found = records(small())
    assert [record.id for record in found] == ["a", "b", "c", "d"]
    assert [record.paragraph for record in found] == [0, 0, 2, 2]
    assert [record.has_answer for record in found] == [True, False, True, True]
    assert (found[0].answers, found[0].starts) == (("1820", "1820"), (22, 22))
    assert found[1].answers == found[1].starts == ()
    assert found[0].context is found[1].context
    assert found[2].title == "Bells"


def test_answerable_is_decided_by_the_answers_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    articles = small()
    articles[0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    articles[0]["paragraphs"][0]["qas"][1]["is_impossible"] = False
    path = tmp_path / "set.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"data": articles}).encode())
    found = records(read_articles(path))
    assert [record.has_answer for record in found[:2]] == [True, False]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "line 1 is not UTF-8"),
        (b'{"data": [\n  {"title": ]}', "line 2 column 13"),
        (b"", "line 1 column 1"),
        (b"[" * 200_000, "nested far too deeply"),
        (b'{"data": ' + b"9" * 5000 + b"}", "broken JSON"),
        (b"[]", "top level must be"),
        (b'{"version": "v2.0"}', "top level must be"),
        (b'{"data": {}}', "top level must be"),
    ],
)
def test_a_file_that_is_no_squad_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read_articles(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


QA = ("data", 0, "paragraphs", 0, "qas", 0)
GONE = object()


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("data", 1), "text", r"data\[1\]: must be an object with 'title'"),
        (("data", 1, "title"), GONE, r"data\[1\]: 'title' is missing"),
        (("data", 1, "paragraphs"), {}, r"data\[1\].paragraphs: must be a list"),
        (("data", 0, "paragraphs", 1, "context"), GONE, r"paragraphs\[1\]: 'context' is missing"),
        (("data", 0, "paragraphs", 1, "qas"), None, r"paragraphs\[1\].qas: must be a list, not null"),
        ((*QA, "id"), 7, r"qas\[0\].id: must be a string, not 7"),
        ((*QA, "id"), "d", r"data\[1\].paragraphs\[0\].qas\[1\].id: 'd' is used twice"),
        ((*QA, "question"), ["x" * 99], r"qas\[0\].question: must be a string, not .{57}\.\.\.$"),
        ((*QA, "question"), "\ud800", r"question: has half a surrogate pair"),
        ((*QA, "answers", 1, "text"), "", r"answers\[1\].text: empty"),
        ((*QA, "answers", 1, "text"), "1999", r'answers\[1\].text: "1999" is not in the context'),
        ((*QA, "answers", 1, "answer_start"), GONE, r"answers\[1\]: 'answer_start' is missing"),
        ((*QA, "answers", 1, "answer_start"), True, r"answer_start: must be a whole number, not true"),
        ((*QA, "answers", 1, "answer_start"), -1, r"answer_start: -1 is outside the context \(0 to 65\)"),
        ((*QA, "answers", 1, "answer_start"), 66, r"answer_start: 66 is outside the context"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, where: tuple, value: object, message: str) -> None:
    content: dict = {"data": small()}
    holder = content
    for key in where[:-1]:
        holder = holder[key]
    if value is GONE:
        del holder[where[-1]]
    else:
        holder[where[-1]] = value
    path = write(tmp_path / "set.json", content)
    with pytest.raises(UserError, match=message) as caught:
        read_articles(path)
    assert str(caught.value).startswith(f"{path}: data[")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("start", "moved_to"), [(0, 4), (3, 4), (5, 4), (27, 4), (29, 52), (51, 52), (65, 52)])
def test_a_wrong_offset_moves_to_the_nearest_occurrence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: int, moved_to: int
) -> None:
    articles = small()
    articles[0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "mill", "answer_start": start}]
    path = write(tmp_path / "set.json", {"data": articles})
    with caplog.at_level(logging.WARNING, logger="bertvision"):
        record = records(read_articles(path))[0]
    assert record.starts == (moved_to,)
    assert CONTEXT[moved_to:].startswith("mill")
    assert "1 answers were not at their answer_start" in caplog.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("The  U.S.-based Court!", "usbased court"), ("a AN the", ""), ("Theatre", "theatre"), ("“quoted”", "“quoted”")],
)
def test_answers_are_compared_as_the_official_metric_does(text: str, expected: str) -> None:
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("question", "word"), [("In “What town?", "what"), ("Who's there?", "who"), ("Name it!", "other")]
)
def test_question_words(question: str, word: str) -> None:
    assert question_word(question) == word
