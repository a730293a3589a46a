import json
import os

import pytest

from bertvision.evaluate.ensemble import GREEDY
from bertvision.files import read_json
from bertvision.train.combine import Committee, Sitter
from bertvision.train.compare import compare
from bertvision.train.greedy import is_chosen, write_greedy
from bertvision.train.stored import Cell, data_of, open_run
from bertvision.train.study import Study
from finished import EPOCHS, SEEDS, copy_of, finished_run, finished_texts
from runs import recipe_of


def test_a_study_chooses_an_ensemble_for_every_checkpoint_and_seed():
    found = read_json(finished_run() / "greedy.json")["ensembles"]
    places = [{(member["seed"], member["checkpoint"]) for member in one["members"]} for one in found]
    assert places == [{(seed, epoch)} for seed in SEEDS for epoch in EPOCHS]
    for one in found:
        assert one["how"] == "mean" and sum(member["weight"] for member in one["members"]) == pytest.approx(1)
        assert [row["threshold_from"] for row in one["test"]] == ["zero", "tune"]
        assert {row["member"] for row in one["test"]} == {GREEDY}


def test_it_is_the_ensemble_that_its_weights_make_and_no_worse_on_tune_than_any_member():
    study = open_run(finished_run(), quiet=True)
    sitters = [Sitter(name, 1.0, 2) for name in ("backbone", "pool", "last")]
    committee = Committee(study, "mean", sitters, data_of(study))
    (one,) = [
        one
        for one in read_json(study.directory / "greedy.json")["ensembles"]
        if (one["test"][0]["seed"], one["test"][0]["checkpoint"]) == (2, 1.0)
    ]
    weights = {Sitter(m["member"], m["checkpoint"], m["seed"]).label: m["weight"] for m in one["members"]}
    assert committee.tuned(weights) == (one["threshold"], one["tune_f1"])
    assert one["tune_f1"] >= max(committee.tuned({sitter.label: 1.0})[1] for sitter in sitters)
    scores = study.task.scores(committee.predict("test", weights), data_of(study)["test"], one["threshold"])
    assert one["test"][-1]["f1"] == scores["f1"]


def test_what_it_takes_is_what_its_members_take_on_one_encoder():
    study = open_run(finished_run(), quiet=True)
    for one in read_json(study.directory / "greedy.json")["ensembles"]:
        row, members = one["test"][0], [member["member"] for member in one["members"]]
        known = {r["member"]: r for r in Cell(study, row["seed"], row["checkpoint"]).rows()}
        encoder = known["pool"]["total_parameters"] - known["pool"]["parameters"]
        readouts = {name: known[name]["total_parameters"] - encoder for name in members}
        assert row["parameters"] == sum(known[name]["parameters"] for name in members)
        assert row["total_parameters"] == encoder + sum(readouts.values())
        assert row["disk_bytes"] - known["pool"]["disk_bytes"] == 4 * (
            sum(readouts.values()) - known["pool"]["parameters"]
        )
        assert row["head_seconds"] == pytest.approx(sum(known[name]["head_seconds"] for name in members), abs=0.002)


def test_differences_to_the_backbone_are_over_all_seeds():
    found = read_json(finished_run() / "greedy.json")
    f1 = [one for one in found["comparisons"] if (one["metric"], one["threshold_from"]) == ("f1", "tune")]
    assert [(one["checkpoint"], one["member"], one["seeds"]) for one in f1] == [(e, GREEDY, SEEDS) for e in EPOCHS]
    study = open_run(finished_run(), quiet=True)
    for one in f1:
        mine = [e["test"][-1]["f1"] for e in found["ensembles"] if e["test"][-1]["checkpoint"] == one["checkpoint"]]
        base = [
            row["f1"]
            for row in study.rows()
            if (row["member"], row["threshold_from"], row["checkpoint"]) == ("backbone", "tune", one["checkpoint"])
        ]
        assert one["difference"] == pytest.approx(sum(mine) / 2 - sum(base) / 2)
        assert one["low"] <= one["difference"] <= one["high"]
    assert compare({}) == []


@pytest.mark.parametrize("task", ["labels", "score"])
def test_texts(task):
    (one,) = read_json(finished_texts(task) / "greedy.json")["ensembles"]
    assert {member["member"] for member in one["members"]} <= {"backbone", "pool"}
    assert [row["threshold_from"] for row in one["test"]] == [""]


def test_heads_of_a_share_join_nobody_and_a_single_member_has_no_ensemble(tmp_path):
    once = {"epochs": 0.2, "checkpoints": []}
    shares = Study(recipe_of(finetune=once, bank={"fractions": [0.5, 1.0]}), tmp_path / "shares", quiet=True)
    shares.run()
    (one,) = read_json(shares.directory / "greedy.json")["ensembles"]
    assert {member["member"] for member in one["members"]} <= {"backbone", "pool", "compress size=8"}
    alone = Study(recipe_of(finetune=once, heads=[]), tmp_path / "alone", quiet=True)
    alone.run()
    assert read_json(alone.directory / "greedy.json") == {"ensembles": [], "comparisons": []}


def test_it_is_chosen_once_and_again_after_new_scores(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    study, path = Study.open(run, quiet=True), run / "greedy.json"
    before, text = path.stat().st_mtime, path.read_text(encoding="utf-8")
    study.run()
    assert path.stat().st_mtime == before
    os.utime(run / "seed-1" / "scores-1.json", (before + 9, before + 9))
    assert not is_chosen(study)
    assert write_greedy(study) == json.loads(text)
    path.write_text("{", encoding="utf-8")
    assert not is_chosen(study)
    study.run()
    assert path.read_text(encoding="utf-8") == text


def test_a_run_that_kept_no_log_probabilities_has_none(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    for path in run.rglob("seed-1/**/logits.safetensors"):
        path.unlink()
    found = write_greedy(open_run(run, quiet=True))
    assert {one["test"][0]["seed"] for one in found["ensembles"]} == {2}
