"""Five questions, two members, everything countable by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertvision.data.squad import Record
from bertvision.tasks import Dataset, Spans
from bertvision.tasks.base import Judged, disputes, take_turns
from bertvision.tasks.decode import SpanPredictions
from bertvision.tasks.spans import answer_length, by_group, context_lengths, judge, sorts_of_mistake, two_best

INF = float("inf")


def record(number: int, question: str, context: str, *answers: str) -> Record:
    return Record(f"q{number}", question, context, answers, tuple(context.find(a) for a in answers), "title", number)


RECORDS = [
    record(0, "Who came?", "Ada came to the old mill", "Ada"),
    record(1, "What burned?", "the old mill burned", "the old mill", "mill"),
    record(2, "Who left?", "nobody is said to have gone away at all"),
    record(3, "Where is it?", "it is in Paris", "Paris"),
    record(4, "Did it rain?", "the sun shone"),
]


def predictions(*rows: tuple[float, list[tuple[str, float]]]) -> SpanPredictions:
    """rows: of each question the no-answer score and the spans with their scores."""
    width = max(len(spans) for _, spans in rows)
    texts = [[text for text, _ in spans] + [""] * (width - len(spans)) for _, spans in rows]
    scores = np.array([[score for _, score in spans] + [-INF] * (width - len(spans)) for _, spans in rows])
    doubts = np.array([doubt for doubt, _ in rows])
    return SpanPredictions([record.id for record in RECORDS], texts, np.zeros((5, width, 2), np.int64), scores, doubts)


# Right: Ada, none, none. Wrong: q1 says nothing though its best span is right; q3 has the right span next to its best.
BACKBONE = predictions(
    (-3.0, [("Ada", 5.0), ("old mill", 1.0)]),
    (2.0, [("old mill", 4.0)]),
    (1.0, [("nobody", 1.0)]),
    (-2.0, [("in Paris", 6.0), ("Paris", 5.5)]),
    (4.0, [("sun", 0.0)]),
)
# Right: Ada, mill, Paris. Wrong: answers both unanswerable ones, surely.
HEAD = predictions(
    (-1.0, [("Ada", 3.0)]),
    (-1.0, [("mill", 3.0)]),
    (-5.0, [("nobody", 3.0)]),
    (-1.0, [("Paris", 3.0)]),
    (-6.0, [("the sun", 3.0)]),
)


@pytest.fixture(scope="module")
def analysis():
    members = {
        "backbone": Judged(BACKBONE, 0.0, True),
        "head": Judged(HEAD, 0.0, True),
        "both": Judged(HEAD, 0.0, False),
    }
    windows = SimpleNamespace(example=np.array([0, 1, 2, 2, 3, 4]), lengths=np.array([20, 30, 7, 40, 50, 60]))
    return Spans().analyse(Dataset("", [], RECORDS, windows), members)


def test_a_verdict():
    found = judge(RECORDS, BACKBONE, 0.0)
    assert found.answers == ["Ada", "", "", "in Paris", ""]
    assert found.exact.tolist() == [True, False, True, False, True]
    assert found.f1.tolist() == pytest.approx([1, 0, 1, 2 / 3, 1])
    assert found.spans_f1.tolist() == pytest.approx([1, 1, 0, 2 / 3, 0])
    assert found.second_exact.tolist() == [False, True, False, True, False]
    above = judge(RECORDS, BACKBONE, 2.0)
    assert above.answers == ["Ada", "old mill", "nobody", "in Paris", ""]
    assert above.doubt.tolist() == [-5.0, 0.0, -1.0, -4.0, 2.0]
    assert judge(RECORDS[3:], BACKBONE, 0.0).answers == ["in Paris", ""]  # by id, in any order
    assert judge(RECORDS[::-1], BACKBONE, 0.0).exact.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    "doubt, expected",
    [
        (-0.5, ("tea", "")),  # the null lies between the first span and the others
        (-3.0, ("tea", "rum")),  # ... and now behind them; "Tea." is no other answer
        (0.0, ("tea", "")),  # a tie is answered
        (0.5, ("", "tea")),
    ],
)
def test_the_null_competes_for_the_second_place(doubt, expected):
    assert two_best(["tea", "Tea.", "rum", ""], [5.0, 4.0, 3.0, -INF], doubt) == expected
    assert two_best(["", ""], [-INF, -INF], 1e4) == ("", "")


def test_members(analysis):
    found = analysis["members"]["backbone"]
    assert found["has_answer"] == pytest.approx(1 / 3)
    assert found["no_answer"] == 1.0
    assert found["wrong_predicted_empty"] == 0.5  # of "the old mill" and "Paris" the first
    assert found["second_right"] == 1.0
    assert found["only_right"] == {"questions": 2, "tokens": 50.0}  # q2 with 40 in its longest window, q4 with 60
    assert found["right"] == {"questions": 3, "tokens": 40.0} and found["against_backbone"] is None
    assert found["answerable_of_right"] == pytest.approx(1 / 3) and found["answerable_of_second"] == 1.0
    assert found["auroc"] == pytest.approx(5 / 6)  # of six pairs only q1 (2.0) is above q2 (1.0)
    assert sum(point["questions"] for point in found["reliability"]) == 5
    assert 0 < found["calibration_error"] < 1
    other = analysis["members"]["head"]
    assert (other["has_answer"], other["no_answer"], other["wrong_predicted_empty"]) == (1.0, 0.0, None)
    assert other["second_right"] == 1.0  # "no answer" was the only alternative, and it is right
    assert other["only_right"] == {"questions": 2, "tokens": 40.0}
    assert other["against_backbone"] == {
        "member": {"questions": 2, "tokens": 40.0},
        "backbone": {"questions": 2, "tokens": 50.0},
    }


def test_groups(analysis):
    found = analysis["members"]["backbone"]
    assert found["by_question_word"] == [
        {"group": "who", "questions": 2, "f1": 100.0},
        {"group": "other", "questions": 1, "f1": 100.0},
        {"group": "what", "questions": 1, "f1": 0.0},
        {"group": "where", "questions": 1, "f1": pytest.approx(200 / 3)},
    ]
    assert found["by_answer_length"] == [
        {"group": "no answer", "questions": 2, "f1": 100.0},
        {"group": "1 word", "questions": 2, "f1": pytest.approx(250 / 3)},
        {"group": "3–4 words", "questions": 1, "f1": 0.0},
    ]
    lengths = [(row["group"], row["questions"]) for row in found["by_context_length"]]
    assert lengths == [("3–4 words", 3), ("6 words", 1), ("9 words", 1)]
    labels = ["100–120 words", "9–99 words", "no answer"]
    assert [row["group"] for row in by_group(labels, np.ones(3))] == labels[::-1]
    groups = {0: "no answer", 1: "1 word", 2: "2 words", 4: "3–4 words", 8: "5–8 words", 9: "9 words and more"}
    assert {words: answer_length(words) for words in groups} == groups
    quarters = ["1–25 words", "26–50 words", "51–75 words", "76–100 words"]
    assert list(dict.fromkeys(context_lengths(np.arange(1, 101)))) == quarters
    assert context_lengths(np.array([7, 7, 7])) == ["7 words"] * 3


def test_agreement_and_mistakes_are_of_single_members(analysis):
    assert analysis["agreement"] == {"members": ["backbone", "head"], "matrix": [[1.0, 0.2], [0.2, 1.0]]}
    found = {entry["id"]: entry for entry in analysis["errors"]}  # on q0 both are right
    assert {key: entry["why"] for key, entry in found.items()} == {
        "q1": "only head is right",
        "q2": "only backbone is right",
        "q3": "only head is right",
        "q4": "only backbone is right",
    }
    assert found["q1"] | {"why": ""} == {
        "id": "q1",
        "question": "What burned?",
        "context": RECORDS[1].context,
        "gold": ["the old mill", "mill"],
        "answers": {"backbone": "", "head": "mill"},
        "why": "",
    }


def test_the_sorts_of_mistake_of_one_member():
    found = sorts_of_mistake(RECORDS, {"backbone": judge(RECORDS, BACKBONE, 0.0)})
    assert [np.flatnonzero(rows).tolist() for _, rows, _ in found] == [[], [1], [3], [1], [3]]
    alone = sorts_of_mistake(RECORDS, {"head": judge(RECORDS, HEAD, 0.0)})
    assert np.flatnonzero(alone[0][1]).tolist() == [2, 4]
    assert list(take_turns(alone, 1)) == [(4, alone[0][0])]  # 6 points below the threshold is surer than 5


def test_disputes_of_three_members():
    right = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], bool)
    found = {why: np.flatnonzero(rows).tolist() for why, rows, _ in disputes(right, np.ones(4))}
    assert found == {
        "only {right} is right": [2],
        "only {wrong} is wrong": [1],
        "members disagree: about half of them are right": [1, 2],
    }
    assert disputes(right[:1], np.ones(4)) == []


def test_sorts_take_turns_and_no_question_comes_twice():
    flags, telling = np.ones(4, bool), np.array([1.0, 3.0, 2.0, 0.0])
    sorts = [("a", flags, telling), ("b", flags, -telling), ("c", np.zeros(4, bool), telling)]
    assert list(take_turns(sorts, 10)) == [(1, "a"), (3, "b"), (2, "a"), (0, "b")]
    assert list(take_turns(sorts, 3)) == [(1, "a"), (3, "b"), (2, "a")]
