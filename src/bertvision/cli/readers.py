"""Verbs that fit, build, query, serve and export a reader."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.options import (
    ALONE,
    Answerable,
    AsJson,
    Checkpoint,
    Code,
    Device,
    EarlyExit,
    RunPath,
    arg,
    opt,
    print_json,
)

if TYPE_CHECKING:
    from bertvision.serve.reader import Reader

DEFAULT_READER = "pocket"  # comes with the package
READER = "A reader's directory (runs/NAME/reader) or hub name."
AskAnswerable = Annotated[
    float | None,
    opt("Share of questions expected to have an answer; if not given 0.8 for one text, for several the tune set's."),
]
EncoderPath = Annotated[str | None, opt("The reader's encoder, if it has moved.", "--backbone")]
ReaderDevice = Annotated[str, opt("auto (a GPU, if there is one), cpu, cuda, cuda:1, mps or xpu.", "--device")]
ReaderPrecision = Annotated[str, opt("fp32, bf16, or auto: the quicker one.", "--precision")]
EngineName = Annotated[str, opt("torch, onnx, or auto: by the files of the reader.", "--engine")]


def _warn_of_token(context: typer.Context, value: str) -> str:
    """Warns of a token on the command line; the token."""
    source = context.get_parameter_source("token")
    if value and source is not None and source.name == "COMMANDLINE":
        visible = "other users of this machine can read it in the list of processes"
        print(f"bertvision: --token: {visible}; use --token-file or BERTVISION_TOKEN", file=sys.stderr)
    return value


Token = Annotated[
    str,
    opt("Token that requests must carry; better in a file.", envvar="BERTVISION_TOKEN", callback=_warn_of_token),
]


def fit(
    data: Annotated[Path, arg("Your examples: .csv, .tsv, .jsonl, SQuAD .json, or .conll.")],
    text: Annotated[list[str] | None, opt("A column of text; twice for pairs of texts. Found if not given.")] = None,
    label: Annotated[str, opt("The column of the label or the score. Found if not given.")] = "",
    minutes: Annotated[float, opt("How long to go on.")] = 10.0,
    steps: Annotated[int | None, opt("Exactly the first steps, however long they take; instead of --minutes.")] = None,
    tune: Annotated[str, opt("A file to choose on; split off the data if not given.")] = "",
    test: Annotated[str, opt("A file to report on; split off the data if not given.")] = "",
    out: Annotated[Path | None, opt("Directory of the result; runs/<name of the file> if not given.")] = None,
    encoder: Annotated[str, opt("minilm, marco, pocket (for questions), a directory or a hub name.")] = "",
    seed: Annotated[int, opt("Decides the split and the training.", min=0)] = 1,
    as_json: AsJson = False,
) -> None:
    """The best model for a file in the minutes there are, without a recipe. Ctrl-C keeps the best so far."""
    from bertvision.auto.fit import fit as fit_data

    options = {"label": label, "minutes": minutes, "steps": steps, "tune": tune, "test": test, "encoder": encoder}
    result = fit_data(data, text=text or (), out=out or "", seed=seed, quiet=as_json, **options)
    if as_json:
        scores = {
            "metric": result.metric,
            "tune": result.tune,
            "test": result.test,
            "low": result.low,
            "high": result.high,
        }
        print_json({"directory": str(result.directory), "step": result.step, **scores})
        return
    print(f"{result.metric} {result.test:.2f} on test (95 %: {result.low:.2f} to {result.high:.2f})")
    print(f"report: {result.directory / 'report.html'}")
    print(f"model: {result.model}")


def ask(
    process: typer.Context,
    question: Annotated[str | None, arg("The question; not with --questions.")] = None,
    files: Annotated[list[str] | None, arg("Files: .txt, .md, .html, .pdf; - is stdin.")] = None,
    file: Annotated[list[str] | None, opt("One more file to read; may be repeated.", "--file")] = None,
    context: Annotated[str | None, opt("The text to read.")] = None,
    questions: Annotated[Path | None, opt("Questions: one per line, or JSON lines {question, context}.")] = None,
    reader: Annotated[str, opt(READER)] = DEFAULT_READER,
    top_k: Annotated[int, opt("How many answers to show.", min=1)] = 1,
    threshold: Annotated[float | None, opt('"No answer" from this probability on.', min=0, max=1)] = None,
    answerable: AskAnswerable = None,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    device: ReaderDevice = "auto",
    precision: ReaderPrecision = "fp32",
    verbose: Annotated[bool, opt("Say on stderr which engine answers, and why.", "--verbose")] = False,
    exit: EarlyExit = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions from a text, from files or from stdin."""
    from bertvision.serve import ask as asking

    queries = asking.gather(question, context, [*(file or ()), *(files or ())], questions)
    from bertvision.serve.prepared import load_quickly

    options: Any = {"engine": engine, "backbone": backbone, "device": device, "precision": precision, "exit": exit}
    alone = process.obj == ALONE and not code
    loaded, why = load_quickly(reader, alone=alone, **options)
    if verbose:
        print(f"bertvision: {loaded.name}: {why}", file=sys.stderr)
    if (share := asking.assumed(loaded, queries, answerable)) is not None:
        loaded = loaded.assuming(share)
    asking.replace_unencodable(sys.stdout)
    _print_answers(loaded, queries, as_json, top_k=top_k, threshold=threshold)


def _print_answers(reader: "Reader", queries: list[Any], as_json: bool, **options: Any) -> None:
    """Prints the answers to each query as soon as it is read."""
    from rich.console import Console

    from bertvision.serve import ask as asking

    console = Console()
    with asking.reading_bar(asking.streams(queries)) as progress:
        for query, answers in asking.answer(reader, queries, progress=progress, **options):
            if as_json:
                print(asking.json_line({"question": query.question, "answers": answers}))
            else:
                asking.show_answers(console, query, answers, titled=len(queries) > 1)


def serve(
    reader: Annotated[str, arg(READER)] = DEFAULT_READER,
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
    answerable: Answerable = None,
    backbone: EncoderPath = None,
    engine: EngineName = "auto",
    device: ReaderDevice = "auto",
    precision: ReaderPrecision = "fp32",
    exit: EarlyExit = None,
    code: Code = None,
) -> None:
    """Answers over HTTP: a JSON API, documented at /docs, and a page to try it at /."""
    from bertvision.serve import server

    token = server.token_from(token_file, token)
    sizes = {"body": max_body, "questions": max_questions, "context": max_context}
    limits = server.Limits(**sizes, queue=queue, batch_tokens=batch_tokens, timeout=timeout)

    def load() -> "Reader":
        from bertvision.serve.reader import Reader

        options: Any = {"engine": engine, "backbone": backbone, "device": device, "precision": precision, "exit": exit}
        loaded = Reader.from_pretrained(reader, **options)
        return loaded if answerable is None else loaded.assuming(answerable)

    hosts = allow_host or ()
    server.serve(load, host=host, port=port, limits=limits, token=token, page=page, allow_hosts=hosts)


def reader(
    run: RunPath,
    out: Annotated[Path | None, opt("Directory to write; RUN/reader if not given.")] = None,
    checkpoint: Checkpoint = None,
    seed: Annotated[int | None, opt("Seed; the best on tune if not given.")] = None,
    members: Annotated[str, opt('The members, such as "backbone, pool"; the best on tune if not given.')] = "",
    how: Annotated[str | None, opt("How members are combined: max, mean or product.")] = None,
    depth: Annotated[int | None, opt("No more blocks of the encoder than this.", min=1)] = None,
    exits: Annotated[str, opt('Heads with a depth at which sure windows stop: "last depth=6, last depth=8".')] = "",
    storage: Annotated[str, opt("fp32, or fp16 for files of half the size.")] = "fp32",
    threshold_data: Annotated[str, opt("Questions to choose the no-answer threshold on.")] = "",
    compress: Annotated[str, opt("Tuned encoder as low-rank difference: rank=64, rank=64,fp16, or rank=auto.")] = "",
    device: Device = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Make a reader of a run; a study makes one by itself."""
    from bertvision.serve.ask import reading_bar
    from bertvision.serve.build import Wanted, build_reader
    from bertvision.train.run_dir import RunDir

    with reading_bar(False) as progress:
        leaving = [name.strip() for name in exits.split(",") if name.strip()]
        wanted = Wanted(checkpoint, seed, members or None, how, depth, leaving)  # type: ignore[arg-type]
        saved: Any = {"storage": storage, "threshold_data": threshold_data, "compress": compress, "progress": progress}
        saved |= {"device": device}
        directory = build_reader(run, out or RunDir(run).reader, wanted, **saved)
    print_json({"path": str(directory)}) if as_json else print(directory)


def export(
    reader: Annotated[str, arg(READER)],
    out: Annotated[Path | None, opt("Directory to write; your cache, for `ask`, if not given.", "--out")] = None,
    int8: Annotated[bool, opt("Weights as 8-bit integers: smaller, a little off.", "--int8")] = False,
    backbone: EncoderPath = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write a reader as one ONNX file that needs no encoder beside it, and starts without torch."""
    from bertvision.serve.export import export as write
    from bertvision.serve.prepared import prepare
    from bertvision.serve.reader import Reader

    seconds: dict[str, float] = {}
    if out is None:
        path, seconds = prepare(reader, int8=int8, backbone=backbone)
    else:
        path = write(Reader.from_pretrained(reader, engine="torch", backbone=backbone), out, int8=int8)
    size = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": size} | ({"seconds": seconds} if seconds else {}))
        return
    print(f"{path} ({size / 1e6:.1f} MB)")
    if seconds:
        torch, onnx = (f"{1000 * seconds[name]:.0f}" for name in ("torch", "onnx"))
        print(f"`bertvision ask` uses it from now on; a batch takes {onnx} ms here, {torch} ms with torch")


def mcp(
    folders: Annotated[list[Path], arg("Folders whose files may be read.")],
    reader: Annotated[str, opt(READER)] = DEFAULT_READER,
    code: Code = None,
) -> None:
    """Serve `ask` over the files of some folders as a tool (Model Context Protocol, on stdin and stdout)."""
    from bertvision.serve.prepared import load_quickly
    from bertvision.serve.tool_server import Folders, build_tools

    build_tools(lambda: load_quickly(reader)[0], Folders(folders)).run("stdio")
