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
    """Make the sample set; fetch and verify SQuAD; show statistics."""
    _help_without_verb(context)


def _help_without_verb(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _study(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool = False) -> Any:
    from bertvision.recipe import load_recipe
    from bertvision.train.study import Study

    return Study(load_recipe(recipe, settings or ()), out or Path("runs") / recipe.stem, quiet=quiet)


@app.command()
def study(recipe: RecipePath, settings: Settings = None, out: Out = None, as_json: AsJson = False) -> None:
    """The main job: everything from tuning to the report. Starts again where it stopped."""
    from bertvision.report.page import write_report

    job = _study(recipe, settings, out, quiet=as_json)
    rows = job.run()
    page = write_report(job.directory)
    if as_json:
        print(json.dumps(rows))
        return
    _print_table(rows)
    print(f"report: {page}")


@app.command()
def finetune(recipe: RecipePath, settings: Settings = None, out: Out = None, as_json: AsJson = False) -> None:
    """Tune the backbone of a recipe, leaving its checkpoints."""
    job = _study(recipe, settings, out, quiet=as_json)
    job.begin()
    found = {seed: {f"{epoch:g}": str(c.directory) for epoch, c in job.tune(seed).items()} for seed in job.recipe.seeds}
    print(json.dumps(found) if as_json else "\n".join(path for paths in found.values() for path in paths.values()))


@app.command()
def train(recipe: RecipePath, settings: Settings = None, out: Out = None, as_json: AsJson = False) -> None:
    """Train the bank of heads on every checkpoint that `finetune` has left in the run."""
    from bertvision.train.finetune import checkpoint_epochs

    job = _study(recipe, settings, out, quiet=as_json)
    job.begin()
    if not job.recipe.heads:
        raise UserError(f"{recipe}: heads: there are none to train; add [[heads]] with a kind")
    paths = [job.train(seed, epoch) for seed in job.recipe.seeds for epoch in checkpoint_epochs(job.recipe.finetune)]
    print(json.dumps([str(path) for path in paths]) if as_json else "\n".join(map(str, paths)))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's directory, or a predictions file {question id: answer}.")],
    data: Annotated[
        str, typer.Option(help="What to score on: a SQuAD file or sample:…; the run's test set if not given.")
    ] = "",
    checkpoint: Annotated[float | None, typer.Option(help="Epoch of the checkpoint; the last if not given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the first if not given.")] = None,
    member: Annotated[str, typer.Option(help="Only this member.")] = "",
    decoding: Annotated[str, typer.Option(help="joint or independent; the recipe's if not given.")] = "",
    no_answer_scores: Annotated[
        Path | None, typer.Option(help="With a predictions file: {question id: score}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Scores of every member of a run on any data, or official scores of a predictions file."""
    from bertvision.train.evaluation import score_file, score_run

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
def report(run: Annotated[Path, typer.Argument(help="A run's directory.")], as_json: AsJson = False) -> None:
    """Tables and plots again, from the files of a run, finished or not."""
    from bertvision.report.page import write_report
    from bertvision.train.study import Study

    rows = Study.open(run, quiet=True).rows()
    page = write_report(run)
    if as_json:
        print(json.dumps(rows))
        return
    _print_table(rows)
    print(f"report: {page}")


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
    source: Annotated[str, typer.Argument(help="A SQuAD file, sample:…, or squad_v2.")], as_json: AsJson = False
) -> None:
    """Counts and lengths of a set of questions."""
    from bertvision.data.source import is_synthetic, load_articles
    from bertvision.data.squad import statistics

    found = statistics(load_articles(source)) | {"synthetic": is_synthetic(source)}
    if as_json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        shown = ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else value
        print(f"{key:14} {shown}")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="train-v2.0.json, dev-v2.0.json or dev-v1.1.json.")],
    directory: Annotated[Path, typer.Option("--out", help="Where to put it.")] = Path("data"),
) -> None:
    """Download an official SQuAD file and verify its size and sha256."""
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


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from bertvision.report.tables import console_table

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
