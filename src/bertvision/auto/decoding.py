"""A user's file as it comes -> text and rows: any usual encoding, any usual separator, broken lines counted."""

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from bertvision.data.squad import SURROGATE
from bertvision.data.tables import SUFFIXES
from bertvision.errors import UserError

LARGEST = 256 << 20  # bytes of a file that are read
ROWS = 300_000  # of a table; no more than a third is used to learn, choose and report
MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
Rows = list[dict[str, str]]


def decode(path: Path, notes: list[str], whole: bool = False) -> str:
    """The text of a file. Of a very large one the beginning, or UserError if it makes sense as a `whole` only.

    UTF-8 with or without mark, UTF-16; single lines that are neither are taken as Windows-1252.
    """
    try:
        size = path.stat().st_size
        if whole and size > LARGEST:
            raise UserError(f"{path}: has {_mb(size)}, more than the {_mb(LARGEST)} that fit reads; give a part of it")
        with path.open("rb") as file:
            raw = file.read(LARGEST)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise UserError(f"{path}: {reason}; check the path") from None
    if size > LARGEST:
        raw = raw[: raw.rfind(b"\n") + 1]
        way_out = "if its rows are sorted, shuffle them first"
        notes.append(f"{path.name}: of its {_mb(size)} the first {_mb(LARGEST)} are read; {way_out}")
    name = MARKS.get(raw[:2]) or ("utf-16-le" if raw[1:200:2].count(0) > 50 else "")
    if name:
        notes.append(f"{path.name}: is UTF-16")
        return raw.decode(name, errors="replace").lstrip("\ufeff")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        lines = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    decoded = [_line(line) for line in lines]
    odd = sum(not utf8 for _, utf8 in decoded)
    notes.append(f"{path.name}: {odd:,} of {len(lines):,} lines are not UTF-8 and are read as Windows-1252")
    return "\n".join(text for text, _ in decoded)


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def _line(raw: bytes) -> tuple[str, bool]:
    """The text of a line, and whether it is UTF-8."""
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace"), False


def read_rows(path: Path, notes: list[str]) -> Rows:
    """The rows of a .csv, .tsv or .jsonl file, {column: text}; lines that do not fit are left out and counted."""
    text = decode(path, notes).replace("\r\n", "\n")
    if "\n" not in text.strip("\n"):
        text = text.replace("\r", "\n")
    heading = text.lstrip("\n").partition("\n")[0]
    if "\0" in heading or "\ufffd" in heading:
        raise UserError(f"{path}: is no text; save it as a UTF-8 table with column names in its first line")
    lines = _objects(text) if path.suffix.lower() == ".jsonl" else _table(path, text, heading, notes)
    read = list(islice(lines, ROWS))
    if next(lines, lines) is not lines:
        notes.append(f"{path.name}: the first {ROWS:,} rows are read; if they are sorted, shuffle them first")
    rows = [row for row in read if row is not None]
    if broken := len(read) - len(rows):
        notes.append(f"{path.name}: {broken:,} of {len(read):,} lines are broken and left out")
    if not rows:
        raise UserError(f"{path}: has no rows that can be read; it needs column names, and a line for each example")
    return rows


def _objects(text: str) -> Iterator[dict[str, str] | None]:
    return (_object(line) for line in _lines(text) if line.strip())


def _object(line: str) -> dict[str, str] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {str(key): _plain(value) for key, value in row.items()}


def _plain(value: Any) -> str:
    """A cell as a .csv file would have it."""
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return SURROGATE.sub("\ufffd", text)


def _table(path: Path, text: str, heading: str, notes: list[str]) -> Iterator[dict[str, str] | None]:
    mark = max("\t,;|", key=heading.count) if path.suffix.lower() == ".csv" else "\t"
    if mark != "," and path.suffix.lower() == ".csv" and heading.count(mark):
        notes.append(f"{path.name}: its columns are separated by {mark!r}")
    lines = _quoted(path, text, mark) if path.suffix.lower() == ".csv" else (line.split("\t") for line in _lines(text))
    names = [name.strip() for name in next(lines, [])]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path}: two columns are called {twice!r}; rename one of them")
    return (dict(zip(names, cells)) if len(cells) == len(names) else None for cells in lines if any(cells))


def _lines(text: str) -> Iterator[str]:
    return (line.rstrip("\n") for line in io.StringIO(text, newline="\n") if line != "\n")


def _quoted(path: Path, text: str, mark: str) -> Iterator[list[str]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader, before = csv.reader(io.StringIO(text, newline=""), delimiter=mark), 0
    try:
        for cells in reader:
            if reader.line_num > before + 1 and _is_open(text, before, reader.line_num, mark):
                swallowed = f"the {reader.line_num - before:,} lines from there on would be one"
                way_out = "double it, or take it out"
                raise UserError(
                    f"{path}: line {before + 1}: a quote is opened and not closed, and {swallowed}; {way_out}"
                )
            before = reader.line_num
            yield cells
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}; correct the quotes of that line") from None


def _is_open(text: str, first: int, end: int, mark: str) -> bool:
    """Whether the lines first ... end - 1 of a table, one row of it, end within quotes."""
    lines = islice(io.StringIO(text, newline=""), first, end)
    try:
        list(csv.reader(lines, delimiter=mark, strict=True))
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def check_suffix(path: Path) -> str:
    """What a file holds by its name: `squad`, `conll` or `table`."""
    from bertvision.data.conll import SUFFIXES as CONLL

    suffix = path.suffix.lower()
    kinds = {".json": "squad"} | dict.fromkeys(CONLL, "conll") | dict.fromkeys(SUFFIXES, "table")
    if suffix not in kinds:
        raise UserError(f"{path}: fit reads {', '.join(kinds)}; rename or convert the file")
    return kinds[suffix]
