"""Tables of text in files: .tsv as GLUE has them, .csv, .jsonl. Every line becomes a row, or an error that names it."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError, nearest

Row = tuple[int, tuple[str, ...]]
"""The line a row ends on, counted from 1, and its cells in the order asked for."""

SUFFIXES = (".csv", ".tsv", ".jsonl")


def read_columns(path: Path, columns: Sequence[str], header: Sequence[str] | None = None) -> list[Row]:
    """The named columns of a table, all rows, in order.

    .tsv: one line is one row, cells are parted by tabs, and quotes are text; header: the columns of a file without a
    line that names them. .csv: quotes and line breaks within them as in the csv module. .jsonl: one object a line.
    """
    text = _decoded(path)
    if not text:
        raise UserError(f"{path}: the file is empty; it needs a line of column names and one for each example")
    if path.suffix == ".jsonl":
        return list(_from_objects(path, text, columns))
    rows = _from_csv(path, text) if path.suffix == ".csv" else _from_tsv(text)
    return list(_from_cells(path, rows, columns, header))


def _decoded(path: Path) -> str:
    """The text of a file, without byte-order mark and without empty lines at its end."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None


def _from_tsv(text: str) -> Iterator[tuple[int, list[str]]]:
    # Only "\n" ends a line: texts hold other characters that str.splitlines would break them at.
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r").split("\t")


def _from_csv(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; mend the quotes of that line") from None


def _from_cells(
    path: Path, rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], header: Sequence[str] | None
) -> Iterator[Row]:
    names = list(header or next(rows)[1])
    places = [_place(path, names, column) for column in columns]
    for line, cells in rows:
        if len(cells) != len(names):
            raise UserError(
                f"{path}: line {line} has {len(cells)} columns, not {len(names)} as {', '.join(names)}; mend that line"
            )
        yield line, tuple(cells[place] for place in places)


def _place(path: Path, names: list[str], column: str) -> int:
    if names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise UserError(f"{path}: two columns are called {column!r}; rename one of them")
    raise UserError(f"{path}: has no column {column!r}; {nearest(column, names)}")


def _from_objects(path: Path, text: str, columns: Sequence[str]) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"{path}: line {number}"
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON ({error}); one object a line is needed") from None
        if not isinstance(found, dict):
            raise UserError(f'{place}: not an object such as {{"{columns[0]}": ...}}')
        yield number, tuple(_cell(found, column, place) for column in columns)


def _cell(found: dict[str, Any], column: str, place: str) -> str:
    """The value of a column as it would stand in a .csv file."""
    if column not in found:
        raise UserError(f"{place}: has no {column!r}; {nearest(column, found) if found else 'the object is empty'}")
    value = found[column]
    if not isinstance(value, str | int | float):
        raise UserError(f"{place}: {column!r} is neither text nor a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{place}: {column!r} holds half a surrogate pair (\\ud800 to \\udfff), which is no text")
    return text
