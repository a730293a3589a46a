"""Verbs that build, query, serve and export a reader."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli.options import AsJson, Checkpoint, Code, RunPath, print_json

DEFAULT_READER = "pocket"  # comes with the package
EncoderPath = Annotated[str | None, typer.Option("--backbone", help="The reader's encoder, if it has moved.")]
EngineName = Annotated[str, typer.Option("--engine", help="torch, onnx, or auto: by the files of the reader.")]


def ask(
    question: Annotated[str | None, typer.Argument(help="The question; not with --questions.")] = None,
    files: Annotated[
        list[str] | None, typer.Argument(help="Files to read: .txt, .md, .html and .pdf; - is stdin.")
    ] = None,
    file: Annotated[list[str] | None, typer.Option("--file", help="One more file to read; may be repeated.")] = None,
    context: Annotated[str | None, typer.Option(help="The text to read.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="A file of questions: one per line, or JSON lines {question, context}.")
    ] = None,
    reader: Annotated[
        str, typer.Option(help="A reader's directory, such as runs/NAME/reader, or its name on the hub.")
    ] = DEFAULT_READER,
    top_k: Annotated[int, typer.Option(min=1, help="How many answers to show.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help='"No answer" from this probability on; the reader\'s own if not given.'),
    ] = None,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions from a text, from files or from stdin."""
    from bertvision.serve.ask import answer, gather, streams

    queries = gather(question, context, [*(file or ()), *(files or ())], questions)
    from rich.console import Console

    from bertvision.serve.reader import Reader
    from bertvision.serve.show import json_line, reading_bar, show_answers, write_what_it_can

    loaded, console = Reader.from_pretrained(reader, engine=engine, backbone=backbone), Console()
    write_what_it_can(sys.stdout)
    with reading_bar(streams(queries)) as progress:
        for query, answers in answer(loaded, queries, top_k=top_k, threshold=threshold, progress=progress):
            if as_json:
                print(json_line({"question": query.question, "answers": answers}))
            else:
                show_answers(console, query, answers, titled=len(queries) > 1)


def serve(
    reader: Annotated[
        str, typer.Argument(help="A reader's directory, such as runs/NAME/reader, or its name on the hub.")
    ] = DEFAULT_READER,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str, typer.Option(envvar="BERTVISION_TOKEN", help="Token that requests must carry; better set by the variable.")
    ] = "",
    page: Annotated[bool, typer.Option(help="Serve a page to try it, at /.")] = True,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one pass of the model; 1 = no batching.")] = 4096,
    queue: Annotated[int, typer.Option(help="Most questions in the queue.")] = 256,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 30.0,
    max_body: Annotated[int, typer.Option(help="Bytes of one request.")] = 1 << 20,
    max_questions: Annotated[int, typer.Option(help="Questions in one request.")] = 64,
    max_context: Annotated[int, typer.Option(help="Characters of a context.")] = 100_000,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    code: Code = None,
) -> None:
    """Answers over HTTP: a JSON API, documented at /docs, and a page to try it at /."""
    from bertvision.serve import server
    from bertvision.serve.limits import Limits

    limits = Limits(
        body=max_body,
        questions=max_questions,
        context=max_context,
        queue=queue,
        batch_tokens=batch_tokens,
        timeout=timeout,
    )
    load = partial(server.load_reader, reader, engine=engine, backbone=backbone)
    server.serve(load, host=host, port=port, limits=limits, token=token, page=page)


def reader(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(help="Directory to write; RUN/reader if not given.")] = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the best on tune if not given.")] = None,
    members: Annotated[
        str, typer.Option(help='The members, such as "backbone, pool"; the best on tune if not given.')
    ] = "",
    how: Annotated[str | None, typer.Option(help="How members are combined: max, mean or product.")] = None,
    storage: Annotated[str, typer.Option(help="fp32, or fp16 for files of half the size.")] = "fp32",
    threshold_data: Annotated[
        str,
        typer.Option(help="Questions to choose the no-answer threshold on, also for members not yet scored together."),
    ] = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Make a reader of a run; a study makes one by itself."""
    from bertvision.serve.build import build_reader
    from bertvision.serve.show import reading_bar

    with reading_bar(False) as progress:
        place = build_reader(
            run,
            out or run / "reader",
            checkpoint=checkpoint,
            seed=seed,
            members=members or None,
            how=how,
            storage=storage,
            threshold_data=threshold_data,
            progress=progress,
        )
    print_json({"path": str(place)}) if as_json else print(place)


def export(
    reader: Annotated[str, typer.Argument(help="A reader's directory, or its name on the hub.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights as 8-bit integers: smaller, a little off.")] = False,
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
