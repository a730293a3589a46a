"""Looking back at scores: comparisons with the backbone (paired bootstrap), and the analysis of one checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points, paired_bootstrap
from bertvision.evaluate.ensemble import BACKBONE
from bertvision.files import read_json, write_json
from bertvision.tasks.base import Said
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.stored import Key, Stored

DRAWS = 1000


def write_comparisons(stored: Stored) -> list[dict[str, Any]]:
    """Brings comparisons.json up to date: every ensemble against the backbone of its checkpoint; its entries.

    What a head can gain is kept apart: better spans (`HasAns_spans_f1`, "no answer" switched off), a better
    calibrated null (threshold_from "zero"), and the score at the tuned threshold ("tune"). Entries of checkpoints
    whose score files are the same as before stay.
    """
    run = stored.run
    known = _known(run.comparisons_file)
    made_from, found = {}, []
    for epoch in sorted({epoch for _, epoch in run.scored()}):
        key = f"{epoch:g}"
        made_from[key] = run.digest(epoch=epoch)
        if known["made_from"].get(key) == made_from[key]:
            found += [entry for entry in known["comparisons"] if entry.get("checkpoint") == epoch]
            continue
        points: dict[Key, dict[int, Points]] = {}
        for cell in [cell for cell in run.scored() if cell[1] == epoch]:
            for name, value in stored.points(cell).items():
                points.setdefault(name, {})[cell[0]] = value
        found += [{"checkpoint": epoch, **entry} for entry in compare(points)]
    write_json(run.comparisons_file, {"made_from": made_from, "comparisons": found})
    return found


def _known(path: Path) -> dict[str, Any]:
    """What the file holds; nothing if it is damaged."""
    try:
        found = read_json(path, "file of comparisons")
        if isinstance(found["made_from"], dict) and all(isinstance(one, dict) for one in found["comparisons"]):
            return found
    except (UserError, KeyError, TypeError):
        pass
    return {"made_from": {}, "comparisons": []}


def join_comparisons(run: RunDir) -> None:
    """comparisons.json of a run with variants: the entries of each, with its `variant`."""
    variants = {name: one for name, one in run.variants().items() if one.comparisons_file.is_file()}
    found = [{**entry, "variant": name} for name, one in variants.items() for entry in one.comparisons()]
    write_json(run.comparisons_file, {"made_from": {}, "comparisons": found})


def compare(points: Mapping[Key, Mapping[int, Points]], draws: int = DRAWS) -> list[dict[str, Any]]:
    """Entries of comparisons.json for one checkpoint, from {(origin of the threshold, name): {seed: points}}.

    Over the seeds that both sides have: those of an ensemble may be fewer, where a head was dropped.
    """
    found: dict[Key, list[dict[str, Any]]] = {}
    for origin in dict.fromkeys(origin for origin, _ in points):
        backbone = points.get((origin, BACKBONE), {})
        groups: dict[tuple[int, ...], list[str]] = {}  # names by their seeds: those share the resamples
        for kind, name in points:
            seeds = tuple(seed for seed in backbone if seed in points[kind, name])
            if kind == origin and name != BACKBONE and seeds:
                groups.setdefault(seeds, []).append(name)
        for seeds, names in groups.items():
            against = [backbone[seed] for seed in seeds]
            runs = {name: [points[origin, name][seed] for seed in seeds] for name in names}
            about = {"seeds": list(seeds), "questions": len(against[0].values), "draws": draws}
            for name, intervals in paired_bootstrap(runs, against, draws=draws).items():
                found[origin, name] = [
                    {
                        "member": name,
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


def analyze_run(directory: Path, *, epoch: float | None = None, seed: int | None = None) -> dict[str, Any]:
    """The analysis of a run, finished or not; comparisons.json is brought up to date as well."""
    stored = Stored.open(directory)
    found = write_analysis(stored, stored.run.cell(epoch, seed))
    write_comparisons(stored)
    return found


def write_analysis(stored: Stored, cell: Cell | None = None) -> dict[str, Any]:
    """Analyses one checkpoint (the last, of the first seed, unless named) on the test set; writes analysis.json.

    Members are judged at their tuned threshold. Agreement and mistakes are those of single members; an ensemble is
    described beside them. Partial heads are left out: they are for curves, and would agree with themselves.
    """
    run, task = stored.run, stored.task
    cell = cell or run.cell()
    test = stored.sets("test")["test"]
    main = task.thresholds(0.0)[-1][0]
    rows = [
        row
        for row in run.rows(cell)
        if row.threshold_from == main and not (row.ensemble.is_single and row.ensemble.members[0].is_partial)
    ]
    said = {
        row.name: Said(stored.predictions(row.ensemble, "test"), row.threshold, row.ensemble.is_single) for row in rows
    }
    found = task.analyse(test, said)
    weights = _layer_weights(stored, cell)
    for name, entry in found["members"].items():
        entry["layer_weights"] = weights.get(name)
    found = {"made_from": run.digest(), "checkpoint": cell[1], "seed": cell[0], "task": task.name, **found}
    write_json(run.analysis_file, found)
    return found


def _layer_weights(stored: Stored, cell: Cell) -> dict[str, list[float]]:
    """{member: what it takes from each layer}, for heads that have learnt it and are still there."""
    if not stored.run.checkpoint(*cell).is_dir():
        return {}
    heads = {member.name: head.layer_weights() for member, head in stored.load(*cell).heads.items()}
    return {
        name: [round(float(weight), 6) for weight in weights] for name, weights in heads.items() if weights is not None
    }
