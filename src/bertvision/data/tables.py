"""Tables of text in files: .tsv as GLUE has them, .csv, .jsonl. Every line becomes a row, or an error that names it."""

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.squad import word_lengths
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
    text = read_text(path)
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


def read_text(path: Path) -> str:
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


@dataclass(frozen=True, slots=True)
class Example:
    """One text or pair. target: label or score as it stands in the file, None where there is none."""

    id: str
    texts: tuple[str, ...]
    target: str | None
    origin: str
    line: int

    @property
    def content(self) -> tuple[Any, ...]:
        """What is asked and what is right."""
        return self.id, self.texts, self.target

    @property
    def place(self) -> str:
        """Where it stands, for an error."""
        return f"{self.origin}: line {self.line}"


def found_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of these examples, sorted; UserError unless there are at least two."""
    labels = tuple(sorted({example.target for example in examples if example.target}))
    if len(labels) < 2:
        seen = f"every label is {labels[0]!r}" if labels else "there are no labels"
        raise UserError(f"{examples[0].origin}: {seen}; a classifier needs at least two")
    if len(labels) > max(2, len(examples) // 2) and len(labels) > 100:
        raise UserError(f'{examples[0].origin}: has {len(labels)} labels; if they are numbers, use task = "score"')
    spelt: dict[object, str] = {}
    for label in labels:
        other = spelt.setdefault(_meant(label), label)
        if other != label:
            raise UserError(
                f"{examples[0].origin}: the labels {other!r} and {label!r} look like one; spell them alike, or list "
                "both in data.labels if they are two"
            )
    return labels


def _meant(label: str) -> object:
    """A label but for spaces around it, and for how a number is written."""
    try:
        return float(label)
    except ValueError:
        return label.strip()


def label_numbers(examples: Sequence[Example], labels: Sequence[str]) -> NDArray[np.int64]:
    """(n,) the place of each example's label among `labels`; -1 where it has none."""
    number = {label: place for place, label in enumerate(labels)}
    try:
        return np.array([-1 if e.target is None else number[e.target] for e in examples], dtype=np.int64)
    except KeyError:
        wrong = next(e for e in examples if e.target is not None and e.target not in number)
        said = "is empty" if not wrong.target else f"{wrong.target!r} is not among those known"
        raise UserError(f"{wrong.place}: the label {said}; {nearest(wrong.target or '', labels)}") from None


def score_numbers(examples: Sequence[Example]) -> NDArray[np.float64]:
    """(n,) the scores as numbers, all finite; NaN where there is none."""
    values = np.full(len(examples), np.nan)
    for place, example in enumerate(examples):
        if example.target is None:
            continue
        try:
            values[place] = float(example.target)
        except ValueError:
            raise UserError(f"{example.place}: the score {example.target!r} is not a number") from None
        if not math.isfinite(values[place]):
            raise UserError(f"{example.place}: the score {example.target!r} is not a finite number")
    return values


def example_statistics(examples: Sequence[Example]) -> dict[str, Any]:
    """Counts, labels and lengths in words, ready for JSON; of more than 20 labels the range, if they are numbers, else
    the number and the most frequent."""
    targets = Counter(example.target for example in examples if example.target is not None)
    found: dict[str, Any] = {"examples": len(examples), "texts": len(examples[0].texts)}
    for place in range(len(examples[0].texts)):
        found[f"text_{place + 1}_words"] = word_lengths(example.texts[place] for example in examples)
    if len(targets) <= 20:
        return found | {"labels": dict(sorted(targets.items()))}
    try:
        values = score_numbers(examples)
    except UserError:
        return found | {"different_labels": len(targets), "labels": dict(targets.most_common(20))}
    return found | {
        "scores": {
            "lowest": float(np.nanmin(values)),
            "mean": round(float(np.nanmean(values)), 3),
            "highest": float(np.nanmax(values)),
        }
    }
