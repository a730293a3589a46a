"""Looking back at scores: comparisons with the backbone, and the analysis of a checkpoint."""

import json
import re
import shutil

import numpy as np
import pytest

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Mean, Points
from bertvision.evaluate.ensemble import GREEDY
from bertvision.evaluate.score import Cost
from bertvision.evaluate.squad import exact
from bertvision.report.terminal import print_analysis
from bertvision.train.compare import (
    Measured,
    analyze_run,
    compare,
    compare_equal_cost,
    write_analysis,
    write_comparisons,
)
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import StoredResults
from bertvision.train.study import Study
from finished import EPOCHS, SEEDS, copy_of, finished_run, finished_texts
from runs import articles, recipe_of


def points(*scores: float) -> Points:
    return Points(np.array(scores, float)[:, None], {"score": Mean(0)})


@pytest.fixture(scope="module")
def entries():
    return write_comparisons(StoredResults.open(finished_run()))


def test_every_member_kind_and_metric_is_compared(entries):
    compared = {(entry["checkpoint"], entry["member"], entry["threshold_from"], entry["metric"]) for entry in entries}
    metrics = ("exact", "f1", "HasAns_f1", "NoAns_f1", "HasAns_spans_f1")
    members = ("pool", "last", "backbone + best head")
    assert compared == {(e, m, k, name) for e in EPOCHS for m in members for k in ("zero", "tune") for name in metrics}
    assert len(compared) == len(entries)
    assert all(entry["seeds"] == SEEDS and entry["questions"] == 20 and entry["draws"] == 1000 for entry in entries)
    assert RunDir(finished_run()).comparisons() == entries


def test_the_differences_are_those_of_the_scores(entries):
    rows = [row.to_json() for row in RunDir(finished_run()).rows()]
    for entry in entries:
        ours, theirs = (
            [
                row[entry["metric"]]
                for row in rows
                if (row["checkpoint"], row["threshold_from"]) == (entry["checkpoint"], entry["threshold_from"])
                and row["member"] == member
            ]
            for member in (entry["member"], "backbone")
        )
        assert len(ours) == len(SEEDS)
        assert entry["difference"] == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-9)
        assert entry["low"] <= entry["difference"] + 1e-9
        assert entry["high"] >= entry["difference"] - 1e-9


def measured(score: float, seconds: float | None) -> Measured:
    return Measured(points(score, score), Cost(train_seconds=seconds))


def test_the_backbone_of_equal_cost_is_interpolated_seed_by_seed():
    """Seed 1: 0.3 epochs of tuning took 30 s, 1 epoch 100 s; seed 2 was twice as slow, with its head as well."""
    by_epoch = {
        0.3: {
            ("", "backbone"): {1: measured(0.2, 30), 2: measured(0.3, 60)},
            ("", "pool"): {1: measured(0.5, 65), 2: measured(0.5, 130)},
            ("", "unknown"): {1: measured(0.5, None)},
        },
        1.0: {
            ("", "backbone"): {1: measured(0.4, 100), 2: measured(0.5, 200)},
            ("", "pool"): {1: measured(0.5, 140), 2: measured(0.5, 201)},
        },
    }
    early, late = compare_equal_cost(by_epoch, draws=20)
    assert (early["checkpoint"], early["member"], early["how"], early["seeds"]) == (0.3, "pool", "interpolated", [1, 2])
    assert early["difference"] == pytest.approx(15.0)  # 50 - 30 and 50 - 40
    assert (early["cost"], early["epoch"]) == (97.5, pytest.approx(0.65))
    assert (late["how"], late["epoch"]) == ("beyond", pytest.approx(1.2))  # of seed 2 a checkpoint has that cost
    assert late["difference"] == pytest.approx(5.0)  # against the last checkpoint


def test_a_study_compares_every_member_at_equal_cost(entries):
    run = RunDir(finished_run())
    equal_cost = run.comparisons("equal_cost")
    keys = ("checkpoint", "member", "threshold_from", "metric")
    compared = {tuple(entry[key] for key in keys) for entry in entries}
    for by in ("train_seconds", "train_flops"):
        assert {tuple(entry[key] for key in keys) for entry in equal_cost if entry["by"] == by} == compared
    seconds = {(row.seed, row.epoch, row.name): row.cost.train_seconds for row in run.rows()}
    for entry in equal_cost:
        own = [seconds[seed, entry["checkpoint"], entry["member"]] for seed in SEEDS]
        assert entry["by"] == "train_flops" or entry["cost"] == pytest.approx(np.mean(own))
        if entry["checkpoint"] == EPOCHS[-1]:
            assert entry["how"] in ("beyond", "exact") and entry["epoch"] >= EPOCHS[-1]
    greedy = json.loads(run.greedy_file.read_text(encoding="utf-8"))["equal_cost"]
    assert {(entry["checkpoint"], entry["member"]) for entry in greedy} == {(epoch, GREEDY) for epoch in EPOCHS}


def test_what_is_not_scored_yet_is_not_compared(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    for path in (run / "seed-2").glob("scores-*.json"):
        path.unlink()
    (run / "seed-1" / "scores-1.json").unlink()
    entries = write_comparisons(StoredResults.open(run))
    assert {(entry["checkpoint"], tuple(entry["seeds"])) for entry in entries} == {(0.5, (1,))}


@pytest.mark.parametrize(
    "task, metrics", [("labels", {"accuracy", "f1", "matthews"}), ("score", {"pearson", "spearman"})]
)
def test_texts_have_no_threshold(task, metrics):
    entries = write_comparisons(StoredResults.open(finished_texts(task)))
    assert {entry["metric"] for entry in entries} == metrics
    assert {entry["threshold_from"] for entry in entries} == {""}
    assert {entry["member"] for entry in entries} == {"pool", "backbone + best head"}


def test_a_member_is_compared_over_the_seeds_it_has():
    base = {1: points(0, 0), 2: points(1, 1)}
    entries = compare({("", "backbone"): base, ("", "whole"): base, ("", "dropped"): {2: points(1, 0)}}, draws=50)
    assert [(entry["member"], entry["seeds"]) for entry in entries] == [("whole", [1, 2]), ("dropped", [2])]
    assert entries[0]["difference"] == entries[0]["low"] == entries[0]["high"] == 0.0
    assert entries[1]["difference"] == -50.0


def test_without_a_backbone_there_is_nothing_to_compare_with():
    assert compare({("", "head"): {1: points(1)}}) == []


@pytest.mark.parametrize("damage", ["{", "[]", '{"made_from": {}, "comparisons": [3]}'])
def test_only_checkpoints_with_new_scores_are_compared_again(tmp_path, monkeypatch, damage, entries):
    run = RunDir(copy_of(finished_run(), tmp_path))
    stored, asked = StoredResults.open(run.path), []
    points = stored.points
    monkeypatch.setattr(stored, "points", lambda cell: (asked.append(cell), points(cell))[1])
    assert write_comparisons(stored) == entries and asked == []
    run.scores_file(1, 0.5).touch()
    assert write_comparisons(stored) == entries and asked == []
    rows = json.loads(run.scores_file(1, 0.5).read_text())
    run.scores_file(1, 0.5).write_text(json.dumps(rows))  # other bytes
    assert write_comparisons(stored, whole=False) == entries and set(asked) == {(1, 0.5), (2, 0.5)}
    assert run.comparisons("equal_cost") == []  # of other scores: not kept
    run.comparisons_file.write_text(damage)
    assert write_comparisons(stored) == entries and len(set(asked)) == 4


def analysed(path, **cell):
    stored = StoredResults.open(path)
    return write_analysis(stored, stored.run.cell(**cell))


@pytest.fixture(scope="module")
def analysis():
    return analysed(finished_run())


def test_the_last_checkpoint_of_the_first_seed_is_analysed(analysis):
    assert (analysis["checkpoint"], analysis["seed"], analysis["task"]) == (1.0, 1, "spans")
    assert list(analysis["members"]) == ["backbone", "pool", "last", "backbone + best head"]
    assert analysis["agreement"]["members"] == ["backbone", "pool", "last"]
    assert RunDir(finished_run()).analysis() == analysis
    other = analysed(finished_run(), epoch=0.5, seed=2)
    assert (other["checkpoint"], other["seed"]) == (0.5, 2)
    weights = {name: member["layer_weights"] for name, member in analysis["members"].items()}
    assert weights["backbone"] is weights["last"] is weights["backbone + best head"] is None
    assert sum(weights["pool"]) == pytest.approx(1, abs=1e-5)


def test_partial_heads_are_left_out(tmp_path):
    shares = {"finetune": {"epochs": 0.2, "checkpoints": []}, "bank": {"fractions": [0.5, 1.0], "checkpoints": [0.5]}}
    Study(recipe_of(**shares), tmp_path, quiet=True).run()
    analysis = RunDir(tmp_path).analysis()
    assert list(analysis["members"]) == ["backbone", "pool", "compress size=8", "backbone + best head"]
    assert analysis["agreement"]["members"] == ["backbone", "pool", "compress size=8"]


def test_shares_are_the_official_scores(analysis):
    rows = {row.name: row.metrics for row in RunDir(finished_run()).rows((1, 1.0)) if row.threshold_from == "tune"}
    for name, member in analysis["members"].items():
        assert 100 * member["has_answer"] == pytest.approx(rows[name]["HasAns_exact"])
        assert 100 * member["no_answer"] == pytest.approx(rows[name]["NoAns_exact"])
        for groups in ("by_question_word", "by_answer_length", "by_context_length"):
            total = sum(row["f1"] * row["questions"] for row in member[groups])
            assert total / 20 == pytest.approx(rows[name]["f1"])


def test_errors_are_errors(analysis):
    golds = {
        qa["id"]: [answer["text"] for answer in qa["answers"]]
        for article in articles(20, 2)
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    }
    assert analysis["errors"]
    for error in analysis["errors"]:
        assert error["gold"] == golds[error["id"]] and error["why"]
        assert [text for text in error["answers"].values() if not any(exact(g, text) for g in error["gold"] or [""])]


def test_an_analysis_brings_the_comparisons_up_to_date_and_needs_no_weights(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    (run / "comparisons.json").unlink()
    shutil.rmtree(run / "seed-1" / "checkpoint-1")
    analysis = analyze_run(run)
    assert {member["layer_weights"] for member in analysis["members"].values()} == {None}
    assert RunDir(run).comparisons()
    with pytest.raises(UserError, match="no scores of that seed and checkpoint"):
        analyze_run(run, epoch=0.7)


@pytest.mark.parametrize("task", ["labels", "score"])
def test_texts(task, capsys):
    analysis = analysed(finished_texts(task))
    assert analysis["task"] == task
    assert analysis["agreement"]["members"] == ["backbone", "pool"]
    for member in analysis["members"].values():
        if task == "labels":
            assert sum(map(sum, member["confusion"]["matrix"])) == 18
        else:
            assert -100 <= member["spearman"] <= 100
    assert sum(analysis["members"]["pool"]["layer_weights"]) == pytest.approx(1, abs=1e-5)
    assert analysis["errors"]
    print_analysis(analysis)
    assert "HasAns" not in capsys.readouterr().out


def test_a_summary_for_the_terminal(analysis, capsys):
    print_analysis(analysis)
    shown = capsys.readouterr().out
    assert "published" not in shown
    for part in ("HasAns", "F1 by question word", "what", "Agreement", "Layers of pool", "Errors, 5 of"):
        assert part in shown


def test_published_numbers_stand_beside_the_analysis_in_the_terminal(analysis, capsys):
    entry = {
        "checkpoint": analysis["checkpoint"],
        "member": "pool",
        "second_right": 44,
        "right_tokens": 161.68,
        "f1": 74.0,
    }
    print_analysis(analysis, paper=[entry | {"source": "Somebody 2020"}, entry | {"checkpoint": 7, "second_right": 45}])
    shown = capsys.readouterr().out.split("Beside what was published")[1].split("F1 by question word")[0]
    ours = analysis["members"]["pool"]["right"]["tokens"]
    assert re.search(rf"pool +Mean tokens of what is right +{ours:.1f} +161.68", shown)
    assert re.search(r"pool +Second-best right, of wrong answers +\d+\.\d % +44 %", shown)
    assert "Somebody 2020" in shown and "45" not in shown and "74" not in shown
