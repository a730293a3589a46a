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
OPPOSITE = {word: opposite for pair in _DATA["opposites"] for word, opposite in (pair, pair[::-1])}
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
    result = _with_is_impossible(articles)
    taken = {qa["id"] for qa in questions(result)}
    number = 0  # of an answerable question, over all articles
    for article in result:
        answerable = _answerable(article)
        counts = [int(ratio) + _is_chosen(number + n, ratio % 1) for n in range(len(answerable))]
        number += len(answerable)
        _add_to_paragraphs(
            article["paragraphs"], [(*pair, count) for pair, count in zip(answerable, counts) if count], taken
        )
    return result


def add_edited(articles: Articles, ratio: float) -> Articles:
    """The articles as SQuAD 2.0, with up to `ratio` (0 to 1) edited questions per answerable one.

    A question in which nothing can be changed gets none. Deterministic and nested like `add_negatives`.
    """
    result = _with_is_impossible(articles)
    if any(qa["id"].endswith(EDITED) for qa in questions(result)):
        raise UserError("edited: these data have edited questions already; give those they were made of")
    number = 0
    for article in result:
        paragraphs = article["paragraphs"]
        answerable = _answerable(article)
        names = sorted({name for paragraph in paragraphs for name in NAME.findall(paragraph["context"])})
        chosen = [pair for n, pair in enumerate(answerable, number) if _is_chosen(n, ratio)]
        number += len(answerable)
        questions_of = {index: {normalize(qa["question"]) for qa in paragraphs[index]["qas"]} for index, _ in chosen}
        for index, qa in chosen:
            edited = edit(qa, paragraphs[index]["context"], names)
            if edited is not None and normalize(edited) not in questions_of[index]:
                paragraphs[index]["qas"].append(_unanswerable(qa["id"] + EDITED, edited))
    return result


def _with_is_impossible(articles: Articles) -> Articles:
    """A copy in which every question has `is_impossible`."""
    result = copy.deepcopy(articles)
    for qa in questions(result):
        qa["is_impossible"] = not qa["answers"]
    return result


def _answerable(article: dict[str, Any]) -> list[tuple[int, Question]]:
    """The answerable questions of an article, each with the number of its paragraph."""
    return [
        (index, qa) for index, paragraph in enumerate(article["paragraphs"]) for qa in paragraph["qas"] if qa["answers"]
    ]


def _unanswerable(name: str, question: str) -> Question:
    return {"id": name, "question": question, "answers": [], "is_impossible": True}


def _is_chosen(number: int, ratio: float) -> bool:
    """Whether the question of this running number is among a share of them.

    Its place in [0, 1) is its number's bits mirrored at the point (0, 1/2, 1/4, 3/4, 1/8 ...): the places below any
    fraction lie evenly over the file, every second question for 1/2, and those below a larger one include them.
    """
    return int(f"{number:b}"[::-1], 2) / (1 << number.bit_length()) < ratio


def _add_to_paragraphs(
    paragraphs: list[dict[str, Any]], wanted: list[tuple[int, Question, int]], taken: set[str]
) -> None:
    """Adds negatives to the paragraphs of an article. wanted: (index of its paragraph, question, how many negatives).

    taken: the question ids of all articles.
    """
    contexts = [paragraph["context"] for paragraph in paragraphs]
    searchable = [_searchable(context) for context in contexts]
    rows = similarities([qa["question"] for _, qa, _ in wanted], contexts)
    for (own_index, qa, count), similar in zip(wanted, rows):
        golds = [_searchable(answer["text"]) for answer in qa["answers"]]
        others = [index for index in np.argsort(-similar, kind="stable").tolist() if index != own_index]
        without_answer = (index for index in others if not _holds_any(searchable[index], golds))
        for rank, other in zip(range(1, count + 1), without_answer):
            name = f"{qa['id']}{NEGATIVE}" + (f"-{rank}" if rank > 1 else "")
            if name in taken:
                raise UserError(f"negatives: question id {name!r} is there already; were negatives added before?")
            paragraphs[other]["qas"].append(_unanswerable(name, qa["question"]))


def _holds_any(context: tuple[str, str], answers: list[tuple[str, str]]) -> bool:
    """Whether a context has one of the answers, in either form of `_searchable`."""
    return any(answer in text for forms in answers for answer, text in zip(forms, context))


def _searchable(text: str) -> tuple[str, str]:
    """A text with a space around every word, in two forms: `in` between equal forms finds whole words only.

    One is as the official metric compares answers, where a hyphen joins words; in the other it separates them. A text
    without words is found in every other.
    """
    joined, separated = normalize(text), " ".join(WORD.findall(text.lower()))
    return f" {joined} " if joined else " ", f" {separated} " if separated else " "


def similarities(texts: Sequence[str], contexts: Sequence[str]) -> Iterator[np.ndarray]:
    """For each question its TF-IDF cosine with every context, up to a factor per question: (contexts,), at least 0."""
    vocabulary: dict[str, int] = {}
    table = _word_counts(contexts, vocabulary)  # (contexts, words)
    rarity = 1.0 + np.log(len(contexts) / np.bincount(table.indices, minlength=len(vocabulary)))
    lengths = np.sqrt(table.multiply(table) @ rarity**2)
    scaled = sparse.diags_array(1 / np.maximum(lengths, 1e-9)) @ table @ sparse.diags_array(rarity**2)
    columns = scaled.T.tocsr()  # (words, contexts)
    for first in range(0, len(texts), CHUNK):
        counts = _word_counts(texts[first : first + CHUNK], dict(vocabulary))[:, : len(vocabulary)]
        yield from (counts @ columns).toarray()


def _word_counts(texts: Sequence[str], vocabulary: dict[str, int]) -> sparse.csr_array:
    """How often each text has each word, (texts, words). New words go to the end of the vocabulary."""
    pairs = [
        (row, vocabulary.setdefault(word, len(vocabulary)))
        for row, text in enumerate(texts)
        for word in WORD.findall(text.lower())
    ]
    indices = np.array(pairs, np.int64).reshape(-1, 2).T
    return sparse.coo_array((np.ones(len(pairs)), (*indices,)), shape=(len(texts), len(vocabulary))).tocsr()


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
    in_paragraph = sorted(set(NAME.findall(context)))
    for match in NAME.finditer(question):
        if match.group() not in context:
            continue
        words = match.group().count(" ")
        for pool in (in_paragraph, names) if draw("HE") == "H" else (names, in_paragraph):
            candidates = [name for name in pool if name.count(" ") == words and name.lower() not in question.lower()]
            if candidates:
                yield _replaced(question, match, draw(candidates))


def _other_number(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A number becomes another one of the paragraph with as many digits or, where there is none, one close to it."""
    for match in NUMBER.finditer(question):
        number = match.group()
        shape = re.sub(r"\d", "0", number)
        candidates = {
            other for other in NUMBER.findall(context) if re.sub(r"\d", "0", other) == shape and other not in question
        }
        if candidates:
            yield _replaced(question, match, draw(sorted(candidates)))
        elif number.isdecimal():
            yield _replaced(question, match, str(int(number) + int(draw("1234567"))))


def _opposite(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    for match in re.finditer(r"(?<= )[a-z]+", question):
        if match.group() in OPPOSITE and match.group() in context:
            yield _replaced(question, match, OPPOSITE[match.group()])


def _other_word(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    """A word of the paragraph becomes another one of it with the same ending; late words are tried first."""
    in_paragraph = sorted(set(LONG_WORD.findall(context)) - COMMON)
    for match in reversed(list(LONG_WORD.finditer(question))):
        own = match.group()
        others = [word for word in in_paragraph if word[-ENDING:] == own[-ENDING:] and word not in question]
        if own in in_paragraph and others:
            yield _replaced(question, match, draw(others))


def _negated(question: str, context: str, names: Sequence[str], draw: Draw) -> Iterator[str]:
    if not re.search(r"\b(?:not|never|no)\b|n't", question) and (match := VERB.search(question)):
        yield _replaced(question, match, CONTRACTED.get(match.group(), f"{match.group()}n't"))


def _replaced(question: str, match: re.Match[str], replacement: str) -> str:
    return question[: match.start()] + replacement + question[match.end() :]
