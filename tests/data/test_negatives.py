"""Negatives: never with the answer, the same every time, a smaller ratio within a larger, the originals untouched."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.augment import add_negatives, similarities
from bertvision.data.squad import check_articles, normalize, read_articles, records
from bertvision.errors import UserError
from real import DATA, needs_squad

WORDS = ["the", "king", "river", "U.S.", "high-rise", "rise", "1066", "a", "north", "Ada’s", "?"]


@st.composite
def data(draw) -> list[dict]:
    """A few articles of SQuAD 1.1 or 2.0 over a handful of words, so that paragraphs often share an answer."""
    articles, number = [], 0
    for title in range(draw(st.integers(1, 3))):
        paragraphs = []
        for _ in range(draw(st.integers(1, 4))):
            words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
            questions = []
            for _ in range(draw(st.integers(0, 3))):
                at = draw(st.integers(0, len(words) - 1))
                answers = [{"text": words[at], "answer_start": len(" ".join([*words[:at], ""]))}]
                question = " ".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)))
                impossible = draw(st.booleans())
                questions.append({"id": str(number), "question": question, "answers": [] if impossible else answers})
                number += 1
            paragraphs.append({"context": " ".join(words), "qas": questions})
        articles.append({"title": str(title), "paragraphs": paragraphs})
    return articles


def negatives(articles: list[dict], ratio: float) -> dict[str, tuple[str, str, str]]:
    """{id: (title, question, context)} of what was added."""
    old = {record.id for record in records(articles)}
    new = records(add_negatives(articles, ratio))
    return {each.id: (each.title, each.question, each.context) for each in new if each.id not in old}


@given(data(), st.floats(0, 3))
def test_an_added_question_is_unanswerable_in_its_paragraph(articles, ratio):
    originals = {record.id: record for record in records(articles)}
    for name, (title, question, context) in negatives(articles, ratio).items():
        original = originals[name.partition("-negative")[0]]
        assert original.has_answer
        assert (original.title, original.question) == (title, question)
        assert all(f" {normalize(gold)} " not in f" {normalize(context)} " for gold in original.answers)


@given(data(), st.floats(0, 3))
def test_the_originals_stay_and_the_result_is_squad_2(articles, ratio):
    before = copy.deepcopy(articles)
    result = add_negatives(articles, ratio)
    assert articles == before
    check_articles(result, "result")
    for article, original in zip(result, articles, strict=True):
        for paragraph, given_ in zip(article["paragraphs"], original["paragraphs"], strict=True):
            kept = paragraph["qas"][: len(given_["qas"])]
            assert [{key: qa[key] for key in ("id", "question", "answers")} for qa in kept] == given_["qas"]
            assert all(qa["is_impossible"] is (not qa["answers"]) for qa in paragraph["qas"])


@given(data(), st.floats(0, 3), st.floats(0, 3))
def test_a_smaller_ratio_is_part_of_a_larger(articles, one, other):
    small, large = sorted([one, other])
    assert negatives(articles, small).items() <= negatives(articles, large).items()
    assert negatives(articles, large) == negatives(copy.deepcopy(articles), large)


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 8))
def test_the_ratio_is_what_comes_out(count, quarters):
    """Where every question finds a paragraph, within one question of the exact number for any number of quarters."""
    questions = [
        {"id": str(n), "question": "who?", "answers": [{"text": "king", "answer_start": 0}]} for n in range(count)
    ]
    others = [{"context": f"river {n}", "qas": []} for n in range(3)]
    articles = [{"title": "t", "paragraphs": [{"context": "king", "qas": questions}, *others]}]
    assert abs(len(negatives(articles, quarters / 4)) - count * quarters / 4) <= 1


def paragraph(context: str, question: str = "", answer: str = "") -> dict:
    answers = [{"text": answer, "answer_start": context.index(answer)}]
    return {"context": context, "qas": [{"id": "q", "question": question, "answers": answers}] if question else []}


def test_the_most_similar_comes_first():
    article = {
        "title": "rivers",
        "paragraphs": [
            paragraph("The Danube rises in the Black Forest.", "Where does the Danube rise?", "Black Forest"),
            paragraph("The Rhine is long."),
            paragraph("Many ships pass the Danube in Vienna."),
            paragraph("Where the Danube does rise is the Black Forest."),
        ],
    }
    found = negatives([article], 5)
    assert {name: context for name, (_, _, context) in found.items()} == {
        "q-negative": "Many ships pass the Danube in Vienna.",
        "q-negative-2": "The Rhine is long.",
    }


@pytest.mark.parametrize("other", ["a high-rise", "The RISE of it", "rise, again", "no—rise"])
def test_an_answer_is_found_in_other_clothes(other):
    article = {"title": "t", "paragraphs": [paragraph("the rise", "what?", "rise"), paragraph(other)]}
    assert not negatives([article], 1)


def test_part_of_a_word_is_no_answer():
    article = {"title": "t", "paragraphs": [paragraph("two", "how many?", "two"), paragraph("the network")]}
    assert list(negatives([article], 1)) == ["q-negative"]


def test_an_article_of_one_paragraph_gives_none():
    article = {"title": "t", "paragraphs": [paragraph("the king", "who?", "king")]}
    other = {"title": "u", "paragraphs": [paragraph("the river")]}
    assert not negatives([article, other], 2)


def test_an_answer_without_words_gives_none():
    article = {"title": "t", "paragraphs": [paragraph("is it ?", "what?", "?"), paragraph("it is")]}
    assert not negatives([article], 1)


def test_twice_is_refused():
    article = {"title": "t", "paragraphs": [paragraph("two", "how many?", "two"), paragraph("the network")]}
    with pytest.raises(UserError, match="'q-negative' is there already"):
        add_negatives(add_negatives([article], 1), 1)


@pytest.mark.parametrize("ratio", [-0.1, float("nan"), float("inf")])
def test_a_ratio_that_is_none(ratio):
    with pytest.raises(UserError, match=r"negatives: .* is not a number of questions"):
        add_negatives([], ratio)


def test_similarities_are_cosines_of_weighted_counts():
    contexts = ["king king river", "river north", ""]
    (found,) = similarities(["King of the north"], contexts)
    rare, common = 1 + np.log(3), 1 + np.log(3 / 2)  # king and north stand in one context, river in two
    question = np.array([rare, 0, rare])  # king, river, north
    for value, vector in zip(found, [np.array([2 * rare, common, 0]), np.array([0, common, rare])]):
        assert value == pytest.approx(question @ vector / np.linalg.norm(vector))
    assert found[2] == 0


@needs_squad
def test_real_questions_find_their_negatives():
    articles = read_articles(DATA / "squad2" / "train.json")
    answerable = sum(record.has_answer for record in records(articles))
    found = negatives(articles, 1)
    assert 0.99 * answerable < len(found) <= answerable
