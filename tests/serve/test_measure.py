"""A reader's scores on a file are those of what it says, with its calibration beside them."""

import json
from pathlib import Path

import pytest

from bertvision.data.sources import load_articles
from bertvision.data.squad import records, write_articles
from bertvision.evaluate.calibration import Calibration
from bertvision.evaluate.squad import score
from checks import error_of, shown
from readers import tiny_reader
from runs import articles, questions


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    calibration = Calibration(0.5, 0.1, 2 / 3)
    return tiny_reader(calibration=calibration).save_pretrained(tmp_path_factory.mktemp("measure") / "reader")


def evaluate(place: Path, *words: str) -> dict:
    (found,) = json.loads(shown("evaluate", place, *words, "--json"))
    return found


@pytest.mark.parametrize("expected", [None, 0.95])
def test_scores_are_those_of_the_answers(expected, place):
    found = evaluate(place, "--data", questions(24, 2), *(["--answerable", str(expected)] if expected else []))
    made, data = tiny_reader(calibration=Calibration(0.5, 0.1, 2 / 3)), load_articles(questions(24, 2))
    asked = [{"question": one.question, "context": one.context} for one in records(data)]
    ids = [one.id for one in records(data)]
    options = {"answerable": expected} if expected else {}
    official = score(data, {key: one["answer"] for key, one in zip(ids, made(asked, **options))})
    assert {key: found[key] for key in official} == pytest.approx(official)
    spans = score(data, {key: one["answer"] for key, one in zip(ids, made(asked, handle_impossible_answer=False))})
    assert found["HasAns_spans_f1"] == pytest.approx(spans["HasAns_f1"])
    low, high = found["intervals"]["f1"]
    assert low <= found["f1"] <= high
    told = found["calibration"]
    assert told["answerable"] == pytest.approx(2 / 3)
    for way in ("before", "after", "after_share"):
        assert sum(point["questions"] for point in told[way]["curve"]) == 24 and 0 <= told[way]["error"] <= 1
    said = sum(one["no_answer_score"] for one in made(asked, **options)) / 24
    curve = told["after"]["curve"]
    assert sum(point["confidence"] * point["questions"] for point in curve) / 24 == pytest.approx(said)


def test_answerable_questions_alone_and_a_reader_without_calibration(tmp_path):
    kept = articles(12, 3)
    for article in kept:
        article["paragraphs"] = [one for one in article["paragraphs"] if one["qas"][0]["answers"]]
    write_articles(tmp_path / "all.json", kept)
    place = tiny_reader().save_pretrained(tmp_path / "reader")
    found = evaluate(place, "--data", str(tmp_path / "all.json"))
    assert "NoAns_f1" not in found and "NoAns_f1" not in found["intervals"]
    assert found["calibration"].keys() == {"auroc", "answerable", "before"}
    text = shown("evaluate", place, "--data", tmp_path / "all.json")
    assert "HasAns_spans_f1" in text and "calibration error" in text and "(95 %: " in text
    assert "--data: name the SQuAD file" in error_of(shown, "evaluate", place)


def test_mistakes_are_listed_one_by_one(place):
    data = questions(24, 2)
    found = evaluate(place, "--data", data, "--mistakes")
    assert "mistakes" not in evaluate(place, "--data", data)
    asked = {one.id: one for one in records(load_articles(data))}
    assert sum(1 - one["f1"] for one in found["mistakes"]) == pytest.approx(24 * (1 - found["f1"] / 100))
    for one in found["mistakes"]:
        has, said = asked[one["id"]].has_answer, bool(one["said"])
        assert one["kind"] == {(True, False): "silent", (True, True): "wrong", (False, True): "answered"}[has, said]
    lines = [
        line for line in shown("evaluate", place, "--data", data, "--mistakes").splitlines() if "(no answer 0." in line
    ]
    assert len(lines) == len(found["mistakes"]) > 0
