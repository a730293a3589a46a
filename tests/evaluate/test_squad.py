"""The SQuAD metric on hand-worked cases, against brute force, and on real questions."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.evaluate.calibration import choose_threshold
from bertvision.evaluate.squad import best_threshold, exact, f1, normalize, question_scores, score

DATA = Path(os.environ.get("BERTVISION_DATA", Path(__file__).parents[3] / "shared" / "data"))


def articles(**answers: list[str]) -> list[dict]:
    """One article with one question per keyword: id=[gold answers]."""
    qas = [{"id": key, "answers": [{"text": text} for text in texts]} for key, texts in answers.items()]
    return [{"paragraphs": [{"qas": qas}]}]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat, a dog\tand an Owl!", "cat dog and owl"),
        ("a-b", "ab"),  # punctuation goes before articles: nothing is left to part a from b
        ("theatre and anthem", "theatre and anthem"),
        ("the. a; AN", ""),
        ("“Ünïcode” – Straße\u00a0x", "“ünïcode” – straße x"),  # only ASCII punctuation goes, every kind of space does
        ("über a“the”x", "über “ ”x"),  # a typographic quote is a word boundary
        ("", ""),
    ],
)
def test_normalize(text, normal):
    assert normalize(text) == normal


def test_exact_and_f1_by_hand():
    assert exact("The U.S.", "us") == 1
    assert exact("us", "usa") == 0
    # gold x x y, predicted x x x z: x is shared twice. precision 2/4, recall 2/3.
    assert f1("x x y", "x x x z") == (2 * (2 / 4) * (2 / 3)) / (2 / 4 + 2 / 3)
    assert f1("the cat", "a dog") == 0
    assert f1("the", "an") == 1  # both say nothing
    assert f1("the", "cat") == 0
    assert f1("b a c", "c b") == pytest.approx(1.0)


words = st.lists(st.sampled_from(["x", "y", "z", "the", "Q.", "é"]), max_size=6).map(" ".join)


@given(words, words)
def test_f1_is_the_overlap_of_two_bags(gold, predicted):
    ours, theirs = Counter(normalize(gold).split()), Counter(normalize(predicted).split())
    size = ours.total() + theirs.total()
    expected = 2 * (ours & theirs).total() / size if size else 1.0  # Dice's coefficient, the same quantity
    assert f1(gold, predicted) == pytest.approx(expected)
    assert f1(gold, predicted) == f1(predicted, gold)
    assert exact(gold, predicted) <= f1(gold, predicted)


def test_best_gold_counts_and_empty_golds_do_not():
    data = articles(best=["red car", "blue car"], hollow=["the", "x"], all_hollow=["the"], none=[])
    scores = question_scores(data, {"best": "blue", "hollow": "", "all_hollow": "", "none": "x", "unknown": "y"})
    assert scores == {"best": (0, 2 / 3), "hollow": (0, 0), "all_hollow": (1, 1), "none": (0, 0)}


def test_score_by_hand():
    data = articles(q1=["red car"], q2=["x"], q3=[], q4=[])
    predictions = {"q1": "red", "q2": "X.", "q3": "", "q4": "wrong"}
    assert score(data, predictions) == {
        "exact": 50.0,
        "f1": 100.0 * (2 / 3 + 1 + 1) / 4,
        "total": 4,
        "HasAns_exact": 50.0,
        "HasAns_f1": 100.0 * (2 / 3 + 1) / 2,
        "HasAns_total": 2,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }


def test_group_without_questions_is_left_out():
    assert score(articles(q=["x"]), {"q": "x"}) == {
        "exact": 100.0,
        "f1": 100.0,
        "total": 1,
        "HasAns_exact": 100.0,
        "HasAns_f1": 100.0,
        "HasAns_total": 1,
    }
    assert "HasAns_total" not in score(articles(q=[]), {"q": ""})


def test_scores_above_the_threshold_empty_a_prediction():
    data = articles(q1=["x"], q2=["y"], q3=[])
    predictions, unsure = {"q1": "x", "q2": "y", "q3": "z"}, {"q1": 0.5, "q2": 0.51, "q3": 0.9}
    result = score(data, predictions, unsure, no_answer_threshold=0.5)
    assert (result["HasAns_exact"], result["NoAns_exact"]) == (50.0, 100.0)  # 0.5 itself is not above
    assert (result["best_exact"], result["best_exact_thresh"]) == (100.0, 0.51)
    assert score(data, predictions, unsure)["exact"] == 100.0 * 2 / 3  # at 1.0, the default, nothing is emptied


def test_best_threshold_keeps_the_first_of_the_best():
    has = {"a": True, "b": False, "c": True, "d": False}
    predictions = {"a": "x", "b": "x", "c": "x", "d": ""}
    unsure = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "unknown": 0.0}
    scores = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 1.0}
    # 2 (all empty), 3 after a, 2 after b, 3 after c (no improvement), 3 after d, which is empty anyhow
    assert best_threshold(scores, predictions, unsure, has) == (75.0, 0.1)
    # Nothing improves on "all empty": the official calls that threshold 0.0.
    assert best_threshold(dict.fromkeys("abcd", 0.0), predictions, unsure, has) == (50.0, 0.0)


def test_ties_pass_one_by_one_in_the_given_order():
    has, predictions = {"a": True, "b": False}, {"a": "x", "b": "x"}
    scores = {"a": 1.0, "b": 0.0}
    assert best_threshold(scores, predictions, {"a": 0.5, "b": 0.5}, has) == (100.0, 0.5)
    assert best_threshold(scores, predictions, {"b": 0.5, "a": 0.5}, has) == (50.0, 0.0)


questions = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(-9, 9)), min_size=1, max_size=12
)


@given(questions.map(lambda rows: list({row[2]: row for row in rows}.values())))
def test_best_threshold_is_the_best_of_all(rows):
    """Scores without ties: trying every threshold, whole evaluation each time, finds the same."""
    has = {str(i): row[0] for i, row in enumerate(rows)}
    scores = {str(i): row[1] if row[0] else float(row[1] > 0.3) for i, row in enumerate(rows)}
    predictions = {key: "" if scores[key] and not has[key] else "x" for key in scores}
    unsure = {str(i): float(row[2]) for i, row in enumerate(rows)}

    def percentage(threshold: float) -> float:
        kept = (scores[key] if unsure[key] <= threshold else not has[key] for key in scores)
        return 100.0 * sum(kept) / len(scores)

    best, threshold = best_threshold(scores, predictions, unsure, has)
    assert best == max(percentage(t) for t in [-10.0, *unsure.values()])
    assert threshold == 0.0 or percentage(threshold) == best


@given(questions)
def test_chosen_threshold_keeps_its_promise(rows):
    """Ties and negative scores included: applying the threshold gives the promised score, and no other gives more."""
    answered = [row[1] for row in rows]
    emptied = [float(not row[0]) for row in rows]
    unsure = [row[2] / 2 for row in rows]

    def mean(threshold: float) -> float:
        return sum(a if s <= threshold else e for a, e, s in zip(answered, emptied, unsure)) / len(rows)

    threshold, promised = choose_threshold(answered, emptied, unsure)
    assert mean(threshold) == pytest.approx(promised, abs=1e-12)
    assert promised == pytest.approx(max(mean(t) for t in [-10.0, *unsure]), abs=1e-12)


def test_chosen_threshold_lies_halfway_and_parts_neighbours():
    assert choose_threshold([1, 0], [0, 1], [-3.0, 1.0]) == (-1.0, 1.0)
    just_above = 1.0 + 2**-52
    assert choose_threshold([1, 0], [0, 1], [1.0, just_above]) == (1.0, 1.0)
    assert choose_threshold([1, 1], [0, 0], [0.2, 0.7]) == (0.7, 1.0)
    threshold, best = choose_threshold([0], [1], [0.2])
    assert threshold < 0.2 and best == 1.0
    with pytest.raises(ValueError, match="finite"):
        choose_threshold([1], [0], [float("nan")])


def test_what_is_missing_is_named():
    data = articles(q1=["x"], q2=["y"], q3=[])
    with pytest.raises(UserError, match=r"2 of 3 questions have no prediction, first 'q2'"):
        score(data, {"q1": "x"})
    with pytest.raises(UserError, match=r"1 of 3 questions have no no-answer score, first 'q3'"):
        score(data, {"q1": "x", "q2": "", "q3": ""}, {"q1": 0.1, "q2": 0.1})
    with pytest.raises(UserError, match="no question"):
        score([], {})


@pytest.mark.real
@pytest.mark.skipif(not (DATA / "squad2" / "tune.json").exists(), reason="needs real SQuAD data (BERTVISION_DATA)")
def test_real_questions():
    data = json.loads((DATA / "squad2" / "tune.json").read_text(encoding="utf-8"))["data"]
    qas = [qa for article in data for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    gold = {qa["id"]: qa["answers"][0]["text"] if qa["answers"] else "" for qa in qas}
    unanswerable = sum(qa["is_impossible"] for qa in qas)

    perfect = score(data, gold, {qa["id"]: float(qa["is_impossible"]) for qa in qas})
    assert perfect["exact"] == perfect["f1"] == perfect["best_f1"] == 100.0
    assert (perfect["total"], perfect["NoAns_total"]) == (len(qas), unanswerable)

    silent = score(data, dict.fromkeys(gold, ""))
    assert silent["exact"] == silent["f1"] == 100.0 * unanswerable / len(qas)
    assert (silent["HasAns_f1"], silent["NoAns_f1"]) == (0.0, 100.0)
