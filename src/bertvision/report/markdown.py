"""A report as Markdown."""

import re
from collections.abc import Iterable

from bertvision.report.compose import SYNTHETIC, Report
from bertvision.report.facts import data_line, fact_lines
from bertvision.report.tables import markdown_escape, markdown_table


def markdown_page(report: Report) -> str:
    """The same for places that show Markdown; figures are links to the files."""
    study = report.study
    parts = [f"# {markdown_escape(study.title)}"]
    if study.synthetic():
        parts.append(f"> **{SYNTHETIC}** {markdown_escape(data_line(study.facts, study.recipe))}")
    if study.missing:
        parts.append("**This report is not complete.**\n\n" + _bullets(study.missing))
    parts += [markdown_escape(sentence) for sentence in report.sentences]
    for part in report.parts:
        parts += [f"## {markdown_escape(part.title)}", markdown_table(part.grid).rstrip()]
        parts += [markdown_escape(note) for note in part.notes]
        parts += [f"![{markdown_escape(one.caption)}](figures/{one.name}.svg)" for one in part.pictures]
    for title, text in (("Command", study.facts.get("command")), ("Recipe", study.recipe_text)):
        if text:
            parts.append(f"## {title}\n\n{_fenced(str(text))}")
    if lines := fact_lines(study.facts):
        parts.append("## Data, versions, machine\n\n" + _bullets(f"{label}: {text}" for label, text in lines))
    return "\n\n".join(parts) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {markdown_escape(line)}" for line in lines)


def _fenced(text: str) -> str:
    """Text as it is, between fences longer than any inside it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text.rstrip()}\n{fence}"
