"""Labels and scores from logits: windows merged, files read back, and notes where a score says little."""

import json

import numpy as np
import pytest
import torch

from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.evaluate.labels import LabelCollector, LabelPredictions, label_points, label_scores
from bertvision.evaluate.ragged import Ragged, rows_of
from bertvision.evaluate.scores import Scale, ScoreCollector, ScorePredictions, score_points, score_scores

YES_NO = ("yes", "no")


def windows_of(example: list[int]) -> Windows:
    count = len(example)
    none = np.zeros(count, np.int64)
    starts = np.arange(count + 1)
    return Windows(none, none, starts, np.array(example), none, none, none, np.zeros((0, 2), np.int32), none)


def test_one_window_each_in_any_order():
    collector = LabelCollector(["a", "b", "c"], windows_of([0, 1, 2]), ("x", "y", "z"))
    logits = torch.tensor([[0.0, 1, 2], [3, 0, 0], [0, 5, 0]])
    collector.add(np.array([2, 0]), logits[[2, 0]])
    collector.add(np.array([1]), logits[[1]])
    found = collector.finish()
    assert found.values() == ["z", "x", "y"]
    assert found.probabilities == pytest.approx(logits.double().softmax(dim=1).numpy())


def test_a_question_is_answerable_if_any_window_says_so():
    logits = torch.tensor([[-3.0, 3], [2, 0], [-1, 1], [-2, 2], [-4, 4]])
    collector = LabelCollector(["a", "b"], windows_of([0, 0, 0, 1, 1]), YES_NO)
    collector.add(np.arange(5), logits)
    found = collector.finish()
    assert found.values() == ["yes", "no"]
    assert found.probabilities == pytest.approx(logits[[1, 3]].double().softmax(dim=1).numpy())


def test_labels_survive_a_file():
    found = LabelPredictions(["a", "b"], YES_NO, np.array([[0.25, 0.75], [0.5, 0.5]]))
    text = json.loads(json.dumps(found.to_json()))
    assert text["a"] == {"label": "no", "probabilities": {"yes": 0.25, "no": 0.75}}
    again = LabelPredictions.from_json(text)
    assert (again.ids, again.labels, again.values()) == (found.ids, found.labels, ["no", "yes"])
    assert again.probabilities == pytest.approx(found.probabilities)
    with pytest.raises(UserError, match=r"x\.json: not a predictions file"):
        LabelPredictions.from_json({"a": {"answer": ""}}, "x.json")


def said(numbers: list[int], classes: int = 2) -> LabelPredictions:
    names = tuple("abcd"[:classes])
    return LabelPredictions([str(n) for n in range(len(numbers))], names, np.eye(classes)[numbers])


def test_scores_and_points_say_the_same():
    gold = np.array([0, 1, 1, 0, 1, 0])
    found, names = said([0, 1, 0, 0, 1, 1]), ("accuracy", "f1", "matthews")
    scores, points = label_scores(gold, found, names), label_points(gold, found, names)
    assert {name: metric(points.values) for name, metric in points.metrics.items()} == {n: scores[n] for n in names}
    assert scores["total"] == 6 and "note" not in scores
    assert points.values[:, :2].tolist() == [[0, 0], [1, 1], [1, 0], [0, 0], [1, 1], [0, 1]]
    half = points.values[[0, 1, 1]]
    assert points.metrics["accuracy"](half) == 100.0


def test_a_constant_prediction_is_zero_and_says_why():
    scores = label_scores(np.array([0, 0, 0, 1]), said([0, 0, 0, 0]), ("accuracy", "f1", "matthews"))
    assert (scores["accuracy"], scores["f1"], scores["matthews"]) == (75.0, 0.0, 0.0)
    assert scores["note"] == "always says 'a', which is right for 75.0%"
    scores = label_scores(np.array([1, 1]), said([0, 1]), ("matthews",))
    assert scores["note"] == "every example is 'b': a correlation has no meaning and is 0"


def test_a_scale_runs_from_minus_one_to_one():
    scale = Scale(1.0, 5.0)
    assert scale.to_unit(np.array([1.0, 3.0, 5.0])).tolist() == [-1.0, 0.0, 1.0]
    assert scale.from_unit(scale.to_unit(np.array([0.0, 2.5, 7.0]))) == pytest.approx([0.0, 2.5, 7.0])


def test_scores_are_on_the_scale_of_the_data_and_survive_a_file():
    collector = ScoreCollector(["a", "b", "c"], Scale(0.0, 5.0))
    collector.add(np.array([2, 0]), torch.tensor([[1.2], [-1.0]]))
    collector.add(np.array([1]), torch.tensor([[0.0]]))
    found = collector.finish()
    assert found.values() == pytest.approx([0.0, 2.5, 5.5])  # beyond the scale: only a submission is clipped
    again = ScorePredictions.from_json(json.loads(json.dumps(found.to_json())))
    assert (again.ids, again.values()) == (found.ids, pytest.approx(found.values()))
    with pytest.raises(UserError, match="not a predictions file"):
        ScorePredictions.from_json({"a": {"label": "x"}})


def test_scores_of_scores():
    gold = np.array([1.0, 2, 3, 5])
    found = ScorePredictions(list("abcd"), np.array([1.0, 2, 4, 3]))
    scores, points = (make(gold, found, ("pearson", "spearman")) for make in (score_scores, score_points))
    assert scores["spearman"] == pytest.approx(80.0)
    assert points.metrics["spearman"](points.values[:3]) == pytest.approx(100.0)
    constant = score_scores(gold, ScorePredictions(list("abcd"), np.full(4, 2.7)), ("pearson", "spearman"))
    assert (constant["pearson"], constant["spearman"]) == (0.0, 0.0)
    assert constant["note"] == "all predicted scores are the same: a correlation has no meaning and is 0"


def test_ragged_rows_find_their_place():
    starts = np.array([0, 2, 3, 6])
    assert rows_of(starts, np.array([2, 0])).tolist() == [3, 4, 5, 0, 1]
    ragged = Ragged(starts, 1)
    ragged.add(np.array([2, 0]), torch.tensor([[3.0], [4], [5], [0], [1]]))
    ragged.add(np.array([1]), torch.tensor([[-torch.inf]]))
    assert ragged.values.dtype == torch.float16
    assert ragged.values[:, 0].tolist() == [0, 1, -60000, 3, 4, 5]
