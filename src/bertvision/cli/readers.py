"""Verbs that build, query, serve and export a reader."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.options import AsJson, Checkpoint, Code, RunPath, arg, opt, print_json

if TYPE_CHECKING:
    from bertvision.serve.reader import Reader

DEFAULT_READER = "pocket"  # comes with the package
EncoderPath = Annotated[str | None, opt("The reader's encoder, if it has moved.", "--backbone")]
EngineName = Annotated[str, opt("torch, onnx, or auto: by the files of the reader.", "--engine")]


def _warn_of_token(context: typer.Context, value: str) -> str:
    source = context.get_parameter_source("token")
    if value and source is not None and source.name == "COMMANDLINE":
        visible = "other users of this machine can read it in the list of processes"
        print(f"bertvision: --token: {visible}; use --token-file or BERTVISION_TOKEN", file=sys.stderr)
    return value


Token = Annotated[
    str,
    opt("Token that requests must carry; better in a file.", envvar="BERTVISION_TOKEN", callback=_warn_of_token),
]


def ask(
    question: Annotated[str | None, arg("The question; not with --questions.")] = None,
    files: Annotated[list[str] | None, arg("Files: .txt, .md, .html, .pdf; - is stdin.")] = None,
    file: Annotated[list[str] | None, opt("One more file to read; may be repeated.", "--file")] = None,
    context: Annotated[str | None, opt("The text to read.")] = None,
    questions: Annotated[Path | None, opt("Questions: one per line, or JSON lines {question, context}.")] = None,
    reader: Annotated[str, opt("A reader's directory (runs/NAME/reader) or hub name.")] = DEFAULT_READER,
    top_k: Annotated[int, opt("How many answers to show.", min=1)] = 1,
    threshold: Annotated[float | None, opt('"No answer" from this probability on.', min=0, max=1)] = None,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions from a text, from files or from stdin."""
    from bertvision.serve.ask import answer, gather, json_line, reading_bar, show_answers, streams, write_what_it_can

    queries = gather(question, context, [*(file or ()), *(files or ())], questions)
    from rich.console import Console

    from bertvision.serve.reader import Reader

    loaded, console = Reader.from_pretrained(reader, engine=engine, backbone=backbone), Console()
    write_what_it_can(sys.stdout)
    with reading_bar(streams(queries)) as progress:
        for query, answers in answer(loaded, queries, top_k=top_k, threshold=threshold, progress=progress):
            if as_json:
                print(json_line({"question": query.question, "answers": answers}))
            else:
                show_answers(console, query, answers, titled=len(queries) > 1)


def serve(
    reader: Annotated[str, arg("A reader's directory (runs/NAME/reader) or hub name.")] = DEFAULT_READER,
    host: Annotated[str, opt("Address to listen at; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, opt("Port; 0 for any that is free.")] = 8000,
    token: Token = "",
    token_file: Annotated[Path | None, opt("File with the token that requests must carry.")] = None,
    allow_host: Annotated[list[str] | None, opt("Further host name of the server; may be repeated.")] = None,
    page: Annotated[bool, opt("Serve a page to try it, at /.")] = True,
    batch_tokens: Annotated[int, opt("Tokens of one pass of the model; 1 = no batching.")] = 4096,
    queue: Annotated[int, opt("Most questions in the queue.")] = 256,
    timeout: Annotated[float, opt("Seconds a request may take.")] = 30.0,
    max_body: Annotated[int, opt("Bytes of one request.")] = 1 << 20,
    max_questions: Annotated[int, opt("Questions in one request.")] = 64,
    max_context: Annotated[int, opt("Characters of a context.")] = 100_000,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    code: Code = None,
) -> None:
    """Answers over HTTP: a JSON API, documented at /docs, and a page to try it at /."""
    from bertvision.serve import server

    token = server.token_from(token_file, token)
    sizes = {"body": max_body, "questions": max_questions, "context": max_context}
    limits = server.Limits(**sizes, queue=queue, batch_tokens=batch_tokens, timeout=timeout)

    def load() -> "Reader":
        from bertvision.serve.reader import Reader

        return Reader.from_pretrained(reader, engine=engine, backbone=backbone)

    hosts = allow_host or ()
    server.serve(load, host=host, port=port, limits=limits, token=token, page=page, allow_hosts=hosts)


def reader(
    run: RunPath,
    out: Annotated[Path | None, opt("Directory to write; RUN/reader if not given.")] = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int | None, opt("Seed; the best on tune if not given.")] = None,
    members: Annotated[str, opt('The members, such as "backbone, pool"; the best on tune if not given.')] = "",
    how: Annotated[str | None, opt("How members are combined: max, mean or product.")] = None,
    storage: Annotated[str, opt("fp32, or fp16 for files of half the size.")] = "fp32",
    threshold_data: Annotated[str, opt("Questions to choose the no-answer threshold on.")] = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Make a reader of a run; a study makes one by itself."""
    from bertvision.serve.ask import reading_bar
    from bertvision.serve.build import Wanted, build_reader

    with reading_bar(False) as progress:
        wanted = Wanted(checkpoint, seed, members or None, how)  # type: ignore[arg-type]
        saved: Any = {"storage": storage, "threshold_data": threshold_data, "progress": progress}
        place = build_reader(run, out or run / "reader", wanted, **saved)
    print_json({"path": str(place)}) if as_json else print(place)


def export(
    reader: Annotated[str, arg("A reader's directory (runs/NAME/reader) or hub name.")],
    out: Annotated[Path, opt("Directory to write.", "--out")],
    int8: Annotated[bool, opt("Weights as 8-bit integers: smaller, a little off.", "--int8")] = False,
    backbone: EncoderPath = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write a reader as one ONNX file that needs no encoder beside it."""
    from bertvision.serve.export import export as write
    from bertvision.serve.reader import Reader

    path = write(Reader.from_pretrained(reader, engine="torch", backbone=backbone), out, int8=int8)
    size = path.stat().st_size
    print_json({"path": str(path), "bytes": size}) if as_json else print(f"{path} ({size / 1e6:.1f} MB)")
