"""Ensembles of stored members: given, and chosen greedily on tune."""

import json
from pathlib import Path

import pytest

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import GREEDY, HOWS, Ensemble, Member
from bertvision.train.compare import compare
from bertvision.train.ensembling import EnsembleScorer, ensemble_run, write_greedy
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import StoredResults
from bertvision.train.study import Study
from checks import shown
from finished import EPOCHS, SEEDS, copy_of, finished_run, finished_texts
from runs import questions, recipe_of


def ensemble(tmp_path, **options):
    """The rows of an ensemble, and what its file says."""
    rows = ensemble_run(finished_run(), out=tmp_path / "ensemble.json", quiet=True, **options)
    return rows, json.loads((tmp_path / "ensemble.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("split", ["tune", "test"])
def test_stored_members_predict_what_the_study_found(split):
    stored = StoredResults.open(finished_run())
    pool = Member("pool", 1, 1.0)
    (best,) = {row.ensemble for row in stored.run.rows((1, 1.0)) if row.ensemble.chosen == "best"}
    for ensemble in (Ensemble.of(pool), best):
        predictions = EnsembleScorer(stored, "max").predict(split, dict.fromkeys(ensemble.members, 1.0))
        stored_predictions = stored.predictions(ensemble, split)
        assert predictions.ids == stored_predictions.ids
        assert predictions.no_answer.tolist() == stored_predictions.no_answer.tolist()
        assert [texts[0] for texts in predictions.texts] == [texts[0] for texts in stored_predictions.texts]


def several_windows(decoding: str, place: Path) -> Path:
    """A run with several windows for a question."""
    sets = {"train": questions(16), "tune": questions(16, 1), "test": questions(40, 2), "max_length": 16, "overlap": 2}
    Study(recipe_of(data=sets, heads=[{"kind": "pool"}], evaluate={"decoding": decoding}), place, quiet=True).run()
    return place


@pytest.mark.parametrize("kind", ["joint", "independent", "labels", "score"])
def test_an_ensemble_of_one_scores_what_its_member_scores(kind, tmp_path):
    stored = StoredResults.open(
        finished_texts(kind) if kind in ("labels", "score") else several_windows(kind, tmp_path)
    )
    rows = [row for row in stored.run.rows() if row.ensemble.is_single]
    assert len(rows) >= 2
    for row in rows:
        ensemble = Ensemble(row.ensemble.members, (1.0,), "mean", "greedy")
        rows_of_one, predictions = EnsembleScorer(stored, "mean").report(ensemble, row.cost)
        (same,) = [other for other in rows_of_one if other.threshold_from == row.threshold_from]
        scores = {key: value for key, value in row.metrics.items() if key != "loss"}  # of members, not of ensembles
        assert (same.threshold, same.metrics, same.tune) == (row.threshold, scores, row.tune)
        assert predictions.to_json() == stored.predictions(row.ensemble, "test").to_json()


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
    assert [entry["weight"] for entry in saved["members"]] == [pytest.approx(1 / 3)] * 3
    assert (saved["threshold"], saved["tune_f1"], saved["test"]) == (rows[1]["threshold"], rows[1]["tune_f1"], rows[:2])


@pytest.mark.parametrize("how", HOWS)
def test_greedy_is_no_worse_on_tune_than_its_best_single(tmp_path, how):
    _, saved = ensemble(tmp_path, greedy=True, how=how, seed="all", checkpoints=[0.5, 1.0])
    everyone = [Member(m, s, e) for m in ("", "pool", "last") for e in EPOCHS for s in SEEDS]
    scorer = EnsembleScorer(StoredResults.open(finished_run()), how)
    assert saved["tune_f1"] >= max(scorer.tuned({member: 1.0})[1] for member in everyone)
    assert saved["chosen"] == "greedy" and sum(entry["weight"] for entry in saved["members"]) == pytest.approx(1)
    ensemble_saved = Ensemble.from_json(saved["test"][0]["ensemble"])  # the file says how to form it again
    assert scorer.tuned(dict(zip(ensemble_saved.members, ensemble_saved.weights))) == (
        saved["threshold"],
        saved["tune_f1"],
    )


def test_members_of_other_checkpoints_and_seeds(tmp_path):
    rows, saved = ensemble(tmp_path, members="pool @ epoch 0.5, seed 2, backbone")
    assert rows[0]["parts"] == "pool @ epoch 0.5, seed 2 + backbone @ epoch 1, seed 1"
    assert [(entry["member"], entry["checkpoint"], entry["seed"]) for entry in saved["members"]] == [
        ("pool", 0.5, 2),
        ("backbone", 1.0, 1),
    ]
    rows, _ = ensemble(tmp_path, members="pool", seed="all")
    assert rows[0]["parts"] == "pool @ epoch 1, seed 1 + pool @ epoch 1, seed 2"
    rows, _ = ensemble(tmp_path, members="pool", seed=2, checkpoints=[0.5])
    assert (rows[0]["parts"], rows[0]["checkpoint"], rows[0]["seed"]) == ("pool", 0.5, 2)


@pytest.mark.parametrize("task", ["labels", "score"])
@pytest.mark.parametrize("how", HOWS)
def test_texts(tmp_path, task, how):
    run = finished_texts(task)
    rows = ensemble_run(run, how=how, out=tmp_path / "ensemble.json", quiet=True)
    assert [row["threshold_from"] for row in rows] == [""] * 3
    stored, pair = StoredResults.open(run), [Member("", 1, 1.0), Member("pool", 1, 1.0)]
    backbone, pool = (stored.predictions(Ensemble.of(member), "test") for member in pair)
    predictions = EnsembleScorer(stored, how).predict("test", dict.fromkeys(pair, 0.5))
    if task == "score":  # always the mean
        assert predictions.numbers == pytest.approx((backbone.numbers + pool.numbers) / 2, abs=0.02)
    elif how == "mean":
        assert predictions.probabilities == pytest.approx((backbone.probabilities + pool.probabilities) / 2, abs=0.002)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"how": "median"}, "--how median: did you mean 'mean'?"),
        ({"members": "backbone, pol"}, "--members pol: did you mean 'pool'?"),
        ({"checkpoints": [0.7]}, "no scores of that seed and checkpoint"),
        ({"seed": 9}, "no scores of that seed and checkpoint"),
    ],
)
def test_what_cannot_be_is_one_line(options, message):
    with pytest.raises(UserError) as error:
        ensemble_run(finished_run(), quiet=True, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_run_without_logits_says_what_to_do(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    for path in run.rglob("seed-1/**/logits.safetensors"):
        path.unlink()
    with pytest.raises(UserError, match=r"delete seed-1/scores-1\.json there and run `bertvision study` again"):
        ensemble_run(run, quiet=True)
    assert {entry["test"][0]["seed"] for entry in write_greedy(StoredResults.open(run))["ensembles"]} == {2}


def test_other_data_than_the_run_was_scored_on_are_refused(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    recipe = run / "recipe.toml"
    text = recipe.read_text(encoding="utf-8").replace("questions-16-1", "questions-20-2")
    recipe.write_text(text.rstrip(), encoding="utf-8")  # without the digest of what it was
    with pytest.raises(UserError, match=r"scores-0\.5\.json: was scored when the tune set"):
        ensemble_run(run, quiet=True)


def test_the_commands(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    rows = json.loads(shown("ensemble", run, "--greedy", "--how", "mean", "--json"))
    assert rows[0]["member"] == "ensemble (mean)"
    assert (run / "ensemble.json").is_file()
    text = shown("ensemble", run, "--members", "backbone, pool", "--out", tmp_path / "mine.json")
    assert "ensemble (max): backbone + pool" in text
    assert (tmp_path / "mine.json").is_file()
    shown("ensemble", run, "--seed", 1, "--all-seeds", code=1)
    assert "Epoch 0.5, seed 1" in shown("analyze", run, "--checkpoint", 0.5)
    analysis = json.loads(shown("analyze", run, "--json"))
    assert analysis == json.loads((run / "analysis.json").read_text(encoding="utf-8"))


def test_a_study_chooses_an_ensemble_for_every_checkpoint_and_seed():
    stored = StoredResults.open(finished_run())
    rows, scorer = stored.run.greedy(), EnsembleScorer(stored, "mean")
    assert [(row.cell, row.threshold_from) for row in rows] == [
        ((seed, epoch), origin) for seed in SEEDS for epoch in EPOCHS for origin in ("zero", "tune")
    ]
    for row in rows[1::2]:
        weights = dict(zip(row.ensemble.members, row.ensemble.weights, strict=True))
        assert row.name == GREEDY and row.ensemble.how == "mean" and sum(weights.values()) == pytest.approx(1)
        assert scorer.tuned(weights) == (row.threshold, row.tune)
        singles = [single for single in stored.run.rows(row.cell) if single.ensemble.is_single]
        assert row.tune >= max(scorer.tuned({single.ensemble.members[0]: 1.0})[1] for single in singles)
        scores = stored.task.scores(scorer.predict("test", weights), stored.sets()["test"], row.threshold)
        assert row.metrics["f1"] == scores["f1"]


def test_what_it_takes_is_what_its_members_take_on_one_encoder():
    run = RunDir(finished_run())
    for row in run.greedy():
        costs = {single.ensemble.members[0]: single.cost for single in run.rows(row.cell) if single.ensemble.is_single}
        pool = costs[Member("pool", *row.cell)]
        encoder = pool.total_parameters - pool.parameters
        chosen = [costs[member] for member in row.ensemble.members]
        heads = sum(cost.total_parameters - encoder for cost in chosen)
        assert row.cost.parameters == sum(cost.parameters for cost in chosen)
        assert row.cost.total_parameters == encoder + heads
        assert row.cost.disk_bytes - pool.disk_bytes == 4 * (heads - pool.parameters)
        feed = max(cost.feed_seconds for cost in chosen)  # heads of one bank share the passes of the backbone
        own = sum(cost.head_seconds - cost.feed_seconds for cost in chosen)
        assert row.cost.head_seconds == pytest.approx(feed + own, abs=0.002)


def test_differences_to_the_backbone_are_over_all_seeds():
    run = RunDir(finished_run())
    entries = json.loads(run.greedy_file.read_text(encoding="utf-8"))["comparisons"]
    f1 = [entry for entry in entries if (entry["metric"], entry["threshold_from"]) == ("f1", "tune")]
    assert [(entry["checkpoint"], entry["member"], entry["seeds"]) for entry in f1] == [
        (e, GREEDY, SEEDS) for e in EPOCHS
    ]
    for entry in f1:
        rows = [row for row in run.scores() if (row.epoch, row.threshold_from) == (entry["checkpoint"], "tune")]
        mine, base = ([row.metrics["f1"] for row in rows if row.name == name] for name in (GREEDY, "backbone"))
        assert entry["difference"] == pytest.approx(sum(mine) / 2 - sum(base) / 2)
        assert entry["low"] <= entry["difference"] <= entry["high"]
    assert compare({}) == []


def test_heads_of_a_share_take_no_part_and_a_single_member_has_no_ensemble(tmp_path):
    once = {"epochs": 0.2, "checkpoints": []}
    shares = Study(recipe_of(finetune=once, bank={"fractions": [0.5, 1.0]}), tmp_path / "shares", quiet=True)
    shares.run()
    assert not any(member.is_partial for row in shares.run_dir.greedy() for member in row.ensemble.members)
    alone = Study(recipe_of(finetune=once, heads=[]), tmp_path / "alone", quiet=True)
    alone.run()
    assert alone.run_dir.greedy() == []


def test_it_is_chosen_once_and_again_after_new_scores(tmp_path):
    study = Study.open(copy_of(finished_run(), tmp_path), quiet=True)
    path, scores = study.run_dir.greedy_file, study.run_dir.scores_file(1, 1.0)
    before, text = path.stat().st_mtime_ns, path.read_text(encoding="utf-8")
    scores.touch()
    study.run()
    assert path.stat().st_mtime_ns == before  # content decides, not the time of a file
    for damage in ("{", json.dumps({**json.loads(text), "made_from": "others"})):
        path.write_text(damage, encoding="utf-8")
        study.run()
        assert path.read_text(encoding="utf-8") == text
