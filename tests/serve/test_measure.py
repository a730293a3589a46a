"""A reader's scores on a file are those of what it says, with its calibration beside them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.data.sources import load_articles
from bertvision.data.squad import records, write_articles
from bertvision.evaluate.calibration import Calibration
from bertvision.evaluate.squad import score
from readers import tiny_reader
from runs import articles, questions


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    calibration = Calibration(0.5, 0.1, 2 / 3)
    return tiny_reader(calibration=calibration).save_pretrained(tmp_path_factory.mktemp("measure") / "reader")


def evaluate(place: Path, *words: str) -> dict:
    done = CliRunner().invoke(app, ["evaluate", str(place), *words, "--json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
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
    shown = CliRunner().invoke(app, ["evaluate", str(place), "--data", str(tmp_path / "all.json")])
    assert "HasAns_spans_f1" in shown.stdout and "calibration error" in shown.stdout and "(95 %: " in shown.stdout
    refused = CliRunner().invoke(app, ["evaluate", str(place)])
    assert "--data: name the SQuAD file" in str(refused.exception)


def test_mistakes_are_listed_one_by_one(place):
    data = questions(24, 2)
    found = evaluate(place, "--data", data, "--mistakes")
    assert "mistakes" not in evaluate(place, "--data", data)
    asked = {one.id: one for one in records(load_articles(data))}
    assert sum(1 - one["f1"] for one in found["mistakes"]) == pytest.approx(24 * (1 - found["f1"] / 100))
    for one in found["mistakes"]:
        has, said = asked[one["id"]].has_answer, bool(one["said"])
        assert one["kind"] == {(True, False): "silent", (True, True): "wrong", (False, True): "answered"}[has, said]
    done = CliRunner().invoke(app, ["evaluate", str(place), "--data", data, "--mistakes"])
    lines = [line for line in done.stdout.splitlines() if "(no answer 0." in line]
    assert len(lines) == len(found["mistakes"]) > 0
