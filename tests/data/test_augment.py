"""Made questions: never answerable by construction, the same every time, nested ratios, the originals untouched."""

import copy
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.augment import OPPOSITE, add_edited, add_negatives, edit, similarities
from bertvision.data.squad import check_articles, normalize, read_articles, records
from bertvision.errors import UserError
from bertvision.recipe import from_table
from real import DATA, needs_squad

WORDS = ["the", "king", "river", "U.S.", "high-rise", "rise", "1066", "a", "Graz", "Ada’s", "?", "first", "did", "1872"]
CONTEXT = (
    "In spring the painter Ada Moss left Vienna for Graz, where she painted 14 bridges before 1872 and sketched a mill."
    " Her first patron, John Hall, lived in Linz until 1880."
)


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
                question = " ".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6)))
                impossible = draw(st.booleans())
                questions.append({"id": str(number), "question": question, "answers": [] if impossible else answers})
                number += 1
            paragraphs.append({"context": " ".join(words), "qas": questions})
        articles.append({"title": str(title), "paragraphs": paragraphs})
    return articles


def added(add, articles: list[dict], ratio: float) -> dict[str, tuple[str, str, str]]:
    """{id: (title, question, context)} of what was added."""
    old = {record.id for record in records(articles)}
    new = [each for each in records(add(articles, ratio)) if each.id not in old]
    assert not any(each.has_answer for each in new)
    return {each.id: (each.title, each.question, each.context) for each in new}


negatives = partial(added, add_negatives)


def edited(articles: list[dict], ratio: float = 1.0) -> dict[str, str]:
    """{id of the original: the edited question}"""
    return {name.removesuffix("-edited"): found[1] for name, found in added(add_edited, articles, ratio).items()}


@pytest.mark.parametrize(("add", "most"), [(add_negatives, 3.0), (add_edited, 1.0)])
@given(articles=data(), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted))
def test_it_is_repeatable_and_nested_and_keeps_the_originals(add, most, articles, shares):
    before = copy.deepcopy(articles)
    small, large = (share * most for share in shares)
    result = add(articles, large)
    assert articles == before and result == add(before, large)
    check_articles(result, "result")
    for article, original in zip(result, articles, strict=True):
        for paragraph, given_ in zip(article["paragraphs"], original["paragraphs"], strict=True):
            kept = paragraph["qas"][: len(given_["qas"])]
            assert [{key: qa[key] for key in ("id", "question", "answers")} for qa in kept] == given_["qas"]
            assert all(qa["is_impossible"] is (not qa["answers"]) for qa in paragraph["qas"])
    assert added(add, articles, small).items() <= added(add, articles, large).items()


@given(data(), st.floats(0, 3))
def test_a_negative_has_no_answer_in_its_paragraph(articles, ratio):
    originals = {record.id: record for record in records(articles)}
    for name, (title, question, context) in negatives(articles, ratio).items():
        original = originals[name.partition("-negative")[0]]
        assert original.has_answer and (original.title, original.question) == (title, question)
        assert all(f" {normalize(gold)} " not in f" {normalize(context)} " for gold in original.answers)


@given(data())
def test_an_edit_is_no_question_of_the_paragraph_and_names_no_answer(articles):
    originals = {record.id: record for record in records(articles)}
    for name, question in edited(articles).items():
        original = originals[name]
        asked = [each.question for each in originals.values() if each.paragraph == original.paragraph]
        assert normalize(question) not in map(normalize, asked)
        new = set(normalize(question).split()) - set(normalize(original.question).split())
        assert not new & {word for gold in original.answers for word in normalize(gold).split()}


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 8))
def test_the_ratio_is_what_comes_out(count, quarters):
    """Where every question finds a paragraph, within one question of the exact number for any number of quarters."""
    answers = [{"text": "king", "answer_start": 0}]
    asked = [{"id": str(n), "question": "who?", "answers": answers} for n in range(count)]
    others = [{"context": f"river {n}", "qas": []} for n in range(3)]
    articles = [{"title": "t", "paragraphs": [{"context": "king", "qas": asked}, *others]}]
    assert abs(len(negatives(articles, quarters / 4)) - count * quarters / 4) <= 1


def article(context: str, question: str, answer: str, *others: str) -> list[dict]:
    """One article: a paragraph with a question, and other paragraphs."""
    qa = {"id": "q", "question": question, "answers": [{"text": answer, "answer_start": context.index(answer)}]}
    paragraphs = [{"context": context, "qas": [qa]}, *({"context": other, "qas": []} for other in others)]
    return [{"title": "t", "paragraphs": paragraphs}]


def test_the_most_similar_comes_first():
    others = [
        "The Rhine is long.",
        "Many ships pass the Danube in Vienna.",
        "Where the Danube does rise is the Black Forest.",
    ]
    asked = article("The Danube rises in the Black Forest.", "Where does the Danube rise?", "Black Forest", *others)
    found = negatives(asked, 5)
    assert {name: context for name, (*_, context) in found.items()} == {
        "q-negative": others[1],
        "q-negative-2": others[0],
    }


@pytest.mark.parametrize(
    ("answer", "others", "count"),
    [
        *(("rise", [other], 0) for other in ("a high-rise", "The RISE of it", "rise, again", "no—rise")),
        ("two", ["the network"], 1),  # part of a word is not an answer
        ("two", [], 0),  # no other paragraph
        ("?", ["it is"], 0),  # an answer without words could be anywhere
    ],
)
def test_where_an_answer_is_found(answer, others, count):
    other_article = {"title": "u", "paragraphs": [{"context": "the river", "qas": []}]}
    assert len(negatives([*article(f"is it {answer}", "what?", answer, *others), other_article], 1)) == count


def test_similarities_are_cosines_of_weighted_counts():
    contexts = ["king king river", "river north", ""]
    (found,) = similarities(["King of the north"], contexts)
    rare, common = 1 + np.log(3), 1 + np.log(3 / 2)  # king and north are in one context, river in two
    question = np.array([rare, 0, rare])  # king, river, north
    for value, vector in zip(found, [np.array([2 * rare, common, 0]), np.array([0, common, rare])]):
        assert value == pytest.approx(question @ vector / np.linalg.norm(vector))
    assert found[2] == 0


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Where did she meet John Hall?", "Linz", {"Where did she meet Ada Moss?"}),  # a name
        ("What was there in 1872?", "mill", {"What was there in 1880?"}),  # a number of the same shape
        ("What were all 15 of?", "bridges", {"What were all 14 of?"}),
        ("Who was her first one?", "John Hall", {"Who was her last one?"}),  # an opposite
        ("What had been painted?", "bridges", {"What had been sketched?"}),  # a word with the same ending
        ("Who was it?", "Ada Moss", {"Who wasn't it?"}),  # nothing else is left
        ("Who?", "Ada Moss", set()),
    ],
)
def test_each_rule(question, answer, expected):
    assert set(edited(article(CONTEXT, question, answer)).values()) == expected


def test_names_from_elsewhere_and_numbers_nearby():
    qa = {"id": "q", "question": "Who left Vienna?", "answers": [{"text": "Ada Moss", "answer_start": 22}]}
    assert edit(qa, "the painter Ada Moss left Vienna", ["Bregenz", "Vienna"]) == "Who left Bregenz?"
    found = edited(article("Ada came in 1900.", "Who came in 1900?", "Ada"))["q"]
    assert 1900 < int(found[-5:-1]) < 1908
    assert all(OPPOSITE[OPPOSITE[word]] == word for word in OPPOSITE)


def test_both_kinds_together_and_neither_twice():
    articles = article(CONTEXT, "What was there in 1872?", "mill", "the Rhine")
    both = add_edited(add_negatives(articles, 1), 1)
    assert [record.id for record in records(both)] == ["q", "q-edited", "q-negative"]
    with pytest.raises(UserError, match="edited questions already"):
        add_edited(both, 1)
    with pytest.raises(UserError, match="'q-negative' is there already"):
        add_negatives(both, 1)


@pytest.mark.parametrize("table", [{key: bad} for key in ("negatives", "edited") for bad in (-0.1, np.nan, np.inf)])
def test_an_impossible_ratio_is_refused_with_the_recipe(table):
    with pytest.raises(UserError, match=r"data\.(negatives|edited): must be"):
        from_table({"data": table})


@needs_squad
def test_most_real_questions_get_one_of_each():
    articles = read_articles(DATA / "squad2" / "train.json")
    answerable = sum(record.has_answer for record in records(articles))
    assert 0.99 * answerable < len(negatives(articles, 1)) <= answerable
    assert 0.9 * answerable < len(edited(articles)) <= answerable
