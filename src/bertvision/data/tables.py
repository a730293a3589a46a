"""Tables of texts with a label or a score: .tsv, .csv and .jsonl files. Errors name the file and the line."""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.squad import SURROGATE
from bertvision.errors import UserError, nearest
from bertvision.files import read_text

Row = tuple[int, tuple[str, ...]]
"""The line a row ends on, counted from 1, and its cells in the order asked for."""

SUFFIXES = (".csv", ".tsv", ".jsonl")
SHOWN = 5  # broken lines an error describes


@dataclass(frozen=True, slots=True)
class Example:
    """One text or pair. target: label or score as the file spells it, None where there is none."""

    id: str
    texts: tuple[str, ...]
    target: str | None
    origin: str
    line: int

    @property
    def content(self) -> tuple[Any, ...]:
        """Everything that decides what is learnt and how it is scored."""
        return self.id, self.texts, self.target

    @property
    def place(self) -> str:
        """File and line, for an error."""
        return f"{self.origin}: line {self.line}"


def is_table(path: str) -> bool:
    """Whether a file name ends like that of a table."""
    return Path(path).suffix.lower() in SUFFIXES


def read_columns(
    path: Path, columns: Sequence[str], header: Sequence[str] | None = None, left_out: list[int] | None = None
) -> list[Row]:
    """The named columns of a table, all rows, in order.

    .tsv: one line is one row, tabs separate cells, quotes are text; header: the column names of a file without a line
    of them. .csv: quotes and line breaks as in the csv module. .jsonl: one object per line.
    left_out: gets the numbers of broken lines; without it they are an error.
    """
    text = read_text(path).rstrip("\r\n")
    if not text:
        raise UserError(f"{path}: the file is empty; it needs a line of column names and one for each example")
    suffix = path.suffix.lower()
    if suffix != ".csv" and "\n" not in text:  # lines that end in a carriage return alone, or a single line
        text = text.replace("\r", "\n")
    rows, broken = _from_objects(text, columns) if suffix == ".jsonl" else _from_cells(path, text, columns, header)
    if left_out is not None:
        left_out += broken
    elif broken:
        first = "; ".join(f"line {line}{reason}" for line, reason in [*broken.items()][:SHOWN])
        more = f"; and {len(broken) - SHOWN:,} more" if len(broken) > SHOWN else ""
        count = f"{len(broken):,} lines are broken: " if len(broken) > 1 else ""
        which = "them" if len(broken) > 1 else "that line"
        raise UserError(f'{path}: {count}{first}{more}; correct {which}, or set data.broken = "leave out"')
    return rows


def _from_objects(text: str, columns: Sequence[str]) -> tuple[list[Row], dict[int, str]]:
    """The rows of a .jsonl file, and {line: what is wrong with it}."""
    rows: list[Row] = []
    broken: dict[int, str] = {}
    for line, content in enumerate(text.split("\n"), start=1):
        try:
            rows.append((line, _from_json(content, columns)))
        except UserError as error:
            broken[line] = f": {error}"
    return rows, broken


def _from_cells(
    path: Path, text: str, columns: Sequence[str], header: Sequence[str] | None
) -> tuple[list[Row], dict[int, str]]:
    """The rows of a .csv or .tsv file, and {line: what is wrong with it}."""
    rows: list[Row] = []
    broken: dict[int, str] = {}
    lines = _from_csv(path, text) if path.suffix.lower() == ".csv" else _from_tsv(text)
    names = list(header or next(lines)[1])
    positions = [_position(path, names, column) for column in columns]
    for line, cells in lines:
        if len(cells) == len(names):
            rows.append((line, tuple(cells[position] for position in positions)))
        else:
            wanted = "" if broken else f", not {len(names)} as {', '.join(names)}"
            broken[line] = f" has {len(cells)} columns{wanted}"
    return rows, broken


def _from_tsv(text: str) -> Iterator[tuple[int, list[str]]]:
    # Only "\n" ends a line: texts contain other characters at which str.splitlines would break.
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r").split("\t")


def _from_csv(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # no limit on the length of a cell
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; correct the quotes of that line") from None


def _position(path: Path, names: list[str], column: str) -> int:
    """Index of a column."""
    if names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise UserError(f"{path}: two columns are called {column!r}; rename one of them")
    wanted = "tabs" if path.suffix.lower() == ".tsv" else "commas"
    for mark, called in ((";", "semicolons"), ("\t", "tabs, as in a .tsv"), (",", "commas, as in a .csv")):
        if len(names) == 1 and column in names[0].split(mark):
            raise UserError(f"{path}: its columns are separated by {called}; separate them by {wanted}")
    raise UserError(f"{path}: has no column {column!r}; {nearest(column, names)}")


def _from_json(line: str, columns: Sequence[str]) -> tuple[str, ...]:
    """The values of the columns as a .csv file would have them."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({error}), one object per line is needed") from None
    if not isinstance(row, dict):
        raise UserError(f'not an object such as {{"{columns[0]}": ...}}')
    cells = []
    for column in columns:
        if column not in row:
            raise UserError(f"has no {column!r}, {nearest(column, row) if row else 'the object is empty'}")
        value = row[column]
        if not isinstance(value, str | int | float):
            raise UserError(f"{column!r} is neither text nor a number")
        cells.append(value if isinstance(value, str) else json.dumps(value))
        if SURROGATE.search(cells[-1]):
            raise UserError(f"{column!r} has half a surrogate pair (\\ud800 to \\udfff), which is not text")
    return tuple(cells)


def found_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of these examples, sorted; UserError unless there are at least two."""
    origin = examples[0].origin
    labels = tuple(sorted({example.target for example in examples if example.target}))
    if len(labels) < 2:
        seen = f"every label is {labels[0]!r}" if labels else "there are no labels"
        raise UserError(f"{origin}: {seen}; a classifier needs at least two")
    if len(labels) > max(100, len(examples) // 2):
        raise UserError(f'{origin}: has {len(labels)} labels; if they are numbers, use task = "score"')
    spelt: dict[object, str] = {}
    for label in labels:
        try:
            value: object = float(label)
        except ValueError:
            value = label.strip()
        other = spelt.setdefault(value, label)
        if other != label:
            raise UserError(
                f"{origin}: the labels {other!r} and {label!r} look like one; spell them alike, or list both in "
                "data.labels if they are two"
            )
    return labels


def label_numbers(examples: Sequence[Example], labels: Sequence[str]) -> NDArray[np.int64]:
    """(n,) the index of each example's label in `labels`; -1 where it has none."""
    number: dict[str | None, int] = {None: -1} | {label: index for index, label in enumerate(labels)}
    for example in examples:
        if example.target not in number:
            reason = "is empty" if not example.target else f"{example.target!r} is not among those known"
            raise UserError(f"{example.place}: the label {reason}; {nearest(example.target or '', labels)}")
    return np.array([number[example.target] for example in examples], dtype=np.int64)


def score_numbers(examples: Sequence[Example]) -> NDArray[np.float64]:
    """(n,) the scores as finite numbers; NaN where there is none."""
    values = np.full(len(examples), np.nan)
    for row, example in enumerate(examples):
        if example.target is None:
            continue
        try:
            values[row] = float(example.target)
        except ValueError:
            values[row] = math.nan
        if not math.isfinite(values[row]):
            raise UserError(f"{example.place}: the score {example.target!r} is not a finite number")
    return values
