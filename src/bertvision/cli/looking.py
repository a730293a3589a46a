"""Verbs that look: at what a run has found, at the heads there are, at how many parameters something has."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli.options import AsJson
from bertvision.cli.printing import print_table
from bertvision.errors import UserError


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
    predictions: Annotated[
        Path | None,
        typer.Option(help="Write predictions for --data, labelled or not, to this file: a line of JSON per row."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Scores of every member of a run on any data, or official scores of a predictions file."""
    from bertvision.train.evaluation import predict_run, score_file, score_run, submit_run

    if out := submission or predictions:
        write = submit_run if submission else predict_run
        cell: dict[str, Any] = {"data": data, "checkpoint": checkpoint, "seed": seed, "member": member}
        path, name = write(run, out, quiet=as_json, **cell)
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
        print_table(rows)
    else:
        print("\n".join(f"{key:20} {value:.6g}" for key, value in rows[0].items()))


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
    print_table(rows)


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
    print_table(found.scores)
    print(f"report: {page}")


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


def _layers(text: str) -> Any:
    return int(text) if text.isdecimal() else text


def _head(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"kind": text}
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f'--head {text}: not JSON ({error}); for example \'{{"kind":"compress","size":64}}\'') from None
