"""Verbs for several processes or machines: the cells of a study, and what they will cost."""

from typing import Annotated

from bertvision.cli.options import AsJson, Code, Out, RecipePath, Settings, opt, print_json
from bertvision.cli.studies import make_study, print_outcome
from bertvision.errors import UserError


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
    from bertvision.report.terminal import cell_lines

    print("\n".join(cell_lines(rows, machine.name)))
    if why:
        found.whole.journal.say(f"no forecast: {why}")


def cell(
    recipe: RecipePath,
    only: Annotated[str, opt("The id or the number of the cell; see `bertvision cells`.")],
    settings: Settings = None,
    out: Out = None,
    threads: Annotated[int | None, opt("Threads; results depend on it.", min=1)] = None,
    patience: Annotated[float, opt("Seconds to wait for a process that works on the cell.", min=0)] = 0,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Run one cell of a study; the last one completes the run. Starts again where it stopped."""
    from bertvision.train.cells import Cells

    if threads:
        import torch

        torch.set_num_threads(threads)
    job = make_study(recipe, settings, out, quiet=as_json)
    found = Cells(job)
    one = found.named(only)
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
    from bertvision.report.terminal import budget_lines

    print("\n".join(budget_lines(found)))
