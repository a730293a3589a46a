"""Texts and pairs as windows: as each tokenizer frames them, and cut where they are longest."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.batches import collate
from bertvision.data.windows import longest_first, make_text_windows
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_tokenizer

TEXTS = ["the king of the north", "", "who was born in the old city"]


def tokenizer_of(family: str):
    found = tiny_tokenizer(family).backend_tokenizer
    found.no_truncation()
    found.no_padding()
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pair", [False, True])
def test_windows_are_what_the_tokenizer_itself_makes(family, pair):
    tokenizer = tokenizer_of(family)
    texts = [(a, b) if pair else (a,) for a, b in zip(TEXTS, reversed(TEXTS))]
    windows = make_text_windows(tokenizer, texts, np.array([2, 1, 0]))
    for row, each in enumerate(texts):
        expected = tokenizer.encode(*each)
        batch = collate(windows, np.array([row]))
        assert batch.ids[0].tolist() == expected.ids
        assert batch.types[0].tolist() == expected.type_ids
    assert windows.example.tolist() == [0, 1, 2] and windows.targets.tolist() == [2, 1, 0]


def test_a_text_loses_its_end_and_of_a_pair_the_longer():
    tokenizer = tokenizer_of("bert")
    long, short = "the of and to in a is was for on", "who what"
    whole = tokenizer.encode(long, add_special_tokens=False).ids
    single = make_text_windows(tokenizer, [(long,)], np.zeros(1), max_length=16 - 8)
    assert single.ids[1:-1].tolist() == whole[:6] and len(single.ids) == 8
    both = make_text_windows(tokenizer, [(long, short), (short, long)], np.zeros(2), max_length=9)
    assert both.lengths.tolist() == [9, 9]
    assert both.ids[1:5].tolist() == whole[:4]
    assert both.ids[9 + 4 : 9 + 8].tolist() == whole[:4]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_longest_first_is_as_if_done_token_by_token(first, second, room):
    kept = first, second
    while sum(kept) > room:
        kept = (kept[0] - 1, kept[1]) if kept[0] > kept[1] else (kept[0], kept[1] - 1)
    found = longest_first(np.array([first]), np.array([second]), room)
    assert (int(found[0][0]), int(found[1][0])) == kept


def test_no_room_and_no_texts():
    tokenizer = tokenizer_of("bert")
    with pytest.raises(UserError, match=r"data\.max_length"):
        make_text_windows(tokenizer, [("a", "b")], np.zeros(1), max_length=4)
    assert len(make_text_windows(tokenizer, [], np.zeros(0))) == 0
