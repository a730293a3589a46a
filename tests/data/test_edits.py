"""Edited questions: one place changed, never into the answer, the same every time, the originals untouched."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.data.augment import OPPOSITE, add_edited, add_negatives, edit
from bertvision.data.squad import check_articles, normalize, read_articles, records
from bertvision.errors import UserError
from real import DATA, needs_squad

CONTEXT = (
    "In spring the painter Ada Moss left Vienna for Graz, where she painted 14 bridges before 1872 and sketched a mill."
    " Her first patron, John Hall, lived in Linz until 1880."
)


def article(*questions: tuple[str, str], context: str = CONTEXT) -> dict:
    """One paragraph; questions: (question, answer)."""
    qas = [
        {"id": str(n), "question": question, "answers": [{"text": text, "answer_start": context.index(text)}]}
        for n, (question, text) in enumerate(questions)
    ]
    return {"title": "t", "paragraphs": [{"context": context, "qas": qas}]}


def edited(articles: list[dict], ratio: float = 1.0) -> dict[str, str]:
    """{id of the original: the edited question}"""
    old = {record.id for record in records(articles)}
    new = [each for each in records(add_edited(articles, ratio)) if each.id not in old]
    assert not any(each.has_answer for each in new)
    return {each.id.removesuffix("-edited"): each.question for each in new}


@st.composite
def data(draw) -> list[dict]:
    words = st.sampled_from(["the", "Graz", "Ada Moss", "painted", "sketched", "first", "1872", "1880", "did", "mill"])
    found = []
    for title in range(draw(st.integers(1, 3))):
        context = " ".join(draw(st.lists(words, min_size=4, max_size=20)))
        golds = st.sampled_from(context.split())
        texts = draw(st.lists(st.tuples(st.lists(words, min_size=2, max_size=8).map(" ".join), golds), max_size=4))
        one = article(*texts, context=context)
        for qa in one["paragraphs"][0]["qas"]:
            qa["id"] = f"{title}.{qa['id']}"
        found.append({**one, "title": str(title)})
    return found


@given(data(), st.floats(0, 1), st.floats(0, 1))
def test_it_is_repeatable_and_nested_and_leaves_the_originals(articles, one, other):
    before = copy.deepcopy(articles)
    small, large = sorted([one, other])
    found = edited(articles, large)
    assert articles == before
    assert edited(articles, small).items() <= found.items()
    assert found == edited(copy.deepcopy(articles), large)
    check_articles(add_edited(articles, large), "result")


@given(data())
def test_an_edit_is_no_question_of_the_paragraph_and_names_no_answer(articles):
    originals = {record.id: record for record in records(articles)}
    for name, question in edited(articles).items():
        original = originals[name]
        asked = [each.question for each in originals.values() if each.context == original.context]
        assert normalize(question) not in map(normalize, asked)
        added = set(normalize(question).split()) - set(normalize(original.question).split())
        assert not added & {word for gold in original.answers for word in normalize(gold).split()}


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Where did she meet John Hall?", "Linz", {"Where did she meet Ada Moss?"}),  # a name
        ("What was there in 1872?", "mill", {"What was there in 1880?"}),  # a number of the same shape
        ("What were all 15 of?", "bridges", {"What were all 14 of?"}),
        ("Who was her first one?", "John Hall", {"Who was her last one?"}),  # an opposite
        ("What had been painted?", "bridges", {"What had been sketched?"}),  # a word with the same ending
        ("Who was it?", "Ada Moss", {"Who wasn't it?"}),  # nothing else is left
    ],
)
def test_each_rule(question, answer, expected):
    assert set(edited([article((question, answer))]).values()) == expected


def test_where_nothing_fits_there_is_none():
    assert not edited([article(("Who?", "Ada Moss"))])


def test_a_name_of_elsewhere_in_the_article_serves_too():
    qa = {"id": "q", "question": "Who left Vienna?", "answers": [{"text": "Ada Moss", "answer_start": 22}]}
    assert edit(qa, "the painter Ada Moss left Vienna", ["Bregenz", "Vienna"]) == "Who left Bregenz?"


def test_a_number_without_another_becomes_a_neighbour():
    found = edited([article(("Who came in 1900?", "Ada"), context="Ada came in 1900.")])["0"]
    assert 1900 < int(found[-5:-1]) < 1908


def test_opposites_go_both_ways():
    assert all(OPPOSITE[OPPOSITE[word]] == word for word in OPPOSITE)


def test_it_goes_with_negatives():
    other = {"context": "the Rhine", "qas": []}
    both = article(("What was there in 1872?", "mill"))
    both["paragraphs"].append(other)
    names = [record.id for record in records(add_edited(add_negatives([both], 1), 1))]
    assert names == ["0", "0-edited", "0-negative"]


def test_twice_is_refused():
    articles = [article(("What was there in 1872?", "mill"))]
    with pytest.raises(UserError, match="edited questions already"):
        add_edited(add_edited(articles, 1), 1)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_that_is_none(ratio):
    with pytest.raises(UserError, match=r"edited: .* is not a share"):
        add_edited([], ratio)


@needs_squad
def test_most_real_questions_can_be_edited():
    articles = read_articles(DATA / "squad2" / "train.json")
    answerable = sum(record.has_answer for record in records(articles))
    assert 0.9 * answerable < len(edited(articles)) <= answerable
