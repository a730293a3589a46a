"""Tables in files: what is read exactly as it stands, and errors that name file, line and column."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.tables import read_columns
from bertvision.errors import UserError


def written(tmp_path, name: str, text: str | bytes):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_tsv_as_glue_has_it(tmp_path):
    text = '\ufeffQuality\t#1 String\t#2 String\n1\ta "b\tc" d\n0\tline\u2028sep\t\x85\x0b\r\n\n'
    rows = read_columns(written(tmp_path, "a.tsv", text), ["#2 String", "Quality"])
    assert rows == [(2, ('c" d', "1")), (3, ("\x85\x0b", "0"))]


def test_tsv_without_a_header(tmp_path):
    path = written(tmp_path, "a.tsv", "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.")
    found = read_columns(path, ["sentence", "label"], ["source", "label", "original", "sentence"])
    assert found == [(1, ("One.", "1")), (2, ("Two.", "0"))]


def test_csv_quotes_and_line_breaks(tmp_path):
    path = written(tmp_path, "a.csv", 'text,label\r\n"a, ""b""\nc",x\r\nd,y\r\n')
    assert read_columns(path, ["label", "text"]) == [(3, ("x", 'a, "b"\nc')), (4, ("y", "d"))]


def test_jsonl_takes_texts_and_numbers(tmp_path):
    path = written(
        tmp_path, "a.jsonl", '{"t": "é\\tb", "y": 1, "more": []}\n{"y": 0.5, "t": "c"}\n{"t": "", "y": true}\n'
    )
    assert read_columns(path, ["t", "y"]) == [(1, ("é\tb", "1")), (2, ("c", "0.5")), (3, ("", "true"))]


cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_whatever_is_written_is_read(tmp_path_factory, rows):
    place = tmp_path_factory.mktemp("tables")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("a", "b"), *rows])
    assert [cells for _, cells in read_columns(written(place, "a.csv", text.getvalue()), ["a", "b"])] == rows
    lines = "\n".join(json.dumps({"a": a, "b": b}) for a, b in rows)
    assert [cells for _, cells in read_columns(written(place, "a.jsonl", lines), ["a", "b"])] == rows
    plain = [tuple(cell.replace("\t", " ") + "." for cell in row) for row in rows]
    lines = "\n".join("\t".join(row) for row in [("a", "b"), *plain])
    assert [cells for _, cells in read_columns(written(place, "a.tsv", lines), ["a", "b"])] == plain


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.tsv", "", "a.tsv: the file is empty"),
        ("a.csv", "\n\n", "a.csv: the file is empty"),
        ("a.tsv", "a\tb\n1\t2\n3\n", r"a\.tsv: line 3 has 1 columns, not 2 as a, b; mend that line"),
        ("a.tsv", "a\tb\n1\t2\n\n3\t4\n", r"a\.tsv: line 3 has 1 columns"),
        ("a.csv", "a,b\n1,2,3\n", r"a\.csv: line 2 has 3 columns"),
        ("a.csv", 'a,b\n1,"2\n', r"a\.csv: line 2: unexpected end of data; mend the quotes"),
        ("a.csv", "a,c\n1,2\n", r"a\.csv: has no column 'b'"),
        ("a.csv", "a,b,b\n1,2,3\n", r"a\.csv: two columns are called 'b'"),
        ("a.tsv", b"a\tb\nx\t\xff\n", r"a\.tsv: line 2 is not UTF-8"),
        ("a.jsonl", '{"a": "1", "b": "2"}\n{"a": 1\n', r"a\.jsonl: line 2: not JSON"),
        ("a.jsonl", "[1]", r"a\.jsonl: line 1: not an object"),
        ("a.jsonl", '{"a": "x"}', r"a\.jsonl: line 1: has no 'b'"),
        ("a.jsonl", '{"a": "x", "b": null}', r"a\.jsonl: line 1: 'b' is neither text nor a number"),
        ("a.jsonl", '{"a": "\\ud800", "b": 1}', r"a\.jsonl: line 1: 'a' holds half a surrogate pair"),
    ],
)
def test_errors_name_file_line_and_column(name, text, says, tmp_path):
    with pytest.raises(UserError, match=says) as error:
        read_columns(written(tmp_path, name, text), ["a", "b"])
    assert "\n" not in str(error.value)


BROKEN = "a\tb\n1\t2\n3\n4\t5\n6\t7\t8\n9\t10\n"


def test_every_broken_line_is_told_at_once(tmp_path):
    says = r"line 3 has 1 columns, not 2 as a, b; line 5 has 3 columns; mend them, or set data\.broken"
    with pytest.raises(UserError, match=rf"a\.tsv: 2 lines are broken: {says}"):
        read_columns(written(tmp_path, "a.tsv", BROKEN), ["a", "b"])
    with pytest.raises(UserError, match=r"a\.tsv: 20 lines are broken: .*line 6 has 1 columns; and 15 more; mend"):
        read_columns(written(tmp_path, "a.tsv", "a\tb\n" + "x\n" * 20), ["a", "b"])
    with pytest.raises(UserError, match=r"a\.jsonl: 2 lines are broken: line 1: not JSON .*; line 3: has no 'b'"):
        read_columns(written(tmp_path, "a.jsonl", '{"a": \n{"a": 1, "b": 2}\n{"a": 1}\n'), ["a", "b"])


def test_broken_lines_are_left_out_where_that_is_asked_for(tmp_path):
    left: list[int] = []
    rows = read_columns(written(tmp_path, "a.tsv", BROKEN), ["a"], left_out=left)
    assert rows == [(2, ("1",)), (4, ("4",)), (6, ("9",))] and left == [3, 5]


def test_a_cell_may_be_long(tmp_path):
    path = written(tmp_path, "a.csv", "a,b\n" + "x" * 300_000 + ",1\n")
    assert len(read_columns(path, ["a"])[0][1][0]) == 300_000


@pytest.mark.parametrize(
    ("name", "text"), [("a.tsv", "a\tb\r1\t2\r"), ("a.CSV", "a,b\r1,2\r"), ("a.TSV", "a\tb\n1\t2\n")]
)
def test_other_line_ends_and_suffixes(name, text, tmp_path):
    assert read_columns(written(tmp_path, name, text), ["a", "b"]) == [(2, ("1", "2"))]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "a;b\n1;2\n", "its columns are parted by semicolons; part them by commas"),
        ("a.tsv", "a,b\n1,2\n", "its columns are parted by commas, as in a .csv; part them by tabs"),
    ],
)
def test_columns_parted_by_something_else(name, text, says, tmp_path):
    with pytest.raises(UserError, match=says):
        read_columns(written(tmp_path, name, text), ["a", "b"])


def test_no_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        read_columns(tmp_path / "none.tsv", ["a"])
    with pytest.raises(UserError, match="cannot be read"):
        read_columns(tmp_path, ["a"])
