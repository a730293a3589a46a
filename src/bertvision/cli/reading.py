"""Verbs that make a reader and put it to use: ask it, serve it, export it."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli.options import AsJson

DEFAULT_READER = "pocket"  # comes with the package
EncoderPath = Annotated[
    str | None, typer.Option("--backbone", help="Where the reader's encoder is now, if it has moved.")
]
EngineName = Annotated[str, typer.Option("--engine", help="What runs it: torch, onnx, or auto, by what is there.")]


def ask(
    question: Annotated[str | None, typer.Argument(help="What is asked; not with --questions.")] = None,
    files: Annotated[
        list[str] | None, typer.Argument(help="Where to look: .txt, .md, .html and .pdf files; - is stdin.")
    ] = None,
    file: Annotated[list[str] | None, typer.Option("--file", help="One more file to look in; may be repeated.")] = None,
    context: Annotated[str | None, typer.Option(help="The text to look in.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="A file of questions: one per line, or JSON lines {question, context}.")
    ] = None,
    reader: Annotated[
        str, typer.Option(help="A reader's directory, such as runs/NAME/reader, or its name on the hub.")
    ] = DEFAULT_READER,
    top_k: Annotated[int, typer.Option(min=1, help="How many answers to show.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help='Say "no answer" where that is likelier; the reader\'s own if not given.'),
    ] = None,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
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
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all this machine has.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str, typer.Option(envvar="BERTVISION_TOKEN", help="Whoever asks must know it; better set by the variable.")
    ] = "",
    page: Annotated[bool, typer.Option(help="A page to try it, at /; without, it starts quicker.")] = True,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one pass of the model; 1 = no batching.")] = 4096,
    queue: Annotated[int, typer.Option(help="Questions that may wait.")] = 256,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 30.0,
    max_body: Annotated[int, typer.Option(help="Bytes of one request.")] = 1 << 20,
    max_questions: Annotated[int, typer.Option(help="Questions in one request.")] = 64,
    max_context: Annotated[int, typer.Option(help="Characters of a context.")] = 100_000,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
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
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    out: Annotated[Path | None, typer.Option(help="Directory to write; RUN/reader if not given.")] = None,
    checkpoint: Annotated[float | None, typer.Option(help="Epoch of the checkpoint; the last if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the one that did best on tune if not given.")] = None,
    members: Annotated[
        str, typer.Option(help='Who answers, such as "backbone, pool"; what did best on tune if not given.')
    ] = "",
    how: Annotated[str | None, typer.Option(help="How members are joined: max, mean or product.")] = None,
    storage: Annotated[str, typer.Option(help="fp32, or fp16 for files of half the size.")] = "fp32",
    threshold_data: Annotated[
        str,
        typer.Option(help="Questions to choose the no-answer threshold on, also for members not yet scored together."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make a reader of a run; a study leaves one by itself."""
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
    print(json.dumps({"path": str(place)}) if as_json else str(place))


def export(
    reader: Annotated[str, typer.Argument(help="A reader's directory, or its name on the hub.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights as 8-bit integers: smaller, a little off.")] = False,
    backbone: EncoderPath = None,
    as_json: AsJson = False,
) -> None:
    """Write a reader as one ONNX file that needs no encoder beside it."""
    from bertvision.serve.export import export as write
    from bertvision.serve.reader import Reader

    path = write(Reader.from_pretrained(reader, engine="torch", backbone=backbone), out, int8=int8)
    size = path.stat().st_size
    print(json.dumps({"path": str(path), "bytes": size}) if as_json else f"{path} ({size / 1e6:.1f} MB)")
