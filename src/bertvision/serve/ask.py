"""`bertvision ask`: questions on texts and files -> the best answers with file and place; printing them."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bertvision.errors import UserError
from bertvision.serve.documents import STDIN, Document, display_name, from_text, read_document

if TYPE_CHECKING:
    from bertvision.serve.answers import Answer
    from bertvision.serve.reader import Reader

JSON = re.compile(r"\s*(\[\s*)?\{")  # the beginning of a line that is not a plain question; a list is refused
AROUND = 160  # characters of context on either side of a printed answer
# Share of questions that are assumed to have an answer for questions about one text, which the user chose because
# they expect it there. Of several texts most do not hold it: there the reader's own share holds.
ASSUMED = 0.8
CHUNK = 64  # questions answered together: enough for full batches, few enough to show answers soon


@dataclass(frozen=True, slots=True)
class Query:
    """A question, and the documents to look in."""

    question: str
    documents: Sequence[Document]


def gather(question: str | None, context: str | None, files: Sequence[str], questions: Path | None) -> list[Query]:
    """The queries of a command line, checked; reads all files but loads no model.

    files: paths, or "-" for stdin. questions: a file with a question per line, or a JSON object {question, context}.
    """
    if questions is not None and question is not None:  # then the first word is not a question but a file
        files, question = [question, *files], None
    if question is None and questions is None:
        raise UserError("give a question, or a file of them with --questions")
    if question is not None and not question.strip():
        raise UserError("the question is empty; ask something")
    if context is not None and files:
        raise UserError("give either --context or files, not both")
    if context is not None and not context.strip():
        raise UserError("--context: is empty; give the text to look in")
    if context is None and not files and questions is None and sys.stdin is not None and not sys.stdin.isatty():
        files = [STDIN]  # cat notes.txt | bertvision ask "..."
    if questions is not None and str(questions) == STDIN and STDIN in files:
        raise UserError("stdin: cannot hold both the questions and the text; give one of them as a file")
    documents = [from_text(context)] if context is not None else [read_document(name) for name in dict.fromkeys(files)]
    queries = [Query(question, documents)] if question is not None else _batch(Path(str(questions)), documents)
    if not all(query.documents for query in queries):
        raise UserError("give a text to look in: --context TEXT, --file PATH, or - for stdin")
    return queries


def _batch(path: Path, documents: Sequence[Document]) -> list[Query]:
    queries = []
    # At \n alone: what else Python takes for the end of a line may stand within a string of JSON.
    for number, line in enumerate(read_document(str(path)).text.split("\n"), start=1):
        if not line.strip():
            continue
        if not JSON.match(line):
            queries.append(Query(line.strip(), documents))
            continue
        try:
            entry = json.loads(line)
            question, context = entry["question"], entry.get("context")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f'{path}: line {number} is not a JSON object with "question" and "context"') from None
        if not isinstance(question, str) or not question.strip() or not isinstance(context, str | None):
            raise UserError(f"{path}: line {number}: question and context must be strings, and the question not empty")
        queries.append(Query(question, documents if context is None else [from_text(context)]))
        if not queries[-1].documents:
            raise UserError(f"{path}: line {number} has no context; add one, or name files to look in")
    return queries


def answer(
    reader: "Reader",
    queries: Sequence[Query],
    *,
    top_k: int = 1,
    threshold: float | None = None,
    progress: Callable[[float, float], None] = lambda done, total: None,
) -> Iterator[tuple[Query, list["Answer"]]]:
    """Each query with its best answers over all of its documents, at least one; see `best_of`.

    progress: called with the queries answered so far, in fractions, and their number.
    """
    for start in range(0, len(queries), CHUNK):
        chunk = queries[start : start + CHUNK]
        pairs = [(query.question, document.text) for query in chunk for document in query.documents]

        def advance(done: int, total: int, start: int = start, size: int = len(chunk)) -> None:
            progress(start + size * done / total, len(queries))

        ranked = iter(reader.answers(pairs, top_k=top_k, no_answer_threshold=threshold, progress=advance))
        for query in chunk:
            yield query, best_of(query.documents, [next(ranked) for _ in query.documents], top_k)


def assumed(reader: "Reader", queries: Sequence[Query], answerable: float | None) -> float | None:
    """The share of questions taken to have an answer: the one given, else ASSUMED for questions about one text each."""
    alone = all(len(query.documents) == 1 for query in queries)
    return ASSUMED if answerable is None and alone and reader.is_calibrated else answerable


def streams(queries: Sequence[Query]) -> bool:
    """Whether `answer` yields some answers long before others."""
    return len(queries) > CHUNK


def best_of(documents: Sequence[Document], ranked: Sequence[list["Answer"]], top_k: int) -> list["Answer"]:
    """The `top_k` best answers of several documents, each with "file" and "line" or "page".

    ranked: of each document its answers. Documents that answer come before those that say "no answer", and then the
    more probable first. Where all of them say so, that is the answer, as sure as the least sure of them.
    """
    entries, silent = [], []
    for document, answers in zip(documents, ranked):
        least = 1.0  # a document's own order stays: its first answer may have less probability than its second
        if not answers[0]["answer"]:
            silent.append(answers[0])
        for candidate in answers:
            if candidate["answer"]:
                unit, number = document.place(candidate["start"])
                file = {"file": display_name(document.name)} if document.name else {}
                least = min(least, candidate["score"])
                entries.append((not answers[0]["answer"], -least, candidate | file | {unit: number}))
    best = [candidate for _, _, candidate in sorted(entries, key=lambda entry: entry[:2])]
    if len(silent) == len(documents):
        best.insert(0, min(silent, key=lambda answer: answer["no_answer_score"]))
    return best[:top_k]


def show_answers(console: Console, query: Query, answers: list["Answer"], titled: bool) -> None:
    """Prints the answers to one question, best first. titled: with the question above them."""
    if titled:
        console.print(Text(printable(query.question), "bold"))
    for candidate in answers:
        if not candidate["answer"]:
            console.print(Text.assemble(("no answer", "bold yellow"), f"  {candidate['no_answer_score']:.0%}"))
            continue
        document = next(one for one in query.documents if candidate.get("file") in (None, display_name(one.name)))
        text = (printable(candidate["answer"]), "bold green")
        console.print(Text.assemble(text, f"  {candidate['score']:.0%}{_file_and_place(candidate)}"))
        console.print(Padding(excerpt(document, candidate["start"], candidate["end"]), (0, 0, 0, 2)))
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
    """A value as JSON on one line; characters that stdout cannot write are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def replace_unencodable(stream: Any) -> None:
    """Makes a stream write ? where its encoding lacks a character."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def printable(text: str) -> str:
    """On one line, without control characters."""
    spaced = "".join(" " if character.isspace() else character for character in text)
    return "".join(character for character in spaced if character.isprintable() or character == "\u200d")


def _file_and_place(answer: "Answer") -> str:
    if "file" not in answer:
        return ""
    places = [f"{unit} {answer[unit]}" for unit in ("line", "page") if unit in answer]
    return f"  ({', '.join([printable(str(answer['file'])), *places])})"


@contextmanager
def reading_bar(streaming: bool) -> Iterator[Callable[[float, float], None]]:
    """A progress bar on stderr, if that is a terminal; yields its update(done, total).

    streaming: answers are printed while it runs; on a terminal the bar is then hidden.
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
