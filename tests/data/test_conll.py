import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from bertvision.data.conll import load_conll, to_bio, unlabelled
from bertvision.errors import UserError

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def write(tmp_path, text):
    path = tmp_path / "train.conll"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_conll_2003_file(tmp_path):
    first, second = load_conll(write(tmp_path, CONLL_2003))
    assert first.words == ("EU", "rejects", "German", "call")
    assert first.labels == ("B-ORG", "O", "B-MISC", "O")
    assert (second.id, second.words, second.labels) == ("1", ("Peter", "Blackburn"), ("B-PER", "I-PER"))


@pytest.mark.parametrize(
    "text",
    [
        "Anna\tB-PER\nsang\tO\n\nBonn\tB-LOC\n",
        "\ufeffAnna B-PER\r\nsang O\r\n\r\n\r\nBonn B-LOC",
        "# id = 1\n# text = Vitamin B-12\nAnna _ _ B-PER\nsang _ _ O\n \t\n#\nBonn _ _ B-LOC\n\n\n",
        "Anna I-PER\nsang O\n\nBonn I-LOC\n",
    ],
    ids=["tabs", "windows", "comments", "iob1"],
)
def test_forms_of_the_same_sentences(tmp_path, text):
    found = load_conll(write(tmp_path, text))
    assert [(one.words, one.labels) for one in found] == [(("Anna", "sang"), ("B-PER", "O")), (("Bonn",), ("B-LOC",))]


def test_words_may_hold_spaces_and_number_signs(tmp_path):
    (found,) = load_conll(write(tmp_path, "#brexit\tO\n#\tO\n10 000\tB-NUM\nA\u2028B\tO\n"))
    assert found.words == ("#brexit", "#", "10 000", "A\u2028B")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Anna B-PER\nsang\n", "line 2: has one column, 'sang'"),
        ("Anna B-PER\nsang X\n", "line 2: 'X' .* B-TYPE"),
        ("Anna B-\n", "line 1: 'B-'"),
        ("\tO\n", "line 1: the word is empty"),
        ("# nothing\n\n", "no sentences"),
        ("", "no sentences"),
        (b"Anna O\n\xff O\n", "line 2 is not UTF-8"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path, text, hint):
    with pytest.raises(UserError, match=rf"train\.conll: .*{hint}"):
        load_conll(write(tmp_path, text))
    with pytest.raises(UserError, match=r"other\.conll: no such file"):
        load_conll(tmp_path / "other.conll")


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])))
def test_bio_keeps_the_entities(labels):
    converted = to_bio(labels)
    assert get_entities(list(converted)) == get_entities(labels)
    assert all(old.startswith("I-") or old == new for old, new in zip(labels, converted))
    for previous, label in zip(("O", *converted), converted):
        assert not label.startswith("I-") or previous[2:] == label[2:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada's mother-in-law, Dr. No (U.S.).", "Ada's mother-in-law , Dr . No ( U.S . ) ."),
        ("costs 3.50 € – no", "costs 3.50 € – no"),
        ("東京 is Tokyo", "東 京 is Tokyo"),
        (" \n", ""),
    ],
)
def test_words_of_a_plain_text(text, words):
    sentence, places = unlabelled(0, text)
    assert sentence.words == tuple(words.split()) == tuple(text[start:end] for start, end in places)
    assert set(sentence.labels) <= {"O"}
