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
SHOWN = 5  # broken lines that an error describes; of the others it tells the number


def is_table(path: str) -> bool:
    """Whether a file is called as a table is."""
    return Path(path).suffix.lower() in SUFFIXES


def read_columns(
    path: Path, columns: Sequence[str], header: Sequence[str] | None = None, left_out: list[int] | None = None
) -> list[Row]:
    """The named columns of a table, all rows, in order.

    .tsv: one line is one row, cells are parted by tabs, and quotes are text; header: the columns of a file without a
    line that names them. .csv: quotes and line breaks within them as in the csv module. .jsonl: one object a line.
    left_out: takes the numbers of broken lines; without it they are an error.
    """
    text = _decoded(path)
    if not text:
        raise UserError(f"{path}: the file is empty; it needs a line of column names and one for each example")
    suffix = path.suffix.lower()
    if suffix != ".csv" and "\n" not in text:  # lines that end in a carriage return alone, or a single line
        text = text.replace("\r", "\n")
    broken: dict[int, str] = {}
    if suffix == ".jsonl":
        rows = list(_from_objects(text, columns, broken))
    else:
        lines = _from_csv(path, text) if suffix == ".csv" else _from_tsv(text)
        rows = list(_from_cells(path, lines, columns, header, broken))
    if left_out is not None:
        left_out += broken
    elif broken:
        raise UserError(f"{path}: {_described(broken)}")
    return rows


def _described(broken: dict[int, str]) -> str:
    """What is wrong with the first broken lines, how many more there are, and the way out."""
    first = "; ".join(f"line {line}{what}" for line, what in [*broken.items()][:SHOWN])
    if len(broken) == 1:
        return f'{first}; mend that line, or set data.broken = "leave out"'
    more = f"; and {len(broken) - SHOWN:,} more" if len(broken) > SHOWN else ""
    return f'{len(broken):,} lines are broken: {first}{more}; mend them, or set data.broken = "leave out"'


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
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a cell may be as long as it likes
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; mend the quotes of that line") from None


def _from_cells(
    path: Path,
    rows: Iterator[tuple[int, list[str]]],
    columns: Sequence[str],
    header: Sequence[str] | None,
    broken: dict[int, str],
) -> Iterator[Row]:
    names = list(header or next(rows)[1])
    places = [_place(path, names, column) for column in columns]
    for line, cells in rows:
        if len(cells) == len(names):
            yield line, tuple(cells[place] for place in places)
        else:
            wanted = "" if broken else f", not {len(names)} as {', '.join(names)}"
            broken[line] = f" has {len(cells)} columns{wanted}"


def _place(path: Path, names: list[str], column: str) -> int:
    if names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise UserError(f"{path}: two columns are called {column!r}; rename one of them")
    wanted = "tabs" if path.suffix.lower() == ".tsv" else "commas"
    for mark, called in ((";", "semicolons"), ("\t", "tabs, as in a .tsv"), (",", "commas, as in a .csv")):
        if len(names) == 1 and column in names[0].split(mark):
            raise UserError(f"{path}: its columns are parted by {called}; part them by {wanted}")
    raise UserError(f"{path}: has no column {column!r}; {nearest(column, names)}")


def _from_objects(text: str, columns: Sequence[str], broken: dict[int, str]) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            found = json.loads(line)
            if not isinstance(found, dict):
                raise _Broken(f'not an object such as {{"{columns[0]}": ...}}')
            yield number, tuple(_cell(found, column) for column in columns)
        except _Broken as error:
            broken[number] = f": {error}"
        except (ValueError, RecursionError) as error:
            broken[number] = f": not JSON ({error}), one object a line is needed"


class _Broken(Exception):
    """A line that is no row."""


def _cell(found: dict[str, Any], column: str) -> str:
    """The value of a column as it would stand in a .csv file."""
    if column not in found:
        raise _Broken(f"has no {column!r}, {nearest(column, found) if found else 'the object is empty'}")
    value = found[column]
    if not isinstance(value, str | int | float):
        raise _Broken(f"{column!r} is neither text nor a number")
    text = value if isinstance(value, str) else json.dumps(value)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _Broken(f"{column!r} holds half a surrogate pair (\\ud800 to \\udfff), which is no text")
    return text
