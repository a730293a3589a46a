"""The blocks that a report is made of, and its files: report.html, complete in itself, report.md and figures/."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.figure import Figure

from bertvision.files import replacing, write_text
from bertvision.report import TEMPLATES
from bertvision.report.figures import GREY, render

MARKS = {"": "", "right": "**", "wrong": "~~"}


class Block(NamedTuple):
    """A part of a section, by its kind: a note, heading or code (a text), a table (Grid), pictures, facts (a table of
    plain values), a passage (pairs of text and its mark: "", right or wrong), a fold (blocks)."""

    kind: Literal["note", "heading", "code", "table", "pictures", "facts", "passage", "fold"]
    content: Any
    label: str = ""


class Section(NamedTuple):
    title: str
    blocks: Sequence[Block]


class Badge(NamedTuple):
    """A warning at the top."""

    sentence: str
    text: str = ""
    lines: Sequence[str] = ()


class Picture(NamedTuple):
    name: str  # of its files
    caption: str
    svg: str
    png: bytes
    narrow: str = ""  # SVG for small screens


class Report(NamedTuple):
    title: str
    badges: Sequence[Badge]
    sentences: Sequence[str]  # of the summary
    sections: Sequence[Section]


@dataclass
class Album:
    """Draws figures under different file names. prefix: goes before each of them."""

    prefix: str = ""
    names: set[str] = field(default_factory=set)

    def draw(self, name: str, caption: str, figure: Figure, narrow: Figure | None = None) -> Picture:
        """The figure as a picture. narrow: the same for small screens, if it is wide."""
        stem = re.sub(r"[^a-z0-9.]+", "-", f"{self.prefix} {name}".lower()).strip("-.")
        free = next(
            candidate for n in range(1, 10_000) if (candidate := stem if n == 1 else f"{stem}-{n}") not in self.names
        )
        self.names.add(free)
        small = render(narrow, f"{free}-narrow")[0] if narrow else ""
        return Picture(free, caption, *render(figure, free), small)


def notes(*texts: str) -> list[Block]:
    return [Block("note", text) for text in texts]


def pictures(*drawn: Picture) -> list[Block]:
    """One block of pictures; none if there are none."""
    return [Block("pictures", drawn)] if drawn else []


def write_files(report: Report, directory: Path) -> Path:
    """Writes figures/*.svg and *.png, report.md and report.html into the directory; the path of report.html."""
    for picture in _pictures_in(block for section in report.sections for block in section.blocks):
        write_text(directory / "figures" / f"{picture.name}.svg", picture.svg)
        with replacing(directory / "figures" / f"{picture.name}.png") as scratch:
            scratch.write_bytes(picture.png)
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"svg": _inline, "plain": _plain, "escape_markdown": _escape}
    templates.filters |= {"fenced": _fenced, "marked": _marked}
    for name in ("report.md", "report.html"):
        text = templates.get_template(name).render(report=report)
        write_text(directory / name, f"{text.rstrip()}\n")
    return directory / "report.html"


def _inline(picture: Picture, narrow: bool = False) -> Markup:
    """An SVG file as part of the page: with ids of its own, as wide as its place, in the page's text colour."""
    svg, name = (picture.narrow, f"{picture.name}-narrow") if narrow else (picture.svg, picture.name)
    text = svg[svg.index("<svg") :].strip()
    opening, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    rest = rest.replace(GREY, "currentColor").replace("*{stroke", "figure svg *{stroke")
    rest = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", rest)
    label = html.escape(picture.caption)
    kind = f' class="{"narrow" if narrow else "wide"}"' if picture.narrow else ""
    return Markup(f'<svg{kind} {box.group() if box else ""} role="img" aria-label="{label}">{rest}')


def _pictures_in(blocks: Iterable[Block]) -> list[Picture]:
    inside: list[Picture] = []
    for block in blocks:
        if block.kind in ("pictures", "fold"):
            inside += block.content if block.kind == "pictures" else _pictures_in(block.content)
    return inside


def _escape(text: str) -> str:
    """Text that Markdown shows as it is, also inside a table."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _fenced(text: str) -> str:
    """Text between fences longer than any inside it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _marked(text: str, kind: str) -> str:
    """Text between marks, with the spaces at its ends outside of them."""
    before, inside, after = re.fullmatch(r"(\s*)(.*?)(\s*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    mark = MARKS[kind] if inside else ""
    return f"{' ' if before else ''}{mark}{_escape(inside)}{mark}{' ' if after else ''}"


def _plain(value: Any) -> str:
    """Nested values on one line: `train: source sample:train, synthetic, questions 400; tune: …`."""
    if isinstance(value, Mapping):
        if any(isinstance(item, Mapping) for item in value.values()):
            return "; ".join(f"{key}: {_plain(item)}" for key, item in value.items())
        shown = {
            str(key): "" if item is True else f" {_plain(item)}" for key, item in value.items() if item is not False
        }
        units = {key: " GiB" if key.endswith("_gib") else "" for key in shown}
        words = {key: key.removesuffix("_gib").replace("_", " ") for key in shown}
        return ", ".join(f"{words[key]}{text}{units[key]}" for key, text in shown.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
