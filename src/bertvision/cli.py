"""The command line: one thin function per verb, each a wrapper over something importable."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision import __version__
from bertvision.errors import UserError

UsageError: Any = typer.BadParameter.__base__  # what a wrong option or argument raises; typer does not export it
INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer()
app.add_typer(data_app, name="data")

RecipePath = Annotated[Path, typer.Argument(help="A recipe in TOML; see recipes/.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Overrides one value of the recipe.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run; runs/<recipe's name> if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print results as JSON, and nothing else, on stdout.")]


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """Fine-tuned quality for a fraction of the fine-tuning: tiny heads on all layers of an encoder."""
    if version:
        print(f"bertvision {__version__}")
        raise typer.Exit
    _help_without_verb(context)


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context) -> None:
    """Make the sample set; fetch and verify SQuAD and GLUE; show statistics."""
    _help_without_verb(context)


def _help_without_verb(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _study(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool = False) -> Any:
    from bertvision.recipe import load_recipe
    from bertvision.train.series import make_run

    return make_run(load_recipe(recipe, settings or ()), out or Path("runs") / recipe.stem, quiet=quiet)


def _single(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool) -> Any:
    """A study of its own, not one of several."""
    job = _study(recipe, settings, out, quiet)
    if job.recipe.variants:
        raise UserError(f"{recipe}: has variants; name the recipe.toml that a study left in the directory of one")
    return job


@app.command()
def study(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard, into tensorboard/ of the run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """The main job: everything from tuning to the report. Starts again where it stopped."""
    from bertvision.report.page import write_report
    from bertvision.serve.build import leave_reader

    job = _study(recipe, settings, out, quiet=as_json)
    if tensorboard:
        from bertvision.train.scalars import Scalars

        for one in job.studies:
            one.journal.scalars = Scalars(one.directory / "tensorboard")
    rows = job.run()
    readers = [leave_reader(one.directory) for one in job.studies]
    page = write_report(job.directory)
    if as_json:
        print(json.dumps(rows))
        return
    _print_table(rows)
    print(f"report: {page}")
    print("\n".join(f"reader: {reader}" for reader in readers))


@app.command()
def finetune(recipe: RecipePath, settings: Settings = None, out: Out = None, as_json: AsJson = False) -> None:
    """Tune the backbone of a recipe, leaving its checkpoints."""
    job = _study(recipe, settings, out, quiet=as_json)
    job.begin()
    found = {
        str(one.directory): {
            seed: {f"{epoch:g}": str(c.directory) for epoch, c in one.tune(seed).items()} for seed in one.recipe.seeds
        }
        for one in _begun(job)
    }
    if as_json:
        print(json.dumps(found if job.recipe.variants else found[str(job.directory)]))
        return
    print("\n".join(path for seeds in found.values() for paths in seeds.values() for path in paths.values()))


@app.command()
def train(recipe: RecipePath, settings: Settings = None, out: Out = None, as_json: AsJson = False) -> None:
    """Train the bank of heads on every checkpoint that `finetune` has left in the run."""
    job = _study(recipe, settings, out, quiet=as_json)
    if not all(one.recipe.heads for one in job.studies):
        raise UserError(f"{recipe}: heads: there are none to train; add [[heads]] with a kind")
    job.begin()
    paths = [one.train(seed, epoch) for one in _begun(job) for seed in one.recipe.seeds for epoch in one.epochs]
    print(json.dumps([str(path) for path in paths]) if as_json else "\n".join(map(str, paths)))


def _begun(job: Any) -> Any:
    """The studies of a run, one after the other, each with its directory claimed."""
    for one in job.studies:
        one.begin()
        yield one


@app.command()
def search(
    recipe: RecipePath,
    trials: Annotated[int, typer.Option(min=1, help="How many heads to try in all.")] = 32,
    size: Annotated[int, typer.Option("--round", min=1, help="How many are trained at once, in the same passes.")] = 8,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Search for better heads on the last checkpoint, judged on the tuning set. Starts again where it stopped."""
    from bertvision.train.search import Search

    job = Search(_single(recipe, settings, out, quiet=as_json), trials=trials, size=size)
    rows = job.run()
    if as_json:
        print(json.dumps({"best": str(job.best), "trials": rows}))
        return
    from bertvision.report.terminal import print_trials

    print_trials(rows, job.metric)
    print(f"best heads: {job.best}")


@app.command()
def tap(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    split: Annotated[str, typer.Option(help="train, tune or test.")] = "train",
    checkpoint: Annotated[
        float | None, typer.Option(help="Epoch of the checkpoint; the last, or the encoder as it came, if not given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the first if not given.")] = None,
    layers: Annotated[str, typer.Option(help="all or last.")] = "all",
    positions: Annotated[str, typer.Option(help="all tokens, or cls.")] = "all",
    dtype: Annotated[str, typer.Option(help="fp16, int8 or fp32.")] = "fp16",
    forecast: Annotated[bool, typer.Option("--forecast", help="Only say what it would cost; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the hidden states of a split to a store in the run. Starts again where it stopped."""
    from bertvision.train.tap import Tap

    job = _single(recipe, settings, out, quiet=as_json)
    if not forecast:
        job.begin()
    what: dict[str, Any] = {"layers": layers, "positions": positions, "dtype": dtype}
    source = Tap(job, split=split, checkpoint=checkpoint, seed=seed, **what)
    if forecast or not as_json:
        expected = source.forecast()
        print(json.dumps(expected.to_json()) if as_json else "\n".join(expected.lines()))
    if not forecast:
        found = source.write()
        print(json.dumps(found) if as_json else "\n".join(f"{key:18} {value}" for key, value in found.items()))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's directory, or a predictions file {question id: answer}.")],
    data: Annotated[
        str,
        typer.Option(
            help="What to score on: a SQuAD file, sample:…, glue:…, a table; the run's test set if not given."
        ),
    ] = "",
    checkpoint: Annotated[float | None, typer.Option(help="Epoch of the checkpoint; the last if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the first if not given.")] = None,
    member: Annotated[str, typer.Option(help="Only this member.")] = "",
    decoding: Annotated[str, typer.Option(help="joint or independent; the recipe's if not given.")] = "",
    no_answer_scores: Annotated[
        Path | None, typer.Option(help="With a predictions file: {question id: score}.")
    ] = None,
    submission: Annotated[
        Path | None, typer.Option(help="Write predictions for --data glue:TASK/test there, as GLUE takes them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Scores of every member of a run on any data, or official scores of a predictions file."""
    from bertvision.train.evaluation import score_file, score_run, submit_run

    if submission is not None:
        cell: dict[str, Any] = {"data": data, "checkpoint": checkpoint, "seed": seed, "member": member}
        path, name = submit_run(run, submission, quiet=as_json, **cell)
        print(json.dumps({"file": str(path), "member": name}) if as_json else f"{path}: predictions of {name}")
        return
    if run.is_dir():
        options = {"data": data, "member": member, "decoding": decoding}
        rows = score_run(run, checkpoint=checkpoint, seed=seed, quiet=as_json, **options)
    else:
        rows = [score_file(run, data, no_answer_scores)]
    if as_json:
        print(json.dumps(rows))
    elif run.is_dir():
        _print_table(rows)
    else:
        print("\n".join(f"{key:20} {value:.6g}" for key, value in rows[0].items()))


@app.command()
def ensemble(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    members: Annotated[
        str,
        typer.Option(metavar="A,B,…", help='Who takes part, e.g. "backbone, pool" or "pool @ epoch 0.3, seed 2"; all.'),
    ] = "",
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Choose among them on the tuning set, by forward selection.")
    ] = False,
    how: Annotated[str, typer.Option(help="max, mean or product of the probabilities.")] = "max",
    checkpoint: Annotated[
        list[float] | None, typer.Option(help="Epoch of a checkpoint; may be repeated; the last if not given.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the first if not given.")] = None,
    all_seeds: Annotated[bool, typer.Option("--all-seeds", help="Members of all seeds.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where to save members and weights; RUN/ensemble.json if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Combine members of a run from what it has stored: chosen on the tuning set, reported on the test set."""
    from bertvision.train.combine import ensemble_run

    scope: dict[str, Any] = {"checkpoints": checkpoint or (), "seed": seed, "all_seeds": all_seeds}
    rows = ensemble_run(run, members=members, greedy=greedy, how=how, out=out, quiet=as_json, **scope)
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{rows[0]['member']}: {rows[0]['parts']}")
    _print_table(rows)


@app.command()
def analyze(
    run: Annotated[Path, typer.Argument(help="A run's directory.")],
    checkpoint: Annotated[float | None, typer.Option(help="Epoch of the checkpoint; the last if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the first if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """What members get right and wrong, where, how surely, and the most instructive mistakes: RUN/analysis.json."""
    from bertvision.train.analysis import analyze_run

    found = analyze_run(run, epoch=checkpoint, seed=seed, quiet=as_json)
    if as_json:
        print(json.dumps(found))
        return
    from bertvision.report.findings import print_analysis

    print_analysis(found)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The directory of a run, or of several.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write it; into the run itself, or runs/compared for several, if not given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tables and plots again, from the files of a run, finished or not; several runs on one page."""
    from bertvision.report.page import write_pages
    from bertvision.report.runs import read_runs

    found = read_runs(runs)
    page = write_pages(found, out or (runs[0] if len(runs) == 1 else Path("runs") / "compared"))
    if as_json:
        print(json.dumps(found.scores))
        return
    _print_table(found.scores)
    print(f"report: {page}")


@app.command()
def serve(
    reader: Annotated[
        str, typer.Argument(help="A directory such as runs/NAME/reader, or a name; the newest of runs/ if not given.")
    ] = "",
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
) -> None:
    """Answers over HTTP: a JSON API, documented at /docs, and a page to try it at /."""
    from bertvision.serve import server
    from bertvision.serve.ask import default_reader
    from bertvision.serve.limits import Limits

    limits = Limits(
        body=max_body,
        questions=max_questions,
        context=max_context,
        queue=queue,
        batch_tokens=batch_tokens,
        timeout=timeout,
    )
    name = reader or default_reader()
    server.serve(lambda: server.load_reader(name), host=host, port=port, limits=limits, token=token, page=page)


@app.command()
def heads(
    layers: Annotated[int, typer.Option(help="Layers of the backbone, embedding output included.")] = 7,
    width: Annotated[int, typer.Option(help="Width of the backbone.")] = 384,
    backbone: Annotated[
        str, typer.Option(help="Take layers and width from this architecture, e.g. bert-large-uncased.")
    ] = "",
    task: Annotated[str, typer.Option(help="spans, labels or score.")] = "spans",
    outputs: Annotated[int, typer.Option(help="Classes, for labels.")] = 2,
    as_json: AsJson = False,
) -> None:
    """The registered heads with their options, formula and parameter count."""
    from bertvision.heads.catalog import catalog

    if backbone:
        from bertvision.backbone.anatomy import layer_count
        from bertvision.backbone.anatomy import width as width_of
        from bertvision.backbone.shapes import empty_model

        model = empty_model(backbone)
        layers, width = layer_count(model), width_of(model)
    entries = catalog(layers, width, task, outputs)
    if as_json:
        print(json.dumps(entries))
        return
    from bertvision.report.terminal import print_heads

    print_heads(entries, layers, width, task)


@app.command()
def params(
    backbone: Annotated[
        str, typer.Option(help="An architecture known offline, or a directory with config.json.")
    ] = "minilm",
    train_layers: Annotated[str, typer.Option(help="`all`, or the number of last blocks that train.")] = "all",
    adapters: Annotated[int, typer.Option(help="Size of Houlsby adapters, 0 = none.")] = 0,
    lora: Annotated[int, typer.Option(help="Rank of LoRA, 0 = none.")] = 0,
    head: Annotated[str, typer.Option(help="A kind of head, or a JSON table of it.")] = "last",
    task: Annotated[str, typer.Option(help="spans, labels or score.")] = "spans",
    outputs: Annotated[int, typer.Option(help="Classes, for labels.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Exact parameter counts of any backbone, tuning and head, without weights."""
    from bertvision.backbone.tuning import Tuning
    from bertvision.train.count import parameter_table

    plan = Tuning(_layers(train_layers), adapters, lora)
    table = parameter_table(backbone, plan, _head(head), task=task, outputs=outputs)
    if as_json:
        print(json.dumps(table))
        return
    for key, value in table.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else value
        print(f"{key:22} {shown}")


@app.command()
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
        str, typer.Option(help="A reader's directory or hub name; if not given, the newest in runs/.")
    ] = "",
    top_k: Annotated[int, typer.Option(min=1, help="How many answers to show.")] = 1,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help='Say "no answer" where that is likelier; the reader\'s own if not given.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer questions from a text, from files or from stdin."""
    from bertvision.serve.ask import answer, default_reader, gather, streams

    queries = gather(question, context, [*(file or ()), *(files or ())], questions)
    name = reader or default_reader()
    from rich.console import Console

    from bertvision.serve.reader import Reader
    from bertvision.serve.show import reading_bar, show_answers

    loaded, console = Reader.from_pretrained(name), Console()
    with reading_bar(streams(queries)) as progress:
        for query, answers in answer(loaded, queries, top_k=top_k, threshold=threshold, progress=progress):
            if as_json:
                print(json.dumps({"question": query.question, "answers": answers}, ensure_ascii=False))
            else:
                show_answers(console, query, answers, titled=len(queries) > 1)


@app.command()
def export(
    reader: Annotated[str, typer.Argument(help="A reader's directory, or its name on the hub.")],
    out: Annotated[Path, typer.Option("--out", help="Directory to write.")],
    int8: Annotated[bool, typer.Option("--int8", help="Weights as 8-bit integers: smaller, a little off.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a reader as one ONNX file, which runs quicker and needs no encoder beside it."""
    from bertvision.serve.export import export as write
    from bertvision.serve.reader import Reader

    path = write(Reader.from_pretrained(reader), out, int8=int8)
    size = path.stat().st_size
    print(json.dumps({"path": str(path), "bytes": size}) if as_json else f"{path} ({size / 1e6:.1f} MB)")


@data_app.command()
def sample(
    split: Annotated[str, typer.Argument(help="train, tune or test.")],
    out: Annotated[Path, typer.Argument(help="The JSON file to write.")],
    questions: Annotated[int, typer.Option(min=1, help="How many questions.")] = 3000,
) -> None:
    """Write the synthetic sample set as a SQuAD 2.0 file."""
    from bertvision.data.source import load_articles
    from bertvision.data.squad import write_articles

    write_articles(out, load_articles(f"sample:{split}:{questions}"))
    print(f"{out}: {questions} synthetic questions")


@data_app.command()
def stats(
    source: Annotated[str, typer.Argument(help="A SQuAD file, sample:…, squad_v2, glue:CoLA/train, or a table.")],
    glue: Annotated[str, typer.Option(help="The folder of the official GLUE files.")] = "data/glue",
    text: Annotated[list[str] | None, typer.Option(help="A column of text of a table; may be given twice.")] = None,
    label: Annotated[str, typer.Option(help="The column of a table that holds the label or the score.")] = "",
    as_json: AsJson = False,
) -> None:
    """Counts and lengths of a set of questions or texts."""
    from bertvision.data.describe import describe
    from bertvision.recipe import DataRecipe

    found = describe(source, DataRecipe(glue=glue, text=tuple(text or ()), label=label))
    if as_json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        shown = ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else value
        print(f"{key:14} {shown}")


@data_app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="train-v2.0.json, dev-v2.0.json, dev-v1.1.json, or a GLUE task such as glue:CoLA.")
    ],
    directory: Annotated[Path, typer.Option("--out", help="Where to put it.")] = Path("data"),
) -> None:
    """Download an official SQuAD file and verify its size and sha256; or the files of a GLUE task, and their rows."""
    if name.startswith("glue:"):
        from bertvision.data import glue

        print("\n".join(map(str, glue.fetch(name.removeprefix("glue:"), directory / "glue"))))
        return
    from bertvision.data.source import fetch_official
    from bertvision.report.terminal import download_bar

    with download_bar(name) as progress:
        path = fetch_official(name, directory, progress=progress)
    print(path)


def _layers(text: str) -> Any:
    return int(text) if text.isdecimal() else text


def _head(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f'--head {text}: not JSON ({error}); for example \'{{"kind":"compress","size":64}}\'') from None


def _print_table(rows: Any) -> None:
    from rich.console import Console

    from bertvision.report.console import console_table

    Console().print(console_table(rows))


def main() -> None:
    """Runs the command line; what is the user's to mend is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except (UserError, UsageError) as error:
        code = _complain(str(error) if isinstance(error, UserError) else f"{error.format_message()} (try --help)")
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        reason = error.strerror or str(error)
        code = _complain(f"{error.filename}: {reason}" if error.filename else reason)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        code = _complain("out of memory; lower batch_tokens in the recipe, the same command then goes on from here")
    if code == INTERRUPTED:
        print("stopped; the same command goes on from here", file=sys.stderr)
    sys.exit(code)


def _complain(text: str) -> int:
    print(f"bertvision: {' '.join(text.split())}", file=sys.stderr)
    return 2
