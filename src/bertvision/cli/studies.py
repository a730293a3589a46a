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

    job = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    if tensorboard or trackio:
        _write_curves(job, tensorboard, trackio)
    if on:
        if tensorboard or trackio:
            option = "--tensorboard" if tensorboard else "--trackio"
            raise UserError(f"{option}: curves are not written by cells; leave out --on, or this")
        from bertvision.train.cells import Cells
        from bertvision.train.workers import run_on

        where: dict[str, Any] = {"jobs": jobs, "threads": threads, "address": address, "code": code or []}
        run_on(Cells(job), on, **where, cpus=cpus_per_cell, gpus=gpus_per_cell)
    else:
        job.run()
    if is_main():
        print_outcome(job, as_json)


def _write_curves(job: Any, tensorboard: bool, trackio: bool) -> None:
    """Has the curves of a study written as it runs."""
    from bertvision.train.trackers import Scalars, TrackioWriter, need_trackio

    if tensorboard and trackio:
        raise UserError("--trackio: choose either this or --tensorboard")
    if trackio:
        need_trackio()
    for one in job.studies:
        place = one.run_dir.trackio if trackio else one.run_dir.tensorboard
        one.journal.scalars = Scalars(place, TrackioWriter if trackio else None)


def print_outcome(job: Any, as_json: bool) -> None:
    """Writes report and readers of a finished run, and prints its scores."""
    from bertvision.report.page import write_pages
    from bertvision.report.reading import read_study
    from bertvision.serve.build import leave_reader

    readers = [leave_reader(one.directory) for one in job.studies if one.task.served]
    found = read_study(job.directory)
    page = write_pages(found, job.directory)
    if as_json:
        print_json([score.to_json() for score in found.scores])
        return
    from bertvision.report.terminal import print_study

    print_study(found)
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
    job = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    job.begin()
    found = {
        str(one.directory): {
            seed: {f"{epoch:g}": str(c.directory) for epoch, c in one.tune(seed).items()} for seed in one.recipe.seeds
        }
        for one in _begun(job)
    }
    if as_json:
        print_json(found if job.recipe.variants else found[str(job.directory)])
        return
    print("\n".join(path for seeds in found.values() for paths in seeds.values() for path in paths.values()))


def train(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    device: Device = "",
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Train the bank of heads on every checkpoint that `finetune` has left in the run."""
    job = make_study(recipe, _with_device(settings, device), out, quiet=as_json)
    if not all(one.recipe.heads for one in job.studies):
        raise UserError(f"{recipe}: heads: there are none to train; add [[heads]] with a kind")
    job.begin()
    paths = [str(one.train(*cell)) for one in _begun(job) for cell in one.run_dir.planned()]
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
    job = Search(_single(recipe, _with_device(settings, device), out, quiet=as_json), trials=trials, size=size)
    how = {"threads": threads, "code": code or [], "address": address, "cpus": cpus_per_cell, "gpus": gpus_per_cell}
    rows = search_on_ray(job, how) if on else job.run()
    if as_json:
        print_json({"best": str(job.best), "trials": rows})
        return
    from bertvision.report.lists import print_trials

    print_trials(rows, job.metric)
    print(f"best heads: {job.best}")


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

    job = _single(recipe, _with_device(settings, device), out, quiet=as_json)
    what: dict[str, Any] = {"split": split, "checkpoint": checkpoint, "seed": seed}
    what |= {"layers": layers, "positions": positions, "dtype": dtype}
    if on:
        refuse_unknown(on, ["ray"])
    source = Tap(job, **what)
    if forecast or not as_json:
        expected = source.forecast()
        print_json(expected.to_json()) if as_json else print("\n".join(expected.lines()))
    if not forecast:
        how = {"threads": threads, "code": code or [], "address": address, "cpus": cpus_per_cell, "gpus": gpus_per_cell}
        found = tap_on_ray(source, what, how) if on else source.write()
        print_json(found) if as_json else print("\n".join(f"{key:18} {value}" for key, value in found.items()))


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

    found = Cells(make_study(recipe, settings, out, quiet=as_json))
    machine = Machine.named(device)
    try:
        costs, why = budget(found, machine)["cells"], ""
    except UserError as error:  # the cells are known all the same
        costs, why = [{} for _ in found.all], str(error)
    rows = [
        {
            "number": number,
            "id": cell.id,
            "kind": "tuning" if cell.epoch is None else "heads and scores",
            "done": found.is_done(cell),
            "ready": found.is_ready(cell),
            **{key: cost.get(key) for key in ("flops", "memory_bytes", "hours", "measured_hours")},
        }
        for number, (cell, cost) in enumerate(zip(found.all, costs))
    ]
    if as_json:
        print_json(rows)
        return
    from bertvision.report.lists import cell_lines

    print("\n".join(cell_lines(rows, machine.name)))
    if why:
        found.whole.journal.say(f"no forecast: {why}")


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
    job = make_study(recipe, settings, out, quiet=as_json)
    found = Cells(job)
    for name in map(str.strip, sys.stdin) if only == "-" else [only]:
        one = found.named(name)
        if found.is_done(one):
            job.journal.say(f"{one.id}: already done")
        found.run(one, patience)
        if not found.completed and found.complete():
            print_outcome(job, as_json)
        elif as_json:
            print_json({"id": one.id, "done": True})


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

    job = make_study(recipe, settings, out, quiet=True)
    found = budget(Cells(job), Machine.named(device, gpus, efficiency, price))
    if as_json:
        print_json(found)
        return
    from bertvision.report.lists import budget_lines

    print("\n".join(budget_lines(found)))


def _with_device(settings: list[str] | None, device: str) -> list[str]:
    return [*(settings or ()), *([f"runtime.device={device}"] if device else [])]


def make_study(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool = False) -> Any:
    """The study or series of a recipe, in the directory of its run."""
    from bertvision.recipe import load_recipe
    from bertvision.train import make_run
    from bertvision.train.run_dir import checked

    loaded = load_recipe(recipe, settings or ())
    place = out or Path("runs") / checked(recipe.stem, f"{recipe}: its name as that of the run", "give --out")
    return make_run(loaded, place, quiet=quiet)


def _single(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool) -> Any:
    """A study without variants."""
    job = make_study(recipe, settings, out, quiet)
    if job.recipe.variants:
        raise UserError(f"{recipe}: has variants; name the recipe.toml that a study left in the directory of one")
    return job


def _begun(job: Any) -> Any:
    """The studies of a run, one after the other, each with its directory claimed."""
    for one in job.studies:
        one.begin()
        yield one
