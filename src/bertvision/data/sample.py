"""The sample set: synthetic reading comprehension in SQuAD 2.0 format, to try everything without a download.

A paragraph states a few facts about one to three things of one kind, in varying words and order. A third of the
questions have no answer, for one of three reasons, given as `why`:
untold: the fact is not stated about this thing;
swapped: it is stated about another thing of the paragraph, and every content word of the question is in the paragraph;
stranger: the thing asked about is not in the paragraph, though one with a similar name may be.

`sample.json` has the words. {S}, {O}, {P} stand for the thing as subject, object and possessive, {v} for the value of
the fact, {a} for "a" or "an" before it. A wording comes with a question that has no content word the wording lacks.
Values: ["year", low, high] (years after the thing's first), ["number", low, high, step, unit], ["one", choices...], or
a kind of name.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertvision.errors import UserError

Item = TypeVar("Item")

LABEL = "synthetic sample"
BUCKETS = {"train": range(6), "tune": range(6, 8), "test": range(8, 10)}
"""A name made of word i and word j belongs to the split whose range holds (i + j) % 10: no name is in two splits."""
SPLITS = tuple(BUCKETS)
PARAGRAPHS = 5  # of an article
ANSWERABLE, UNANSWERABLE = 4, 2  # questions of a paragraph
OWN_WORDS = 0.6  # how often a question repeats the words of the text; swapped ones always do
WHY = ("swapped",) * 14 + ("untold",) * 4 + ("stranger",) * 3  # proportions of the reasons, where all are possible
MOST = 1_000_000  # questions
_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("sample.json").read_text(encoding="utf-8"))
WORDS = {key: tuple(text.split()) for key, text in _DATA["words"].items()}


class Dice:
    """Random choices from a text seed, built on `random()` alone: the one stream Python keeps over its versions."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big")).random

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def between(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + self.below(high - low + 1)

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return sorted(items, key=lambda _: self._random())


class Names:
    """All names that `pattern` makes of a word of `fronts` and a word of `backs` (both: names of word lists)."""

    def __init__(self, pattern: str, fronts: list[str], backs: list[str]) -> None:
        self.pattern = pattern
        self.fronts, self.backs = (tuple(word for key in keys for word in WORDS[key]) for keys in (fronts, backs))
        self.back_alone = fronts == ["women", "men"]  # a surname stands for the name: once in a paragraph

    def write(self, i: int, j: int) -> str:
        return self.pattern.format(self.fronts[i], self.backs[j])

    def belongs(self, i: int, j: int, split: str) -> bool:
        return (i + j) % 10 in BUCKETS[split] and self.fronts[i] != self.backs[j]

    def draw(self, dice: Dice, split: str, used: set[str], front: int | None = None) -> tuple[str, int]:
        """A name of the split not in `used`, where it is then added, and its first word's index (`front` fixes it)."""
        while True:
            i = dice.below(len(self.fronts)) if front is None else front
            j = dice.below(len(self.backs))
            new = {self.write(i, j), self.backs[j]} if self.back_alone else {self.write(i, j)}
            if self.belongs(i, j, split) and not new & used:
                used |= new
                return self.write(i, j), i


@dataclass(frozen=True, eq=False)
class Fact:
    """A fact about a thing. wordings: (sentence, question in its words). questions: in other words."""

    name: str
    values: list[Any]
    wordings: list[tuple[str, str]]
    questions: list[str]

    def draw(self, dice: Dice, split: str, first_year: int, used: set[str]) -> str:
        """A value that is not in `used` (names and values of the paragraph); it is added there."""
        form, *options = self.values
        if form in NAMES:
            return NAMES[form].draw(dice, split, used)[0]
        if form == "one":
            value = next(choice for choice in dice.shuffled(options) if choice not in used)
            used.add(value)
            return value
        low, high, step, unit = options if form == "number" else (*options, 1, "")
        while True:
            number = dice.between(low // step, high // step) * step
            value = NUMBERS[number] if number < len(NUMBERS) else f"{number:,}"  # 7 -> seven, 3200 -> 3,200
            value = str(first_year + number) if form == "year" else value
            if value not in used:
                used.add(value)
                return f"{value} {unit}".rstrip()
            high += step  # a narrow range may be used up


class Kind(NamedTuple):
    """A kind of thing. noun: may replace the name (`the ship`); empty for people. opening: sentences with {N}, all
    names of the paragraph, and {place}, the article's place."""

    title: str
    noun: str
    opening: list[str]
    named: Names
    facts: list[Fact]


NUMBERS = _DATA["numbers"].split()
NAMES = {key: Names(**entry) for key, entry in _DATA["names"].items()}
KINDS = [
    Kind(kind["title"], kind["noun"], kind["opening"], Names(**kind["names"]), [Fact(**fact) for fact in kind["facts"]])
    for kind in _DATA["kinds"]
]


class Forms(NamedTuple):
    """How a sentence mentions a thing: `the Silver Heron` or `it`."""

    subject: str
    object: str
    possessive: str

    @classmethod
    def of(cls, name: str) -> "Forms":
        return cls(name, name, f"{name}'" if name.endswith("s") else f"{name}'s")

    def fill(self, template: str) -> str:
        return template.replace("{S}", self.subject).replace("{O}", self.object).replace("{P}", self.possessive)


class Statement(NamedTuple):
    """A fact as the text states it: the question in its words, and the value as an answer."""

    echo: str
    span: dict[str, Any]


@dataclass(eq=False)
class Entity:
    """A ship, a person, a town. front: index of its name's first word. short: `the ship`, or a person's surname."""

    name: str
    front: int
    first_year: int
    pronoun: Forms
    short: Forms
    facts: list[Fact]
    statements: dict[Fact, Statement] = field(default_factory=dict)


def make(split: str, questions: int, seed: int) -> list[dict[str, Any]]:
    """Articles with exactly `questions` questions, the same for the same (split, seed) on every machine.

    A larger set begins with the articles of a smaller one. No name of one split is in another.
    """
    if not 1 <= questions <= MOST:
        raise UserError(f"sample: the number of questions must be between 1 and {MOST:,}, not {questions}")
    articles: list[dict[str, Any]] = []
    while questions > 0:
        article = _article(split, seed, len(articles))
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = paragraph["qas"][: max(questions, 0)]
            questions -= len(paragraph["qas"])
        article["paragraphs"] = [paragraph for paragraph in article["paragraphs"] if paragraph["qas"]]
        articles.append(article)
    return articles


def _article(split: str, seed: int, index: int) -> dict[str, Any]:
    """Article number `index`, from a seed of its own, so that it does not depend on the size of the set."""
    dice = Dice(f"{split}:{seed}:{index}")
    kind = KINDS[index % len(KINDS)]
    place, _ = NAMES["place"].draw(dice, split, set())
    paragraphs = []
    for p in range(PARAGRAPHS):
        used = {place}
        entities = _entities(kind, dice, split, used)
        context = _paragraph(kind, entities, place, dice, split, used)
        questions = _answerable_questions(entities, dice) + _unanswerable_questions(kind, entities, dice, split, used)
        qas = [{"id": f"sample-{split}-{seed}-{index}-{p}-{q}", **qa} for q, qa in enumerate(dice.shuffled(questions))]
        paragraphs.append({"context": context, "qas": qas})
    title = kind.title.format(place=place)
    return {"title": f"{title}, part {index + 1} (synthetic)", "paragraphs": paragraphs}


def _entities(kind: Kind, dice: Dice, split: str, used: set[str]) -> list[Entity]:
    """One to three things with the facts to state: of several things, some facts of all and some of one alone."""
    facts = dice.shuffled(kind.facts)
    single, pair, triple = [facts[:5]], [facts[:3], facts[2:5]], [facts[:2], facts[1:3], facts[3:5]]
    shares = dice.pick([single] * 5 + [pair] * 4 + [triple])
    entities = []
    for share in shares:
        name, front = kind.named.draw(dice, split, used)
        entities.append(Entity(name, front, dice.between(1825, 1925), *_short_forms(kind, name), dice.shuffled(share)))
    return dice.shuffled(entities)


def _short_forms(kind: Kind, name: str) -> tuple[Forms, Forms]:
    """(pronoun, short name)"""
    if kind.noun:
        return Forms("it", f"the {kind.noun}", "its"), Forms.of(f"the {kind.noun}")  # "the crew of it" is not English
    first, _, surname = name.partition(" ")
    pronoun = Forms("she", "her", "her") if first in WORDS["women"] else Forms("he", "him", "his")
    return pronoun, Forms.of(surname)


def _paragraph(kind: Kind, entities: list[Entity], place: str, dice: Dice, split: str, used: set[str]) -> str:
    """The paragraph. Fills in `told` of the things."""
    text = ""
    if len(entities) > 1 and dice.chance(0.3):
        *others, last = (entity.name for entity in entities)
        opening = dice.pick(kind.opening).replace("{N}", f"{', '.join(others)} and {last}")
        text = _capital(opening.replace("{place}", place)) + ". "
    previous: Entity | None = None
    open_end = False  # the last sentence can take a second predicate
    for entity, fact in _order(entities, dice):
        wording, echo = dice.pick(fact.wordings)
        value = fact.draw(dice, split, entity.first_year, used)
        predicate = wording.startswith("{S} ")
        if open_end and entity is previous and predicate and dice.chance(0.5):
            text = f"{text[:-2]} and "
            left, right = wording[4:].split("{v}")
            open_end = False
        else:
            lead, forms = _mention(entity, fact, wording, previous, entities, dice)
            left, right = forms.fill(lead + wording).split("{v}")
            open_end = predicate
        left = left.replace("{a}", "an" if value[0] in "aeiou" else "a")
        start = len(text) + len(left)
        sentence = f"{left}{value}{right}. "
        text += sentence if text.endswith(" and ") else _capital(sentence)
        entity.statements[fact] = Statement(echo, {"text": text[start : start + len(value)], "answer_start": start})
        previous = entity
    return text + dice.pick(_DATA["closings"]) + "." if dice.chance(0.25) else text[:-1]


def _order(entities: list[Entity], dice: Dice) -> list[tuple[Entity, Fact]]:
    """One thing after the other, or the first half of the facts of each before the second."""
    if dice.chance(0.5):
        return [(entity, fact) for entity in entities for fact in entity.facts]
    halves = [
        ((entity, fact), 2 * n >= len(entity.facts)) for entity in entities for n, fact in enumerate(entity.facts)
    ]
    return [pair for second in (False, True) for pair, is_second in halves if is_second is second]


def _mention(
    entity: Entity, fact: Fact, wording: str, previous: Entity | None, entities: list[Entity], dice: Dice
) -> tuple[str, Forms]:
    """(words before the sentence, how it mentions the thing). A pronoun has its name just before it."""
    name = Forms.of(entity.name)
    if entity is previous:
        return "", dice.pick((entity.pronoun, entity.pronoun, entity.short, name))
    if previous is not None and wording.startswith(("{S}", "{P}")):
        if any(fact in other.statements for other in entities) and dice.chance(0.4):
            return "By contrast, ", name
        if dice.chance(0.2):
            return f"As for {entity.name}, ", entity.pronoun
    by_surname = bool(entity.statements) and entity.name.endswith(f" {entity.short.subject}")
    return "", entity.short if by_surname and dice.chance(0.5) else name


def _answerable_questions(entities: list[Entity], dice: Dice) -> list[dict[str, Any]]:
    """Questions on stated facts, with their answers."""
    statements = [(entity, fact, statement) for entity in entities for fact, statement in entity.statements.items()]
    questions = []
    for entity, fact, statement in dice.shuffled(statements)[:ANSWERABLE]:
        question = statement.echo if dice.chance(OWN_WORDS) else dice.pick(fact.questions)
        questions.append({"question": _ask(question, entity.name), "answers": [statement.span], "is_impossible": False})
    return questions


def _unanswerable_questions(
    kind: Kind, entities: list[Entity], dice: Dice, split: str, used: set[str]
) -> list[dict[str, Any]]:
    """Questions the paragraph does not answer; what could be mistaken for the answer is their plausible answer."""
    stated = [(entity, fact) for entity in entities for fact in entity.statements]
    unstated = [(entity, fact) for entity in entities for fact in kind.facts if fact not in entity.statements]
    elsewhere = {fact: entity.statements[fact] for entity, fact in stated}
    swapped = [(entity, fact) for entity, fact in unstated if fact in elsewhere]
    questions: dict[tuple[str, Fact], dict[str, Any]] = {}
    choices = {"swapped": swapped, "untold": unstated, "stranger": stated}
    while len(questions) < UNANSWERABLE:
        why = dice.pick(tuple(reason for reason in WHY if choices[reason]))
        entity, fact = dice.pick(choices[why])
        name = entity.name
        if why == "stranger":  # half of the time its name begins like that of `thing`
            name, _ = kind.named.draw(dice, split, used, entity.front if dice.chance(0.5) else None)
        mistaken = entity.statements.get(fact) or elsewhere.get(fact)
        if why == "swapped" or dice.chance(OWN_WORDS):
            question = mistaken.echo if mistaken else dice.pick(fact.wordings)[1]
        else:
            question = dice.pick(fact.questions)
        questions[name, fact] = {
            "question": _ask(question, name),
            "answers": [],
            "plausible_answers": [mistaken.span] if mistaken else [],
            "is_impossible": True,
            "why": why,
        }
    return list(questions.values())


def _ask(question: str, name: str) -> str:
    return _capital(Forms.of(name).fill(question))


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
