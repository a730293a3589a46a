"""Linear heads that are solved: the least penalised loss, with a penalty chosen by cross-validation."""

import numpy as np
import pytest
import torch

from bertvision.errors import UserError
from bertvision.recipe import from_table
from bertvision.tasks import TASKS
from bertvision.train import solve
from bertvision.train.bank import HeadBank
from bertvision.train.study import Study
from runs import encoder
from tables import labelled


def test_scores_are_solved_as_ridge_regression():
    torch.manual_seed(0)
    features = 3 + 2 * torch.randn(60, 5)
    gold = features @ torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0]) + 0.5 * torch.randn(60)
    readout = torch.nn.Linear(5, 1)
    penalty = solve.solve_readout(readout, TASKS["score"](), features, gold, 1)
    centred = features - features.mean(dim=0)
    scale = centred.square().sum(dim=1).mean().sqrt()
    centred = centred / scale
    square = centred.T @ centred + 0.5 * penalty * torch.eye(5)  # half of it, as losses are squared without a half
    wanted = torch.linalg.solve(square, centred.T @ (gold - gold.mean())) / scale
    assert torch.allclose(readout.weight[0], wanted, atol=1e-3)
    assert torch.allclose(readout(features).mean(), gold.mean(), atol=1e-3)


def test_noise_is_penalised_more_than_what_can_be_learnt():
    torch.manual_seed(0)
    features = torch.randn(200, 20)
    clear, chance = (features[:, 0] > 0).long(), torch.randint(2, (200,))
    found = [
        solve.solve_readout(torch.nn.Linear(20, 2), TASKS["labels"](), features, one, 1) for one in (clear, chance)
    ]
    assert found[0] < solve.PRIOR < found[1]


@pytest.mark.parametrize("count", [2, 3, 8, 16, 40, 100])
def test_few_examples_do_not_choose_a_small_penalty_by_chance(count):
    for seed in range(5):
        torch.manual_seed(seed)
        features = torch.randn(count, 50)
        gold = torch.arange(count) % 2
        assert solve.solve_readout(torch.nn.Linear(50, 2), TASKS["labels"](), features, gold, seed) >= solve.PRIOR


def test_every_split_holds_out_its_share_of_every_label():
    targets = np.array([0] * 40 + [1] * 20)
    splits = solve._held_out(targets, 1)
    assert len(splits) == 16
    assert all((int(one[:40].sum()), int(one[40:].sum())) == (10, 5) for one in splits)
    assert all(torch.stack(splits[first : first + 4]).sum(dim=0).eq(1).all() for first in range(0, 16, 4))
    assert len(solve._held_out(np.zeros(5000), 1)) == 1


def recipe(path, heads, **bank):
    data = {"train": path, "tune": path, "test": path, "text": ["first", "second"], "label": "label"}
    table = {"task": "labels", "backbone": {"name": encoder()}, "data": data, "finetune": {"epochs": 0}}
    return from_table({**table, "bank": {"solve": True, **bank}, "heads": heads}, "test")


def test_a_study_solves_its_bank_and_leaves_an_untaught_backbone_out_of_ensembles(tmp_path):
    path = str(labelled(tmp_path / "a.csv", 60))
    heads = [{"kind": "last", "reduce": "mean"}, {"kind": "probe", "layer": 1, "reduce": "mean"}, {"kind": "last"}]
    study = Study(recipe(path, heads), tmp_path / "run", quiet=True)
    rows = {row["member"]: row["accuracy"] for row in study.run()}
    bank, about = HeadBank.load(study.run_dir.bank(study.recipe.seeds[0], 0.0))
    assert about["identity"] == study.identity
    assert all(rows[name] > 70 for name in bank.names)
    assert all("backbone" not in [one.name for one in row.ensemble.members] for row in study.run_dir.greedy())


def test_what_cannot_be_solved_is_refused(tmp_path):
    path = str(labelled(tmp_path / "a.csv", 60))
    with pytest.raises(UserError, match="more than a linear read-out"):
        Study(recipe(path, [{"kind": "pool"}]), tmp_path / "run", quiet=True).run()
    with pytest.raises(UserError, match=r"bank\.solve: is for labels"):
        recipe(path, [{"kind": "last"}], feed="along")
