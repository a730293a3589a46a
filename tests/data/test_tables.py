"""Tables in files are read exactly; errors name file, line and column."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.data.sources import read_examples
from bertvision.data.tables import Example, found_labels, label_numbers, read_columns, score_numbers
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe

OWN = DataRecipe(text=("title", "body"), label="kind")
BROKEN = "a\tb\n1\t2\n3\n4\t5\n6\t7\t8\n9\t10\n"


def written(tmp_path, name: str, text: str | bytes):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text", "columns", "expected"),
    [
        (
            "a.tsv",
            '\ufeffQuality\t#1 String\t#2 String\n1\ta "b\tc" d\n0\tline\u2028sep\t\x85\x0b\r\n\n',
            ["#2 String", "Quality"],
            [(2, ('c" d', "1")), (3, ("\x85\x0b", "0"))],
        ),
        (
            "a.csv",
            'text,label\r\n"a, ""b""\nc",x\r\nd,y\r\n',
            ["label", "text"],
            [(3, ("x", 'a, "b"\nc')), (4, ("y", "d"))],
        ),
        (
            "a.jsonl",
            '{"t": "é\\tb", "y": 1, "more": []}\n{"y": 0.5, "t": "c"}\n{"t": "", "y": true}\n',
            ["t", "y"],
            [(1, ("é\tb", "1")), (2, ("c", "0.5")), (3, ("", "true"))],
        ),
        ("a.tsv", "a\tb\r1\t2\r", ["a", "b"], [(2, ("1", "2"))]),
        ("a.CSV", "a,b\r1,2\r", ["a", "b"], [(2, ("1", "2"))]),
        ("a.csv", f"a,b\n{'x' * 300_000},1\n", ["a"], [(2, ("x" * 300_000,))]),
    ],
    ids=["tsv", "csv", "jsonl", "old line ends", "suffix", "long cell"],
)
def test_files(name, text, columns, expected, tmp_path):
    assert read_columns(written(tmp_path, name, text), columns) == expected


def test_tsv_without_a_header(tmp_path):
    path = written(tmp_path, "a.tsv", "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.")
    found = read_columns(path, ["sentence", "label"], ["source", "label", "original", "sentence"])
    assert found == [(1, ("One.", "1")), (2, ("Two.", "0"))]


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
        ("a.tsv", "", "the file is empty"),
        ("a.csv", "\n\n", "the file is empty"),
        ("a.tsv", "a\tb\n1\t2\n3\n", "line 3 has 1 columns, not 2 as a, b; correct that line"),
        ("a.tsv", "a\tb\n1\t2\n\n3\t4\n", "line 3 has 1 columns"),
        ("a.csv", "a,b\n1,2,3\n", "line 2 has 3 columns"),
        ("a.csv", 'a,b\n1,"2\n', "line 2: unexpected end of data; correct the quotes"),
        ("a.csv", "a,c\n1,2\n", "has no column 'b'"),
        ("a.csv", "a,b,b\n1,2,3\n", "two columns are called 'b'"),
        ("a.csv", "a;b\n1;2\n", "separated by semicolons; separate them by commas"),
        ("a.tsv", "a,b\n1,2\n", r"separated by commas, as in a \.csv; separate them by tabs"),
        ("a.tsv", b"a\tb\nx\t\xff\n", "line 2 is not UTF-8"),
        ("a.jsonl", '{"a": "1", "b": "2"}\n{"a": 1\n', "line 2: not JSON"),
        ("a.jsonl", "[1]", "line 1: not an object"),
        ("a.jsonl", '{"a": "x"}', "line 1: has no 'b'"),
        ("a.jsonl", '{"a": "x", "b": null}', "line 1: 'b' is neither text nor a number"),
        ("a.jsonl", '{"a": "\\ud800", "b": 1}', "line 1: 'a' has half a surrogate pair"),
        ("a.tsv", BROKEN, r"2 lines are broken: line 3 has 1 .*; line 5 has 3 columns; .* data\.broken"),
        ("a.tsv", "a\tb\n" + "x\n" * 20, "20 lines are broken: .*line 6 has 1 columns; and 15 more"),
        ("a.jsonl", '{"a": \n{"a": 1, "b": 2}\n{"a": 1}\n', "2 lines .*line 1: not JSON .*; line 3: has no 'b'"),
    ],
)
def test_errors_name_file_line_and_column(name, text, says, tmp_path):
    with pytest.raises(
        UserError, match=rf"/{name}: .*{says}" if "lines" in says else rf"/{name}: (its columns are )?{says}"
    ) as error:
        read_columns(written(tmp_path, name, text), ["a", "b"])
    assert "\n" not in str(error.value)


def test_no_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        read_columns(tmp_path / "none.tsv", ["a"])
    with pytest.raises(UserError, match="cannot be read"):
        read_columns(tmp_path, ["a"])


def test_broken_lines_are_left_out_where_that_is_asked_for(tmp_path):
    left: list[int] = []
    rows = read_columns(written(tmp_path, "a.tsv", BROKEN), ["a"], left_out=left)
    assert rows == [(2, ("1",)), (4, ("4",)), (6, ("9",))] and left == [3, 5]


@pytest.fixture
def table(tmp_path):
    return str(written(tmp_path, "mine.csv", 'id,title,body,kind\n1,A,"b, c",news\n2,D,e,sport\n3,F,g,news\n'))


def test_examples_of_a_table(table):
    found = read_examples(f"{table}+{table}", OWN).examples
    assert found[1] == Example("1", ("D", "e"), "sport", table, 3)
    assert [example.id for example in found] == list("012345")
    assert found_labels(found) == ("news", "sport")
    assert label_numbers(found, ("sport", "news")).tolist() == [1, 0, 1] * 2
    single = read_examples(table, DataRecipe(text=("body",), label="id")).examples
    assert single[0].texts == ("b, c",)
    assert score_numbers(single).tolist() == [1.0, 2.0, 3.0]
    unlabelled = read_examples(table, DataRecipe(text=("title",), label="none such"), labelled=False).examples
    assert [(one.texts, one.target) for one in unlabelled[:2]] == [(("A",), None), (("D",), None)]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (DataRecipe(label="kind"), r"data\.text: name the one or two columns"),
        (DataRecipe(text=("title",)), r"data\.label: name the column"),
        (DataRecipe(text=("title",), label="knd"), "has no column 'knd'; did you mean 'kind'"),
    ],
)
def test_columns_must_be_named(data, says, table):
    with pytest.raises(UserError, match=says):
        read_examples(table, data)


def test_sources_without_examples(tmp_path):
    with pytest.raises(UserError, match="sample:tune:5: holds no texts with labels; name glue:TASK/SPLIT"):
        read_examples("sample:tune:5", OWN)
    with pytest.raises(UserError, match=r"a\.csv: has no examples"):
        read_examples(str(written(tmp_path, "a.csv", "title,body,kind\n")), OWN)


def example(target: str | None, line: int = 2) -> Example:
    return Example("0", ("a",), target, "t.csv", line)


def test_labels_that_are_not_known(table):
    with pytest.raises(UserError, match=r"mine\.csv: line 3: the label 'sport' is not among those known; there is: a"):
        label_numbers(read_examples(table, OWN).examples, ("a", "news"))
    with pytest.raises(UserError, match=r"t\.csv: line 2: the label is empty"):
        label_numbers([example("")], ("a", "b"))
    assert label_numbers([example(None)], ("a", "b")).tolist() == [-1]


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (["a", "a"], "every label is 'a'; a classifier needs at least two"),
        ([None], "there are no labels"),
        ([str(n / 7) for n in range(300)], 'has 300 labels; .* use task = "score"'),
        (["pos", "pos ", "other"], r"the labels 'pos' and 'pos ' look like one; .*data\.labels"),
        (["1", "1.0", "other"], r"the labels '1' and '1.0' look like one"),
    ],
)
def test_labels_that_cannot_be_learnt(targets, says):
    with pytest.raises(UserError, match=rf"t\.csv: {says}"):
        found_labels([example(target) for target in targets])


@pytest.mark.parametrize(
    ("target", "says"), [("high", "'high' is not a finite number"), ("nan", "not a finite number")]
)
def test_scores_that_are_no_numbers(target, says):
    with pytest.raises(UserError, match=rf"t\.csv: line 7: the score .*{says}"):
        score_numbers([example("1.5"), example(target, 7)])
