"""Texts with labels: a table of one's own, what is wrong with it, and how a tune set is split off."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.sources import describe, is_text, load_examples
from bertvision.data.splits import split_off
from bertvision.data.tables import Example, found_labels, label_numbers, score_numbers
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe

OWN = DataRecipe(text=("title", "body"), label="kind")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('id,title,body,kind\n1,A,"b, c",news\n2,D,e,sport\n3,F,g,news\n')
    return str(path)


def test_a_table_of_ones_own(table):
    found = load_examples(f"{table}+{table}", OWN)
    assert found[1] == Example("1", ("D", "e"), "sport", table, 3)
    assert [example.id for example in found] == list("012345")
    assert found_labels(found) == ("news", "sport")
    assert label_numbers(found, ("sport", "news")).tolist() == [1, 0, 1] * 2
    single = load_examples(table, DataRecipe(text=("body",), label="id"))
    assert single[0].texts == ("b, c",)
    assert score_numbers(single).tolist() == [1.0, 2.0, 3.0]


def example(target: str | None, line: int = 2) -> Example:
    return Example("0", ("a",), target, "t.csv", line)


def test_labels_that_are_not_known(table):
    with pytest.raises(UserError, match=r"mine\.csv: line 3: the label 'sport' is not among those known; there is: a"):
        label_numbers(load_examples(table, OWN), ("a", "news"))
    with pytest.raises(UserError, match=r"t\.csv: line 2: the label is empty"):
        label_numbers([example("")], ("a", "b"))
    assert label_numbers([example(None)], ("a", "b")).tolist() == [-1]


def test_labels_that_cannot_be_learnt():
    with pytest.raises(UserError, match=r"t\.csv: every label is 'a'; a classifier needs at least two"):
        found_labels([example("a"), example("a")])
    with pytest.raises(UserError, match="there are no labels"):
        found_labels([example(None)])
    with pytest.raises(UserError, match='has 300 labels; if they are numbers, use task = "score"'):
        found_labels([example(str(n / 7)) for n in range(300)])


@pytest.mark.parametrize(("target", "says"), [("high", "'high' is not a number"), ("nan", "not a finite number")])
def test_scores_that_are_no_numbers(target, says):
    with pytest.raises(UserError, match=rf"t\.csv: line 7: the score .*{says}"):
        score_numbers([example("1.5"), example(target, 7)])


def test_columns_must_be_named(table):
    with pytest.raises(UserError, match=r"data\.text: name the one or two columns"):
        load_examples(table, DataRecipe(label="kind"))
    with pytest.raises(UserError, match=r"data\.label: name the column"):
        load_examples(table, DataRecipe(text=("title",)))
    with pytest.raises(UserError, match=r"has no column 'knd'; did you mean 'kind'"):
        load_examples(table, DataRecipe(text=("title",), label="knd"))


def test_questions_are_no_texts():
    with pytest.raises(UserError, match="sample:tune:5: holds no texts with labels; name glue:TASK/SPLIT"):
        load_examples("sample:tune:5", OWN)


def test_a_table_without_rows(tmp_path):
    (tmp_path / "a.csv").write_text("title,body,kind\n")
    with pytest.raises(UserError, match=r"a\.csv: has no examples, only a line of column names"):
        load_examples(str(tmp_path / "a.csv"), OWN)


def test_targets_that_are_not_wanted(table):
    unlabelled = load_examples(table, DataRecipe(text=("title",), label="none such"), labelled=False)
    assert [(one.texts, one.target) for one in unlabelled[:2]] == [(("A",), None), (("D",), None)]


@pytest.mark.parametrize("pair", [("pos", "pos "), ("1", "1.0")])
def test_labels_that_look_like_one(pair):
    with pytest.raises(UserError, match=rf"the labels '{pair[0]}' and '{pair[1]}' look like one; .*data\.labels"):
        found_labels([example(one) for one in (*pair, "other")])


def test_kinds_of_sources():
    assert is_text("glue:CoLA/train") and is_text("a/b.tsv+c.JSONL")
    for ending in ("*2", "#1/2"):
        with pytest.raises(UserError, match=r"only files of questions on paragraphs can be .*; name mine\.csv"):
            is_text(f"mine.csv{ending}")
    assert not is_text("sample:train") and not is_text("squad.json")
    with pytest.raises(UserError, match="joins questions on paragraphs with tables"):
        is_text("a.csv+b.json")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=300),
    st.floats(0.01, 0.9),
    st.integers(0, 3),
)
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


def test_statistics(table, tmp_path):
    found = describe(table, OWN)
    assert (found["examples"], found["texts"], found["labels"]) == (3, 2, {"news": 2, "sport": 1})
    assert found["text_2_words"]["max"] == 2
    path = tmp_path / "s.tsv"
    path.write_text("t\ty\n" + "".join(f"a b\t{n / 10}\n" for n in range(40)))
    assert describe(str(path), DataRecipe(text=("t",), label="y"))["scores"] == {
        "lowest": 0.0,
        "mean": 1.95,
        "highest": 3.9,
    }
    path.write_text("t\ty\n" + "".join(f"a b\tintent {n % 30}\n" for n in range(61)))
    many = describe(str(path), DataRecipe(text=("t",), label="y"))
    assert many["different_labels"] == 30 and len(many["labels"]) == 20 and many["labels"]["intent 0"] == 3
    assert describe("sample:tune:20", DataRecipe())["synthetic"] is True
