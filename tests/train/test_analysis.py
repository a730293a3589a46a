import json
import shutil

import pytest

from bertvision.errors import UserError
from bertvision.evaluate.squad import exact
from bertvision.report.findings import print_analysis
from bertvision.train.analysis import analyze_run, write_analysis
from bertvision.train.stored import open_run
from bertvision.train.study import Study
from finished import copy_of, finished_run, finished_texts
from runs import articles, recipe_of


@pytest.fixture(scope="module")
def found():
    return write_analysis(open_run(finished_run(), quiet=True))


def test_the_last_checkpoint_of_the_first_seed(found):
    assert (found["checkpoint"], found["seed"], found["task"]) == (1.0, 1, "spans")
    assert list(found["members"]) == ["backbone", "pool", "last", "backbone + best head"]
    assert found["agreement"]["members"] == ["backbone", "pool", "last"]
    assert json.loads((finished_run() / "analysis.json").read_text(encoding="utf-8")) == found


def test_heads_on_a_share_of_the_data_are_for_the_curve_alone(tmp_path):
    shares = {"finetune": {"epochs": 0.2, "checkpoints": []}, "bank": {"fractions": [0.5, 1.0], "checkpoints": [0.5]}}
    Study(recipe_of(**shares), tmp_path, quiet=True).run()
    found = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert list(found["members"]) == ["backbone", "pool", "compress size=8", "backbone + best head"]
    assert found["agreement"]["members"] == ["backbone", "pool", "compress size=8"]


def test_shares_are_the_official_scores(found):
    rows = {
        row["member"]: row
        for row in open_run(finished_run(), quiet=True).rows()
        if (row["seed"], row["checkpoint"], row["threshold_from"]) == (1, 1.0, "tune")
    }
    for name, member in found["members"].items():
        assert 100 * member["has_answer"] == pytest.approx(rows[name]["HasAns_exact"])
        assert 100 * member["no_answer"] == pytest.approx(rows[name]["NoAns_exact"])
        for groups in ("by_question_word", "by_answer_length", "by_context_length"):
            total = sum(row["f1"] * row["questions"] for row in member[groups])
            assert total / 20 == pytest.approx(rows[name]["f1"])


def test_only_heads_that_weigh_layers_tell_so(found):
    weights = {name: member["layer_weights"] for name, member in found["members"].items()}
    assert weights["backbone"] is weights["last"] is weights["backbone + best head"] is None
    assert sum(weights["pool"]) == pytest.approx(1, abs=1e-5)


def test_errors_are_errors(found):
    golds = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for article in articles(20, 2)
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
    assert found["errors"]
    for error in found["errors"]:
        assert error["gold"] == golds[error["id"]]
        wrong = [text for text in error["answers"].values() if not any(exact(g, text) for g in error["gold"] or [""])]
        assert wrong
        assert error["why"]


def test_another_checkpoint_and_seed():
    found = write_analysis(open_run(finished_run(), quiet=True), epoch=0.5, seed=2)
    assert (found["checkpoint"], found["seed"]) == (0.5, 2)
    with pytest.raises(
        UserError, match=r"there is: seed 1 epoch 0\.5, seed 1 epoch 1, seed 2 epoch 0\.5, seed 2 epoch 1"
    ):
        write_analysis(open_run(finished_run(), quiet=True), epoch=0.7)


def test_an_analysis_brings_the_comparisons_up_to_date(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    (run / "comparisons.json").unlink(missing_ok=True)
    assert analyze_run(run, quiet=True)["seed"] == 1
    assert json.loads((run / "comparisons.json").read_text(encoding="utf-8"))


def test_weights_that_are_gone_are_not_needed(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    shutil.rmtree(run / "seed-1" / "checkpoint-1")
    found = write_analysis(open_run(run, quiet=True))
    assert {member["layer_weights"] for member in found["members"].values()} == {None}


@pytest.mark.parametrize("task", ["labels", "score"])
def test_texts(task):
    found = write_analysis(open_run(finished_texts(task), quiet=True))
    assert found["task"] == task
    assert found["agreement"]["members"] == ["backbone", "pool"]
    for member in found["members"].values():
        if task == "labels":
            assert sum(map(sum, member["confusion"]["matrix"])) == 18
        else:
            assert -100 <= member["spearman"] <= 100
    assert sum(found["members"]["pool"]["layer_weights"]) == pytest.approx(1, abs=1e-5)
    assert found["errors"]


def test_a_run_that_has_not_begun_says_so(tmp_path):
    from bertvision.train.study import Study

    study = Study(recipe_of(), tmp_path, quiet=True)
    with pytest.raises(UserError, match="no scores"):
        write_analysis(study, {"test": None})


def test_a_summary_for_the_terminal(found, capsys):
    print_analysis(found)
    shown = capsys.readouterr().out
    for part in ("HasAns", "F1 by question word", "what", "Agreement", "Layers of pool", "Mistakes, 5 of"):
        assert part in shown
    print_analysis(write_analysis(open_run(finished_texts("labels"), quiet=True)))
    shown = capsys.readouterr().out
    assert "Accuracy" in shown
    assert "HasAns" not in shown
