"""FLOPs of training and scoring: counted with the seconds, kept over a kill, absent in older runs."""

from dataclasses import replace

import pytest

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.flops import encoder_work, head_work
from bertvision.backbone.tuning import Tuning, apply
from bertvision.evaluate.ensemble import Member
from bertvision.evaluate.score import Cost, join_costs
from bertvision.files import load_tensors, save_tensors
from bertvision.heads import build_head
from bertvision.train.study import Study
from runs import encoder, recipe_of

SHAPE = {"layers": 4, "width": 32}


def costs_of(recipe, directory) -> dict[tuple[float, str], Cost]:
    study = Study(recipe, directory, quiet=True)
    study.run()
    return {(row.epoch, row.name): row.cost for row in study.run_dir.rows()}


def head(kind, joint=False, **options):
    return head_work(build_head({"kind": kind, **options}, **SHAPE, task="spans"), *SHAPE.values(), joint=joint)


def test_a_study_counts_what_it_computes(tmp_path):
    recipe = recipe_of()
    study = Study(recipe, tmp_path / "run", quiet=True)
    costs = costs_of(recipe, tmp_path / "run")
    model, lengths, tested = Backbone.load(encoder()).model, *(study.data[k].windows.lengths for k in ("train", "test"))
    apply(model, Tuning())
    own, read_out, compress = encoder_work(model, "last"), head("last", joint=True), head("compress", size=8)
    tuning = own.train(lengths) + read_out.train(lengths)
    last, bank = costs[1.0, "backbone"], costs[1.0, "compress size=8"]
    assert (last.tuning_flops, last.head_flops, last.train_flops) == (tuning, 0, tuning)
    assert last.infer_flops == own.forward(tested) + read_out.forward(tested)
    assert bank.head_flops == own.forward(lengths) + compress.train(lengths)  # its states are live
    assert bank.train_flops == tuning + bank.head_flops
    assert 0.3 * tuning < costs[0.5, "backbone"].tuning_flops < 0.7 * tuning


@pytest.mark.parametrize("bank", [{"states": "stored", "epochs": 3}, {"states": "live", "epochs": 3}])
def test_a_store_is_computed_once(tmp_path, bank):
    recipe = recipe_of(bank=bank, heads=[{"kind": "last"}], finetune={"epochs": 0, "checkpoints": []})
    study, cost = Study(recipe, tmp_path, quiet=True), costs_of(recipe, tmp_path)[0.0, "last"]
    lengths = study.data["train"].windows.lengths
    passes = 1 if bank["states"] == "stored" else 3
    encoder_flops = encoder_work(Backbone.load(encoder()).model).forward(lengths)
    assert cost.head_flops == passes * encoder_flops + 3 * head("last").train(lengths)
    assert cost.tuning_flops == 0


def test_less_is_tuned_for_less(tmp_path):
    flops = {}
    for name, tuning in {
        "all": {"epochs": 2, "checkpoints": []},
        "stored": {"train_layers": 2, "norms": "trained", "lower": "stored", "epochs": 2, "checkpoints": []},
        "live": {"train_layers": 2, "norms": "trained", "epochs": 2, "checkpoints": []},
    }.items():
        costs = costs_of(recipe_of(finetune=tuning, heads=[]), tmp_path / name)
        flops[name] = costs[max(costs)].tuning_flops
    assert flops["stored"] < flops["live"] < flops["all"]


def test_an_early_stop_and_a_share_cost_less(tmp_path):
    short = {"epochs": 20, "patience": 1, "checks": 1, "learning_rate": 1.0, "schedule": "constant"}
    flops = {}
    for name, bank in {"stopped": short, "shares": {"fractions": [0.5, 1]}}.items():
        costs_of(recipe_of(bank=bank, finetune={"epochs": 0, "checkpoints": []}), tmp_path / name)
        study = Study.open(tmp_path / name, quiet=True)
        flops[name] = load_tensors(study.run_dir.bank(study.recipe.seeds[0], 0.0))[1]["flops"]
    whole, (train, tune) = head("compress", size=8), (study.data[name].windows.lengths for name in ("train", "tune"))
    epoch = whole.train(train) + whole.forward(tune)
    assert flops["stopped"]["compress size=8"] % epoch == 0 and flops["stopped"]["compress size=8"] < 20 * epoch
    shares = flops["shares"]
    assert shares["compress size=8"] == whole.train(train)
    assert 0.3 < shares["compress size=8 @ 50 %"] / shares["compress size=8"] < 0.7


def test_runs_of_before_have_none(tmp_path):
    recipe = recipe_of(finetune={"epochs": 0, "checkpoints": []})
    study = Study(recipe, tmp_path, quiet=True)
    study.run()
    path = study.run_dir.checkpoint(recipe.seeds[0], 0.0) / "head.safetensors"
    tensors, about = load_tensors(path)
    save_tensors(path, tensors, {key: value for key, value in about.items() if key != "flops"})
    study.run_dir.scores_file(recipe.seeds[0], 0.0).unlink()
    row = study.run()[0]
    assert "tuning_flops" not in row and "train_flops" not in row and row["tuning_seconds"] >= 0


def test_members_share_the_encoder():
    one, two = Member("", 1, 1.0), Member("pool", 1, 1.0)
    known, three = Cost(tuning_flops=100, feed_flops=3, head_flops=5), Member("last", 1, 1.0)
    alone = replace(known, feed_flops=0, head_flops=0)
    assert join_costs({one: alone, two: known, three: known}).train_flops == 107  # the feed is paid for once
    assert join_costs({one: known, two: Cost(tuning_flops=100)}).train_flops is None
