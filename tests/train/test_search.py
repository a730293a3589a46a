"""Search: honest (tune alone decides), reproducible (a study of the best ends where its trial did), unkillable."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

from bertvision.data.batches import BatchPlan
from bertvision.errors import UserError
from bertvision.recipe import load_recipe
from bertvision.train.bank import HeadBank, bank_feeds, bank_learners, train_bank
from bertvision.train.learner import Learner
from bertvision.train.search import Search, best_heads
from bertvision.train.study import Study
from bertvision.train.trials import Trials
from runs import Command, bertvision, load, questions, recipe_of, tiny_recipe, without_times
from tunings import Killed, job_of

HEADS = [{"kind": "pool"}, {"kind": "compress", "size": 8}]
SPACE = [
    {"key": "learning_rate", "low": 1e-5, "high": 1e-1, "log": True},
    {"key": "size", "values": [4, 8, 16]},
    {"key": "weight_decay", "values": [0, 0.1]},
]
TABLES = {"heads": HEADS, "search": SPACE, "bank": {"states": "live", "checks": 3}, "finetune": {"checkpoints": []}}
TRIALS, SIZE = 11, 4


def search(directory: Path, trials: int = TRIALS, **tables: object) -> Search:
    study = Study(recipe_of(**(TABLES | tables)), directory / "run", quiet=True)
    return Search(study, trials=trials, size=SIZE)


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "search").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Search, list[dict]]:
    """A search that nobody disturbed."""
    done = search(tmp_path_factory.mktemp("whole"))
    return done, done.run()


@pytest.mark.device
def test_every_trial_is_accounted_for(whole):
    done, rows = whole
    assert [row["trial"] for row in rows] == list(range(TRIALS))
    assert [row["head"] for row in rows[:2]] == [
        {"kind": "pool", "name": "pool, trial 0"},
        {"kind": "compress", "size": 8, "name": "compress, trial 1"},
    ]  # the recipe's own come first, as they stand
    for row in rows:
        assert (row["state"] == "complete") == (row["tune_f1"] is not None) == (row["why"] == "")
        assert row["state"] == "pruned" or len(row["tune_losses"]) == 3
        assert 1e-5 <= row["params"].get(f"{row['head']['kind']}.learning_rate", 1e-3) <= 1e-1
    assert {row["head"]["kind"] for row in rows[2:]} == {"pool", "compress"}
    assert len({json.dumps({**row["head"], "name": ""}) for row in rows}) == TRIALS
    rounds = ["round-0.json", "round-1.json", "round-2.json"]
    assert files(done.study.directory) == [
        "best.toml",
        "journal.json",
        "optuna.jsonl",
        *rounds,
        "search.json",
        "trials.json",
    ]
    assert json.loads((done.directory / "trials.json").read_text())[3]["tune_f1"] == rows[3]["tune_f1"]


def test_pruned_trials_were_behind(whole):
    rows = whole[1]
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned and all(row["trial"] >= SIZE for row in pruned)  # in the first round there is nothing to be behind
    for row in pruned:
        assert 2 <= len(row["tune_losses"]) < 3 and row["why"].startswith("worse on tune at step ")


def test_a_study_of_the_best_ends_where_its_trial_did(whole, tmp_path):
    done, rows = whole
    recipe = load_recipe(done.best)
    assert recipe.search == () and recipe.heads == best_heads(rows, "f1")
    best = {row["head"]["name"]: row["tune_f1"] for row in rows}
    assert best[recipe.heads[0]["name"]] == max(score for score in best.values() if score is not None)
    assert sorted(head["kind"] for head in recipe.heads) == ["compress", "pool"]
    scored = Study(recipe, tmp_path, quiet=True).run()
    for head in recipe.heads:
        assert {row["tune_f1"] for row in scored if row["member"] == head["name"]} == {best[head["name"]]}


def test_the_test_set_plays_no_part(whole, tmp_path):
    other = search(tmp_path, data={"test": questions(30, 9)})
    assert without_times(other.run()) == without_times(whole[1])


def die_in_step(monkeypatch, trial: int, step: int) -> None:
    learn = Learner.learn

    def fatal(self, states, batch, task, number, *rest):
        if number == step and f"trial {trial}" in self.name:
            raise Killed
        learn(self, states, batch, task, number, *rest)

    monkeypatch.setattr(Learner, "learn", fatal)


def die_while_noting(monkeypatch, trial: int, step: int) -> None:
    add = Trials.add

    def fatal(self, added, **outcome):
        if added.number == trial:
            raise Killed
        add(self, added, **outcome)

    monkeypatch.setattr(Trials, "add", fatal)


@pytest.mark.parametrize(
    ("kill", "trial", "step"), [(die_in_step, 0, 0), (die_in_step, 5, 5), (die_while_noting, 6, 0)]
)
def test_killed_anywhere_it_ends_the_same(kill, trial, step, whole, tmp_path, monkeypatch):
    kill(monkeypatch, trial, step)
    with pytest.raises(Killed):
        search(tmp_path, snapshot_seconds=0).run()
    monkeypatch.undo()
    with (tmp_path / "run" / "search" / "optuna.jsonl").open("a") as file:
        file.write('{"op_code": 4, "torn')
    (tmp_path / "run" / "search" / "optuna.jsonl.lock56b6.rename").write_text("")  # as Optuna leaves it
    assert without_times(search(tmp_path, snapshot_seconds=0).run()) == without_times(whole[1])
    assert files(tmp_path / "run") == files(whole[0].study.directory)


def test_killed_for_real_it_ends_the_same(tmp_path):
    runs = {}
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        recipe = tiny_recipe(tmp_path / name / "study.toml", **TABLES, snapshot_seconds=0)
        args = ("search", recipe, "--trials", 4, "--round", 2, "--out", tmp_path / name / "run", "--json")
        if name == "killed":
            begun = tmp_path / name / "run" / "search" / "round-1.json"
            assert Command(*args, cwd=tmp_path / name, hold="run/search/round-1.json").kill_when(begun.exists)
        done = bertvision(*args, cwd=tmp_path / name)
        assert done.code == 0, done.err
        runs[name] = json.loads(done.out)
    assert without_times(runs["killed"]["trials"]) == without_times(runs["whole"]["trials"])
    assert Path(runs["killed"]["best"]).is_file()


def test_a_search_goes_on_with_more_trials(whole, tmp_path):
    first = search(tmp_path, trials=SIZE).run()
    assert without_times(search(tmp_path).run()) == without_times(whole[1])
    assert without_times(first) == without_times(whole[1][:SIZE])


def test_the_agenda_of_an_extended_search_is_what_happens(tmp_path):
    search(tmp_path, trials=3).run()
    longer = search(tmp_path, trials=6)
    longer.run()
    stages = longer.journal.stages.all
    assert [stage.name for stage in stages if stage.kind == "heads"] == ["trials 0 to 2", "trials 3 to 5"]
    assert all(stage.done for stage in stages)


def test_it_ends_when_nothing_new_is_left(tmp_path):
    few = [{"key": "size", "values": [4, 8, 16]}]
    rows = search(tmp_path, trials=9, heads=[HEADS[1]], search=few).run()
    assert sorted(row["head"]["size"] for row in rows) == [4, 8, 16]
    assert "nothing new left" in (tmp_path / "run" / "log.jsonl").read_text()


def test_a_damaged_search_is_refused(whole, tmp_path):
    shutil.copytree(whole[0].study.directory, tmp_path / "run")
    journal = tmp_path / "run" / "search" / "optuna.jsonl"
    content = journal.read_text()
    for changed in (content.replace('"complete"', '"pruned"', 1), content.replace("{", "[", 1), ""):
        journal.write_text(changed)
        with pytest.raises(UserError, match=r"optuna.jsonl: damaged .*delete .*search to search again"):
            search(tmp_path).run()
    journal.write_text(content)
    (journal.parent / "round-1.json").unlink()
    with pytest.raises(UserError, match=r"round-1.json: is gone; delete"):
        search(tmp_path).run()


def test_another_search_in_the_same_place_is_refused(tmp_path):
    search(tmp_path, trials=1).run()
    with pytest.raises(UserError, match="holds a search with another --round, over other options"):
        search(tmp_path, trials=1, search=SPACE[:1]).run()


def test_stored_states_are_shared_by_rounds_and_removed(tmp_path):
    rows = search(tmp_path, bank={"states": "stored", "dtype": "fp32", "checks": 3}).run()
    assert len(rows) == TRIALS and "states" not in files(tmp_path / "run")
    log = [json.loads(line)["event"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log.count("storing states of train") == 1  # and later rounds do not look at it again


@pytest.mark.parametrize(
    ("tables", "says"), [({"heads": [], "search": []}, "heads: there are none"), ({"bank": {"feed": "along"}}, "after")]
)
def test_what_cannot_be_searched(tables, says, tmp_path):
    with pytest.raises(UserError, match=says):
        search(tmp_path, **tables)


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"bertvision\[search\]"):
        search(tmp_path, trials=1).run()


def test_a_pruned_head_learns_no_more_and_disturbs_nobody(tmp_path):
    backbone, task, data = load(recipe_of())
    shape = {"layers": backbone.layers, "width": backbone.width, "task": "spans"}
    recipe = recipe_of(bank={"epochs": 2, "checks": 2, "states": "live"}).bank
    looked: list[int] = []

    def prune(step, losses):
        looked.append(step)
        return {"bad": "no good"} if "bad" in losses else {}

    found = {}
    for name, heads, judge in (("both", ["good", "bad"], prune), ("alone", ["good"], None)):
        entries = [{"kind": "pool", "name": head} for head in heads]
        bank, job = HeadBank(entries, **shape), job_of(tmp_path, name)
        feeds = bank_feeds(bank, backbone, recipe, job)
        found[name] = train_bank(bank, feeds, task, data, job, prune=judge)
    good = found["both"]["good"].state_dict()
    assert all(torch.equal(good[key], value) for key, value in found["alone"]["good"].state_dict().items())
    assert looked == [3, 6, 9, 12]
    assert "bad stops early: no good" in (tmp_path / "log.jsonl").read_text()


def test_heads_have_their_own_weight_decay_and_warm_up():
    windows = load(recipe_of())[2]["train"].windows
    plan = BatchPlan(windows.lengths, epochs=2, batch_size=8, batch_tokens=4096, seed=1)
    entries = [{"kind": "pool"}, {"kind": "pool", "weight_decay": 0.5, "warmup": 10}, {"kind": "pool", "warmup": 0}]
    recipe = recipe_of(bank={"epochs": 2, "weight_decay": 0.1, "warmup": 0.5}).bank
    learners = bank_learners(HeadBank(entries, layers=3, width=32, task="spans"), recipe, windows, plan, 1)
    decays = [max(group["weight_decay"] for group in one.optimizer.param_groups) for one in learners]
    assert decays == [0.1, 0.5, 0.1]
    plain_start, own_start, no_start = (one.schedule(0) for one in learners)
    assert own_start < plain_start < no_start == 1
