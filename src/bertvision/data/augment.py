"""Unanswerable questions made from answerable ones.

`add_negatives` asks the same question on a similar paragraph without the answer. `add_edited` asks about something the
same paragraph does not state: a name, number or word replaced by another, a word turned into its opposite, or a
negation, as people do who write such questions (Rajpurkar, Jia, Liang 2018, table 1). These rules use no grammar: some
edited questions are clumsy, and a few can be answered by chance.
"""

import copy
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bertvision.data.squad import Articles, normalize, questions
from bertvision.errors import UserError

NAME = re.compile(r"(?<=[a-z,] )[A-Z][\w’'-]+(?: (?:(?:of|the|de) )?[A-Z][\w’'-]+)*")  # not the start of a sentence
NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*(?<![.,])(?!\w)")
LONG_WORD = re.compile(r"(?<![\w’'-])[a-z]{5,}(?![\w’'-])")
VERB = re.compile(r"(?<=\w )(?:is|are|was|were|did|does|do|has|have|had|can|could|will|would)(?= \w)")
WORD = re.compile(r"[^\W_]+")
CONTRACTED = {"can": "can't", "will": "won't"}
EDITED, NEGATIVE = "-edited", "-negative"  # ends of the ids of made questions
ENDING = 2  # letters by which a word is taken to be of the same kind as another: -ed, -ng, -es, -ly
CHUNK = 512  # questions that are compared at once
_DATA = json.loads(Path(__file__).with_name("augment.json").read_text(encoding="utf-8"))
OPPOSITE = {one: other for pair in _DATA["opposites"] for one, other in (pair, pair[::-1])}
COMMON = frozenset(_DATA["common"].split())

Draw = Callable[[Sequence[str]], str]
Question = dict[str, Any]


def add_negatives(articles: Articles, ratio: float) -> Articles:
    """The articles as SQuAD 2.0, with `ratio` unanswerable questions per answerable one.

    Each pairs an answerable question with the most similar other paragraph of its article that has none of its
    answers; above a ratio of 1 also with the second most similar, and so on. Questions whose article has no such
    paragraph get fewer. The choice is deterministic, a smaller ratio gives a part of what a larger one gives, and
    `articles` are not changed.
    """
    result = _copied(articles)
    taken = {qa["id"] for qa in questions(result)}
    number = 0  # of an answerable question, over all articles
    for article in result:
        asked = _answerable(article)
        counts = [int(ratio) + _is_chosen(number + n, ratio % 1) for n in range(len(asked))]
        number += len(asked)
        _add(article["paragraphs"], [(*pair, count) for pair, count in zip(asked, counts) if count], taken)
    return result


def add_edited(articles: Articles, ratio: float) -> Articles:
    """The articles as SQuAD 2.0, with up to `ratio` (0 to 1) edited questions per answerable one.

    A question in which nothing can be changed gets none. Deterministic and nested like `add_negatives`.
    """
    result = _copied(articles)
    if any(qa["id"].endswith(EDITED) for qa in questions(result)):
        raise UserError("edited: these data have edited questions already; give those they were made of")
    number = 0
    for article in result:
        paragraphs = article["paragraphs"]
        asked = _answerable(article)
        names = sorted({name for paragraph in paragraphs for name in NAME.findall(paragraph["context"])})
        chosen = [pair for n, pair in enumerate(asked, number) if _is_chosen(n, ratio)]
        number += len(asked)
        known = {home: {normalize(qa["question"]) for qa in paragraphs[home]["qas"]} for home, _ in chosen}
        for home, qa in chosen:
            edited = edit(qa, paragraphs[home]["context"], names)
            if edited is not None and normalize(edited) not in known[home]:
                paragraphs[home]["qas"].append(_unanswerable(qa["id"] + EDITED, edited))
    return result


def _copied(articles: Articles) -> Articles:
    """A copy in which every question has `is_impossible`."""
    result = copy.deepcopy(articles)
    for qa in questions(result):
        qa["is_impossible"] = not qa["answers"]
    return result


def _answerable(article: dict[str, Any]) -> list[tuple[int, Question]]:
    """The answerable questions of an article, each with the number of its paragraph."""
    return [(home, qa) for home, each in enumerate(article["paragraphs"]) for qa in each["qas"] if qa["answers"]]


def _unanswerable(name: str, question: str) -> Question:
    return {"id": name, "question": question, "answers": [], "is_impossible": True}


def _is_chosen(number: int, ratio: float) -> bool:
    """Whether the question of this running number is among a share of them.

    Its place in [0, 1) is its number's bits mirrored at the point (0, 1/2, 1/4, 3/4, 1/8 ...): the places below any
    fraction lie evenly over the file, every second question for 1/2, and those below a larger one include them.
    """
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length()) < ratio


def _add(paragraphs: list[dict[str, Any]], asked: list[tuple[int, Question, int]], taken: set[str]) -> None:
    """Adds to the paragraphs of an article. asked: (index of its paragraph, question, how many negatives)."""
    contexts = [paragraph["context"] for paragraph in paragraphs]
    searchable = [_searchable(context) for context in contexts]
    rows = similarities([qa["question"] for _, qa, _ in asked], contexts)
    for (home, qa, count), similar in zip(asked, rows):
        golds = [_searchable(answer["text"]) for answer in qa["answers"]]
        ranks = [place for place in np.argsort(-similar, kind="stable").tolist() if place != home]
        free = (p for p in ranks if not any(form in own for gold in golds for form, own in zip(gold, searchable[p])))
        for rank, place in zip(range(1, count + 1), free):
            name = f"{qa['id']}{NEGATIVE}" + (f"-{rank}" if rank > 1 else "")
            if name in taken:
                raise UserError(f"negatives: question id {name!r} is there already; were negatives added before?")
            paragraphs[place]["qas"].append(_unanswerable(name, qa["question"]))


def _searchable(text: str) -> tuple[str, str]:
    """A text with a space around every word, in two forms: `in` between equal forms finds whole words only.

    One is as the official metric compares answers, where a hyphen joins words; in the other it separates them. A text
    without words is found in every other.
    """
    joined, separated = normalize(text), " ".join(WORD.findall(text.lower()))
    return f" {joined} " if joined else " ", f" {separated} " if separated else " "


def similarities(asked: Sequence[str], contexts: Sequence[str]) -> Iterator[np.ndarray]:
    """For each question its TF-IDF cosine with every context, up to a factor per question: (contexts,), at least 0."""
    vocabulary: dict[str, int] = {}
    table = _counts(contexts, vocabulary)  # (contexts, words)
    rarity = 1.0 + np.log(len(contexts) / np.bincount(table.indices, minlength=len(vocabulary)))
    lengths = np.sqrt(table.multiply(table) @ rarity**2)
    scaled = sparse.diags_array(1 / np.maximum(lengths, 1e-9)) @ table @ sparse.diags_array(rarity**2)
    columns = scaled.T.tocsr()  # (words, contexts)
    for first in range(0, len(asked), CHUNK):
        counts = _counts(asked[first : first + CHUNK], dict(vocabulary))[:, : len(vocabulary)]
        yield from (counts @ columns).toarray()


def _counts(texts: Sequence[str], vocabulary: dict[str, int]) -> sparse.csr_array:
    """How often each text has each word, (texts, words). New words go to the end of the vocabulary."""
    pairs = [
        (row, vocabulary.setdefault(word, len(vocabulary)))
        for row, text in enumerate(texts)
        for word in WORD.findall(text.lower())
    ]
    places = np.array(pairs, np.int64).reshape(-1, 2).T
    return sparse.coo_array((np.ones(len(pairs)), (*places,)), shape=(len(texts), len(vocabulary))).tocsr()


def edit(qa: Question, context: str, names: Sequence[str]) -> str | None:
    """The question of `qa` changed in one place; None where no rule applies. names: those of the article."""
    key = f"{qa['id']} {qa['question']}"
    golds = {word for answer in qa["answers"] for word in normalize(answer["text"]).split()}

    def draw(among: Sequence[str]) -> str:
        return among[zlib.crc32(f"{key} {len(among)}".encode()) % len(among)]

    rules = [_other_name, _other_number, _opposite, _other_word]
    first = zlib.crc32(key.encode()) % 12  # which rule is tried first; one question in twelve is negated
    rules = [_negated, *rules] if first == 11 else [*rules[first % 4 :], *rules[: first % 4], _negated]
    for rule in rules:
        for edited in rule(qa["question"], context, names, draw):
            replaced = set(normalize(edited).split()) - set(normalize(qa["question"]).split())
            if not replaced & golds:  # a question must not name its answer
                return edited
    return None


def _other_name(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A name of the paragraph becomes another one, of the same paragraph or of elsewhere in the article."""
    here = sorted(set(NAME.findall(context)))
    for found in NAME.finditer(question):
        if found.group() not in context:
            continue
        words = found.group().count(" ")
        for pool in (here, names) if draw("HE") == "H" else (names, here):
            others = [name for name in pool if name.count(" ") == words and name.lower() not in question.lower()]
            if others:
                yield _put(question, found, draw(others))


def _other_number(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A number becomes another one of the paragraph with as many digits or, where there is none, one close to it."""
    for found in NUMBER.finditer(question):
        mine = found.group()
        shape = re.sub(r"\d", "0", mine)
        others = {one for one in NUMBER.findall(context) if re.sub(r"\d", "0", one) == shape and one not in question}
        if others:
            yield _put(question, found, draw(sorted(others)))
        elif mine.isdecimal():
            yield _put(question, found, str(int(mine) + int(draw("1234567"))))


def _opposite(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    for found in re.finditer(r"(?<= )[a-z]+", question):
        if found.group() in OPPOSITE and found.group() in context:
            yield _put(question, found, OPPOSITE[found.group()])


def _other_word(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A word of the paragraph becomes another one of it with the same ending; late words are tried first."""
    here = sorted(set(LONG_WORD.findall(context)) - COMMON)
    for found in reversed(list(LONG_WORD.finditer(question))):
        mine = found.group()
        others = [word for word in here if word[-ENDING:] == mine[-ENDING:] and word not in question]
        if mine in here and others:
            yield _put(question, found, draw(others))


def _negated(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    if not re.search(r"\b(?:not|never|no)\b|n't", question) and (found := VERB.search(question)):
        yield _put(question, found, CONTRACTED.get(found.group(), f"{found.group()}n't"))


def _put(question: str, found: re.Match[str], instead: str) -> str:
    return question[: found.start()] + instead + question[found.end() :]
