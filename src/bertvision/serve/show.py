"""Answers for the terminal: the answer in its sentence, highlighted, with its probability and place."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bertvision.serve.ask import Query
from bertvision.serve.documents import Document, called

AROUND = 160  # characters of context on either side of an answer


def show_answers(console: Console, query: Query, answers: list[dict[str, Any]], titled: bool) -> None:
    """Prints the answers to one question, best first. titled: with the question above them."""
    if titled:
        console.print(Text(printable(query.question), "bold"))
    for found in answers:
        if not found["answer"]:
            console.print(Text.assemble(("no answer", "bold yellow"), f"  {found['no_answer_score']:.0%}"))
            continue
        document = next(one for one in query.documents if found.get("file") in (None, called(one.name)))
        console.print(
            Text.assemble((printable(found["answer"]), "bold green"), f"  {found['score']:.0%}{_place(found)}")
        )
        console.print(Padding(excerpt(document, found["start"], found["end"]), (0, 0, 0, 2)))
    if titled:
        console.print()


def excerpt(document: Document, start: int, end: int) -> Text:
    """The answer in its surroundings, on one line, cut at words."""
    text = document.text
    before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND]
    if start > AROUND:
        before = "…" + (before.partition(" ")[2] or before)
    if end + AROUND < len(text):
        after = (after.rpartition(" ")[0] or after) + "…"
    return Text.assemble(printable(before), (printable(text[start:end]), "bold black on green"), printable(after))


def json_line(value: Any) -> str:
    """A value as JSON on one line, in characters that stdout can write; the others are spelt out."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def write_what_it_can(stream: Any) -> None:
    """Makes a stream show a ? where its encoding lacks a character."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def printable(text: str) -> str:
    """On one line, and without characters that a terminal would obey."""
    spaced = "".join(" " if character.isspace() else character for character in text)
    return "".join(character for character in spaced if character.isprintable() or character == "\u200d")


def _place(found: dict[str, Any]) -> str:
    words = [printable(str(found["file"]))] if "file" in found else []
    words += [f"{unit} {found[unit]}" for unit in ("line", "page") if unit in found and "file" in found]
    return f"  ({', '.join(words)})" if words else ""


@contextmanager
def reading_bar(streaming: bool) -> Iterator[Callable[[float, float], None]]:
    """A progress bar on stderr, if that is a terminal; yields what to call with (done, of how much).

    streaming: answers are printed while it runs, so that on a terminal they would tear it apart, and tell enough.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal or (streaming and sys.stdout is not None and sys.stdout.isatty())
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=hidden) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: float, total: float) -> None:
            bar.update(task, completed=done, total=total)
            if done >= total:
                bar.stop()  # before the first answer is printed

        yield update
