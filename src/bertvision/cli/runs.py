"""Verbs that read finished runs: scores, ensembles, analyses, reports."""

from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.options import (
    Answerable,
    AsJson,
    Checkpoint,
    Code,
    Device,
    EarlyExit,
    RunPath,
    Seed,
    arg,
    opt,
    print_json,
    print_table,
)
from bertvision.errors import UserError


def evaluate(
    run: Annotated[Path, arg("A run, a reader, or a predictions file {question id: answer}.")],
    data: Annotated[str, opt("Data to score on, as in a recipe; the run's test set if not given.")] = "",
    checkpoint: Checkpoint = None,
    seed: Seed = None,
    member: Annotated[str, opt("Only this member.")] = "",
    decoding: Annotated[str, opt("joint or independent; the recipe's if not given.")] = "",
    no_answer_scores: Annotated[Path | None, opt("With a predictions file: {question id: score}.")] = None,
    submission: Annotated[Path | None, opt("Write predictions for --data glue:TASK/test for GLUE's server.")] = None,
    predictions: Annotated[Path | None, opt("Write predictions for --data here: a line of JSON per row.")] = None,
    answerable: Answerable = None,
    mistakes: Annotated[bool, opt("Of a reader: list the questions that it answers wrongly.", "--mistakes")] = False,
    exit: EarlyExit = None,
    device: Device = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Scores of every member of a run, or of a reader, on any data; official scores of a predictions file."""
    from bertvision.runtime import is_main
    from bertvision.train.evaluation import predict_run, score_file, score_run, submit_run

    if not is_main() and (_is_reader(run) or not run.is_dir()):
        return  # of processes that torchrun has started, one is enough for these
    if _is_reader(run):
        options: dict[str, Any] = {"device": device or "auto", "exit": exit}
        _evaluate_reader(run, data, answerable, options, as_json, mistakes)
        return
    if mistakes:
        raise UserError("--mistakes: is for readers; of a run, see `bertvision analyze`")
    selection: dict[str, Any] = {
        "data": data,
        "checkpoint": checkpoint,
        "seed": seed,
        "member": member,
        "device": device,
    }
    if out := submission or predictions:
        path, name = (submit_run if submission else predict_run)(run, out, quiet=as_json, **selection)
        print_json({"file": str(path), "member": name}) if as_json else print(f"{path}: predictions of {name}")
    elif run.is_dir():
        rows = score_run(run, decoding=decoding, quiet=as_json, **selection)
        print_json(rows) if as_json else print_table(rows)
    else:
        scores = score_file(run, data, no_answer_scores)
        lines = "\n".join(f"{key:20} {value:.6g}" for key, value in scores.items())
        print_json([scores]) if as_json else print(lines)


def _is_reader(path: Path) -> bool:
    from bertvision.serve.reader_dir import CONFIG, PACKAGED
    from bertvision.train.run_dir import RunDir

    own = (path / CONFIG).is_file() and not RunDir(path).recipe_file.is_file()
    return own or (not path.exists() and path.name == str(path) and (PACKAGED / path / CONFIG).is_file())


def _evaluate_reader(
    path: Path, data: str, answerable: float | None, options: dict[str, Any], as_json: bool, mistakes: bool
) -> None:
    from bertvision.serve.ask import reading_bar
    from bertvision.serve.measure import report as described
    from bertvision.serve.measure import score_reader
    from bertvision.serve.reader import Reader

    reader = Reader.from_pretrained(path, **options)
    reader = reader if answerable is None else reader.assuming(answerable)
    with reading_bar(False) as progress:
        scores = score_reader(reader, data, progress, mistakes=mistakes)
    print_json([scores]) if as_json else print(described(scores))


def ensemble(
    run: RunPath,
    members: Annotated[str, opt('Members: "backbone, pool", "pool @ epoch 0.3, seed 2"; all.', metavar="A,B,…")] = "",
    greedy: Annotated[bool, opt("Choose among them on the tuning set, by forward selection.", "--greedy")] = False,
    how: Annotated[str, opt("max, mean or product of the probabilities.")] = "max",
    checkpoint: Annotated[list[float] | None, opt("Epoch of a checkpoint; repeatable; the last if not given.")] = None,
    seed: Seed = None,
    all_seeds: Annotated[bool, opt("Members of all seeds.", "--all-seeds")] = False,
    out: Annotated[Path | None, opt("Where to save members and weights; RUN/ensemble.json if not given.")] = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Combine members of a run from its stored predictions: chosen on the tuning set, reported on the test set."""
    from bertvision.train.ensembling import ensemble_run

    if all_seeds and seed is not None:
        raise UserError("--all-seeds: choose either this or --seed")
    scope: dict[str, Any] = {"checkpoints": checkpoint or (), "seed": "all" if all_seeds else seed}
    rows = ensemble_run(run, members=members, greedy=greedy, how=how, out=out, quiet=as_json, **scope)
    if as_json:
        print_json(rows)
        return
    print(f"{rows[0]['member']}: {rows[0]['parts']}")
    print_table(rows)


def analyze(
    run: RunPath, checkpoint: Checkpoint = None, seed: Seed = None, code: Code = None, as_json: AsJson = False
) -> None:
    """Where members are right and wrong, their calibration, and the most instructive mistakes: RUN/analysis.json."""
    from bertvision.train.compare import analyze_run

    analysis = analyze_run(run, epoch=checkpoint, seed=seed)
    if as_json:
        print_json(analysis)
        return
    from bertvision.report.reading import read_study
    from bertvision.report.terminal import print_analysis

    print_analysis(analysis, paper=read_study(run).paper)


def depth(run: RunPath, code: Code = None, as_json: AsJson = False) -> None:
    """Score against depth: what heads with a `depth` lose, and how much faster their encoder is; RUN/depth.svg."""
    from bertvision.serve.depth import depth_curve

    metric, points = depth_curve(run)
    if as_json:
        print_json([{name: getattr(point, name) for name in point.__slots__} for point in points])
        return
    print(f"{'member':36} {'blocks':>6} {'tune':>7} {'test':>7} {'tokens/s':>9} {'speed':>6}   ({metric})")
    for point in points:
        tune = "" if point.tune is None else f"{point.tune:.2f}"
        print(f"{point.member:36} {point.depth:6} {tune:>7} {point.test:7.2f} {point.speed:9,.0f} {point.faster:5.2f}x")


def report(
    runs: Annotated[list[Path], arg("The directory of a run, or of several.", metavar="RUN...")],
    out: Annotated[Path | None, opt("Where to write it; the run, or runs/compared for several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tables and plots again, from the files of a run, finished or not; several runs on one page."""
    from bertvision.report.page import write_pages
    from bertvision.report.reading import read_runs
    from bertvision.report.terminal import print_study

    study = read_runs(runs)
    page = write_pages(study, out or (runs[0] if len(runs) == 1 else Path("runs") / "compared"))
    if as_json:
        print_json([score.to_json() for score in study.scores])
        return
    print_study(study)
    print(f"report: {page}")
