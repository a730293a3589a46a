"""The sample set: reading comprehension in SQuAD 2.0 format, written by a program, to try everything out offline.

A paragraph tells a few facts of one to three things of one kind, in varying words and order. A third of the questions
have no answer, for one of three reasons, given as `why`:
untold: the fact is not told of the thing;
swapped: it is told of another thing of the paragraph, and every content word of the question stands in the paragraph;
stranger: the thing asked about is not in the paragraph, though one with a similar name may be.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertvision.data import sample_names as names
from bertvision.data.sample_names import Dice
from bertvision.data.sample_text import KINDS, Fact, Kind
from bertvision.errors import UserError, nearest

LABEL = "synthetic sample"
SPLITS = tuple(names.BUCKETS)
PARAGRAPHS = 5
ANSWERABLE, UNANSWERABLE = 4, 2
"""Questions per paragraph."""
OWN_WORDS = 0.6
"""How often a question repeats the words of the text. Swapped ones always do, so that this gives nothing away."""
WHY = ("swapped",) * 14 + ("untold",) * 4 + ("stranger",) * 3
"""Why questions are unanswerable, in these proportions; `swapped` takes a paragraph with several things."""
CLOSINGS = (
    "Nothing else is known for certain",
    "Other details are disputed",
    "The rest has been forgotten",
    "Historians still argue about the rest",
    "Letters from that time confirm most of this",
    "Several books have been written on the subject",
)


class Forms(NamedTuple):
    """How a thing is mentioned in a sentence: `the Silver Heron` or `it`."""

    subject: str
    object: str
    possessive: str

    @classmethod
    def of(cls, name: str) -> "Forms":
        return cls(name, name, f"{name}'" if name.endswith("s") else f"{name}'s")

    def fill(self, template: str) -> str:
        return template.replace("{S}", self.subject).replace("{O}", self.object).replace("{P}", self.possessive)


class Told(NamedTuple):
    """A fact as it stands in the text."""

    echo: str
    text: str
    start: int


@dataclass(eq=False)
class Thing:
    """What a paragraph tells about: a ship, a person, a town."""

    name: str
    front: int
    first_year: int
    pronoun: Forms
    short: Forms
    """`the ship`, or a person's surname."""
    facts: list[Fact] = field(default_factory=list)
    told: dict[Fact, Told] = field(default_factory=dict)


def make(split: str, questions: int, seed: int) -> list[dict[str, Any]]:
    """Articles with exactly so many questions, the same for the same (split, seed) everywhere.

    A larger set begins with the articles of a smaller one. No thing of one split is named in another.
    """
    if split not in SPLITS:
        raise UserError(f"sample: no split is called {split!r}; {nearest(split, SPLITS)}")
    if questions < 1:
        raise UserError(f"sample: the number of questions must be 1 or more, not {questions}")
    articles: list[dict[str, Any]] = []
    missing = questions
    while missing:
        article = _article(split, seed, len(articles))
        article["paragraphs"] = _first(article["paragraphs"], missing)
        missing -= sum(len(paragraph["qas"]) for paragraph in article["paragraphs"])
        articles.append(article)
    return articles


def _first(paragraphs: list[dict[str, Any]], questions: int) -> list[dict[str, Any]]:
    """The paragraphs cut off after so many questions."""
    kept = []
    for paragraph in paragraphs:
        if questions > 0:
            kept.append({**paragraph, "qas": paragraph["qas"][:questions]})
            questions -= len(paragraph["qas"])
    return kept


def _article(split: str, seed: int, index: int) -> dict[str, Any]:
    """Article number `index`, from a seed of its own, so that the size of the set does not matter."""
    dice = Dice(f"{split}:{seed}:{index}")
    kind = KINDS[index % len(KINDS)]
    place = names.PLACES.draw(dice, split, set()).text
    paragraphs = []
    for p in range(PARAGRAPHS):
        used = {place}
        things = _things(kind, dice, split, used)
        context = _write(kind, things, place, dice, split, used)
        asked = _answerable(things, dice) + _unanswerable(kind, things, dice, split, used)
        qas = [{"id": f"sample-{split}-{seed}-{index}-{p}-{q}", **qa} for q, qa in enumerate(dice.shuffled(asked))]
        paragraphs.append({"context": context, "qas": qas})
    title = kind.title.format(place=place)
    return {"title": f"{title}, part {index + 1} (synthetic)", "paragraphs": paragraphs}


def _things(kind: Kind, dice: Dice, split: str, used: set[str]) -> list[Thing]:
    """One to three things and which facts to tell of each: where there are several, some of all, some of one alone."""
    facts = dice.shuffled(kind.facts)
    several = dice.between(1, 10)
    if several <= 5:
        shares = [facts[:5]]
    elif several <= 9:
        shares = [facts[:3], facts[2:5]]
    else:
        shares = [facts[:2], facts[1:3], facts[3:5]]
    things = []
    for share in shares:
        name, front = kind.named.draw(dice, split, used)
        pronoun, short = _short_forms(kind, name)
        things.append(Thing(name, front, dice.between(1825, 1925), pronoun, short, facts=dice.shuffled(share)))
    return dice.shuffled(things)


def _short_forms(kind: Kind, name: str) -> tuple[Forms, Forms]:
    """(pronoun, short name)"""
    if kind.noun:
        return Forms("it", f"the {kind.noun}", "its"), Forms.of(f"the {kind.noun}")  # "the crew of it" is no English
    first, _, surname = name.partition(" ")
    pronoun = Forms("she", "her", "her") if first in names.WOMEN else Forms("he", "him", "his")
    return pronoun, Forms.of(surname)


def _write(kind: Kind, things: list[Thing], place: str, dice: Dice, split: str, used: set[str]) -> str:
    """The paragraph. Fills in `told` of the things."""
    text = ""
    if len(things) > 1 and dice.chance(0.3):
        listed = [thing.name for thing in things]
        everything = f"{', '.join(listed[:-1])} and {listed[-1]}"
        text = _capital(dice.pick(kind.opening).replace("{N}", everything).replace("{place}", place)) + ". "
    previous: Thing | None = None
    open_end = False  # the last sentence can take a second predicate
    for thing, fact in _order(things, dice):
        wording, echo = dice.pick(fact.wordings)
        value = fact.draw(dice, split, thing.first_year, used)
        predicate = wording.startswith("{S} ")
        if open_end and thing is previous and predicate and dice.chance(0.5):
            text = f"{text[:-2]} and "
            left, right = wording[4:].split("{v}")
            open_end = False
        else:
            lead, forms = _mention(thing, fact, wording, previous, things, dice)
            left, right = forms.fill(lead + wording).split("{v}")
            open_end = predicate
        left = left.replace("{a}", "an" if value[0] in "aeiou" else "a")
        start = len(text) + len(left)
        sentence = f"{left}{value}{right}. "
        text += sentence if text.endswith(" and ") else _capital(sentence)
        thing.told[fact] = Told(echo, text[start : start + len(value)], start)
        previous = thing
    return text + dice.pick(CLOSINGS) + "." if dice.chance(0.25) else text[:-1]


def _order(things: list[Thing], dice: Dice) -> list[tuple[Thing, Fact]]:
    """One thing after the other, or back and forth between them."""
    if dice.chance(0.5):
        return [(thing, fact) for thing in things for fact in thing.facts]
    half = [(len(thing.facts) + 1) // 2 for thing in things]
    first = [(thing, fact) for thing, cut in zip(things, half) for fact in thing.facts[:cut]]
    return first + [(thing, fact) for thing, cut in zip(things, half) for fact in thing.facts[cut:]]


def _mention(
    thing: Thing, fact: Fact, wording: str, previous: Thing | None, things: list[Thing], dice: Dice
) -> tuple[str, Forms]:
    """(words that lead into the sentence, what the thing is called in it). A pronoun has its name just before it."""
    name = Forms.of(thing.name)
    if thing is previous:
        return "", dice.pick((thing.pronoun, thing.pronoun, thing.short, name))
    if previous is not None and wording.startswith(("{S}", "{P}")):
        if any(fact in other.told for other in things) and dice.chance(0.4):
            return "By contrast, ", name
        if dice.chance(0.2):
            return f"As for {thing.name}, ", thing.pronoun
    by_surname = bool(thing.told) and thing.name.endswith(f" {thing.short.subject}")
    return "", thing.short if by_surname and dice.chance(0.5) else name


def _answerable(things: list[Thing], dice: Dice) -> list[dict[str, Any]]:
    """Questions on facts that are told, with their answers."""
    told = [(thing, fact, place) for thing in things for fact, place in thing.told.items()]
    asked = []
    for thing, fact, place in dice.shuffled(told)[:ANSWERABLE]:
        question = place.echo if dice.chance(OWN_WORDS) else dice.pick(fact.questions)
        asked.append({"question": _ask(question, thing.name), "answers": [_span(place)], "is_impossible": False})
    return asked


def _unanswerable(kind: Kind, things: list[Thing], dice: Dice, split: str, used: set[str]) -> list[dict[str, Any]]:
    """Questions the paragraph does not answer; what could be mistaken for the answer is their plausible answer."""
    told = [(thing, fact) for thing in things for fact in thing.told]
    untold = [(thing, fact) for thing in things for fact in kind.facts if fact not in thing.told]
    elsewhere = {fact: thing.told[fact] for thing, fact in told}
    swapped = [(thing, fact) for thing, fact in untold if fact in elsewhere]
    asked: dict[tuple[str, Fact], dict[str, Any]] = {}
    choices = {"swapped": swapped, "untold": untold, "stranger": told}
    while len(asked) < UNANSWERABLE:
        why = dice.pick(tuple(reason for reason in WHY if choices[reason]))
        thing, fact = dice.pick(choices[why])
        name = _stranger(kind, thing, dice, split, used) if why == "stranger" else thing.name
        mistaken = thing.told.get(fact) or elsewhere.get(fact)
        if why == "swapped" or dice.chance(OWN_WORDS):
            question = mistaken.echo if mistaken else dice.pick(fact.wordings)[1]
        else:
            question = dice.pick(fact.questions)
        asked[name, fact] = {
            "question": _ask(question, name),
            "answers": [],
            "plausible_answers": [_span(mistaken)] if mistaken else [],
            "is_impossible": True,
            "why": why,
        }
    return list(asked.values())


def _stranger(kind: Kind, thing: Thing, dice: Dice, split: str, used: set[str]) -> str:
    """A name that is not in the paragraph; half of the time it begins like that of `thing`."""
    return kind.named.draw(dice, split, used, front=thing.front if dice.chance(0.5) else None).text


def _ask(question: str, name: str) -> str:
    return _capital(Forms.of(name).fill(question))


def _span(place: Told) -> dict[str, Any]:
    return {"text": place.text, "answer_start": place.start}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
