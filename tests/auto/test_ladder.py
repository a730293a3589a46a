"""The steps of `fit`: they depend on the data alone; with little time the largest that fits is taken."""

import itertools
from dataclasses import replace

import pytest

from bertvision.auto.ladder import Rung, _tunings, ladder, next_rung, undecided, with_tune, worthwhile
from bertvision.auto.look import Item, Looked
from bertvision.errors import UserError
from bertvision.recipe import Recipe

FILES = {"train": "a.jsonl", "tune": "b.jsonl", "test": "c.jsonl"}


def found(count: int, task: str = "labels") -> Looked:
    items = [Item((f"text {n}",), "ab"[n % 2]) for n in range(count)]
    data = {"text": ["t"], "label": "y", "max_length": 64, "overlap": 8}
    return Looked(task, data, {"train": items, "tune": items[:10], "test": items[:10]})


def test_steps_grow_and_never_see_an_example_too_often():
    for count in (12, 870, 5000, 60_000):
        seen = [limit * epochs for limit, epochs in _tunings(count)]
        assert all(b >= 1.5 * a for a, b in itertools.pairwise(seen))
        assert max(epochs for _, epochs in _tunings(count)) <= 20
    assert _tunings(12) == [(12, 20.0)]
    assert _tunings(60_000)[:2] == [(1500, 1.0), (5000, 1.0)]


def test_the_ladder_begins_frozen_and_is_made_of_ordinary_recipes():
    rungs = ladder(found(870), FILES, "minilm", 3)
    assert [rung.name for rung in rungs][:2] == ["01-frozen", "02-tuned"]
    assert rungs[0].recipe.finetune.epochs == 0
    assert rungs[0].recipe.bank.solve
    heads = rungs[0].recipe.heads
    assert [(head["kind"], head.get("lowest"), head.get("layer")) for head in heads] == [
        ("pool", 4, None),
        ("last", None, None),
        ("probe", None, 4),
    ]
    assert all(head["reduce"] == "mean" for head in heads)
    pairs = found(870)
    pairs.data["text"] = ["a", "b"]
    assert [head["kind"] for head in ladder(pairs, FILES, "minilm", 3)[0].recipe.heads] == ["probe", "pool", "last"]
    assert any(rung.recipe.finetune.adapters for rung in rungs)
    assert not any(rung.is_apart for rung in rungs)
    assert rungs[-1].recipe.seeds == (4,)
    assert rungs == ladder(found(870), FILES, "minilm", 3)


def test_pairs_are_encoded_together_and_apart_until_one_of_them_is_better():
    pairs = found(870)
    pairs.data["text"] = ["a", "b"]
    rungs = ladder(pairs, FILES, "minilm", 3)
    names = [rung.name for rung in rungs]
    assert names[:5] == ["01-frozen", "02-frozen-apart", "03-tuned", "04-tuned-apart", "05-tuned"]
    assert [rung.is_apart for rung in rungs[:4]] == [False, True, False, True]
    assert all(head["reduce"] == "compare" for head in [*rungs[1].recipe.heads, *rungs[3].recipe.heads])
    assert with_tune(rungs[1], 10).recipe.data.pairs == "apart"

    def left(*scores):
        """The steps that are still open after the first ones, with these scores; and which of them decides."""
        known = dict(zip(names, scores))
        decisive = undecided(rungs, known)
        return [rung.name for rung in worthwhile(rungs, known)], decisive.name if decisive else None

    assert left(50.0) == (names[1:], "02-frozen-apart")
    assert left(60.0, 50.0) == ([name for name in names[2:] if "apart" not in name], None)
    assert left(50.0, 60.0) == (names[2:], None)
    assert left(50.0, 60.0, 50.0) == (names[3:], "04-tuned-apart")
    better, decisive = left(50.0, 60.0, 50.0, 61.0)
    assert "06-tuned-apart" in better and "05-tuned" not in better and decisive is None


def test_long_texts_make_the_first_step_small_and_the_next_ones_solve_more():
    looked = found(6000)
    assert [rung.examples for rung in ladder(looked, FILES, "minilm", 1)][:3] == [1000, 3000, 6000]
    looked.sets["train"] = [Item(("word " * 50,), "ab"[n % 2]) for n in range(6000)]
    frozen = ladder(looked, FILES, "minilm", 1)[:4]
    assert [rung.examples for rung in frozen[:3]] == [400, 1200, 3600]
    assert [rung.name for rung in frozen] == ["01-frozen", "02-frozen", "03-frozen", "04-frozen"]
    assert [rung.left_out for rung in frozen] == [5600, 4800, 2400, 0]


def test_a_step_is_taken_again_with_tune_where_it_takes_all_of_train():
    rungs = ladder(found(870), FILES, "minilm", 1)
    again = with_tune(rungs[0], 10)
    assert again is not None
    assert (again.name, again.examples, again.recipe.data.train) == ("01-frozen-with-tune", 880, "a.jsonl+b.jsonl")
    assert replace(again.recipe, data=rungs[0].recipe.data, title="fit: frozen") == rungs[0].recipe
    assert with_tune(ladder(found(6000), FILES, "minilm", 1)[0], 10) is None  # it leaves examples of train out
    assert with_tune(ladder(found(50, "tokens"), FILES, "minilm", 1)[0], 10) is None


def test_pocket_is_for_questions():
    with pytest.raises(UserError, match="pocket"):
        ladder(found(100), FILES, "pocket", 1)


@pytest.mark.parametrize(("left", "wanted"), [(5, None), (20, "a"), (50, "b"), (190, "c"), (250, "a"), (1000, "a")])
def test_the_largest_step_that_fits_is_never_spoilt_by_a_smaller(left, wanted):
    rungs = [Rung(name, Recipe(), 1) for name in "abc"]
    chosen = next_rung(rungs, {"a": 10.0, "b": 40.0, "c": 160.0}, left)
    assert (chosen.name if chosen else None) == wanted
