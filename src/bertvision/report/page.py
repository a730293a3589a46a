"""One page per study: report.html, complete in itself, and report.md beside it, from the study's plain files."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertvision.files import replacing, write_text
from bertvision.report.compose import compose
from bertvision.report.document import (
    Badge,
    Block,
    Code,
    Facts,
    Fold,
    Heading,
    Note,
    Passage,
    Picture,
    Pictures,
    Report,
    Section,
    Table,
)
from bertvision.report.ink import INK
from bertvision.report.markdown import markdown_page
from bertvision.report.reading import Study, read_study
from bertvision.report.style import CSS, SCRIPT
from bertvision.report.summary import Metric
from bertvision.report.tables import html_table

escape = html.escape


def write_report(directory: Path, metrics: Sequence[Metric] = ()) -> Path:
    """Reads a study's directory, finished or not; writes figures/*.svg and *.png, report.md and report.html there.

    metrics: the scores to show; by default those the rows have. Returns the path of report.html.
    """
    return write_pages(read_study(directory), directory, metrics)


def write_pages(study: Study, directory: Path, metrics: Sequence[Metric] = ()) -> Path:
    """The files of a report on `study` into `directory`; returns the path of report.html."""
    report = compose(study, metrics)
    for picture in report.pictures():
        write_text(directory / "figures" / f"{picture.name}.svg", picture.svg)
        with replacing(directory / "figures" / f"{picture.name}.png") as scratch:
            scratch.write_bytes(picture.png)
    write_text(directory / "report.md", markdown_page(report))
    write_text(directory / "report.html", html_page(report))
    return directory / "report.html"


def html_page(report: Report) -> str:
    """The whole page in one text; nothing is loaded from anywhere."""
    title = escape(report.title)
    sections = "\n".join(_section(number, section) for number, section in enumerate(report.sections, 1))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n{_header(report)}\n<main>\n{sections}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def inline_svg(picture: Picture) -> str:
    """An SVG file as part of the page: its ids are its own, it fills the width, and its ink is the page's."""
    text = picture.svg[picture.svg.index("<svg") :].strip()
    opening, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    rest = rest.replace(INK, "currentColor").replace("*{stroke", "figure svg *{stroke")
    rest = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{picture.name}-", rest)
    return f'<svg {box.group() if box else ""} role="img" aria-label="{escape(picture.caption)}">{rest}'


def _header(report: Report) -> str:
    badges = "".join(map(_badge, report.badges))
    sentences = "\n".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in report.sentences)
    links = enumerate(report.sections, 1)
    contents = "".join(f'<li><a href="#section-{n}">{escape(section.title)}</a></li>' for n, section in links)
    nav = f'<nav aria-label="Contents"><ul>{contents}</ul></nav>' if len(report.sections) > 1 else ""
    return f"<header>\n<h1>{escape(report.title)}</h1>\n{badges}{sentences}\n{nav}\n</header>"


def _badge(badge: Badge) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in badge.lines)
    text = f" {escape(badge.text)}" if badge.text else ""
    more = f"<ul>{items}</ul>" if items else ""
    return f'<div class="badge" role="note"><strong>{escape(badge.sentence)}</strong>{text}{more}</div>\n'


def _section(number: int, section: Section) -> str:
    return f'<section id="section-{number}">\n<h2>{escape(section.title)}</h2>\n{_blocks(section.blocks)}\n</section>'


def _blocks(blocks: Iterable[Block]) -> str:
    return "\n".join(map(_block, blocks))


def _block(block: Block) -> str:
    match block:
        case Note(text):
            return f'<p class="note">{escape(text)}</p>'
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Table(label, grid):
            return html_table(grid, label)
        case Pictures(pictures):
            figures = "\n".join(map(_figure, pictures))
            return f'<div class="figures">\n{figures}\n</div>'
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Facts(lines):
            items = "\n".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in lines)
            return f"<dl>\n{items}\n</dl>"
        case Passage(pieces):
            return f"<blockquote>{''.join(_piece(text, kind) for text, kind in pieces)}</blockquote>"
        case Fold(label, inner):
            return f"<details><summary>{escape(label)}</summary>\n{_blocks(inner)}\n</details>"


def _figure(picture: Picture) -> str:
    return f"<figure><figcaption>{escape(picture.caption)}</figcaption>\n{inline_svg(picture)}</figure>"


def _piece(text: str, kind: str) -> str:
    return f'<mark class="{kind}">{escape(text)}</mark>' if kind else escape(text)
