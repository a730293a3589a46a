"""comparisons.json: every member against the backbone of its checkpoint, with a paired bootstrap over questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points, paired_bootstrap
from bertvision.files import read_json, write_json
from bertvision.tasks import Dataset
from bertvision.train.members import BACKBONE
from bertvision.train.stored import Cell, data_of

if TYPE_CHECKING:
    from bertvision.train.study import Study

FILE = "comparisons.json"
DRAWS = 1000
ENTRY = {"checkpoint", "member", "threshold_from", "metric", "difference", "low", "high", "seeds"}
ROUNDING = 1e-6  # points of a percentage by which two ways of adding up the same scores may differ
Key = tuple[str, str]  # threshold kind, member


def write_comparisons(study: "Study", data: Mapping[str, Dataset] | None = None) -> list[dict[str, Any]]:
    """Brings comparisons.json up to date with what has been scored so far, from stored predictions; its entries.

    What a head can gain is kept apart: better spans (`HasAns_spans_f1`, "no answer" switched off), a better
    calibrated null (threshold_from "zero"), and the score at the tuned threshold ("tune"). Checkpoints whose entries
    agree with the scores are left as they are. data: the run's data sets, if they are at hand.
    """
    rows, known = study.rows(), _known(study.directory / FILE)
    test: Dataset | None = None
    found: list[dict[str, Any]] = []
    for epoch in sorted({row["checkpoint"] for row in rows}):
        here = [row for row in rows if row["checkpoint"] == epoch]
        entries = [entry for entry in known if entry.get("checkpoint") == epoch]
        if not agree(here, entries):
            test = test or data_of(study, data, ("test",))["test"]
            points: dict[Key, dict[int, Points]] = {}
            for seed in dict.fromkeys(row["seed"] for row in here):
                for key, value in _points(Cell(study, seed, epoch), test).items():
                    points.setdefault(key, {})[seed] = value
            entries = [{"checkpoint": epoch, **entry} for entry in compare(points)]
        found += entries
    write_json(study.directory / FILE, found)
    return found


def agree(rows: Sequence[Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether entries of comparisons.json are of the very scores in these rows of one checkpoint: the same members
    over the same seeds, with the same differences."""
    scores: dict[Key, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        scores.setdefault((row["threshold_from"], row["member"]), {})[row["seed"]] = row
    compared = set()
    for entry in entries:
        key, metric = (entry["threshold_from"], entry["member"]), entry["metric"]
        ours, theirs = scores.get(key, {}), scores.get((key[0], BACKBONE), {})
        if entry["seeds"] != [seed for seed in theirs if seed in ours]:
            return False
        apart = [ours[seed][metric] - theirs[seed][metric] for seed in entry["seeds"] if metric in ours[seed]]
        if apart and abs(fmean(apart) - entry["difference"]) > ROUNDING:
            return False
        compared.add(key)
    return compared == {(kind, member) for kind, member in scores if member != BACKBONE}


def _known(path: Path) -> list[dict[str, Any]]:
    """The entries there are; none of a file that is damaged, for it is made anew."""
    try:
        found = read_json(path, "file of comparisons") if path.is_file() else []
    except UserError:
        return []
    whole = isinstance(found, list) and all(isinstance(entry, dict) and entry.keys() >= ENTRY for entry in found)
    return found if whole else []


def join_comparisons(directory: Path, variants: Mapping[str, Path]) -> list[dict[str, Any]]:
    """comparisons.json of a series: the entries of its variants {name: directory}, each with its `variant`."""
    found = []
    for name, place in variants.items():
        if (place / FILE).is_file():
            found += [{**entry, "variant": name} for entry in read_json(place / FILE, "file of comparisons")]
    write_json(directory / FILE, found)
    return found


def compare(points: Mapping[Key, Mapping[int, Points]], draws: int = DRAWS) -> list[dict[str, Any]]:
    """Entries of comparisons.json for one checkpoint, from {(threshold kind, member): {seed: points}}.

    Over the seeds that both sides have: those of a member may be fewer, where a head was dropped.
    """
    found: dict[Key, list[dict[str, Any]]] = {}
    for origin in dict.fromkeys(origin for origin, _ in points):
        backbone = points.get((origin, BACKBONE), {})
        groups: dict[tuple[int, ...], list[str]] = {}  # members by their seeds: those share the resamples
        for kind, member in points:
            seeds = tuple(seed for seed in backbone if seed in points[kind, member])
            if kind == origin and member != BACKBONE and seeds:
                groups.setdefault(seeds, []).append(member)
        for seeds, members in groups.items():
            against = [backbone[seed] for seed in seeds]
            runs = {member: [points[origin, member][seed] for seed in seeds] for member in members}
            for member, intervals in paired_bootstrap(runs, against, draws=draws).items():
                about = {"seeds": list(seeds), "questions": len(against[0].values), "draws": draws}
                found[origin, member] = [
                    {
                        "member": member,
                        "threshold_from": origin,
                        "metric": metric,
                        "difference": interval.difference,
                        "low": interval.low,
                        "high": interval.high,
                        **about,
                    }
                    for metric, interval in intervals.items()
                ]
    return [entry for key in points for entry in found.get(key, [])]


def _points(cell: Cell, test: Dataset) -> dict[Key, Points]:
    """{(threshold kind, member): points} of everything scored at one checkpoint."""
    found: dict[Key, Points] = {}
    kept: dict[str, Any] = {}
    for row in cell.rows():
        parts = row.get("parts", row["member"])
        if parts not in kept:
            kept = {parts: cell.predictions("test", parts, test)}  # a member's rows follow one another
        found[row["threshold_from"], row["member"]] = cell.study.task.points(kept[parts], test, row["threshold"])
    return found
