"""Five questions, three members, everything countable by hand."""

import numpy as np
import pytest

from bertvision.data.squad import Record
from bertvision.evaluate.analysis import (
    agreement,
    answer_length,
    by_group,
    context_lengths,
    context_words,
    describe,
    judge,
    share,
    two_best,
)
from bertvision.evaluate.mistakes import disputes, instructive, sorts_of_mistake, take_turns
from bertvision.evaluate.spans import SpanPredictions

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
    return SpanPredictions([one.id for one in RECORDS], texts, np.zeros((5, width, 2), np.int64), scores, doubts)


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


@pytest.fixture
def verdicts():
    return {"backbone": judge(RECORDS, BACKBONE, 0.0), "head": judge(RECORDS, HEAD, 0.0)}


def test_a_verdict(verdicts):
    found = verdicts["backbone"]
    assert found.answers == ["Ada", "", "", "in Paris", ""]
    assert found.exact.tolist() == [True, False, True, False, True]
    assert found.f1.tolist() == pytest.approx([1, 0, 1, 2 / 3, 1])
    assert found.spans_f1.tolist() == pytest.approx([1, 1, 0, 2 / 3, 0])
    assert found.second == ["", "old mill", "nobody", "Paris", "sun"]
    assert found.second_exact.tolist() == [False, True, False, True, False]


def test_the_threshold_decides_what_is_answered():
    found = judge(RECORDS, BACKBONE, 2.0)
    assert found.answers == ["Ada", "old mill", "nobody", "in Paris", ""]
    assert found.doubt.tolist() == [-5.0, 0.0, -1.0, -4.0, 2.0]


def test_records_may_come_in_another_order_than_predictions():
    assert judge(RECORDS[::-1], BACKBONE, 0.0).exact.tolist() == [True, False, True, False, True]
    assert judge(RECORDS[3:], BACKBONE, 0.0).answers == ["in Paris", ""]


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


def test_without_any_span_there_is_no_second():
    assert two_best(["", ""], [-INF, -INF], 1e4) == ("", "")
    assert two_best(["tea"], [1.0], 3.0) == ("", "tea")


def test_what_is_told_of_a_member(verdicts):
    found = describe(RECORDS, verdicts["backbone"], [verdicts["head"]])
    assert found["has_answer"] == pytest.approx(1 / 3)
    assert found["no_answer"] == 1.0
    assert found["wrong_predicted_empty"] == 0.5  # of "the old mill" and "Paris" the first
    assert found["second_right"] == 1.0
    assert found["only_right"] == {"questions": 2, "context_words": 6.0}  # q2 with 9 words, q4 with 3
    assert found["auroc"] == pytest.approx(5 / 6)  # of six pairs only q1 (2.0) stands above q2 (1.0)
    assert sum(point["questions"] for point in found["reliability"]) == 5
    assert 0 < found["calibration_error"] < 1

    other = describe(RECORDS, verdicts["head"], [verdicts["backbone"]])
    assert (other["has_answer"], other["no_answer"], other["wrong_predicted_empty"]) == (1.0, 0.0, None)
    assert other["second_right"] == 1.0  # "no answer" was the only alternative, and it is right
    assert other["only_right"] == {"questions": 2, "context_words": 4.0}


def test_by_group(verdicts):
    found = describe(RECORDS, verdicts["backbone"], [])
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
    assert [(row["group"], row["questions"]) for row in found["by_context_length"]] == [
        ("3–4 words", 3),
        ("6 words", 1),
        ("9 words", 1),
    ]


def test_groups_are_in_the_order_of_their_numbers():
    labels = ["100–120 words", "9–99 words", "no answer"]
    assert [row["group"] for row in by_group(labels, np.ones(3))] == ["no answer", "9–99 words", "100–120 words"]


@pytest.mark.parametrize(
    "words, group",
    [(0, "no answer"), (1, "1 word"), (2, "2 words"), (4, "3–4 words"), (8, "5–8 words"), (9, "9 words and more")],
)
def test_answer_lengths(words, group):
    assert answer_length(words) == group


def test_contexts_are_parted_into_quarters():
    found = context_lengths(np.arange(1, 101))
    assert sorted(set(found), key=lambda name: int(name.split("–")[0])) == [
        "1–25 words",
        "26–50 words",
        "51–75 words",
        "76–100 words",
    ]
    assert context_lengths(np.array([7, 7, 7])) == ["7 words"] * 3
    assert context_words(RECORDS).tolist() == [6, 4, 9, 4, 3]


def test_agreement_by_hand(verdicts):
    answers = {name: verdict.answers for name, verdict in verdicts.items()}
    found = agreement(answers | {"shy": ["the Ada", "", "", "", ""]})
    assert found["members"] == ["backbone", "head", "shy"]
    assert found["matrix"] == [[1.0, 0.2, 0.8], [0.2, 1.0, 0.2], [0.8, 0.2, 1.0]]


def test_a_share_of_nothing_is_none():
    assert share(np.zeros(0, bool)) is None


def test_mistakes_come_with_their_reason(verdicts):
    found = instructive(RECORDS, verdicts)
    assert {entry["id"] for entry in found} == {"q1", "q2", "q3", "q4"}  # on q0 nobody errs
    assert {entry["id"]: entry["why"] for entry in found} == {
        "q1": "only head is right",
        "q2": "only backbone is right",
        "q3": "only head is right",
        "q4": "only backbone is right",
    }
    (entry,) = [entry for entry in found if entry["id"] == "q1"]
    assert entry["question"] == "What burned?"
    assert entry["context"] == RECORDS[1].context
    assert entry["gold"] == ["the old mill", "mill"]
    assert entry["answers"] == {"backbone": "", "head": "mill"}


def test_the_sorts_of_mistake_of_one_member(verdicts):
    sorts = {why.split(":")[0]: np.flatnonzero(rows).tolist() for why, rows, _ in sorts_of_mistake(RECORDS, {
        "backbone": verdicts["backbone"]
    })}  # fmt: skip
    assert sorts == {
        "there is no answer, yet all members give one, and are sure": [],
        "there is an answer, yet all members say there is none, and are sure": [1],
        "all members give the same wrong span": [3],
        "all members hold back the right span": [1],
        "a near miss": [3],
    }
    alone = sorts_of_mistake(RECORDS, {"head": verdicts["head"]})
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
