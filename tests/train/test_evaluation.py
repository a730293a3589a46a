"""Scores outside a study: a run's members on any data, and files of predictions."""

import json
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.evaluate.squad import score
from bertvision.train.evaluation import score_file, score_run
from bertvision.train.study import Study
from runs import articles, questions, recipe_of

TEST = articles(24, 2)
OFFICIAL = [f"{kind}{metric}" for kind in ("", "HasAns_", "NoAns_") for metric in ("exact", "f1", "total")]
BEST = ["best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("study") / "run"
    Study(recipe_of(seeds=[1, 2]), directory, quiet=True).run()
    return directory


def evaluate(directory: Path, **options: object) -> list[dict]:
    return score_run(directory, quiet=True, **options)


def without_times(rows: list[dict]) -> list[dict]:
    """Without what a study alone adds."""
    return [
        {k: v for k, v in row.items() if k not in ("infer_seconds", "ms_per_question", "tune_f1", "loss")}
        for row in rows
    ]


@pytest.mark.device
@pytest.mark.parametrize(("seed", "checkpoint"), [(1, 1.0), (2, 0.5)])
def test_a_run_on_its_own_test_set_scores_what_the_study_says(seed, checkpoint, run):
    rows = json.loads((run / "metrics.json").read_text())
    expected = [row for row in rows if row["seed"] == seed and row["checkpoint"] == checkpoint]
    assert without_times(evaluate(run, seed=seed, checkpoint=checkpoint)) == without_times(expected)


def test_first_seed_and_last_checkpoint_unless_told_otherwise(run):
    assert {(row["seed"], row["checkpoint"]) for row in evaluate(run)} == {(1, 1.0)}


def test_other_data_at_the_thresholds_of_the_study(run):
    rows = evaluate(run, data=questions(9, 8))
    assert {row["total"] for row in rows} == {9}
    tuned = {row["member"]: row["threshold"] for row in evaluate(run) if row["threshold_from"] == "tune"}
    assert {row["member"]: row["threshold"] for row in rows if row["threshold_from"] == "tune"} == tuned


@pytest.mark.parametrize("member", ["backbone", "pool", "backbone + best head"])
def test_one_member_alone(member, run):
    rows = evaluate(run, member=member)
    assert without_times(rows) == without_times([row for row in evaluate(run) if row["member"] == member])
    assert len(rows) == 2


def test_any_pair_can_be_asked_for(run):
    for head in ("pool", "compress size=8"):
        (row, *_) = evaluate(run, member=f"backbone + {head}")
        assert row["role"] == "ensemble" and row["parts"] == f"backbone + {head}"


def test_another_rule_of_decoding_has_no_tuned_thresholds(run):
    rows = evaluate(run, decoding="independent")
    assert {row["threshold_from"] for row in rows} == {"zero"}
    assert {row["member"] for row in rows} == {row["member"] for row in evaluate(run)}
    assert without_times(evaluate(run, decoding="joint")) == without_times(evaluate(run))
    with pytest.raises(UserError, match="--decoding jont: did you mean 'joint'"):
        evaluate(run, decoding="jont")


def test_nothing_is_written(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    evaluate(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_an_unfinished_run_has_only_the_threshold_at_zero(tmp_path):
    study = Study(recipe_of(), tmp_path, quiet=True)
    study.begin()
    study.tune(1)
    rows = evaluate(tmp_path)
    assert [(row["member"], row["threshold_from"]) for row in rows] == [("backbone", "zero")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"member": "pol"}, r"--member pol: did you mean 'pool'\?"),
        ({"member": "zzz"}, "--member zzz: there is: backbone, backbone \\+ best head"),
        ({"seed": 5}, r"has seeds \[1, 2\] and checkpoints \[0\.5, 1\.0\]"),
        ({"checkpoint": 0.7}, r"has seeds \[1, 2\] and checkpoints \[0\.5, 1\.0\]"),
        ({"data": "nowhere.json"}, r"nowhere\.json"),
        ({"data": "sample:tst"}, "no split 'tst'; did you mean 'test'"),
    ],
)
def test_what_there_is_not(options, message, run):
    with pytest.raises(UserError, match=message) as caught:
        evaluate(run, **options)
    assert "\n" not in str(caught.value)


def test_a_predictions_file_has_the_official_scores(tmp_path):
    ids = [qa["id"] for article in TEST for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    answers = {key: "the world" if number % 2 else "" for number, key in enumerate(ids)}
    doubts = {key: (number * 7 % 24) / 24 for number, key in enumerate(ids)}
    path, scores = tmp_path / "answers.json", tmp_path / "doubts.json"
    path.write_text(json.dumps(answers))
    scores.write_text(json.dumps(doubts))
    found = score_file(path, questions(24, 2))
    assert list(found) == OFFICIAL and found == score(TEST, answers)
    with_doubts = score_file(path, questions(24, 2), scores)
    assert list(with_doubts) == OFFICIAL + BEST and with_doubts == score(TEST, answers, doubts)
    assert with_doubts["best_f1"] >= with_doubts["f1"]


def test_a_members_own_file_can_be_scored(run):
    path = run / "seed-1" / "predictions" / "1" / "test" / "pool.json"
    (row,) = [row for row in evaluate(run, member="pool") if row["threshold_from"] == "zero"]
    found = score_file(path, questions(24, 2))
    assert {key: row[key] for key in OFFICIAL} == found


@pytest.mark.parametrize(
    ("content", "doubts", "message"),
    [
        ("{", None, r"answers\.json: damaged, or not a predictions file"),
        ("[]", None, r"answers\.json: not an object with an entry per question id"),
        ('{"2-0": 3}', None, r"answers\.json: the answer of '2-0' is not a string"),
        ('{"2-0": {"text": "x"}}', None, r"answers\.json: the answer of '2-0' is not a string"),
        ("{}", None, r"24 of 24 questions have no prediction"),
        ("whole", '{"2-0": "high"}', r"doubts\.json: the score of '2-0' is not a number"),
        ("whole", '{"2-0": NaN}', r"doubts\.json: the score of '2-0' is not a number"),
        ("whole", "[1]", r"doubts\.json: not an object"),
        ("whole", "{}", "24 of 24 questions have no no-answer score"),
    ],
)
def test_broken_files(content, doubts, message, tmp_path):
    whole = json.dumps({f"2-{number}": "" for number in range(24)})
    path, scores = tmp_path / "answers.json", tmp_path / "doubts.json"
    path.write_text(whole if content == "whole" else content)
    if doubts is not None:
        scores.write_text(doubts)
    with pytest.raises(UserError, match=message) as caught:
        score_file(path, questions(24, 2), scores if doubts is not None else None)
    assert "\n" not in str(caught.value)


def test_a_file_needs_its_data_and_must_be_there(tmp_path):
    with pytest.raises(UserError, match=r"a\.json: no such run and no such predictions file"):
        score_file(tmp_path / "a.json", questions(24, 2))
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UserError, match="--data: name the SQuAD file"):
        score_file(tmp_path / "a.json", "")
