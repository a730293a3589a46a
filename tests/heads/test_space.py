"""What a search may vary in a head: every draw can be built, and a recipe that asks for the impossible is told so."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.heads import HEADS, build_head, options
from bertvision.heads.head import Impossible
from bertvision.heads.space import TRAINING, Choices, Range, fitting_options, head_space
from runs import recipe_of

KINDS = ("attend", "cacnn", "compress", "conv", "last", "pool")
RATE = {"key": "learning_rate", "low": 1e-4, "high": 1e-2, "log": True}


def build(spec: dict, task: str = "spans") -> torch.nn.Module:
    with torch.device("meta"):
        return build_head(spec, layers=3, width=48, task=task)


def drawn(kind: str, chance: random.Random) -> dict:
    """A value for every option of a kind, anywhere in its space."""
    found = {}
    for key, one in head_space(kind, (), {}).items():
        if isinstance(one, Choices):
            found[key] = chance.choice(one.values)
        else:
            found[key] = chance.randint(int(one.low), int(one.high)) if one.whole else chance.uniform(one.low, one.high)
    return {key: value for key, value in found.items() if key not in TRAINING}


def test_every_option_of_every_head_is_varied():
    assert set(KINDS) <= set(HEADS)
    for kind in KINDS:
        fixed = {"places", "lowest"}  # by the length of windows, by the encoder
        assert set(head_space(kind, (), {})) == {"learning_rate", *options(kind)} - fixed


def test_how_options_are_varied():
    space = head_space("cacnn", (), {})
    assert space["context"] == Choices((False, True))
    assert space["kernel"] == Choices((1, 3, 5, 7))
    assert space["filters"] == Range(16, 256, log=True, whole=True)  # 64 by default
    assert head_space("compress", (), {})["size"] == Range(16, 512, log=True, whole=True)  # 386
    assert head_space("conv", (), {})["filters"] == Range(2, 32, log=True, whole=True)  # 8
    assert head_space("conv", (), {})["dropout"] == Range(0.0, 0.5)
    assert head_space("pool", (), {})["weights"] == Choices(("learned", "mean"))


def test_a_range_is_wide_enough_for_the_heads_of_the_recipe():
    space = head_space("compress", (), {"size": [8, 700], "learning_rate": [0.0, 0.5]})
    assert (space["size"].low, space["size"].high) == (8, 700)
    assert (space["learning_rate"].low, space["learning_rate"].high) == (1e-4, 0.5)  # log: never 0


def test_only_what_the_recipe_names_is_varied():
    tables = [RATE, {"key": "size", "values": [8, 16]}, {"key": "dropout", "low": 0, "high": 0.3}]
    assert list(head_space("compress", tables, {})) == ["learning_rate", "size"]
    assert head_space("conv", tables, {})["dropout"] == Range(0, 0.3)
    assert list(head_space("pool", tables, {})) == ["learning_rate"]


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), task=st.sampled_from(("spans", "labels")), seed=st.integers(0, 10**6))
def test_whatever_is_drawn_can_be_built(kind, task, seed):
    if task != "spans" and HEADS[kind].needs_tokens:
        return
    chosen = drawn(kind, random.Random(seed))
    kept = fitting_options({"kind": kind}, chosen, lambda spec: build(spec, task))
    assert kept.items() <= chosen.items()
    build({"kind": kind, **kept}, task)
    for key in chosen.keys() - kept.keys():  # nothing gave way without need
        with pytest.raises(Impossible):
            build({"kind": kind, **kept, key: chosen[key]}, task)


def test_what_was_not_drawn_does_not_give_way():
    base = {"kind": "conv", "filters": 16}
    assert fitting_options(base, {"dropout": 0.1, "form": "xception"}, build) == {"dropout": 0.1}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"values": [1]}, "search.0.key: name what is to be varied"),
        ({"key": "siez", "values": [1]}, "search.0.key: no head of this recipe has 'siez'; did you mean 'size'?"),
        ({"key": "context", "values": [True]}, "search.0.key: no head of this recipe has 'context'"),
        ({"key": "name", "values": ["a"]}, "search.0.key: no head of this recipe has 'name'"),
        ({"key": "size"}, "search.0: give size either values, or low and high"),
        ({"key": "size", "values": [8], "low": 1}, "search.0: give size either values, or low and high"),
        ({"key": "size", "low": 8}, "search.0.high: is missing"),
        ({"key": "size", "low": 8, "high": 8}, "search.0.low: 8 must be less than high, 8"),
        ({"key": "size", "low": 8, "high": 16.5}, "search.0.high.size: must be a whole number"),
        ({"key": "size", "values": [0]}, "search.0.values.size: must be at least 1, not 0"),
        ({"key": "size", "values": []}, "search.0.values: a list of at least one value"),
        ({"key": "size", "values": [8, 8]}, "search.0.values: give each once"),
        ({"key": "size", "values": [8], "log": True}, "search.0.log: is for low and high"),
        ({"key": "size", "values": [8], "step": 1}, "search.0.step: unknown key"),
        ({"key": "skip", "low": 0, "high": 1}, "search.0.key: 'skip' has no low and high; give it values"),
        ({"key": "learning_rate", "low": 0, "high": 1, "log": True}, "search.0.low: must be more than 0"),
        ({"key": "learning_rate", "low": -1, "high": 1}, "search.0.low: must be at least 0"),
        ({"key": "warmup", "values": ["long"]}, "search.0.values: must be a number"),
    ],
)
def test_an_impossible_search_is_told_in_one_line(table, says):
    with pytest.raises(UserError) as error:
        recipe_of(search=[table])
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_key_may_be_searched_once():
    with pytest.raises(UserError, match=r"search\.1\.key: 'learning_rate' is there twice"):
        recipe_of(search=[RATE, RATE])


def test_odd_numbers_want_values():
    with pytest.raises(UserError, match=r"search\.0\.key: 'kernel' has no low and high"):
        recipe_of(heads=[{"kind": "cacnn"}], search=[{"key": "kernel", "low": 1, "high": 7}])
