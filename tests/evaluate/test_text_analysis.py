"""Four texts, two or three members, everything countable by hand."""

import numpy as np
import pytest

from bertvision.data.tables import Example
from bertvision.evaluate.labels import LabelPredictions
from bertvision.evaluate.scores import ScorePredictions
from bertvision.evaluate.text_analysis import (
    describe_labels,
    describe_scores,
    label_agreement,
    label_mistakes,
    score_agreement,
    score_mistakes,
)

IDS = ["t0", "t1", "t2", "t3"]
RECORDS = [Example(key, (f"text {key}",), None, "file", 1) for key in IDS]
PAIRS = [Example(key, (f"first {key}", f"second {key}"), None, "file", 1) for key in IDS]
GOLD = np.array([0, 0, 1, 1])


def labels(*second: float) -> LabelPredictions:
    """second: the probability of the label `yes` for each text."""
    return LabelPredictions(IDS, ("no", "yes"), np.array([[1 - p, p] for p in second]))


BACKBONE = labels(0.1, 0.9, 0.9, 0.2)  # right, wrong, right, wrong
HEAD = labels(0.4, 0.8, 0.3, 0.6)  # right, wrong, wrong, right


def test_what_is_told_of_labels():
    found = describe_labels(GOLD, BACKBONE)
    assert found["accuracy"] == 50.0
    assert found["confusion"] == {"labels": ["no", "yes"], "matrix": [[1, 1], [1, 1]]}
    assert found["auroc"] == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    assert [point["questions"] for point in found["reliability"]] == [1, 3]  # 0.8 once, 0.9 three times
    assert found["reliability"][1] == {
        "confidence": pytest.approx(0.9),
        "observed": pytest.approx(2 / 3),
        "questions": 3,
    }
    assert found["calibration_error"] == pytest.approx((0.8 + 3 * (0.9 - 2 / 3)) / 4)


def test_more_than_two_labels_have_no_auroc():
    three = LabelPredictions(IDS, ("a", "b", "c"), np.eye(3)[[0, 1, 2, 2]])
    found = describe_labels(np.array([0, 1, 2, 0]), three)
    assert found["confusion"]["matrix"] == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert "auroc" not in found


def test_agreement_of_labels():
    found = label_agreement({"backbone": BACKBONE, "head": HEAD})
    assert found == {"members": ["backbone", "head"], "matrix": [[1.0, 0.5], [0.5, 1.0]]}


def test_mistakes_of_labels():
    found = label_mistakes(RECORDS, GOLD, {"backbone": BACKBONE, "head": HEAD})
    assert {entry["id"]: entry["why"] for entry in found} == {
        "t1": "all members are wrong, and sure",
        "t2": "only backbone is right",
        "t3": "only head is right",
    }
    (entry,) = [entry for entry in found if entry["id"] == "t2"]
    assert entry["question"] == "text t2"
    assert entry["context"] == ""
    assert entry["gold"] == ["yes"]
    assert entry["answers"] == {"backbone": "yes", "head": "no"}
    assert len(label_mistakes(RECORDS, GOLD, {"backbone": BACKBONE, "head": HEAD}, most=1)) == 1


def test_what_is_told_of_scores():
    found = describe_scores(np.array([1.0, 2.0, 3.0, 4.0]), ScorePredictions(IDS, np.array([2.0, 3.0, 4.0, 5.0])))
    assert found == {
        "pearson": pytest.approx(100),
        "spearman": pytest.approx(100),
        "absolute_error": 1.0,
        "bias": 1.0,
    }


def test_agreement_of_scores_is_their_correlation():
    up, down = ScorePredictions(IDS, np.arange(4.0)), ScorePredictions(IDS, -np.arange(4.0))
    assert score_agreement({"up": up, "down": down})["matrix"] == [
        [pytest.approx(1), pytest.approx(-1)],
        [pytest.approx(-1), pytest.approx(1)],
    ]


def test_mistakes_of_scores():
    gold = np.array([1.0, 2.0, 3.0, 4.0])
    one = ScorePredictions(IDS, np.array([1.5, 4.0, 1.0, 4.0]))
    other = ScorePredictions(IDS, np.array([1.5, 3.0, 2.0, 0.0]))
    found = score_mistakes(PAIRS, gold, {"one": one, "other": other})
    assert [(entry["id"], entry["why"]) for entry in found] == [
        ("t1", "all members score it far too high"),  # by at least 1, t0 by at least 0.5
        ("t2", "all members score it far too low"),
        ("t3", "members differ most"),
        ("t0", "all members score it far too high"),
    ]
    assert found[0]["question"] == "first t1"
    assert found[0]["context"] == "second t1"
    assert found[0]["gold"] == ["2"]
    assert found[0]["answers"] == {"one": "4.00", "other": "3.00"}
