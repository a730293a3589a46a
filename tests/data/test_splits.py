"""Splits: partitions that hold questions or labels on both sides, the same from the same seed."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.splits import article_sets, split_by_article, split_off
from bertvision.data.squad import read_articles, records
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe
from real import DATA, needs_squad


def article(title: str, questions: int) -> dict:
    qas = [{"id": f"{title}-{q}", "question": "?", "answers": []} for q in range(questions)]
    return {"title": title, "paragraphs": [{"context": "", "qas": qas}]}


def questions_in(articles: list[dict]) -> int:
    return len(records(articles))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=2, max_size=30),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
)
def test_articles_are_parted_into_two_sets_with_questions(counts: list[int], fraction: float, seed: int) -> None:
    articles = [article(str(index), count) for index, count in enumerate(counts)]
    if sum(count > 0 for count in counts) < 2:
        with pytest.raises(UserError, match="two articles with questions are needed; give a separate file"):
            split_by_article(articles, fraction, seed)
        return
    before = copy.deepcopy(articles)
    rest, split = split_by_article(articles, fraction, seed)
    assert split_by_article(articles, fraction, seed) == (rest, split)
    assert articles == before
    order = [article["title"] for article in articles]
    for side in (rest, split):
        assert questions_in(side) > 0
        assert [item["title"] for item in side] == sorted((item["title"] for item in side), key=order.index)
    assert sorted(item["title"] for item in rest + split) == sorted(order)
    # one article more or less would have come closer, unless a side would have been empty
    assert abs(questions_in(split) - fraction * sum(counts)) <= max(counts)


def test_the_split_comes_close_to_the_fraction_and_follows_the_seed() -> None:
    articles = [article(str(index), 10 + index % 7) for index in range(60)]
    sides = [split_by_article(articles, 0.1, seed)[1] for seed in range(8)]
    for side in sides:
        assert questions_in(side) / questions_in(articles) == pytest.approx(0.1, abs=0.01)
    assert len({tuple(item["title"] for item in side) for side in sides}) > 1


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.2, float("nan")])
def test_an_impossible_fraction(fraction) -> None:
    with pytest.raises(UserError, match="not between 0 and 1"):
        split_by_article([article("a", 9), article("b", 9)], fraction, 1)


@pytest.mark.real
@needs_squad
def test_a_real_file_splits_by_article() -> None:
    loaded = read_articles(DATA / "squad2" / "train.json")
    rest, split = split_by_article(loaded, 0.15, 3)
    assert questions_in(split) / questions_in(loaded) == pytest.approx(0.15, abs=0.04)
    assert not {item["title"] for item in rest} & {item["title"] for item in split}


def test_sets_of_a_recipe_with_a_tune_set_split_off() -> None:
    sets = article_sets(DataRecipe(train="sample:train:120", test="sample:test:6", tune="", tune_share=0.3), 1)
    assert [*sets] == ["train", "tune", "test"]
    assert sets["tune"][0] == "sample:train:120, 30 % of it, by article"
    assert sum(questions_in(articles) for _, articles in sets.values()) == 126
    more = article_sets(DataRecipe(train="sample:train:60", tune="sample:tune:6", test="sample:test:6", negatives=1), 1)
    assert questions_in(more["train"][1]) > 60


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=300), st.floats(0.01, 0.9), st.integers(0, 3))
def test_a_tune_set_has_the_same_share_of_every_label(labels, share, seed):
    strata = np.array(labels)
    stay, off = split_off(strata, share, seed)
    assert sorted([*stay, *off]) == list(range(len(labels)))
    assert len(stay) and len(off)
    assert set(strata[stay]) == set(labels) or len(off) == 1
    assert (split_off(strata, share, seed)[1] == off).all()
    for label in set(labels):
        count = labels.count(label)
        assert abs((strata[off] == label).sum() - share * count) <= 1.0 + 1e-9 or len(off) == 1


def test_one_example_cannot_be_split():
    with pytest.raises(UserError, match=r"name a set for data\.tune"):
        split_off(np.array([0]), 0.5, 0)
