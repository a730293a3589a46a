"""Scores of texts and pairs: their sets, predictions, correlations and analysis."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from bertvision.data.batches import collate
from bertvision.data.tables import Example
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks import Dataset, Score
from bertvision.tasks.base import Judged
from bertvision.tasks.scores import Scale, ScoreCollector, ScorePredictions
from tables import scored, text_recipe

IDS = ["t0", "t1", "t2", "t3"]


@pytest.fixture
def numbers(tmp_path) -> DataRecipe:
    return text_recipe(scored(tmp_path / "a.jsonl", 40), scored(tmp_path / "b.jsonl", 12, 1), "score").data


def test_scores_are_learnt_between_minus_one_and_one(numbers, tokenizer):
    task = Score()
    sets = task.load(numbers, tokenizer, 0)
    assert task.facts() == {"scale": [10.0, 20.0]}
    assert sets["train"].windows.targets.dtype == np.float32
    assert (sets["train"].windows.targets.min(), sets["train"].windows.targets.max()) == (-1.0, 1.0)
    assert len(set(sets["tune"].gold)) >= 4  # split off over the whole range
    batch = collate(sets["test"].windows, np.arange(12))
    right = batch.targets[:, None]
    assert float(task.loss(right + 0.5, batch)) == pytest.approx(0.25)
    assert task.joined_by("max") == "product" and torch.equal(task.log_probabilities(right, batch.mask), right)
    collector = task.collector(sets["test"], EvaluateRecipe())
    collector.add(np.arange(12), right)
    found = collector.finish()
    assert found.numbers == pytest.approx(sets["test"].gold)
    assert task.scores(found, sets["test"], 0.0)["spearman"] == pytest.approx(100.0)
    again = Score()
    again.settle(numbers, task.facts())
    assert again.scale == task.scale


def test_scores_that_are_all_the_same(tmp_path, tokenizer):
    path = tmp_path / "a.csv"
    path.write_text("text,y\na,1\nb,1\n")
    with pytest.raises(UserError, match=r"a\.csv: every score is 1; there is nothing to learn"):
        Score().load(DataRecipe(str(path), str(path), str(path), text=("text",), label="y"), tokenizer, 0)


def test_scores_cannot_be_used_on_labels(numbers, tokenizer):
    with pytest.raises(UserError, match=r"data\.test: glue:STS-B/test: comes without labels"):
        Score().settle(DataRecipe("glue:STS-B/train", "", "glue:STS-B/test"), {})
    task = Score()
    task.load(numbers, tokenizer, 0)
    with pytest.raises(UserError, match=r"^glue:CoLA/dev: has 0, 1, and .*a\.jsonl has scores"):
        task.dataset("glue:CoLA/dev", tokenizer, numbers)


def test_no_other_metric_can_decide(numbers):
    with pytest.raises(UserError, match=r"data\.metric: is for labels; of scores, spearman decides"):
        Score().settle(dataclasses.replace(numbers, metric="f1"), {})


def test_predictions_are_on_the_scale_of_the_data_and_survive_a_file():
    scale = Scale(0.0, 5.0)
    assert scale.to_unit(np.array([0.0, 2.5, 5.0])).tolist() == [-1.0, 0.0, 1.0]
    assert scale.from_unit(scale.to_unit(np.array([0.0, 2.5, 7.0]))) == pytest.approx([0.0, 2.5, 7.0])
    collector = ScoreCollector(["a", "b", "c"], scale)
    collector.add(np.array([2, 0]), torch.tensor([[1.2], [-1.0]]))
    collector.add(np.array([1]), torch.tensor([[0.0]]))
    found = collector.finish()
    assert found.values() == pytest.approx([0.0, 2.5, 5.5])  # beyond the scale: only a submission is clipped
    again = ScorePredictions.from_json(json.loads(json.dumps(found.to_json())))
    assert (again.ids, again.values()) == (found.ids, pytest.approx(found.values()))
    with pytest.raises(UserError, match="not a predictions file"):
        ScorePredictions.from_json({"a": {"label": "x"}})


def four(*gold: float) -> Dataset:
    records = [Example(key, (f"first {key}", f"second {key}"), None, "file", 1) for key in IDS]
    return Dataset("four", [], records, None, np.array(gold, np.float64))


def test_scores_and_points():
    task, data = Score(), four(1, 2, 3, 5)
    found = ScorePredictions(IDS, np.array([1.0, 2, 4, 3]))
    points = task.points(found, data, 0.0)
    assert task.scores(found, data, 0.0)["spearman"] == pytest.approx(80.0)
    assert points.metrics["spearman"](points.values[:3]) == pytest.approx(100.0)
    constant = task.scores(ScorePredictions(IDS, np.full(4, 2.7)), data, 0.0)
    assert (constant["pearson"], constant["spearman"], constant["total"]) == (0.0, 0.0, 4)
    assert constant["note"] == "all predicted scores are the same: a correlation has no meaning and is 0"


def test_analysis_by_hand():
    first_member = ScorePredictions(IDS, np.array([1.5, 4.0, 1.0, 4.0]))
    second_member = ScorePredictions(IDS, np.array([1.5, 3.0, 2.0, 0.0]))
    found = Score().analyse(
        four(1, 2, 3, 4), {"one": Judged(first_member, 0.0, True), "other": Judged(second_member, 0.0, True)}
    )
    assert found["members"]["other"]["absolute_error"] == pytest.approx((0.5 + 1 + 1 + 4) / 4)
    assert found["members"]["other"]["bias"] == pytest.approx((0.5 + 1 - 1 - 4) / 4)
    pearson = np.corrcoef(first_member.numbers, second_member.numbers)[0, 1]
    assert np.array(found["agreement"]["matrix"]) == pytest.approx(np.array([[1, pearson], [pearson, 1]]))
    assert [(entry["id"], entry["why"]) for entry in found["errors"]] == [
        ("t1", "all members score it far too high"),  # by at least 1, t0 by at least 0.5
        ("t2", "all members score it far too low"),
        ("t3", "members differ most"),
        ("t0", "all members score it far too high"),
    ]
    first = found["errors"][0]
    assert (first["question"], first["context"], first["gold"]) == ("first t1", "second t1", ["2"])
    assert first["answers"] == {"one": "4.00", "other": "3.00"}
