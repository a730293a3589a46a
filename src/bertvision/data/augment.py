"""Unanswerable questions made from answerable ones: the same paragraph, asked about something it does not say.

People who write such questions swap a name, a number, or a word for another that the text also holds, turn a word into
its opposite, or negate it (Rajpurkar, Jia, Liang 2018, table 1). So do these rules; they know no grammar, so that some
of what they write is clumsy, and some, by chance, can be answered after all.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from bertvision.data.squad import normalize
from bertvision.errors import UserError

NAME = re.compile(r"(?<=[a-z,] )[A-Z][\w’'-]+(?: (?:(?:of|the|de) )?[A-Z][\w’'-]+)*")  # not at the head of a sentence
NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*(?<![.,])(?!\w)")
WORD = re.compile(r"(?<![\w’'-])[a-z]{5,}(?![\w’'-])")
VERB = re.compile(r"(?<=\w )(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would)(?= \w)")
CONTRACTED = {"can": "can't", "will": "won't"}
ANY_WORD = re.compile(r"[^\W_]+")
CHUNK = 512  # questions that are compared at once
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


def add_negatives(articles: Sequence[dict[str, Any]], ratio: float) -> list[dict[str, Any]]:
    """The articles of a SQuAD 1.1 or 2.0 file as SQuAD 2.0, with `ratio` unanswerable questions per answerable one.

    Each pairs an answerable question with the most similar other paragraph of its article that holds none of its
    answers; above a ratio of 1 also with the second most similar, and so on. Questions whose article has no such
    paragraph get fewer. The choice is the same every time, and a smaller ratio gives a part of what a larger one
    gives. `articles` themselves are left as they are.
    """
    if not 0 <= ratio < math.inf:
        raise UserError(f"negatives: {ratio} is not a number of questions per answerable one; give 0 or more")
    result = [second_version(article) for article in articles]
    taken = {qa["id"] for article in result for _, qa in questions(article["paragraphs"])}
    number = 0  # of an answerable question, over all articles
    for article in result:
        asked = [(home, qa) for home, qa in questions(article["paragraphs"]) if qa["answers"]]
        counts = [_count(number + n, ratio) for n in range(len(asked))]
        number += len(asked)
        _add(article["paragraphs"], [(*pair, count) for pair, count in zip(asked, counts) if count], taken)
    return result


def questions(paragraphs: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The questions of an article, each with the number of its paragraph."""
    return [(home, qa) for home, paragraph in enumerate(paragraphs) for qa in paragraph["qas"]]


def second_version(article: dict[str, Any]) -> dict[str, Any]:
    """A copy in which every question says whether it is impossible."""
    paragraphs = [
        {**paragraph, "qas": [{**qa, "is_impossible": not qa["answers"]} for qa in paragraph["qas"]]}
        for paragraph in article["paragraphs"]
    ]
    return {**article, "paragraphs": paragraphs}


def _count(number: int, ratio: float) -> int:
    """How many negatives the answerable question of this running number gets."""
    return int(ratio) + share(number, ratio % 1)


def share(number: int, ratio: float) -> bool:
    """Whether the question of this running number is among a share of them.

    Its place in [0, 1) is its number's bits mirrored at the point (0, 1/2, 1/4, 3/4, 1/8 ...): the places below any
    fraction lie evenly over the file, every second question for 1/2, and those below a larger one include them.
    """
    place = int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
    return place < ratio


def _add(paragraphs: list[dict[str, Any]], asked: list[tuple[int, dict[str, Any], int]], taken: set[str]) -> None:
    """Adds to the paragraphs of an article. asked: (index of its paragraph, question, how many negatives)."""
    contexts = [paragraph["context"] for paragraph in paragraphs]
    searchable = [_searchable(context) for context in contexts]
    rows = similarities([qa["question"] for _, qa, _ in asked], contexts)
    for (home, qa, count), similar in zip(asked, rows):
        similar[home] = -1.0
        golds = [_searchable(answer["text"]) for answer in qa["answers"]]
        for rank in range(1, count + 1):
            place = _most_similar_without(golds, similar, searchable)
            if place is None:
                break
            name = f"{qa['id']}-negative" + (f"-{rank}" if rank > 1 else "")
            if name in taken:
                raise UserError(f"negatives: question id {name!r} is there already; have these data been here before?")
            negative = {"id": name, "question": qa["question"], "answers": [], "is_impossible": True}
            paragraphs[place]["qas"].append(negative)
            similar[place] = -1.0


def _most_similar_without(
    golds: list[tuple[str, str]], similar: np.ndarray, searchable: list[tuple[str, str]]
) -> int | None:
    """The first of the most similar paragraphs that hold no answer. Those passed over are marked -1 in `similar`."""
    while similar[place := int(similar.argmax())] >= 0:
        if not any(form in text for gold in golds for form, text in zip(gold, searchable[place])):
            return place
        similar[place] = -1.0
    return None


def _searchable(text: str) -> tuple[str, str]:
    """A text with a space around every word, in two forms: `in` between equal forms finds whole words only.

    One as the official metric compares answers, where a hyphen joins words; one where it parts them. A text of which
    no word is left is found in every other.
    """
    forms = normalize(text), " ".join(ANY_WORD.findall(text.lower()))
    official, parted = (f" {form} " if form else " " for form in forms)
    return official, parted


def similarities(questions: Sequence[str], contexts: Sequence[str]) -> Iterator[np.ndarray]:
    """For each question its TF-IDF cosine with every context, up to a factor per question: (contexts,), at least 0."""
    vocabulary: dict[str, int] = {}
    table = _counts(contexts, vocabulary)  # (contexts, words)
    rarity = 1.0 + np.log(len(contexts) / np.bincount(table.indices, minlength=len(vocabulary)))
    lengths = np.sqrt(table.multiply(table) @ rarity**2)
    scaled = sparse.diags_array(1 / np.maximum(lengths, 1e-9)) @ table @ sparse.diags_array(rarity**2)
    columns = scaled.T.tocsr()  # (words, contexts)
    for first in range(0, len(questions), CHUNK):
        asked = _counts(questions[first : first + CHUNK], dict(vocabulary))[:, : len(vocabulary)]
        yield from (asked @ columns).toarray()


def _counts(texts: Sequence[str], vocabulary: dict[str, int]) -> sparse.csr_array:
    """How often each text has each word, (texts, words). Words that are new go to the end of the vocabulary."""
    found = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in ANY_WORD.findall(text.lower())] for text in texts
    ]
    rows = np.repeat(np.arange(len(texts)), [len(words) for words in found])
    columns = np.fromiter((word for words in found for word in words), np.int64, len(rows))
    table = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(vocabulary)))
    return table.tocsr()
