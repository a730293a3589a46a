"""A report as Markdown, for a pull request or wherever Markdown is shown."""

import re
from collections.abc import Iterable

from bertvision.report.document import (
    Badge,
    Block,
    Code,
    Facts,
    Fold,
    Heading,
    Note,
    Passage,
    Pictures,
    Report,
    Table,
)
from bertvision.report.tables import markdown_escape, markdown_table

MARKS = {"": "", "right": "**", "wrong": "~~"}


def markdown_page(report: Report) -> str:
    """The same report; figures are links to the files."""
    parts = [f"# {markdown_escape(report.title)}"]
    parts += map(_badge, report.badges)
    parts += map(markdown_escape, report.sentences)
    for section in report.sections:
        parts += [f"## {markdown_escape(section.title)}", *map(_block, section.blocks)]
    return "\n\n".join(parts) + "\n"


def _badge(badge: Badge) -> str:
    text = f" {markdown_escape(badge.text)}" if badge.text else ""
    lines = ["", *(f"- {markdown_escape(line)}" for line in badge.lines)] if badge.lines else []
    return "\n".join(f"> {line}".rstrip() for line in [f"**{markdown_escape(badge.sentence)}**{text}", *lines])


def _block(block: Block) -> str:
    match block:
        case Note(text):
            return markdown_escape(text)
        case Heading(text):
            return f"### {markdown_escape(text)}"
        case Table(_, grid):
            return markdown_table(grid).rstrip()
        case Pictures(pictures):
            return "\n\n".join(f"![{markdown_escape(one.caption)}](figures/{one.name}.svg)" for one in pictures)
        case Code(text):
            return _fenced(text)
        case Facts(lines):
            return _bullets(f"{label}: {text}" for label, text in lines)
        case Passage(pieces):
            return "> " + "".join(_piece(text, MARKS[kind]) for text, kind in pieces)
        case Fold(label, inner):
            summary = f"<details><summary>{markdown_escape(label)}</summary>"
            return "\n\n".join([summary, *map(_block, inner), "</details>"])


def _piece(text: str, mark: str) -> str:
    """Text between marks, with the spaces at its ends outside them, where Markdown wants them."""
    inside = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    before, after = re.sub(r"\s+", " ", before), re.sub(r"\s+", " ", after)
    return f"{before}{mark}{markdown_escape(inside)}{mark}{after}" if inside else before


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_escape(line)}" for line in lines)


def _fenced(text: str) -> str:
    """Text as it is, between fences longer than any inside it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text.rstrip()}\n{fence}"
