import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bertvision.cli import app
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import HOWS
from bertvision.tasks.decode import SpanPredictions
from bertvision.train.combine import Committee, Sitter, ensemble_run, padded
from bertvision.train.stored import Cell, data_of, open_run
from finished import copy_of, finished_run, finished_texts


def ensemble(tmp_path, **options):
    """The rows of an ensemble, and what its file says."""
    rows = ensemble_run(finished_run(), out=tmp_path / "ensemble.json", quiet=True, **options)
    return rows, json.loads((tmp_path / "ensemble.json").read_text(encoding="utf-8"))


def stored(member: str, epoch: float = 1.0, seed: int = 1) -> dict:
    rows = open_run(finished_run(), quiet=True).rows()
    return {
        row["threshold_from"]: row
        for row in rows
        if (row["member"], row["checkpoint"], row["seed"]) == (member, epoch, seed)
    }


def test_windows_are_cut_from_a_flat_tensor():
    flat = torch.arange(10.0).reshape(5, 2)  # windows of 2, 1 and 2 tokens
    found = padded(flat, np.array([0, 2, 3, 5]), np.array([2, 1]))
    assert found[0].tolist() == [[6, 7], [8, 9]]
    assert found[1, 0].tolist() == [4, 5]


@pytest.mark.parametrize("split", ["tune", "test"])
def test_a_member_alone_is_what_the_study_found(split):
    study = open_run(finished_run(), quiet=True)
    one = Sitter("pool", 1.0, 1)
    found = Committee(study, "mean", [one], data_of(study)).predict(split, {one.label: 1.0})
    known = Cell(study, 1, 1.0).predictions(split, "pool", data_of(study)[split])
    assert isinstance(known, SpanPredictions)
    assert found.ids == known.ids
    assert found.no_answer == pytest.approx(known.no_answer, abs=0.02)  # kept in half precision
    same = [a[0] == b[0] for a, b in zip(found.texts, known.texts)]
    assert np.mean(same) > 0.8


@pytest.mark.parametrize("how", HOWS)
def test_all_members_by_default(tmp_path, how):
    rows, saved = ensemble(tmp_path, how=how)
    assert [(row["member"], row["threshold_from"]) for row in rows[:2]] == [
        (f"ensemble ({how})", "zero"),
        (f"ensemble ({how})", "tune"),
    ]
    assert rows[0]["parts"] == "backbone + pool + last"
    assert [row["member"] for row in rows[2:]] == ["backbone"] * 2 + ["pool"] * 2 + ["last"] * 2
    assert (saved["how"], saved["chosen"]) == (how, "given")
    assert [one["weight"] for one in saved["members"]] == [pytest.approx(1 / 3)] * 3
    assert saved["threshold"] == rows[1]["threshold"]
    assert saved["tune_f1"] == rows[1]["tune_f1"]
    assert saved["test"] == rows[:2]


def test_the_pair_that_the_study_reports(tmp_path):
    study = open_run(finished_run(), quiet=True)
    reported = stored("backbone + best head")["tune"]
    head = reported["parts"].removeprefix("backbone + ")
    rows, _ = ensemble(tmp_path, members=f"backbone,{head}")
    assert rows[1]["parts"] == reported["parts"]
    own = Cell(study, 1, 1.0).predictions("tune", reported["parts"], data_of(study)["tune"])
    sitters = [Sitter("backbone", 1.0, 1), Sitter(head, 1.0, 1)]
    committee = Committee(study, "max", sitters, data_of(study))
    found = committee.predict("tune", {one.label: 0.5 for one in sitters})
    assert found.no_answer == pytest.approx(own.no_answer, abs=0.02)


@pytest.mark.parametrize("how", HOWS)
def test_greedy_is_no_worse_on_tune_than_its_best_single(tmp_path, how):
    rows, saved = ensemble(tmp_path, greedy=True, how=how, all_seeds=True, checkpoints=[0.5, 1.0])
    study = open_run(finished_run(), quiet=True)
    everyone = [Sitter(m, e, s) for m in ("backbone", "pool", "last") for e in (0.5, 1.0) for s in (1, 2)]
    committee = Committee(study, how, everyone, data_of(study))
    singles = [committee.tuned({one.label: 1.0})[1] for one in everyone]
    assert saved["tune_f1"] >= max(singles) and saved["chosen"] == "greedy"
    assert sum(one["weight"] for one in saved["members"]) == pytest.approx(1)
    weights = {Sitter(one["member"], one["checkpoint"], one["seed"]).label: one["weight"] for one in saved["members"]}
    assert committee.tuned(weights) == (saved["threshold"], saved["tune_f1"])  # the file says how to form it again
    assert rows[0]["role"] == "ensemble"


def test_members_of_other_checkpoints_and_seeds(tmp_path):
    rows, saved = ensemble(tmp_path, members="pool @ epoch 0.5, seed 2, backbone")
    assert rows[0]["parts"] == "pool @ epoch 0.5, seed 2 + backbone @ epoch 1, seed 1"
    assert [(one["member"], one["checkpoint"], one["seed"]) for one in saved["members"]] == [
        ("pool", 0.5, 2),
        ("backbone", 1.0, 1),
    ]
    rows, _ = ensemble(tmp_path, members="pool", all_seeds=True)
    assert rows[0]["parts"] == "pool @ epoch 1, seed 1 + pool @ epoch 1, seed 2"
    rows, _ = ensemble(tmp_path, members="pool", seed=2, checkpoints=[0.5])
    assert (rows[0]["parts"], rows[0]["checkpoint"], rows[0]["seed"]) == ("pool", 0.5, 2)


@pytest.mark.parametrize("task", ["labels", "score"])
@pytest.mark.parametrize("how", HOWS)
def test_texts(tmp_path, task, how):
    run = finished_texts(task)
    rows = ensemble_run(run, how=how, out=tmp_path / "ensemble.json", quiet=True)
    assert [row["threshold_from"] for row in rows] == [""] * 3
    study = open_run(run, quiet=True)
    test = data_of(study)["test"]
    backbone, pool = (Cell(study, 1, 1.0).predictions("test", name, test) for name in ("backbone", "pool"))
    sitters = [Sitter("backbone", 1.0, 1), Sitter("pool", 1.0, 1)]
    found = Committee(study, how, sitters, data_of(study)).predict("test", {one.label: 0.5 for one in sitters})
    if task == "score":  # always the mean
        assert found.numbers == pytest.approx((backbone.numbers + pool.numbers) / 2, abs=0.02)
    elif how == "mean":
        assert found.probabilities == pytest.approx((backbone.probabilities + pool.probabilities) / 2, abs=0.002)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"how": "median"}, "--how median: did you mean 'mean'?"),
        ({"members": "backbone, pol"}, "--members pol: did you mean 'pool'?"),
        ({"checkpoints": [0.7]}, "no scores of that seed and checkpoint"),
        ({"seed": 9}, "no scores of that seed and checkpoint"),
        ({"seed": 1, "all_seeds": True}, "choose either this or --seed"),
    ],
)
def test_what_cannot_be_is_one_line(options, message):
    with pytest.raises(UserError) as error:
        ensemble_run(finished_run(), quiet=True, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_without_log_probabilities_says_what_to_do(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    for path in run.rglob("logits.safetensors"):
        path.unlink()
    with pytest.raises(UserError, match=r"delete seed-1/scores-1\.json there and run `bertvision study` again"):
        ensemble_run(run, quiet=True)


def test_other_data_than_the_run_was_scored_on_are_refused(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("questions-16-1", "questions-20-2"), encoding="utf-8")
    with pytest.raises(UserError, match=r"scores-0\.5\.json: was scored when the tune set"):
        ensemble_run(run, quiet=True)


def test_a_directory_of_variants_names_its_runs(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    recipe = run / "recipe.toml"
    text = recipe.read_text(encoding="utf-8").replace("variants = []\n", "")
    recipe.write_text(text + '\n[[variants]]\nname = "L1"\nfinetune = {train_layers = 1}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"name one of them: .*L1"):
        ensemble_run(run, quiet=True)


def test_the_commands(tmp_path):
    run = copy_of(finished_run(), tmp_path)

    def shown(*args: object) -> str:
        done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout

    rows = json.loads(shown("ensemble", run, "--greedy", "--how", "mean", "--json"))
    assert rows[0]["member"] == "ensemble (mean)"
    assert (run / "ensemble.json").is_file()
    text = shown("ensemble", run, "--members", "backbone, pool", "--out", tmp_path / "mine.json")
    assert "ensemble (max): backbone + pool" in text
    assert (tmp_path / "mine.json").is_file()
    assert "Epoch 0.5, seed 1" in shown("analyze", run, "--checkpoint", 0.5)
    found = json.loads(shown("analyze", run, "--json"))
    assert found == json.loads((run / "analysis.json").read_text(encoding="utf-8"))
