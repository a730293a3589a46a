"""Verbs that run a recipe: the whole study, its parts and cells, the search for better heads, and forecasts."""

import sys
from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.options import (
    Address,
    AsJson,
    Code,
    CpusPerCell,
    Device,
    GpusPerCell,
    Out,
    RecipePath,
    Seed,
    Settings,
    Threads,
    opt,
    print_json,
)
from bertvision.errors import UserError

OnRay = Annotated[str, opt("Run it on a cluster: ray.")]


def study(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    tensorboard: Annotated[bool, opt("Also write curves to tensorboard/ of the run.", "--tensorboard")] = False,
    trackio: Annotated[bool, opt("Also write curves to Trackio, by the name of the run.", "--trackio")] = False,
    on: Annotated[str, opt("Run its cells side by side: on processes of this machine, or on ray.")] = "",
    jobs: Annotated[int, opt("With processes: how many at a time.", min=1)] = 2,
    threads: Threads = None,
    address: Address = "",
    cpus_per_cell: CpusPerCell = 1,
    gpus_per_cell: GpusPerCell = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The main job: everything from tuning to the report. Starts again where it stopped."""
    from bertvision.runtime import is_main

    run = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    if tensorboard or trackio:
        _write_curves(run, tensorboard, trackio)
    if on:
        if tensorboard or trackio:
            option = "--tensorboard" if tensorboard else "--trackio"
            raise UserError(f"{option}: curves are not written by cells; leave out --on, or this")
        from bertvision.train.cells import Cells
        from bertvision.train.workers import run_on

        run_on(Cells(run), on, jobs=jobs, **_ray_workers(threads, code, address, cpus_per_cell, gpus_per_cell))
    else:
        run.run()
    if is_main():
        print_outcome(run, as_json)


def _write_curves(run: Any, tensorboard: bool, trackio: bool) -> None:
    """Makes the studies of a run write curves while they train."""
    from bertvision.train.trackers import Scalars, TrackioWriter, need_trackio

    if tensorboard and trackio:
        raise UserError("--trackio: choose either this or --tensorboard")
    if trackio:
        need_trackio()
    for study in run.studies:
        folder = study.run_dir.trackio if trackio else study.run_dir.tensorboard
        study.journal.scalars = Scalars(folder, TrackioWriter if trackio else None)


def print_outcome(run: Any, as_json: bool) -> None:
    """Writes report and readers of a finished run, and prints its scores."""
    from bertvision.report.page import write_pages
    from bertvision.report.reading import read_study
    from bertvision.serve.build import leave_reader

    readers = [leave_reader(study.directory) for study in run.studies if study.task.served]
    contents = read_study(run.directory)
    page = write_pages(contents, run.directory)
    if as_json:
        print_json([score.to_json() for score in contents.scores])
        return
    from bertvision.report.terminal import print_study

    print_study(contents)
    print(f"report: {page}")
    print("\n".join(f"reader: {reader}" for reader in readers))


def finetune(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Tune the backbone of a recipe and keep its checkpoints."""
    run = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    run.begin()
    checkpoints = {
        str(study.directory): {
            seed: {f"{epoch:g}": str(checkpoint.directory) for epoch, checkpoint in study.tune(seed).items()}
            for seed in study.recipe.seeds
        }
        for study in _begin_each(run)
    }
    if as_json:
        print_json(checkpoints if run.recipe.variants else checkpoints[str(run.directory)])
        return
    print("\n".join(path for seeds in checkpoints.values() for paths in seeds.values() for path in paths.values()))


def train(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Train the bank of heads on every checkpoint that `finetune` has left in the run."""
    run = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    if not all(study.recipe.heads for study in run.studies):
        raise UserError(f"{recipe}: heads: there are none to train; add [[heads]] with a kind")
    run.begin()
    paths = [str(study.train(*cell)) for study in _begin_each(run) for cell in study.run_dir.planned()]
    print_json(paths) if as_json else print("\n".join(paths))


def search(
    recipe: RecipePath,
    trials: Annotated[int, opt("How many heads to try in all.", min=1)] = 32,
    size: Annotated[int, opt("How many are trained at once, in the same passes.", "--round", min=1)] = 8,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    on: OnRay = "",
    threads: Threads = None,
    address: Address = "",
    cpus_per_cell: CpusPerCell = 1,
    gpus_per_cell: GpusPerCell = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Search for better heads on the last checkpoint, compared on the tuning set. Starts again where it stopped."""
    from bertvision.train.on_ray import search_on_ray
    from bertvision.train.search import Search
    from bertvision.train.workers import refuse_unknown

    if on:
        refuse_unknown(on, ["ray"])
    search = Search(
        _without_variants(recipe, _with_device(settings, device), out, quiet=as_json), trials=trials, size=size
    )
    workers = _ray_workers(threads, code, address, cpus_per_cell, gpus_per_cell)
    rows = search_on_ray(search, workers) if on else search.run()
    if as_json:
        print_json({"best": str(search.best), "trials": rows})
        return
    from bertvision.report.lists import print_trials

    print_trials(rows, search.metric)
    print(f"best heads: {search.best}")


def tap(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    split: Annotated[str, opt("train, tune or test.")] = "train",
    checkpoint: Annotated[float | None, opt("Epoch of the checkpoint; the last, else the untuned encoder.")] = None,
    seed: Seed = None,
    layers: Annotated[str, opt("all, last, or numbers: 0,6,12; 0 is the embedding output.")] = "all",
    positions: Annotated[str, opt("all tokens, or cls.")] = "all",
    dtype: Annotated[str, opt("fp16, int8 or fp32.")] = "fp16",
    forecast: Annotated[bool, opt("Only print the expected cost; write nothing.", "--forecast")] = False,
    on: OnRay = "",
    threads: Threads = None,
    address: Address = "",
    cpus_per_cell: CpusPerCell = 1,
    gpus_per_cell: GpusPerCell = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write the hidden states of a split to a store in the run. Starts again where it stopped."""
    from bertvision.train.on_ray import tap_on_ray
    from bertvision.train.tap import Tap
    from bertvision.train.workers import refuse_unknown

    study = _without_variants(recipe, _with_device(settings, device), out, quiet=as_json)
    arguments: dict[str, Any] = {"split": split, "checkpoint": checkpoint, "seed": seed}
    arguments |= {"layers": layers, "positions": positions, "dtype": dtype}
    if on:
        refuse_unknown(on, ["ray"])
    states = Tap(study, **arguments)
    if forecast or not as_json:
        expected = states.forecast()
        print_json(expected.to_json()) if as_json else print("\n".join(expected.lines()))
    if not forecast:
        workers = _ray_workers(threads, code, address, cpus_per_cell, gpus_per_cell)
        facts = tap_on_ray(states, arguments, workers) if on else states.write()
        print_json(facts) if as_json else print("\n".join(f"{key:18} {value}" for key, value in facts.items()))


def cells(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Annotated[str, opt("Forecast for a100, h100, l4, t4, or cpu: this one, measured.")] = "cpu",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The pieces of a study that can run on their own, those that need no other first: cost, and which are done."""
    from bertvision.train.budget import Machine, budget
    from bertvision.train.cells import Cells

    cells = Cells(make_study(recipe, settings, out, quiet=as_json))
    machine = Machine.named(device)
    try:
        costs, why = budget(cells, machine)["cells"], ""
    except UserError as error:  # the cells are known all the same
        costs, why = [{} for _ in cells.all], str(error)
    rows = [
        {
            "number": number,
            "id": cell.id,
            "kind": "tuning" if cell.epoch is None else "heads and scores",
            "done": cells.is_done(cell),
            "ready": cells.is_ready(cell),
            **{key: cost.get(key) for key in ("flops", "memory_bytes", "hours", "measured_hours")},
        }
        for number, (cell, cost) in enumerate(zip(cells.all, costs))
    ]
    if as_json:
        print_json(rows)
        return
    from bertvision.report.lists import cell_lines

    print("\n".join(cell_lines(rows, machine.name)))
    if why:
        cells.whole.journal.say(f"no forecast: {why}")


def cell(
    recipe: RecipePath,
    only: Annotated[
        str, opt("The id or the number of the cell, see `bertvision cells`; -: read from stdin, one a line.")
    ],
    settings: Settings = None,
    out: Out = None,
    threads: Annotated[int | None, opt("Threads; results depend on it.", min=1)] = None,
    patience: Annotated[float, opt("Seconds to wait for a process that works on the cell.", min=0)] = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Run one cell of a study, or several; the last one completes the run. Starts again where it stopped."""
    from bertvision.train.cells import Cells

    if threads:
        import torch

        torch.set_num_threads(threads)
    run = make_study(recipe, settings, out, quiet=as_json)
    cells = Cells(run)
    for name in map(str.strip, sys.stdin) if only == "-" else [only]:
        cell = cells.named(name)
        if cells.is_done(cell):
            run.journal.say(f"{cell.id}: already done")
        cells.run(cell, patience)
        if not cells.completed and cells.complete():
            print_outcome(run, as_json)
        elif as_json:
            print_json({"id": cell.id, "done": True})


def forecast(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Annotated[str, opt("a100, h100, l4, t4, or cpu: this one, measured.")] = "cpu",
    gpus: Annotated[int, opt("How many of them; with cpu, machines like this one.", min=1)] = 1,
    efficiency: Annotated[
        float | None, opt("Share of the rate that is reached; 0.35 for GPUs, 0.5 for cpu.", min=0.001, max=1)
    ] = None,
    price: Annotated[float, opt("Dollars per hour and device.", min=0)] = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """FLOPs, memory, hours and money of a study and its cells, without weights; nothing is run."""
    from bertvision.train.budget import Machine, budget
    from bertvision.train.cells import Cells

    run = make_study(recipe, settings, out, quiet=True)
    counted = budget(Cells(run), Machine.named(device, gpus, efficiency, price))
    if as_json:
        print_json(counted)
        return
    from bertvision.report.lists import budget_lines

    print("\n".join(budget_lines(counted)))


def _ray_workers(threads: int | None, code: list[str] | None, address: str, cpus: float, gpus: float) -> dict[str, Any]:
    """The options of workers, by the names of `RayTasks`."""
    return {"threads": threads, "code": code or [], "address": address, "cpus": cpus, "gpus": gpus}


def _with_device(settings: list[str] | None, device: str) -> list[str]:
    """The settings, and that of the device if one is given."""
    return [*(settings or ()), *([f"runtime.device={device}"] if device else [])]


def make_study(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool = False) -> Any:
    """The run of a recipe: a study, or one for each variant."""
    from bertvision.recipe import load_recipe
    from bertvision.train import make_run
    from bertvision.train.run_dir import checked

    loaded = load_recipe(recipe, settings or ())
    directory = out or Path("runs") / checked(recipe.stem, f"{recipe}: its name as that of the run", "give --out")
    return make_run(loaded, directory, quiet=quiet)


def _without_variants(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool) -> Any:
    """The study of a recipe; UserError if it has variants."""
    run = make_study(recipe, settings, out, quiet)
    if run.recipe.variants:
        raise UserError(f"{recipe}: has variants; name the recipe.toml that a study left in the directory of one")
    return run


def _begin_each(run: Any) -> Any:
    """Yields the studies of a run one by one, each after its `begin`."""
    for study in run.studies:
        study.begin()
        yield study
