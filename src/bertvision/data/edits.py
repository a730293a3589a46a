"""Unanswerable questions made from answerable ones: the same paragraph, asked about something it does not say.

People who write such questions swap a name, a number, or a word for another that the text also holds, turn a word into
its opposite, or negate it (Rajpurkar, Jia, Liang 2018, table 1). So do these rules; they know no grammar, so that some
of what they write is clumsy, and some, by chance, can be answered after all.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bertvision.data.negatives import questions, second_version, share
from bertvision.data.normal import normalize
from bertvision.errors import UserError

NAME = re.compile(r"(?<=[a-z,] )[A-Z][\w’'-]+(?: (?:(?:of|the|de) )?[A-Z][\w’'-]+)*")  # not at the head of a sentence
NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*(?<![.,])(?!\w)")
WORD = re.compile(r"(?<![\w’'-])[a-z]{5,}(?![\w’'-])")
VERB = re.compile(r"(?<=\w )(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would)(?= \w)")
CONTRACTED = {"can": "can't", "will": "won't"}
ENDS = "-edited"  # the id of a question that was made from another
ENDING = 2  # letters by which a word is taken to be of the same kind as another: -ed, -ng, -es, -ly
COMMON = """
about after again against among another because before being below between called could during first found given known
later might named other others since should still their there these thing those through under until using where which
while whose within without would years
"""
OPPOSITES = """
first last, largest smallest, most least, more less, highest lowest, higher lower, larger smaller, large small,
high low, before after, north south, east west, northern southern, eastern western, increase decrease,
increased decreased, won lost, old new, oldest newest, older younger, early late, earliest latest, began ended,
begin end, start finish, started finished, opened closed, above below, inside outside, best worst, good bad,
positive negative, major minor, maximum minimum, men women, male female, father mother, son daughter, king queen,
husband wife, brother sister, ancient modern, public private, rich poor, strong weak, long short, longest shortest,
rise fall, rose fell, allowed forbidden, accepted rejected, supported opposed, support oppose, victory defeat,
legal illegal, common rare, same different, heavy light, hot cold, warm cool, wet dry, day night, summer winter,
birth death, lived died, live die, created destroyed, create destroy, built demolished, imports exports, import export,
bought sold, buy sell, internal external, simple complex, majority minority, success failure
"""
PAIRS = [tuple(pair.split()) for pair in OPPOSITES.split(",")]
OPPOSITE = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
EMPTY_WORDS = frozenset(COMMON.split())

Draw = Callable[[Sequence[str]], str]


def add_edited(articles: Sequence[dict[str, Any]], ratio: float) -> list[dict[str, Any]]:
    """The articles of a SQuAD 1.1 or 2.0 file as SQuAD 2.0, with up to `ratio` edited questions per answerable one.

    ratio: 0 to 1. A question in which nothing can be changed gets none. What is changed into what is the same every
    time; a smaller ratio gives a part of what a larger one gives. `articles` themselves are left as they are.
    """
    if not 0 <= ratio <= 1:
        raise UserError(f"edited: {ratio} is not a share of the answerable questions; give 0 to 1")
    result = [second_version(article) for article in articles]
    if any(qa["id"].endswith(ENDS) for article in result for _, qa in questions(article["paragraphs"])):
        raise UserError("edited: these data have edited questions already; give those they were made of")
    number = 0
    for article in result:
        paragraphs = article["paragraphs"]
        asked = [(home, qa) for home, qa in questions(paragraphs) if qa["answers"]]
        names = sorted({name for paragraph in paragraphs for name in NAME.findall(paragraph["context"])})
        chosen = [pair for n, pair in enumerate(asked, number) if share(n, ratio)]
        number += len(asked)
        known = {home: {normalize(qa["question"]) for qa in paragraphs[home]["qas"]} for home, _ in chosen}
        for home, qa in chosen:
            edited = edit(qa, paragraphs[home]["context"], names)
            if edited is not None and normalize(edited) not in known[home]:
                negative = {"id": qa["id"] + ENDS, "question": edited, "answers": [], "is_impossible": True}
                paragraphs[home]["qas"].append(negative)
    return result


def edit(qa: dict[str, Any], context: str, names: Sequence[str]) -> str | None:
    """The question of `qa` changed in one place; None where no rule fits. names: those of the article."""
    key = f"{qa['id']} {qa['question']}"
    golds = " ".join(normalize(answer["text"]) for answer in qa["answers"])

    def draw(among: Sequence[str]) -> str:
        return among[zlib.crc32(f"{key} {len(among)}".encode()) % len(among)]

    rules = [_other_name, _other_number, _opposite, _other_word]
    first = zlib.crc32(key.encode()) % 12  # they take turns at being tried first; one question in twelve is negated
    rules = [_negated, *rules] if first == 11 else [*rules[first % 4 :], *rules[: first % 4], _negated]
    for rule in rules:
        for edited in rule(qa["question"], context, names, draw):
            replaced = set(normalize(edited).split()) - set(normalize(qa["question"]).split())
            if not replaced & set(golds.split()):  # a question that names its answer gives something away
                return edited
    return None


def _other_name(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A name of the paragraph becomes another one, of the same paragraph or of elsewhere in the article."""
    here = sorted(set(NAME.findall(context)))
    for found in NAME.finditer(question):
        if found.group() not in context:
            continue
        words = found.group().count(" ")
        for pool in (here, names) if draw("HE") == "H" else (names, here):  # from here first, or from elsewhere
            others = [name for name in pool if name.count(" ") == words and name.lower() not in question.lower()]
            if others:
                yield _put(question, found, draw(others))


def _other_number(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A number becomes another one of the paragraph with as many digits, or, where there is none, its neighbour."""
    for found in NUMBER.finditer(question):
        mine = found.group()
        others = sorted({one for one in NUMBER.findall(context) if _shape(one) == _shape(mine) and one not in question})
        if others:
            yield _put(question, found, draw(others))
        elif mine.isdecimal():
            yield _put(question, found, str(int(mine) + int(draw("1234567"))))


def _opposite(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    for found in re.finditer(r"(?<= )[a-z]+", question):
        if found.group() in OPPOSITE and found.group() in context:
            yield _put(question, found, OPPOSITE[found.group()])


def _other_word(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A word of the paragraph becomes another one of it with the same ending."""
    here = sorted(set(WORD.findall(context)) - EMPTY_WORDS)
    for found in reversed(list(WORD.finditer(question))):  # what comes late says more than what comes early
        mine = found.group()
        others = [word for word in here if word[-ENDING:] == mine[-ENDING:] and word not in question]
        if mine in here and others:
            yield _put(question, found, draw(others))


def _negated(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    if not re.search(r"\b(?:not|never|no)\b|n't", question) and (found := VERB.search(question)):
        yield _put(question, found, CONTRACTED.get(found.group(), f"{found.group()}n't"))


def _shape(number: str) -> str:
    return re.sub(r"\d", "0", number)


def _put(question: str, found: re.Match[str], instead: str) -> str:
    return question[: found.start()] + instead + question[found.end() :]
