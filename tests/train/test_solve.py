"""Linear heads that are solved: the least penalised loss, with the penalty that is best on tune."""

import numpy as np
import pytest
import torch

from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.recipe import from_table
from bertvision.tasks import TASKS
from bertvision.train import solve
from bertvision.train.bank import HeadBank
from bertvision.train.study import Study
from runs import encoder
from tables import labelled


def targets(values: torch.Tensor) -> Batch:
    nothing = torch.empty(len(values), 0, dtype=torch.int64)
    return Batch(np.arange(len(values)), nothing, nothing, nothing.bool(), values)


def test_scores_are_solved_as_ridge_regression():
    torch.manual_seed(0)
    features, other = 3 + 2 * torch.randn(60, 5), 3 + 2 * torch.randn(40, 5)
    truth = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0])
    gold = [one @ truth + 0.5 * torch.randn(len(one)) for one in (features, other)]
    readout = torch.nn.Linear(5, 1)
    penalty = solve._solve(readout, TASKS["score"](), [features, other], [targets(one) for one in gold])
    scale = features.std(dim=0).mean()
    centred = (features - features.mean(dim=0)) / scale
    square = centred.T @ centred / 60 + 0.5 * penalty * torch.eye(5)
    wanted = torch.linalg.solve(square, centred.T @ (gold[0] - gold[0].mean()) / 60) / scale
    assert torch.allclose(readout.weight[0], wanted, atol=1e-3)
    assert torch.allclose(readout(features).mean(), gold[0].mean(), atol=1e-3)


def test_noise_is_penalised_more_than_what_can_be_learnt():
    torch.manual_seed(0)
    sets = [torch.randn(80, 20), torch.randn(80, 20)]
    clear = [targets((one[:, 0] > 0).long()) for one in sets]
    chance = [targets(torch.randint(2, (80,))) for _ in sets]
    found = [solve._solve(torch.nn.Linear(20, 2), TASKS["labels"](), sets, one) for one in (clear, chance)]
    assert found[0] < found[1] == max(solve.PENALTIES)


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
