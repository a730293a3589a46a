"""Statistics of every kind of source."""

import json
from pathlib import Path

import pytest

from bertvision.data.sample import make
from bertvision.data.squad import write_articles
from bertvision.data.statistics import describe, of_articles
from bertvision.recipe import DataRecipe
from real import DATA


def test_questions(tmp_path: Path) -> None:
    contexts = ["The mill was built in 1820 by Ada Bell. In 1901 the mill was sold.", "Nobody asked.", "Bells ring."]
    asked = [("When was the mill built?", "1820"), ("In what town is it?", ""), ("Name it!", "Ada Bell")]
    qas = [
        {"id": q, "question": q, "answers": [{"text": a, "answer_start": contexts[0].index(a)}] if a else []}
        for q, a in asked
    ]
    paragraphs = [{"context": context, "qas": []} for context in contexts]
    paragraphs[0]["qas"] = qas
    write_articles(tmp_path / "a.json", [{"title": "Mills", "paragraphs": paragraphs}])
    found = describe(str(tmp_path / "a.json"), DataRecipe())
    assert list(found)[:5] == ["articles", "paragraphs", "questions", "answerable", "unanswerable"]
    assert list(found.values())[:5] == [1, 3, 3, 2, 1]
    # 15, 2 and 2 words; percentiles between neighbours are interpolated
    assert found["context_words"] == {"mean": 6.33, "p5": 2.0, "p50": 2.0, "p95": 13.7, "max": 15}
    assert found["answer_words"]["mean"] == 1.5 and found["question_words"]["max"] == 5
    assert found["first_question_word"] == {"other": 1, "what": 1, "when": 1}
    assert found["synthetic"] is False and describe("sample:tune:20", DataRecipe())["synthetic"] is True
    assert json.loads(json.dumps(found)) == found
    assert of_articles([])["answer_words"]["mean"] == 0


def test_the_sample_set_is_short_and_varied() -> None:
    found = of_articles(make("train", 2400, 1))
    assert 40 < found["context_words"]["mean"] < 85
    assert found["context_words"]["max"] <= 125
    assert found["articles"] == 80
    assert found["first_question_word"]["who"] > 100


def test_texts(tmp_path: Path) -> None:
    path, data = tmp_path / "s.tsv", DataRecipe(text=("t",), label="y")
    path.write_text("t\ty\na b\tnews\nc\tsport\nd\tnews\n")
    found = describe(str(path), data)
    assert (found["examples"], found["texts"], found["labels"]) == (3, 1, {"news": 2, "sport": 1})
    assert found["text_1_words"]["max"] == 2
    path.write_text("t\ty\n" + "".join(f"a b\t{n / 10}\n" for n in range(40)))
    assert describe(str(path), data)["scores"] == {"lowest": 0.0, "mean": 1.95, "highest": 3.9}
    path.write_text("t\ty\n" + "".join(f"a b\tintent {n % 30}\n" for n in range(61)))
    many = describe(str(path), data)
    assert many["different_labels"] == 30 and len(many["labels"]) == 20 and many["labels"]["intent 0"] == 3


def test_sentences(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("Anna B-PER\nMay I-PER\nsang O\n\nBonn B-LOC\n")
    found = describe(str(path), DataRecipe())
    assert (found["sentences"], found["words"], found["entities"]) == (2, 4, {"LOC": 1, "PER": 1})
    assert found["sentence_words"]["max"] == 3


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
def test_real_files(name: str, articles: int, questions: int, unanswerable: int, caplog) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in the data folder")
    found = describe(str(DATA / name), DataRecipe())
    assert not caplog.records  # no answer had to be moved
    assert (found["articles"], found["questions"], found["unanswerable"]) == (articles, questions, unanswerable)
    assert found["first_question_word"]["what"] > questions / 4
    assert 50 < found["context_words"]["mean"] < 200
