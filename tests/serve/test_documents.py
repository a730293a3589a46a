"""Files become text with places; what cannot be read says why in one line."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.serve.documents import from_text, read_document
from checks import error_of
from pages import pdf

PAGE = b"""<!doctype html><html><head><title>no</title><style>p {}</style></head>
<body><script>var no = 1</script><!-- no -->
<h1>The <b>great</b> king</h1>
<p>was born
in the north</p><ul><li>one</li><li>two</li></ul>
</body></html>"""


def refused(name: object) -> str:
    return error_of(read_document, str(name))


def test_text_keeps_its_line_ends_and_knows_its_lines(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes("# one\r\ntwo ☃\n\nfour".encode())
    found = read_document(str(path))
    assert found.text == "# one\r\ntwo ☃\n\nfour"
    assert [found.place(found.text.index(word)) for word in ("one", "two", "four")] == [("line", n) for n in (1, 2, 4)]


@given(st.text(st.sampled_from("ab\n\r \u2028\x85\x0c"), max_size=40))
def test_every_character_has_its_line_as_an_editor_counts(text):
    found = from_text(text)
    lines = io.StringIO(text, newline="").readlines()  # ends at \n, \r\n and \r alone
    expected = [number for number, line in enumerate(lines, start=1) for _ in line]
    assert [found.place(at)[1] for at in range(len(text))] == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("a.txt", "café".encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "utf-32")),
        ("page.htm", '<meta charset="latin-1"><p>café</p>'.encode("latin-1")),
    ],
)
def test_files_that_say_their_encoding(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert read_document(str(tmp_path / name)).text.strip() == "café"


def test_html_is_its_text_with_the_lines_of_the_elements(tmp_path):
    (tmp_path / "page.html").write_bytes(PAGE)
    found = read_document(str(tmp_path / "page.html"))
    assert found.text.strip().splitlines() == ["The great king", "was born in the north", "one", "two"]
    places = {word: found.place(found.text.index(word)) for word in ("great", "north", "two")}
    assert places == {"great": ("line", 3), "north": ("line", 4), "two": ("line", 5)}


def test_pdf_is_its_text_by_pages(tmp_path):
    (tmp_path / "book.pdf").write_bytes(pdf(["the old city", "the king", "the river"]))
    found = read_document(str(tmp_path / "book.pdf"))
    places = [found.place(found.text.index(word)) for word in ("old", "king", "river")]
    assert places == [("page", 1), ("page", 2), ("page", 3)]


def test_what_cannot_be_read(tmp_path):
    assert refused(tmp_path / "none.txt") == f"{tmp_path / 'none.txt'}: no such file"
    assert f"{tmp_path}: is a directory" in refused(tmp_path)
    for name, content, part in [
        ("latin.txt", b"one\ncaf\xe9", "not UTF-8 text (byte 0xe9 in line 2)"),
        ("letter.docx", b"PK\x03\x04\x00\x00\xff", "a binary file, not text; .txt, .md, .html and .pdf can be read"),
        ("blank.txt", b" \r\n", "there is no text in it"),
        ("blank.html", b"<p></p>", "there is no text in it"),
        ("broken.pdf", b"%PDF-1.4 nonsense", "cannot be read as a PDF"),
        ("text.pdf", b"no pdf at all", "cannot be read as a PDF"),
        ("scan.pdf", pdf([""]), "text recognition"),
        ("hidden.txt", b"%PDF-1.4 nonsense", "cannot be read as a PDF"),
    ]:
        (tmp_path / name).write_bytes(content)
        message = refused(tmp_path / name)
        assert message.startswith(str(tmp_path / name))
        assert part in message


def test_stdin_is_known_by_its_beginning_and_may_be_closed(monkeypatch):
    page = b"\n<!DOCTYPE html><title>x</title><p>the <b>old</b> city"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(page)))
    assert read_document("-").text == "the old city"
    monkeypatch.setattr("sys.stdin", None)
    assert refused("-").startswith("stdin: is closed; give --context TEXT")
