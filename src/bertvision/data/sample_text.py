"""The kinds of thing the sample set is about, and the notation in which their facts are written down.

A fact is a header `name: values` and its lines:

    launched: year 0
      {S} was launched in {v} | When was {S} launched?      a wording | the question in the wording's own words
      ? In which year did {S} first go to sea?              a question in other words

{S}, {O}, {P}: the thing as subject, object, possessive (by name or pronoun). {v}: the value. {a}: a or an, before {v}.
Values: `year 0` (the thing's first year), `year 18-45` (so many years later), `number 26-98 metres`,
`number 100-900/10 crowns` (in steps of 10), `person`, `place`, `river`, `firm`, or `one oak; teak; iron`, which a line
that starts with a semicolon continues.
A question in the wording's own words has no content word that the wording lacks: asked about another thing of the
paragraph, it is unanswerable although every word of it stands there.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from bertvision.data import sample_names as names
from bertvision.data import sample_people, sample_places, sample_things
from bertvision.data.sample_names import Dice, Names

NUMBER_WORDS = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
DRAWN_NAMES = {"person": names.PEOPLE, "place": names.PLACES, "river": names.RIVERS, "firm": names.FIRMS}


@dataclass(frozen=True, eq=False)
class Fact:
    """Something that can be told of a thing: how its value is drawn, how it is worded, how it is asked."""

    name: str
    values: str
    wordings: tuple[tuple[str, str], ...]
    """(sentence, question in its words)"""
    questions: tuple[str, ...]

    @cached_property
    def _range(self) -> tuple[int, int, int, str]:
        """(low, high, step, unit) of `year` and `number`."""
        bounds, _, unit = self.values.partition(" ")[2].partition(" ")
        limits, _, step = bounds.partition("/")
        low, _, high = limits.partition("-")
        return int(low), int(high or low), int(step or 1), unit

    @cached_property
    def _choices(self) -> tuple[str, ...]:
        return tuple(self.values.removeprefix("one ").split("; "))

    def draw(self, dice: Dice, split: str, first_year: int, used: set[str]) -> str:
        """A value that is not in `used` (what the paragraph already names); it is added there."""
        form = self.values.partition(" ")[0]
        if form in DRAWN_NAMES:
            return DRAWN_NAMES[form].draw(dice, split, used).text
        if form == "one":
            value = next(choice for choice in dice.shuffled(self._choices) if choice not in used)
            used.add(value)
            return value
        low, high, step, unit = self._range
        while True:
            number = dice.between(low // step, high // step) * step
            written = str(first_year + number) if form == "year" else _written(number)
            if written not in used:
                used.add(written)
                return f"{written} {unit}".rstrip()
            high += step  # a narrow range may be used up


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of thing: how it is called, and its facts."""

    title: str
    """What an article about such things in a place is called."""
    noun: str
    """Stands for the name now and then: `the ship`. Empty for people, who go by their surname."""
    named: Names
    opening: tuple[str, ...]
    """Sentences that may open a paragraph. {N}: the names of all things in it, {place}: the article's place."""
    text: str

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        return parse_facts(self.text)


def parse_facts(text: str) -> tuple[Fact, ...]:
    """Facts from the notation at the top of this file."""
    facts: list[Fact] = []
    for block in re.split(r"\n(?=\w)", text.strip()):  # a header stands at the margin, its lines do not
        name, _, values = re.sub(r"\n  ;", ";", block).partition("\n")[0].partition(": ")
        lines = [line[2:] for line in block.splitlines()[1:] if not line.startswith("  ;")]
        wordings = [tuple(line.split(" | ")) for line in lines if " | " in line]
        questions = [line.removeprefix("? ") for line in lines if line.startswith("? ")]
        facts.append(Fact(name, values, tuple(wordings), tuple(questions)))
    return tuple(facts)


def _written(number: int) -> str:
    """7 -> seven, 42 -> 42, 3200 -> 3,200."""
    return NUMBER_WORDS[number] if number < len(NUMBER_WORDS) else f"{number:,}"


KINDS: tuple[Kind, ...] = (
    Kind(
        "Ships of {place}",
        "ship",
        Names("the {} {}", names.BRIGHT, names.BIRDS),
        (
            "{N} were well known in the harbour of {place}",
            "Old logbooks from {place} mention {N}",
            "Among the ships seen off {place} were {N}",
        ),
        sample_things.SHIP,
    ),
    Kind(
        "People of {place}",
        "",
        names.PEOPLE,
        (
            "The town history of {place} has a chapter on {N}",
            "{N} were guests of the same house in {place}",
            "Streets in {place} are named after {N}",
        ),
        sample_people.PERSON,
    ),
    Kind(
        "Towns around {place}",
        "town",
        names.PLACES,
        (
            "{N} lay a day's ride from {place}",
            "Travellers on the road to {place} passed through {N}",
            "A guide printed in {place} describes {N}",
        ),
        sample_places.TOWN,
    ),
    Kind(
        "Firms of {place}",
        "firm",
        names.FIRMS,
        (
            "{N} were rivals on the market of {place}",
            "The trade register of {place} lists {N}",
            "Shops in {place} were supplied by {N}",
        ),
        sample_people.FIRM,
    ),
    Kind(
        "Machines shown at {place}",
        "machine",
        Names("the {} {}", names.SIGNS, names.DEVICES),
        (
            "A catalogue printed in {place} compares {N}",
            "{N} were tested side by side in {place}",
            "Collectors in {place} still own {N}",
        ),
        sample_things.MACHINE,
    ),
    Kind(
        "Expeditions remembered in {place}",
        "expedition",
        Names("the {} {} expedition", names.REGIONS, names.LANDFORMS),
        (
            "The archive of {place} keeps the diaries of {N}",
            "Newspapers in {place} reported on {N}",
            "{N} are remembered by a plaque in {place}",
        ),
        sample_people.EXPEDITION,
    ),
    Kind(
        "Museums near {place}",
        "museum",
        Names("the {} Museum of {}", names.SURNAMES, names.TREASURES),
        (
            "A leaflet from {place} recommends {N}",
            "{N} are favourite outings for schools in {place}",
            "One ticket bought in {place} was valid for {N}",
        ),
        sample_places.MUSEUM,
    ),
    Kind(
        "Bridges near {place}",
        "bridge",
        Names("the {}{} Bridge", names.PLACES.fronts, names.PLACES.backs),
        (
            "On the way to {place} one crosses {N}",
            "Painters from {place} were fond of {N}",
            "{N} are described in a guide from {place}",
        ),
        sample_things.BRIDGE,
    ),
    Kind(
        "Festivals around {place}",
        "festival",
        Names("the {} {} Festival", names.REGIONS, names.REVELS),
        (
            "People from {place} liked to go to {N}",
            "Posters in {place} announced {N}",
            "{N} were the great occasions of the district of {place}",
        ),
        sample_people.FESTIVAL,
    ),
    Kind(
        "Railways around {place}",
        "railway",
        Names("the {} {} Railway", names.REGIONS, names.LINES),
        (
            "From {place} one could reach {N}",
            "A timetable printed in {place} covers {N}",
            "{N} competed for passengers from {place}",
        ),
        sample_places.RAILWAY,
    ),
    Kind(
        "Novels read in {place}",
        "novel",
        Names("The {} {}", names.STORY_WORDS, names.STORY_THINGS),
        (
            "The library of {place} owns signed copies of {N}",
            "A reading circle in {place} chose {N}",
            "{N} were widely read in {place}",
        ),
        sample_things.NOVEL,
    ),
)
