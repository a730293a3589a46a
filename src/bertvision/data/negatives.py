"""Unanswerable questions made from answerable ones: the same question on a similar paragraph without the answer."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from bertvision.data.normal import normalize
from bertvision.errors import UserError

WORD = re.compile(r"[^\W_]+")
CHUNK = 512  # questions that are compared at once


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
    forms = normalize(text), " ".join(WORD.findall(text.lower()))
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
    found = [[vocabulary.setdefault(word, len(vocabulary)) for word in WORD.findall(text.lower())] for text in texts]
    rows = np.repeat(np.arange(len(texts)), [len(words) for words in found])
    columns = np.fromiter((word for words in found for word in words), np.int64, len(rows))
    table = sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(vocabulary)))
    return table.tocsr()
