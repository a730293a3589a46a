"""Verbs that run a recipe: the whole study, its parts, and the search for better heads."""

from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.options import AsJson, Code, Out, RecipePath, Seed, Settings, opt, print_json, print_table
from bertvision.errors import UserError


def study(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    tensorboard: Annotated[bool, opt("Also write curves to tensorboard/ of the run.", "--tensorboard")] = False,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """The main job: everything from tuning to the report. Starts again where it stopped."""
    from bertvision.report.page import write_pages
    from bertvision.report.reading import read_study
    from bertvision.serve.build import leave_reader

    job = _study(recipe, settings, out, quiet=as_json)
    if tensorboard:
        from bertvision.train.progress import Scalars

        for one in job.studies:
            one.journal.scalars = Scalars(one.directory / "tensorboard")
    job.run()
    readers = [leave_reader(one.directory) for one in job.studies if one.task.served]
    found = read_study(job.directory)
    page = write_pages(found, job.directory)
    rows = [score.to_json() for score in found.scores]
    if as_json:
        print_json(rows)
        return
    print_table(rows)
    print(f"report: {page}")
    print("\n".join(f"reader: {reader}" for reader in readers))


def finetune(
    recipe: RecipePath, settings: Settings = None, out: Out = None, code: Code = None, as_json: AsJson = False
) -> None:
    """Tune the backbone of a recipe and keep its checkpoints."""
    job = _study(recipe, settings, out, quiet=as_json)
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
    recipe: RecipePath, settings: Settings = None, out: Out = None, code: Code = None, as_json: AsJson = False
) -> None:
    """Train the bank of heads on every checkpoint that `finetune` has left in the run."""
    job = _study(recipe, settings, out, quiet=as_json)
    if not all(one.recipe.heads for one in job.studies):
        raise UserError(f"{recipe}: heads: there are none to train; add [[heads]] with a kind")
    job.begin()
    paths = [str(one.train(seed, epoch)) for one in _begun(job) for seed in one.recipe.seeds for epoch in one.epochs]
    print_json(paths) if as_json else print("\n".join(paths))


def search(
    recipe: RecipePath,
    trials: Annotated[int, opt("How many heads to try in all.", min=1)] = 32,
    size: Annotated[int, opt("How many are trained at once, in the same passes.", "--round", min=1)] = 8,
    settings: Settings = None,
    out: Out = None,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Search for better heads on the last checkpoint, compared on the tuning set. Starts again where it stopped."""
    from bertvision.train.search import Search

    job = Search(_single(recipe, settings, out, quiet=as_json), trials=trials, size=size)
    rows = job.run()
    if as_json:
        print_json({"best": str(job.best), "trials": rows})
        return
    from bertvision.report.terminal import print_trials

    print_trials(rows, job.metric)
    print(f"best heads: {job.best}")


def tap(
    recipe: RecipePath,
    settings: Settings = None,
    out: Out = None,
    split: Annotated[str, opt("train, tune or test.")] = "train",
    checkpoint: Annotated[float | None, opt("Epoch of the checkpoint; the last, else the untuned encoder.")] = None,
    seed: Seed = None,
    layers: Annotated[str, opt("all, last, or numbers: 0,6,12; 0 is the embedding output.")] = "all",
    positions: Annotated[str, opt("all tokens, or cls.")] = "all",
    dtype: Annotated[str, opt("fp16, int8 or fp32.")] = "fp16",
    forecast: Annotated[bool, opt("Only print the expected cost; write nothing.", "--forecast")] = False,
    code: Code = None,
    as_json: AsJson = False,
) -> None:
    """Write the hidden states of a split to a store in the run. Starts again where it stopped."""
    from bertvision.train.tap import Tap

    job = _single(recipe, settings, out, quiet=as_json)
    what: dict[str, Any] = {"layers": layers, "positions": positions, "dtype": dtype}
    source = Tap(job, split=split, checkpoint=checkpoint, seed=seed, **what)
    if forecast or not as_json:
        expected = source.forecast()
        print_json(expected.to_json()) if as_json else print("\n".join(expected.lines()))
    if not forecast:
        found = source.write()
        print_json(found) if as_json else print("\n".join(f"{key:18} {value}" for key, value in found.items()))


def _study(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool = False) -> Any:
    from bertvision.recipe import load_recipe
    from bertvision.train.run_dir import checked
    from bertvision.train.series import make_run

    loaded = load_recipe(recipe, settings or ())
    place = out or Path("runs") / checked(recipe.stem, f"{recipe}: its name as that of the run", "give --out")
    return make_run(loaded, place, quiet=quiet)


def _single(recipe: Path, settings: list[str] | None, out: Path | None, quiet: bool) -> Any:
    """A study without variants."""
    job = _study(recipe, settings, out, quiet)
    if job.recipe.variants:
        raise UserError(f"{recipe}: has variants; name the recipe.toml that a study left in the directory of one")
    return job


def _begun(job: Any) -> Any:
    """The studies of a run, one after the other, each with its directory claimed."""
    for one in job.studies:
        one.begin()
        yield one
