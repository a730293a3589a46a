"""analysis.json: what the members of one checkpoint get right and wrong, and why; from stored predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.files import read_json, write_json
from bertvision.tasks import Dataset
from bertvision.tasks.base import Said
from bertvision.train.compare import write_comparisons
from bertvision.train.stored import Cell, cell, data_of, open_run

if TYPE_CHECKING:
    from bertvision.train.study import Study

FILE = "analysis.json"


def analyze_run(
    directory: Path, *, epoch: float | None = None, seed: int | None = None, quiet: bool = False
) -> dict[str, Any]:
    """The analysis of a run, finished or not; comparisons.json is brought up to date as well."""
    study = open_run(directory, quiet=quiet)
    cell(study, epoch, seed)  # before the data are read
    data = data_of(study, None, ("test",))
    found = write_analysis(study, data, epoch=epoch, seed=seed)
    write_comparisons(study, data)
    return found


def write_analysis(
    study: "Study",
    data: Mapping[str, Dataset] | None = None,
    *,
    epoch: float | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Analyses one checkpoint (the last, of the first seed, unless named) on the test set; writes analysis.json.

    Members are judged at their tuned threshold. Who is alone in being right, who agrees with whom, and the mistakes
    are told of single members; an ensemble is described beside them. Heads that saw a share of the training set, or
    were taken before their training ended, are left out: they are for curves, and would agree with themselves.
    data: the run's data sets, if they are at hand.
    """
    place = cell(study, epoch, seed)
    test = data_of(study, data, ("test",))["test"]
    main = study.task.thresholds(0.0)[-1][0]
    rows = {row["member"]: row for row in place.rows() if row["threshold_from"] == main and not is_partial(row)}
    members = {
        name: Said(place.predictions("test", row.get("parts", name), test), row["threshold"], row["role"] != "ensemble")
        for name, row in rows.items()
    }
    found = study.task.analyse(test, members)
    weights = layer_weights(place)
    for name, entry in found["members"].items():
        entry["layer_weights"] = weights.get(name)
    found = {"checkpoint": place.epoch, "seed": place.seed, "task": study.task.name, **found}
    write_json(study.directory / FILE, found)
    return found


def is_partial(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a head on a share of the training set, or before the end of its training."""
    return bool({"fraction", "head_epochs"} & row.keys())


def is_analysed(study: "Study") -> bool:
    """Whether there is an analysis younger than all scores, of a checkpoint and seed that still have some."""
    path = study.directory / FILE
    if not path.is_file() or path.stat().st_mtime < max(scores.stat().st_mtime for scores in study.scored):
        return False
    try:
        found = read_json(path, "analysis")
    except UserError:
        return False
    about = found if isinstance(found, dict) else {}
    return (about.get("seed"), about.get("checkpoint")) in {(row["seed"], row["checkpoint"]) for row in study.rows()}


def layer_weights(place: Cell) -> dict[str, list[float]]:
    """{member: what it takes from each layer}, for those that have learnt it and are still there."""
    found = {}
    if (place.study.directory / f"seed-{place.seed}" / f"checkpoint-{place.epoch:g}").is_dir():
        for name, head in place.study.members(place.seed, place.epoch).heads.items():
            if (weights := head.layer_weights()) is not None:
                found[name] = [round(float(weight), 6) for weight in weights]
    return found
