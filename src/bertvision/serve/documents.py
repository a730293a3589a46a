"""Files and streams -> text with places: line or page of any character, for .txt, .md, .html and .pdf."""

import codecs
import io
import logging
import re
import sys
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError

STDIN = "-"
HTML = {".html", ".htm", ".xhtml"}
BLOCKS = {
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "footer", "h1", "h2"),
    *("h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th"),
    *("tr", "ul"),
}
UNREAD = {"script", "style", "template", "noscript", "head", "title"}
BYTE_ORDER_MARKS = {  # UTF-32's first: one of them begins with one of UTF-16's
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
    codecs.BOM_UTF8: "utf-8-sig",
}
PAGE = re.compile(rb"\s*<(!doctype html|html)\b", re.IGNORECASE)  # how HTML begins where no suffix says so
LINE_END = re.compile(r"\r\n|\n|\r")  # as editors count lines; Python's own splitlines knows eight more
ELSEWHERE = "give --context TEXT or --file PATH"
EXTRA = 'pip install "bertvision[documents]"'


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it came from.

    name: of the file, "-" for stdin, "" for a text given directly. unit: "line" or "page". starts: the character at
    which each stretch begins, ascending from 0; numbers: the line or page of each stretch.
    """

    name: str
    text: str
    unit: str
    starts: list[int]
    numbers: list[int]

    def place(self, character: int) -> tuple[str, int]:
        """("line" or "page", its number counted from 1) of a character of the text."""
        return self.unit, self.numbers[max(0, bisect_right(self.starts, character) - 1)]


def from_text(text: str, name: str = "") -> Document:
    """A plain text, by lines."""
    starts = [0, *(end.end() for end in LINE_END.finditer(text))]
    return Document(name, text, "line", starts, list(range(1, len(starts) + 1)))


def read_document(name: str) -> Document:
    """The text of a file, or of stdin for "-", by its suffix or else its beginning; UserError if there is none.

    Plain text must be UTF-8, or have a byte order mark; its line ends are kept, so that offsets are the file's.
    """
    content = _read(name)
    suffix = Path(name).suffix.lower()
    if suffix == ".pdf" or content.startswith(b"%PDF-"):
        document = _pdf(name, content)
    elif suffix in HTML or (not suffix and PAGE.match(content)):
        document = _html(name, content)
    else:
        document = from_text(_decoded(name, content), name)
    if not document.text.strip():
        instead = ELSEWHERE if name == STDIN else "give one that holds the answer"
        instead = "scanned pages need text recognition first" if document.unit == "page" else instead
        raise UserError(f"{display_name(name)}: there is no text in it; {instead}")
    return document


def display_name(name: str) -> str:
    """How a document is called in messages."""
    return {STDIN: "stdin", "": "--context"}.get(name, name)


def _read(name: str) -> bytes:
    if name == STDIN:
        if sys.stdin is None:  # closed by the parent process
            raise UserError(f"stdin: is closed; {ELSEWHERE}")
        return sys.stdin.buffer.read()
    path = Path(name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{name}: is a directory; name the files in it, such as {path / '*.txt'}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _decoded(name: str, content: bytes) -> str:
    encoding = next((use for mark, use in BYTE_ORDER_MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in content:
            raise UserError(
                f"{display_name(name)}: a binary file, not text; .txt, .md, .html and .pdf can be read"
            ) from None
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{display_name(name)}: not UTF-8 text (byte 0x{content[error.start]:02x} in line {line}); "
            "convert it first, for example with iconv -f LATIN1 -t UTF-8"
        ) from None


def _html(name: str, content: bytes) -> Document:
    """The text of a page without scripts and styles, a line per block; its places are the lines of the elements."""
    try:
        from bs4 import BeautifulSoup, CData, NavigableString
    except ImportError:
        raise UserError(f"{name}: HTML files need the package beautifulsoup4: {EXTRA}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pages that look like something else: they are still read
        page = BeautifulSoup(content, "html.parser")
    pieces: list[str] = []
    starts, numbers, size, gap = [0], [1], 0, ""
    waiting: list[Any] = [page]  # elements, texts, and None for the end of a block
    while waiting:
        node = waiting.pop()
        if type(node) in (NavigableString, CData):  # its subclasses are comments and the like
            words = " ".join(node.split())
            gap = gap or " " * node[:1].isspace()
            if words:
                pieces += (gap if pieces else "", words)
                starts.append(size + len(pieces[-2]))
                numbers.append(getattr(node.parent, "sourceline", None) or numbers[-1])
                size, gap = starts[-1] + len(words), " " * node[-1:].isspace()
        elif node is None or node.name in BLOCKS:
            gap = "\n"
        if getattr(node, "children", None) is not None and node.name not in UNREAD:
            waiting += [None] if node.name in BLOCKS else []
            waiting += reversed(list(node.children))
    return Document(name, "".join(pieces), "line", starts, numbers)


def _pdf(name: str, content: bytes) -> Document:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise UserError(f"{name}: PDF files need the package pypdf: {EXTRA}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it logs what it repairs by itself
            pages = [page.extract_text() for page in PdfReader(io.BytesIO(content)).pages]
    except Exception as error:  # a broken or locked file comes out as almost any type
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{name}: cannot be read as a PDF ({reason}); give it unlocked and whole, or as text") from None
    starts = [0]
    for text in pages[:-1]:
        starts.append(starts[-1] + len(text) + 1)
    return Document(name, "\n".join(pages), "page", starts, list(range(1, len(starts) + 1)))
