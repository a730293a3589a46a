"""Which columns of a table hold the text and the label, and whether the label is a class or a number."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bertvision.auto.decoding import Rows
from bertvision.errors import UserError, nearest

LABELS = (
    *("label", "labels", "class", "category", "target", "sentiment", "stars", "rating", "score", "intent", "topic"),
    *("grade", "tag", "y", "gold", "answer"),
)
CLASSES = 10  # numbers with more different values than this are scores
MISSING = {"nan", "na", "n/a", "null", "none", "-", "?"}  # in a column of numbers: there is none
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
SECOND = 0.3  # a second column of text has at least this share of the first one's length


class Columns(NamedTuple):
    task: str
    text: tuple[str, ...]
    label: str


def choose_columns(path: Path, rows: Rows, text: Sequence[str], label: str, notes: list[str]) -> Columns:
    """The columns that are named, and for the rest those that look like text and label."""
    names = list(dict.fromkeys(name for row in rows[:1000] for name in row))
    for name in [*text, *([label] if label else [])]:
        if name not in names:
            raise UserError(f"{path}: has no column {name!r}; {nearest(name, names)}")
    if len(text) > 2:
        raise UserError("--text: one column, or two for pairs of texts")
    columns = {name: [row.get(name, "").strip() for row in rows] for name in names}
    label = label or _label(path, {name: cells for name, cells in columns.items() if name not in text})
    text = tuple(text) or _text(path, {name: cells for name, cells in columns.items() if name != label})
    if label in text:
        raise UserError(f"--label {label}: is the text too; name another column")
    values = sorted({cell for cell in columns[label] if cell})
    if label in values:
        way_out = "put a line with column names above it"
        raise UserError(f"{path}: its first line seems to be an example, for {label!r} is a label; {way_out}")
    task, what = _kind(path, label, values, len(rows))
    notes.append(f"{path.name}: {len(rows):,} rows; text: {', '.join(text)}; label: {label} ({what})")
    return Columns(task, tuple(text), label)


def _kind(path: Path, label: str, values: list[str], rows: int) -> tuple[str, str]:
    """The task for a label with these different values, and what it is, for people."""
    numbers = sorted((value for value in values if math.isfinite(number(value))), key=number)
    others = [value for value in values if value not in numbers]
    if len(numbers) > CLASSES and all(value.lower() in MISSING for value in others):
        return "score", f"a number from {numbers[0]} to {numbers[-1]}"
    if len(values) > max(CLASSES, 20, rows // 3) and others:
        why = f"{len(values):,} different values, too many for labels; name the label's column by --label"
        if sum(bool(DECIMAL_COMMA.fullmatch(value)) for value in values) > len(values) / 2:
            why = f"{len(values):,} different values, and its numbers have a decimal comma; write them with a point"
        raise UserError(f"{path}: {label!r} has {why}")
    return "labels", f"{len(values)} labels"


def number(text: str) -> float:
    """The number that a cell holds; NaN if there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _words(cells: Sequence[str]) -> float:
    """Mean number of words."""
    return sum(len(cell.split()) for cell in cells) / max(1, len(cells))


def _label(path: Path, columns: dict[str, list[str]]) -> str:
    """By its name; else the column with the fewest values, but more than one, that are words rather than sentences."""
    low = {name.lower(): name for name in columns}
    if usual := next((low[name] for name in LABELS if name in low), ""):
        return usual
    sizes = {name: len({cell for cell in cells if cell}) for name, cells in columns.items() if _words(cells) <= 3}
    fitting = {name: size for name, size in sizes.items() if 1 < size <= max(2, len(columns[name]) // 3)}
    if not fitting and len(columns) == 2 and (same := next((name for name, size in sizes.items() if size == 1), "")):
        return same  # one class alone, which is refused in better words
    if not fitting:
        raise UserError(f"{path}: which column is the label? name it by --label; there is: {', '.join(columns)}")
    return min(fitting, key=lambda name: fitting[name])


def _text(path: Path, columns: dict[str, list[str]]) -> tuple[str, ...]:
    """The column with most words, and a second one that is nearly as long; in the order of the file."""
    long = {name: _words(cells) for name, cells in columns.items()}
    if not long or not max(long.values()):
        raise UserError(f"{path}: which column is the text? name it by --text; there is: {', '.join(columns)}")
    first = max(long, key=lambda name: long[name])
    second = [name for name in long if name != first and long[name] >= max(3, SECOND * long[first])]
    chosen = {first, *sorted(second, key=lambda name: -long[name])[:1]}
    return tuple(name for name in columns if name in chosen)
