"""The sample set: exact, reproducible, disjoint over splits, and unanswerable where it says so."""

import hashlib
import itertools
import json
import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.sample import KINDS, LABEL, NAMES, SPLITS, Dice, Fact, Kind, Names, make
from bertvision.data.sources import load_articles
from bertvision.data.squad import check_articles, records
from bertvision.errors import UserError

FUNCTION_WORDS = set(
    re.findall(
        r"\w+",
        """a an and as at by did does for from have had how in into is it its long many much high strong of on once
        over the that there to up was were what when where which who whom whose with""",
    )
)
FACTS = [(kind, fact) for kind in KINDS for fact in kind.facts]

splits = st.sampled_from(SPLITS)
seeds = st.integers(0, 10**9)


def content_words(text: str) -> set[str]:
    """Lower-case words that carry meaning; a possessive counts as its noun."""
    words = re.findall(r"[a-z0-9&]+(?:['-][a-z]+)*", text.lower())
    return {word.removesuffix("'s") for word in words} - FUNCTION_WORDS


def questions_of(articles: list[dict]) -> list[tuple[str, dict]]:
    """(context, question entry) of all questions."""
    return [(p["context"], qa) for article in articles for p in article["paragraphs"] for qa in p["qas"]]


@cache
def large() -> tuple[tuple[str, dict], ...]:
    return tuple(questions_of(make("train", 6000, 5)))


@settings(max_examples=40, deadline=None)
@given(split=splits, questions=st.integers(1, 400), seed=seeds)
def test_the_number_is_exact_and_every_answer_stands_at_its_offset(split: str, questions: int, seed: int) -> None:
    articles = make(split, questions, seed)
    found = records(articles)
    assert len(found) == questions == len({record.id for record in found})
    for record in found:
        for answer, start in zip(record.answers, record.starts):
            assert record.context[start : start + len(answer)] == answer != ""
    assert all(article["title"].endswith("(synthetic)") for article in articles)
    assert all(paragraph["qas"] for article in articles for paragraph in article["paragraphs"])
    before = json.dumps(articles)
    check_articles(articles, LABEL)
    assert json.dumps(articles) == before  # nothing had to be moved


@settings(max_examples=25, deadline=None)
@given(split=splits, sizes=st.tuples(st.integers(1, 300), st.integers(1, 300)).map(sorted), seed=seeds)
def test_a_larger_set_begins_with_the_smaller(split: str, sizes: list[int], seed: int) -> None:
    less, more = (make(split, size, seed) for size in sizes)
    assert more[: len(less) - 1] == less[:-1]
    assert questions_of(more)[: sizes[0]] == questions_of(less)


@pytest.mark.parametrize(
    ("source", "digest"),
    [
        ("sample:train:200", "8b24085d325a89da"),
        ("sample:tune:60", "f4bd32e835817451"),
        ("sample:test:60", "79b49d8ac4d04f27"),
        ("sample:train", "14222aa5f624dbce"),
        ("sample:tune", "efe557b9ac7feab6"),
        ("sample:test", "1378d99994587708"),
        ("sample:test:500:7", "d55aaef0a6deea04"),
    ],
)
def test_it_has_not_changed(source: str, digest: str) -> None:
    """Scores on the sample set are compared between versions of the program."""
    text = json.dumps(load_articles(source), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    "named",
    [*(kind.named for kind in KINDS), *NAMES.values()],
    ids=lambda named: named.pattern,
)
def test_no_name_is_in_two_splits(named: Names) -> None:
    owners: dict[str, set[str]] = {}
    for i, j in itertools.product(range(len(named.fronts)), range(len(named.backs))):
        for split in SPLITS:
            if named.belongs(i, j, split):
                owners.setdefault(named.write(i, j), set()).add(split)
    assert all(len(found) == 1 for found in owners.values())
    shares = Counter(next(iter(found)) for found in owners.values())
    assert min(shares.values()) > 60
    assert len(set(named.backs)) == len(named.backs) >= 20  # every front word has partners in every split


def test_a_third_is_unanswerable_for_the_reason_given() -> None:
    reasons = Counter(qa.get("why", "answered") for _, qa in large())
    assert 1 - reasons["answered"] / len(large()) == pytest.approx(1 / 3, abs=0.005)
    assert min(reasons["swapped"], reasons["untold"], reasons["stranger"]) > 350
    repeats = []  # whether a question is unanswerable, of those that use only words of the paragraph
    answers: dict[str, list[str]] = {}
    for context, qa in large():
        assert qa["is_impossible"] == (not qa["answers"]) == ("why" in qa)
        for answer in qa.get("plausible_answers", ()):
            assert context.startswith(answer["text"], answer["answer_start"])
        words, told = content_words(qa["question"]), content_words(context)
        if words <= told:
            repeats.append(qa["is_impossible"])
        if qa.get("why") == "swapped":
            assert words <= told and len(words) >= 2 and qa["plausible_answers"], qa["question"]
        present = [name for name in train_names(int(qa["id"].split("-")[3]) % len(KINDS)) if name in context.lower()]
        assert any(name in qa["question"].lower() for name in present) == (qa.get("why") != "stranger")
        answers.setdefault(context, []).extend(answer["text"] for answer in qa["answers"])
    assert len(repeats) > len(large()) / 4 and 0.2 < sum(repeats) / len(repeats) < 0.4
    assert all(len(set(found)) == len(found) for found in answers.values())  # no value is stated twice


@cache
def train_names(kind: int) -> list[str]:
    """All names of a kind; lower case, since a name may open a sentence."""
    named = KINDS[kind].named
    pairs = itertools.product(range(len(named.fronts)), range(len(named.backs)))
    return [named.write(i, j).lower() for i, j in pairs if named.belongs(i, j, "train")]


@pytest.mark.parametrize(("kind", "fact"), FACTS, ids=[f"{kind.noun or 'person'}-{fact.name}" for kind, fact in FACTS])
def test_every_fact_is_well_formed(kind: Kind, fact: Fact) -> None:
    assert len(kind.facts) >= 9 and len(fact.wordings) >= 3 and len(fact.questions) >= 2
    values = [fact.draw(Dice(f"{n}"), "train", 1850, set()) for n in range(40)]
    assert len(set(values)) >= 4 or fact.values == ["year", 0, 0]
    for (sentence, echo), value in zip(itertools.cycle(fact.wordings), values):
        told = sentence.replace("{v}", value).replace("{a}", "a")
        assert sentence.count("{v}") == 1 and echo.endswith("?")
        assert sum(sentence.count(mark) for mark in ("{S}", "{O}", "{P}")) == 1
        assert content_words(echo) - {"s", "o", "p"} <= content_words(told), echo
    for question in [*fact.questions, *(echo for _, echo in fact.wordings)]:
        assert sum(question.count(mark) for mark in ("{S}", "{O}", "{P}")) == 1
        assert not re.search(r"\{[^SOP]", question)
    texts = [*fact.questions, *(text for wording in fact.wordings for text in wording)]
    assert len(set(texts)) == len(texts)


def test_the_english_is_tidy() -> None:
    for context in {context for context, _ in large()}:
        assert context.endswith(".")
        untidy = re.search(r"[{}]|  |\.\.| \.|\ba [aeiou]|\ban (?!hono)[^aeiou\W]|\b(\w+) \1\b", context, re.IGNORECASE)
        assert not untidy, untidy
        assert all(sentence[0].isupper() for sentence in context.split(". "))
    for _, qa in large():
        assert qa["question"][0].isupper() and qa["question"].endswith("?")
    asked = Counter(qa["question"] for _, qa in large())
    assert asked.most_common(1)[0][1] <= 4


def test_wrong_requests() -> None:
    with pytest.raises(UserError, match="must be between 1 and 1,000,000, not 0"):
        make("train", 0, 1)
