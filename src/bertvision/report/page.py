"""One page per study: report.html, complete in itself, and report.md beside it, from the study's plain files."""

import html
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bertvision.files import replacing, write_text
from bertvision.report.compose import SYNTHETIC, Part, Picture, Report, compose
from bertvision.report.facts import data_line, fact_lines
from bertvision.report.markdown import markdown_page
from bertvision.report.plots import INK
from bertvision.report.reading import read_study
from bertvision.report.style import CSS, SCRIPT
from bertvision.report.summary import Metric
from bertvision.report.tables import html_table


def write_report(directory: Path, metrics: Sequence[Metric] = ()) -> Path:
    """Reads a study's directory, finished or not; writes figures/*.svg and *.png, report.md and report.html there.

    metrics: the scores to show; by default those the rows have. Returns the path of report.html.
    """
    report = compose(read_study(directory), metrics)
    for picture in (picture for part in report.parts for picture in part.pictures):
        write_text(directory / "figures" / f"{picture.name}.svg", picture.svg)
        with replacing(directory / "figures" / f"{picture.name}.png") as scratch:
            scratch.write_bytes(picture.png)
    write_text(directory / "report.md", markdown_page(report))
    write_text(directory / "report.html", html_page(report))
    return directory / "report.html"


def html_page(report: Report) -> str:
    """The whole page in one text; nothing is loaded from anywhere."""
    title = html.escape(report.study.title)
    body = "\n".join(filter(None, (section(report) for section in SECTIONS)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _heading(report: Report) -> str:
    sentences = "\n".join(f'<p class="lead">{html.escape(sentence)}</p>' for sentence in report.sentences)
    return f"<header>\n<h1>{html.escape(report.study.title)}</h1>\n{_badges(report)}{sentences}\n</header>"


def _badges(report: Report) -> str:
    study, badges = report.study, []
    if study.synthetic():
        badges.append(f"<strong>{SYNTHETIC}</strong> {html.escape(data_line(study.facts, study.recipe))}")
    if study.missing:
        items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in study.missing)
        badges.append(f"<strong>This report is not complete.</strong><ul>{items}</ul>")
    return "".join(f'<div class="badge" role="note">{badge}</div>\n' for badge in badges)


def _scores(report: Report) -> str:
    return "\n".join(_part(part) for part in report.parts)


def _part(part: Part) -> str:
    notes = "".join(f'<p class="note">{html.escape(note)}</p>\n' for note in part.notes)
    figures = "\n".join(
        f"<figure><figcaption>{html.escape(picture.caption)}</figcaption>\n{inline_svg(picture)}</figure>"
        for picture in part.pictures
    )
    shown = f'<div class="figures">\n{figures}\n</div>\n' if figures else ""
    table = html_table(part.grid, part.title)
    return f"<section>\n<h2>{html.escape(part.title)}</h2>\n{table}\n{notes}{shown}</section>"


def _reproduce(report: Report) -> str:
    command = str(report.study.facts.get("command") or "")
    parts = [f"<pre>{html.escape(command)}</pre>"] if command else []
    if report.study.recipe_text:
        parts.append(
            f'<p class="note">The recipe, recipe.toml:</p>\n<pre>{html.escape(report.study.recipe_text)}</pre>'
        )
    return "<section>\n<h2>How to run it again</h2>\n" + "\n".join(parts) + "\n</section>" if parts else ""


def _provenance(report: Report) -> str:
    lines = fact_lines(report.study.facts)
    items = "".join(f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>\n" for label, text in lines)
    return f"<section>\n<h2>Data, versions, machine</h2>\n<dl>\n{items}</dl>\n</section>" if lines else ""


# In the order of the page. A section is a function from the report to HTML, or to "" where it has nothing to say.
SECTIONS: tuple[Callable[[Report], str], ...] = (_heading, _scores, _reproduce, _provenance)


def inline_svg(picture: Picture) -> str:
    """An SVG file as part of the page: its ids are its own, it fills the width, and its ink is the page's."""
    text = picture.svg[picture.svg.index("<svg") :].strip()
    opening, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', opening)
    rest = rest.replace(INK, "currentColor").replace("*{stroke", "figure svg *{stroke")
    rest = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{picture.name}-", rest)
    return f'<svg {box.group() if box else ""} role="img" aria-label="{html.escape(picture.caption)}">{rest}'
