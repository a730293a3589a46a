"""SQuAD files: what is read, what is refused and with which words, and how articles are split."""

import copy
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.splits import split_by_article
from bertvision.data.squad import read_articles, records, statistics, write_articles
from bertvision.errors import UserError

REAL = Path(os.environ.get("BERTVISION_DATA", Path(__file__).parents[2].parent / "shared" / "data"))

CONTEXT = "The mill was built in 1820 by Ada Bell. In 1901 the mill was sold."


def small() -> list[dict]:
    """Two articles, three paragraphs, four questions of which one has no answer; SQuAD 1.1 and 2.0 entries mixed."""
    built = {"text": "1820", "answer_start": CONTEXT.index("1820")}
    return [
        {
            "title": "Mills",
            "paragraphs": [
                {
                    "context": CONTEXT,
                    "qas": [
                        {"id": "a", "question": "When was the mill built?", "answers": [built, dict(built)]},
                        {
                            "id": "b",
                            "question": "In what town is it?",
                            "answers": [],
                            "is_impossible": True,
                            "plausible_answers": [{"text": "Ada Bell", "answer_start": CONTEXT.index("Ada")}],
                        },
                    ],
                },
                {"context": "Nobody asked.", "qas": []},
            ],
        },
        {
            "title": "Bells",
            "paragraphs": [
                {
                    "context": "Bells ring. “Who's there?”",
                    "qas": [
                        {"id": "c", "question": "What ring?", "answers": [{"text": "Bells", "answer_start": 0}]},
                        {"id": "d", "question": "Name it!", "answers": [{"text": "ring", "answer_start": 6}]},
                    ],
                }
            ],
        },
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


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    write_articles(path, small())
    with pytest.raises(TypeError):
        write_articles(path, [{"title": {1, 2}}])
    assert read_articles(path) == small()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="cannot be written"):
        write_articles(path / "below.json", small())


def test_records_follow_the_file() -> None:
    found = records(small())
    assert [record.id for record in found] == ["a", "b", "c", "d"]
    assert [record.paragraph for record in found] == [0, 0, 2, 2]
    assert [record.has_answer for record in found] == [True, False, True, True]
    assert found[0].answers == ("1820", "1820")
    assert found[0].starts == (22, 22)
    assert found[1].answers == found[1].starts == ()
    assert found[0].context is found[1].context
    assert found[2].title == "Bells"


def test_answerable_is_what_the_answers_say(tmp_path: Path) -> None:
    articles = small()
    articles[0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    articles[0]["paragraphs"][0]["qas"][1]["is_impossible"] = False
    found = records(read_articles(write(tmp_path / "set.json", {"data": articles})))
    assert [record.has_answer for record in found[:2]] == [True, False]


def test_statistics() -> None:
    found = statistics(small())
    assert list(found)[:5] == ["articles", "paragraphs", "questions", "answerable", "unanswerable"]
    assert list(found.values())[:5] == [2, 3, 4, 3, 1]
    # 15, 2 and 4 words; percentiles between neighbours are interpolated
    assert found["context_words"] == {"mean": 7.0, "p5": 2.2, "p50": 4.0, "p95": 13.9, "max": 15}
    assert found["answer_words"]["mean"] == 1
    assert found["question_words"]["max"] == 5
    assert found["first_question_word"] == {"what": 2, "other": 1, "when": 1}
    assert json.loads(json.dumps(found)) == found


def test_statistics_of_nothing() -> None:
    assert statistics([])["answer_words"]["mean"] == 0


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"data": small()}).encode())
    assert read_articles(path) == small()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "not UTF-8 at byte 0"),
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


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_articles(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_articles(tmp_path)


QA = ("data", 0, "paragraphs", 0, "qas", 0)
GONE = object()


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("data", 1), "text", r"data\[1\]: must be an object with 'title'"),
        (("data", 1, "title"), GONE, r"data\[1\]: 'title' is missing"),
        (("data", 1, "title"), 3, r"data\[1\].title: must be a string, not 3"),
        (("data", 1, "paragraphs"), GONE, r"data\[1\]: 'paragraphs' is missing; it must be a list"),
        (("data", 1, "paragraphs"), {}, r"data\[1\].paragraphs: must be a list"),
        (("data", 0, "paragraphs", 1, "context"), GONE, r"paragraphs\[1\]: 'context' is missing"),
        (("data", 0, "paragraphs", 1, "qas"), None, r"paragraphs\[1\].qas: must be a list, not null"),
        ((*QA, "id"), GONE, r"qas\[0\]: 'id' is missing"),
        ((*QA, "id"), 7, r"qas\[0\].id: must be a string, not 7"),
        ((*QA, "id"), "d", r"data\[1\].paragraphs\[0\].qas\[1\].id: 'd' is used twice"),
        ((*QA, "question"), ["x" * 99], r"qas\[0\].question: must be a string, not .{57}\.\.\.$"),
        ((*QA, "question"), "\ud800", r"question: holds half a surrogate pair"),
        ((*QA, "answers"), GONE, r"qas\[0\]: 'answers' is missing"),
        ((*QA, "answers", 1, "text"), "", r"answers\[1\].text: empty"),
        ((*QA, "answers", 1, "text"), "1999", r'answers\[1\].text: "1999" does not occur in the context'),
        ((*QA, "answers", 1, "answer_start"), GONE, r"answers\[1\]: 'answer_start' is missing"),
        ((*QA, "answers", 1, "answer_start"), 22.0, r"answer_start: must be a whole number, not 22.0"),
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


def article(title: str, questions: int) -> dict:
    qas = [{"id": f"{title}-{q}", "question": "?", "answers": []} for q in range(questions)]
    return {"title": title, "paragraphs": [{"context": "", "qas": qas}]}


def questions_in(articles: list[dict]) -> int:
    return len(records(articles))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=30),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
)
def test_a_split_is_a_partition_into_two_that_hold_questions(counts: list[int], fraction: float, seed: int) -> None:
    articles = [article(str(index), count) for index, count in enumerate(counts)]
    if sum(count > 0 for count in counts) < 2:
        with pytest.raises(UserError, match="two articles with questions are needed"):
            split_by_article(articles, fraction, seed)
        return
    before = copy.deepcopy(articles)
    rest, split = split_by_article(articles, fraction, seed)
    assert split_by_article(articles, fraction, seed) == (rest, split)
    assert articles == before
    order = [article["title"] for article in articles]
    for side in (rest, split):
        assert questions_in(side) > 0
        assert [item["title"] for item in side] == sorted((item["title"] for item in side), key=order.index)
    assert sorted(item["title"] for item in rest + split) == sorted(order)
    # one article more or less would have come closer, unless a side would have been empty
    assert abs(questions_in(split) - fraction * sum(counts)) <= max(counts)


def test_the_split_comes_close_to_the_fraction_and_follows_the_seed() -> None:
    articles = [article(str(index), 10 + index % 7) for index in range(60)]
    sides = [split_by_article(articles, 0.1, seed)[1] for seed in range(8)]
    for side in sides:
        assert questions_in(side) / questions_in(articles) == pytest.approx(0.1, abs=0.01)
    assert len({tuple(item["title"] for item in side) for side in sides}) > 1


def test_no_split_of_one_article_and_no_odd_fraction() -> None:
    with pytest.raises(UserError, match="give a separate file"):
        split_by_article([article("alone", 9)], 0.5, 1)
    for fraction in (0.0, 1.0, -0.2, float("nan")):
        with pytest.raises(UserError, match="not between 0 and 1"):
            split_by_article([article("a", 9), article("b", 9)], fraction, 1)


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "articles", "questions", "unanswerable"),
    [
        ("squad2/train.json", 17, 5707, 2984),
        ("squad2/tune.json", 6, 1920, 870),
        ("squad1/train-subset.json", 12, 12497, 347),
        ("squadshifts/amazon_reviews.json", 413, 9885, 0),
        ("squadshifts/new_wiki.json", 48, 7938, 0),
        ("squadshifts/reddit.json", 1, 9803, 0),
    ],
)
def test_real_files_load(
    name: str, articles: int, questions: int, unanswerable: int, caplog: pytest.LogCaptureFixture
) -> None:
    if not (REAL / name).exists():
        pytest.skip(f"{name} is not in the data folder")
    loaded = read_articles(REAL / name)
    found = statistics(loaded)
    assert not caplog.records
    assert (found["articles"], found["questions"], found["unanswerable"]) == (articles, questions, unanswerable)
    assert sum(found["first_question_word"].values()) == questions
    assert found["first_question_word"]["what"] > questions / 4
    assert 50 < found["context_words"]["mean"] < 200
    for record in records(loaded):
        for answer, start in zip(record.answers, record.starts):
            assert record.context[start : start + len(answer)] == answer


@pytest.mark.real
def test_a_real_file_splits_by_article() -> None:
    if not (REAL / "squad2/train.json").exists():
        pytest.skip("squad2/train.json is not in the data folder")
    loaded = read_articles(REAL / "squad2/train.json")
    rest, split = split_by_article(loaded, 0.15, 3)
    assert questions_in(split) / questions_in(loaded) == pytest.approx(0.15, abs=0.04)
    assert not {item["title"] for item in rest} & {item["title"] for item in split}
