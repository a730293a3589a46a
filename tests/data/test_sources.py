"""Sources as recipes name them."""

import sys
from pathlib import Path

import pytest

from bertvision.data.sample import make
from bertvision.data.sources import SAMPLE_SEED, group_rows, is_synthetic, is_text, load_articles, read_examples
from bertvision.data.squad import check_articles, questions, records, write_articles
from bertvision.data.tables import Example
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe
from bertvision.registry import SOURCES


@pytest.mark.parametrize(
    ("source", "count", "seed"),
    [("sample:train", 3000, 1), ("sample:tune", 400, 1), ("sample:test", 800, 1), ("sample:test:31:7", 31, 7)],
)
def test_sizes_and_seeds_of_the_sample_set(source: str, count: int, seed: int) -> None:
    assert load_articles(source) == make(source.split(":")[1], count, seed)
    assert is_synthetic(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sample", "no split ''; there is: test, train, tune"),
        ("sample:trian", "did you mean 'train'"),
        ("sample:train:many", "must be sample:train, sample:train:QUESTIONS or"),
        ("sample:train:5:1:2", "must be sample:train"),
        ("sample:train:0", "must be between 1 and"),
        ("squad_v3", "did you mean 'squad_v2'"),
        ("squad_v2:test", "squad_v2 has no split 'test'; there is: train, validation"),
        ("", "there is"),
        ("no/such/file", "no such file"),
        ("missing.json", "missing.json: no such file"),
        ("sample:train:6+missing.json", "missing.json: no such file"),
        ("sample:train:6+", "no data are called ''"),
    ],
)
def test_wrong_sources_are_named(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_articles(source)
    assert "\n" not in str(caught.value)


def test_files_and_several_sources(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_articles(one, make("train", 40, 1))
    write_articles(two, make("tune", 30, 1))
    assert load_articles(str(one)) == make("train", 40, 1)
    assert not is_synthetic(str(one))
    joined = load_articles(f"{one}+{two}+sample:test:20")
    assert joined == make("train", 40, 1) + make("tune", 30, 1) + make("test", 20, SAMPLE_SEED)
    assert is_synthetic(f"{one}+sample:test:20")
    with pytest.raises(UserError, match=r"'sample-train-1-0-0-0' is in .*one\.json and again in sample:train:6"):
        load_articles(f"{one}+sample:train:6")


def test_a_plus_sign_may_be_part_of_a_file_name_and_the_list_may_be_long(tmp_path: Path) -> None:
    odd = tmp_path / "dev+more.json"
    write_articles(odd, make("tune", 5, 1))
    assert load_articles(str(odd)) == make("tune", 5, 1)
    many = "+".join(f"sample:train:1:{seed}" for seed in range(400))
    assert len(load_articles(many)) == 400


ROWS = [
    {
        "id": str(number),
        "title": title,
        "context": context,
        "question": "Who?",
        "answers": {"text": [word] if word else [], "answer_start": [context.index(word)] if word else []},
    }
    for number, (title, context, word) in enumerate(
        [("A", "Ada came.", "Ada"), ("B", "Bo went.", "Bo"), ("A", "Ada came.", ""), ("A", "Al sang.", "Al")]
    )
]


def test_flat_rows_become_articles() -> None:
    articles = group_rows(ROWS)
    check_articles(articles, "rows")
    assert [(article["title"], len(article["paragraphs"])) for article in articles] == [("A", 2), ("B", 1)]
    found = {record.id: record for record in records(articles)}
    assert list(found) == ["0", "2", "3", "1"]
    assert found["0"].answers == ("Ada",)
    assert not found["2"].has_answer
    assert found["0"].context is found["2"].context


def test_the_hub_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # import raises, as if it were not installed
    with pytest.raises(
        UserError, match=r"squad_v2: needs `datasets`; pip install 'bertvision\[hub\]', or give the path"
    ):
        load_articles("squad_v2")


def test_parts_of_a_source_share_no_article_and_miss_none():
    whole = load_articles("sample:tune:60")
    halves = [load_articles(f"sample:tune:60#{number}/2") for number in (1, 2)]
    assert halves[0] == whole[::2] and halves[1] == whole[1::2]
    assert load_articles("sample:tune:60#1/1") == whole


def test_a_source_that_counts_double_has_every_question_twice_under_two_ids():
    once, twice = load_articles("sample:tune:60"), load_articles("sample:tune:60*2")
    assert twice[: len(once)] == once and len(twice) == 2 * len(once)
    texts, ids = ([[qa[key] for qa in questions(part)] for part in (once, twice)] for key in ("question", "id"))
    assert texts[1] == 2 * texts[0]
    assert len(set(ids[1])) == 2 * len(ids[0]) and ids[1][len(ids[0]) :] == [f"{id_}*2" for id_ in ids[0]]
    assert load_articles("sample:tune:60#1/2*1") == once[::2]


def test_articles_by_title_and_number(tmp_path):
    articles = [dict(one, title=title) for one, title in zip(load_articles("sample:tune:90"), ["Oxygen", "X,_Y", "7"])]
    write_articles(tmp_path / "some.json", articles)
    one, two, three = articles
    for names, wanted in {"X,_Y": [two], "X,_Y,Oxygen": [two, one], "2-3": [two, three], "7,1": [three, one]}.items():
        assert load_articles(f"{tmp_path}/some.json#articles={names}") == wanted
    for names, message in {"Oxigen": "did you mean 'Oxygen'", "4": "there are 3", "3-2": "there are 3"}.items():
        with pytest.raises(UserError, match=message):
            load_articles(f"{tmp_path}/some.json#articles={names}")
    with pytest.raises(UserError, match="names an article twice"):  # and this is longer than a file name can be
        load_articles(f"{tmp_path}/some.json#articles={','.join(['X,_Y'] * 100)}")


@pytest.mark.parametrize(
    "ending", [*("#" + p for p in ("", "0/2", "3/2", "1", "a/b", "1/0")), "*", "*0", "*-1", "*two"]
)
def test_impossible_parts_and_repetitions(ending):
    with pytest.raises(UserError, match=r"after [*#] goes .* such as (#1/2|\*2)"):
        load_articles(f"sample:tune:60{ending}")


def test_kinds_of_sources():
    assert is_text("glue:CoLA/train") and is_text("a/b.tsv+c.JSONL")
    for ending in ("*2", "#1/2"):
        with pytest.raises(UserError, match=r"only files of questions on paragraphs can be .*; name mine\.csv"):
            is_text(f"mine.csv{ending}")
    assert not is_text("sample:train") and not is_text("squad.json")
    with pytest.raises(UserError, match="joins questions on paragraphs with tables"):
        is_text("a.csv+b.json")


def test_registered_sources(monkeypatch):
    monkeypatch.setattr(SOURCES, "added", dict(SOURCES.added))

    @SOURCES.register("mine")
    def _mine(source: str) -> list[dict]:
        return make("tune", int(source.partition(":")[2]), 1)

    @SOURCES.register("reviews")
    def _reviews(source: str) -> list[Example]:
        return [Example("", (word,), label, source, 1) for word, label in (("good", "+"), ("bad", "-"))]

    _reviews.kind = "texts"
    assert not is_text("mine:6") and is_text("reviews:small")
    assert load_articles("mine:6+sample:test:6") == make("tune", 6, 1) + make("test", 6, SAMPLE_SEED)
    found = read_examples("reviews+reviews", DataRecipe(text=("text",))).examples
    assert [(one.id, one.texts, one.target) for one in found][2:] == [("2", ("good",), "+"), ("3", ("bad",), "-")]
    with pytest.raises(UserError, match="no data are called 'mnie'; did you mean 'mine'"):
        load_articles("mnie")
