"""SQuAD 1.1 and 2.0 files: read and checked, flattened into records, described, split by article, written."""

import json
import logging
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.files import replacing

log = logging.getLogger("bertvision")

QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how")
ARTICLE = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: a curly quote is part of the answer
_JSON_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class Record:
    """One question on one paragraph. No answers: the paragraph does not answer it."""

    id: str
    question: str
    context: str
    """The paragraph; all records of a paragraph share this one string object."""
    answers: tuple[str, ...]
    starts: tuple[int, ...]
    """Character offset of each answer: context[start : start + len(answer)] == answer."""
    title: str
    paragraph: int
    """Running index of the paragraph over the whole data set."""

    @property
    def has_answer(self) -> bool:
        return bool(self.answers)

    @property
    def content(self) -> tuple[Any, ...]:
        """What is asked and what is right."""
        return self.id, self.question, self.context, self.answers, self.starts


def read_articles(path: Path) -> list[dict[str, Any]]:
    """The articles of a SQuAD 1.1 or 2.0 file, checked: every key the program reads is there and has the right type,
    ids are unique, and every answer stands at its offset (a wrong one is moved to the nearest occurrence, and logged).

    Unknown keys are kept. Whether a question is answerable is told by `answers` alone, as in the official metric.
    """
    path = Path(path)
    content = _parse(path)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise UserError(f'{path}: not a SQuAD file; the top level must be {{"data": [articles], ...}}')
    check_articles(content["data"], str(path))
    return content["data"]


def check_articles(articles: list[dict[str, Any]], origin: str) -> None:
    """The checks of `read_articles` on articles from elsewhere; `origin` opens the error messages."""
    seen: set[str] = set()
    moved = 0
    for a, article in enumerate(articles):
        place = f"{origin}: data[{a}]"
        _member(article, "title", str, place)
        for p, paragraph in enumerate(_member(article, "paragraphs", list, place)):
            here = f"{place}.paragraphs[{p}]"
            context = _member(paragraph, "context", str, here)
            for q, qa in enumerate(_member(paragraph, "qas", list, here)):
                moved += _check_question(qa, context, seen, f"{here}.qas[{q}]")
    if moved:
        log.warning("%s: %d answers were not at their answer_start; moved to the nearest occurrence", origin, moved)


def records(articles: Iterable[dict[str, Any]]) -> list[Record]:
    """One record per question, in file order."""
    return [
        Record(
            id=qa["id"],
            question=qa["question"],
            context=paragraph["context"],
            answers=tuple(answer["text"] for answer in qa["answers"]),
            starts=tuple(answer["answer_start"] for answer in qa["answers"]),
            title=title,
            paragraph=index,
        )
        for index, (title, paragraph) in enumerate(_paragraphs(articles))
        for qa in paragraph["qas"]
    ]


def statistics(articles: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts, lengths in words (separated by white space) and first question words, ready for JSON."""
    contexts = [paragraph["context"] for _, paragraph in _paragraphs(articles)]
    everything = records(articles)
    answerable = sum(record.has_answer for record in everything)
    asked: Counter[str] = Counter(question_word(record.question) for record in everything)
    return {
        "articles": len(articles),
        "paragraphs": len(contexts),
        "questions": len(everything),
        "answerable": answerable,
        "unanswerable": len(everything) - answerable,
        "context_words": word_lengths(contexts),
        "question_words": word_lengths(record.question for record in everything),
        "answer_words": word_lengths(answer for record in everything for answer in record.answers),
        "first_question_word": dict(sorted(asked.items(), key=lambda item: (-item[1], item[0]))),
    }


def write_articles(path: Path, articles: Sequence[dict[str, Any]], version: str = "v2.0") -> None:
    """Writes a SQuAD file in one step: a reader sees the old file or the whole new one, never a part."""
    path = Path(path)
    try:
        with replacing(path) as scratch:
            scratch.write_text(
                json.dumps({"version": version, "data": list(articles)}, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def _parse(path: Path) -> Any:
    """The JSON content of a file, or a UserError that says where it breaks."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return json.loads(text)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; give the path of a SQuAD .json file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the path of a SQuAD .json file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: broken JSON at line {error.lineno} column {error.colno}: {error.msg}") from error
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}: broken JSON: {error}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested far too deeply to be a SQuAD file") from error


def _member(holder: Any, key: str, kind: type, place: str) -> Any:
    """holder[key], of type `kind`; otherwise a UserError that names the place."""
    if not isinstance(holder, dict):
        raise UserError(f"{place}: must be an object with {key!r}, not {_shown(holder)}")
    if key not in holder:
        raise UserError(f"{place}: {key!r} is missing; it must be {_JSON_NAMES[kind]}")
    value = holder[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{place}.{key}: must be {_JSON_NAMES[kind]}, not {_shown(value)}")
    if isinstance(value, str) and not _encodable(value):
        raise UserError(f"{place}.{key}: holds half a surrogate pair (\\ud800 to \\udfff), which is no text; remove it")
    return value


def _check_question(qa: Any, context: str, seen: set[str], place: str) -> int:
    """Checks one entry of `qas`; returns how many answers had to be moved."""
    id_ = _member(qa, "id", str, place)
    if id_ in seen:
        raise UserError(f"{place}.id: {id_!r} is used twice; every question needs an id of its own")
    seen.add(id_)
    _member(qa, "question", str, place)
    moved = 0
    for n, answer in enumerate(_member(qa, "answers", list, place)):
        here = f"{place}.answers[{n}]"
        text = _member(answer, "text", str, here)
        start = _member(answer, "answer_start", int, here)
        if not text:
            raise UserError(f"{here}.text: empty; a question without an answer has an empty `answers` list")
        if not 0 <= start < len(context):
            raise UserError(f"{here}.answer_start: {start} is outside the context (0 to {len(context) - 1})")
        if not context.startswith(text, start):
            answer["answer_start"] = _nearest_occurrence(context, text, start, here)
            moved += 1
    return moved


def _nearest_occurrence(context: str, text: str, start: int, place: str) -> int:
    """Offset of the occurrence of `text` that is nearest to `start`."""
    before = context.rfind(text, 0, start + len(text))
    after = context.find(text, start)
    found = [offset for offset in (before, after) if offset >= 0]
    if not found:
        raise UserError(
            f"{place}.text: {_shown(text)} does not occur in the context; answers are copied from it exactly"
        )
    return min(found, key=lambda offset: abs(offset - start))


def _paragraphs(articles: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(title, paragraph) over all articles."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            yield article["title"], paragraph


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    """A value as it may stand in a one-line message."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def question_word(question: str) -> str:
    """The first of QUESTION_WORDS in a question, or "other"."""
    words = (word.strip("\"'“‘(,.:;?").partition("'")[0] for word in question.lower().split())
    return next((word for word in words if word in QUESTION_WORDS), "other")


def word_lengths(texts: Iterable[str]) -> dict[str, float]:
    """Mean, percentiles and maximum of the number of words; zeros where there is no text."""
    words = np.array([len(text.split()) for text in texts] or [0])
    p5, p50, p95 = np.percentile(words, [5, 50, 95])
    return {
        "mean": round(float(words.mean()), 2),
        "p5": round(float(p5), 1),
        "p50": round(float(p50), 1),
        "p95": round(float(p95), 1),
        "max": int(words.max()),
    }


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra space: what two answers are compared by."""
    bare = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLE.sub(" ", bare).split())
