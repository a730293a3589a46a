"""SQuAD 1.1 and 2.0 files: read, checked, flattened into records, written; answers normalised for comparison."""

import json
import logging
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.files import read_text, write_text

log = logging.getLogger("bertvision")

Articles = list[dict[str, Any]]
"""The list under `data` of a SQuAD file."""

QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how")
ARTICLE = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: a curly quote is part of the answer
SURROGATE = re.compile("[\ud800-\udfff]")
_JSON_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


@dataclass(frozen=True, slots=True)
class Record:
    """One question on one paragraph (`context`). No answers: the paragraph does not answer it.

    starts: character offset of each answer in the context. paragraph: running index over the data set.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]
    title: str
    paragraph: int

    @property
    def has_answer(self) -> bool:
        return bool(self.answers)

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that decides what is learnt and how it is scored."""
        return self.id, self.question, self.context, self.answers, self.starts


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and extra space, as the official metric compares."""
    bare = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLE.sub(" ", bare).split())


def question_word(question: str) -> str:
    """The first of QUESTION_WORDS in a question, or "other"."""
    words = (word.strip("\"'“‘(,.:;?").partition("'")[0] for word in question.lower().split())
    return next((word for word in words if word in QUESTION_WORDS), "other")


def read_articles(path: Path) -> Articles:
    """The articles of a SQuAD 1.1 or 2.0 file, checked: keys and types, unique ids, and answers at their offsets.

    A wrong offset is moved to the nearest occurrence, with a warning. Unknown keys are kept. Whether a question is
    answerable is decided by `answers` alone, as in the official metric.
    """
    path = Path(path)
    text = read_text(path, "give the path of a SQuAD .json file")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: broken JSON at line {error.lineno} column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested far too deeply to be a SQuAD file") from error
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}: broken JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise UserError(f'{path}: not a SQuAD file; the top level must be {{"data": [articles], ...}}')
    check_articles(content["data"], str(path))
    return content["data"]


def check_articles(articles: Articles, origin: str) -> None:
    """The checks of `read_articles` on articles from elsewhere; `origin` opens the error messages."""
    seen: set[str] = set()
    moved = 0
    for a, article in enumerate(articles):
        article_path = f"{origin}: data[{a}]"
        _checked_member(article, "title", str, article_path)
        for p, paragraph in enumerate(_checked_member(article, "paragraphs", list, article_path)):
            paragraph_path = f"{article_path}.paragraphs[{p}]"
            context = _checked_member(paragraph, "context", str, paragraph_path)
            for q, qa in enumerate(_checked_member(paragraph, "qas", list, paragraph_path)):
                moved += _check_question(qa, context, seen, f"{paragraph_path}.qas[{q}]")
    if moved:
        log.warning("%s: %d answers were not at their answer_start; moved to the nearest occurrence", origin, moved)


def questions(articles: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The entries of `qas` of all paragraphs."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            yield from paragraph["qas"]


def records(articles: Iterable[dict[str, Any]]) -> list[Record]:
    """One record per question, in file order. All records of a paragraph share one string object, the context."""
    paragraphs = [(article["title"], paragraph) for article in articles for paragraph in article["paragraphs"]]
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
        for index, (title, paragraph) in enumerate(paragraphs)
        for qa in paragraph["qas"]
    ]


def write_articles(path: Path, articles: Sequence[dict[str, Any]], version: str = "v2.0") -> None:
    """Writes a SQuAD file by rename."""
    write_text(Path(path), json.dumps({"version": version, "data": list(articles)}, ensure_ascii=False) + "\n")


def _checked_member(holder: Any, key: str, kind: type, where: str) -> Any:
    """holder[key], of type `kind`; otherwise a UserError that names the place."""
    if not isinstance(holder, dict):
        raise UserError(f"{where}: must be an object with {key!r}, not {_shown(holder)}")
    if key not in holder:
        raise UserError(f"{where}: {key!r} is missing; it must be {_JSON_NAMES[kind]}")
    value = holder[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{where}.{key}: must be {_JSON_NAMES[kind]}, not {_shown(value)}")
    if isinstance(value, str) and SURROGATE.search(value):
        raise UserError(f"{where}.{key}: has half a surrogate pair (\\ud800 to \\udfff), which is not text; remove it")
    return value


def _check_question(qa: Any, context: str, seen: set[str], where: str) -> int:
    """Checks one entry of `qas`; returns how many answers had to be moved."""
    id_ = _checked_member(qa, "id", str, where)
    if id_ in seen:
        raise UserError(f"{where}.id: {id_!r} is used twice; every question needs an id of its own")
    seen.add(id_)
    _checked_member(qa, "question", str, where)
    moved = 0
    for n, answer in enumerate(_checked_member(qa, "answers", list, where)):
        answer_path = f"{where}.answers[{n}]"
        text = _checked_member(answer, "text", str, answer_path)
        start = _checked_member(answer, "answer_start", int, answer_path)
        if not text:
            raise UserError(f"{answer_path}.text: empty; a question without an answer has an empty `answers` list")
        if not 0 <= start < len(context):
            raise UserError(f"{answer_path}.answer_start: {start} is outside the context (0 to {len(context) - 1})")
        if not context.startswith(text, start):
            occurrences = [context.rfind(text, 0, start + len(text)), context.find(text, start)]
            if max(occurrences) < 0:
                raise UserError(
                    f"{answer_path}.text: {_shown(text)} is not in the context; answers are copied from it exactly"
                )
            answer["answer_start"] = min(
                (offset for offset in occurrences if offset >= 0), key=lambda offset: abs(offset - start)
            )
            moved += 1
    return moved


def _shown(value: Any) -> str:
    """A value in a one-line message."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
