"""Sentences with a label per word: CoNLL-2003 files and others with one word per line.

A line holds the word in its first column and the label in its last one, separated by tabs or, without tabs, by spaces.
A blank line ends a sentence. `-DOCSTART-` lines are skipped, and so are comments: lines that begin with `#` and do not
have a label in the last of as many columns as the other lines have.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.files import read_text

SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
LABEL = re.compile(r"O|[BI]-.+")
# A word as CoNLL files have them: letters and digits, joined by a hyphen, apostrophe or full stop, or one other sign.
# Each character of a script that is written without spaces is a word.
SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{SPACELESS}]|[^\W{SPACELESS}]+(?:[-'’.][^\W{SPACELESS}]+)*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence. labels: one per word, in BIO form: O, B-TYPE at the first word of an entity, I-TYPE inside it."""

    id: str
    words: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that decides what is learnt and how it is scored."""
        return self.id, self.words, self.labels


def unlabelled(number: int, text: str) -> tuple[Sentence, list[tuple[int, int]]]:
    """A text as a sentence without entities, and where each of its words begins and ends."""
    places = [match.span() for match in WORD.finditer(text)]
    words = tuple(text[start:end] for start, end in places)
    return Sentence(str(number), words, ("O",) * len(words)), places


def is_conll(path: str) -> bool:
    """Whether a file name ends like that of a CoNLL file."""
    return Path(path).suffix.lower() in SUFFIXES


def load_conll(path: Path | str, text: str | None = None) -> list[Sentence]:
    """The sentences of a file, numbered from 0. Labels may be BIO (IOB2) or IOB1 and come out as BIO.

    text: what the file holds, if it was read already.
    """
    path = Path(path)
    lines = [_columns(line) for line in (read_text(path) if text is None else text).split("\n")]
    width = next((len(cells) for cells in lines if cells and not cells[0].startswith("#")), 0)
    sentences: list[Sentence] = []
    unfinished: list[tuple[str, str]] = []  # words and labels of a sentence that has not ended
    for number, cells in enumerate([*lines, []], start=1):
        if not cells and unfinished:
            words, labels = zip(*unfinished)
            sentences.append(Sentence(str(len(sentences)), words, to_bio(labels)))
            unfinished = []
        is_comment = cells and cells[0].startswith("#") and not (len(cells) == width and LABEL.fullmatch(cells[-1]))
        if not cells or is_comment or cells[0] == "-DOCSTART-":
            continue
        where = f"{path}: line {number}"
        if len(cells) < 2:
            raise UserError(f"{where}: has one column, {cells[0]!r}; it needs a word and its label, as in 'Rome B-LOC'")
        if not cells[0]:
            raise UserError(f"{where}: the word is empty; a line without word and label ends a sentence")
        if not LABEL.fullmatch(cells[-1]):
            raise UserError(
                f"{where}: {cells[-1]!r} in the last column is not a label; labels are O, B-TYPE and I-TYPE"
            )
        unfinished.append((cells[0], cells[-1]))
    if not sentences:
        raise UserError(f"{path}: has no sentences; a line holds a word and its label, a blank line ends a sentence")
    return sentences


def _columns(line: str) -> list[str]:
    """The cells of a line, none for a blank one."""
    if "\t" in line.strip(" \r"):
        cells = [cell.strip() for cell in line.split("\t")]
        return cells if any(cells) else []
    return line.split()


def to_bio(labels: Sequence[str]) -> tuple[str, ...]:
    """BIO labels of a sentence from BIO or IOB1: an I- that does not continue an entity of its type becomes B-."""
    return tuple(
        f"B-{label[2:]}" if label.startswith("I-") and previous[2:] != label[2:] else label
        for previous, label in zip(["O", *labels], labels)
    )
