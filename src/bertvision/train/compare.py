"""Comparisons of members with the backbone, at their checkpoint and at their cost; the analysis of one checkpoint."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Contrast, Points, bootstrap
from bertvision.evaluate.ensemble import BACKBONE
from bertvision.evaluate.score import Cost, EqualCost, equal_cost
from bertvision.files import read_json, write_json
from bertvision.tasks.base import Judged
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.run_results import Key, StoredResults

DRAWS = 1000
EQUAL = ("train_seconds", "train_flops")  # costs at which members are compared with the backbone
K = TypeVar("K", bound=Hashable)


class Measured(NamedTuple):
    """Points of a member, and its cost, of one seed."""

    points: Points
    cost: Cost


Measures = dict[float, dict[Key, dict[int, Measured]]]  # epoch -> (origin of the threshold, name) -> seed


def write_comparisons(stored: StoredResults, *, whole: bool = True) -> list[dict[str, Any]]:
    """Brings comparisons.json up to date: every ensemble against the backbone of its checkpoint; its entries.

    What a head can gain is kept apart: better spans (`HasAns_spans_f1`, "no answer" switched off), a better
    calibrated null (threshold_from "zero"), and the score at the tuned threshold ("tune"). Entries of checkpoints
    whose score files are the same as before stay. whole: whether the members are compared at equal cost too, which
    takes all checkpoints: `equal_cost` of the file, see `compare_equal_cost`.
    """
    run = stored.run
    previous = _read_comparisons(run.comparisons_file)
    made_from, entries = {}, []
    for epoch in sorted({epoch for _, epoch in run.scored()}):
        key = f"{epoch:g}"
        made_from[key] = run.digest(epoch=epoch)
        if previous["made_from"].get(key) == made_from[key]:
            entries += [entry for entry in previous["comparisons"] if entry.get("checkpoint") == epoch]
            continue
        points: dict[Key, dict[int, Points]] = {}
        for cell in [cell for cell in run.scored() if cell[1] == epoch]:
            for row_key, value in stored.points(cell).items():
                points.setdefault(row_key, {})[cell[0]] = value
        entries += [{"checkpoint": epoch, **entry} for entry in compare(points)]
    current = previous["made_from"].get("equal_cost") == run.digest()
    if whole or current:
        made_from["equal_cost"] = run.digest()
    equal = previous["equal_cost"] if current else compare_equal_cost(measures(stored)) if whole else []
    write_json(run.comparisons_file, {"made_from": made_from, "comparisons": entries, "equal_cost": equal})
    return entries


def _read_comparisons(path: Path) -> dict[str, Any]:
    """The contents of the file; empty if it is damaged."""
    try:
        contents = read_json(path, "file of comparisons")
        tables = [contents["comparisons"], contents.setdefault("equal_cost", [])]
        entries = [entry for table in tables for entry in table]
        if isinstance(contents["made_from"], dict) and all(isinstance(entry, dict) for entry in entries):
            return contents
    except (UserError, KeyError, TypeError):
        pass
    return {"made_from": {}, "comparisons": [], "equal_cost": []}


def join_comparisons(run: RunDir, variants: Mapping[str, StoredResults]) -> None:
    """comparisons.json of a run with variants: the entries of each, with its `variant`; `variants`: each against the
    first."""
    scored = {name: results for name, results in variants.items() if results.run.scored()}
    previous = _read_comparisons(run.comparisons_file)
    made_from = {name: results.run.digest() for name, results in scored.items()}
    contents: dict[str, Any] = {"made_from": made_from, "comparisons": [], "equal_cost": []}
    for name, results in scored.items():
        for key, entries in _read_comparisons(results.run.comparisons_file).items():
            if key != "made_from":
                contents[key] += [{**entry, "variant": name} for entry in entries]
    current = previous["made_from"] == made_from and "variants" in previous
    contents["variants"] = previous["variants"] if current else compare_variants(scored)
    write_json(run.comparisons_file, contents)


def compare_variants(variants: Mapping[str, StoredResults], draws: int = DRAWS) -> list[dict[str, Any]]:
    """The backbone of each variant against that of the first, `against`, each at its last checkpoint.

    Only variants with the same test set; over the seeds that both have.
    """
    if len(variants) < 2:
        return []
    (against, first), *others = variants.items()
    first_backbones, compared = _last_backbones(first), list[dict[str, Any]]()
    for name, results in others:
        if results.task.name != first.task.name:
            continue
        if results.run.recipe().data == first.run.recipe().data:
            results.data = results.data or first.data  # read once
        backbones = _last_backbones(results, like=first_backbones)
        contrasts = {
            origin: {
                seed: [(1.0, backbones[seed][1][origin]), (-1.0, first_backbones[seed][1][origin])]
                for seed in backbones
            }
            for origin in next((points for _, points in backbones.values()), {})
        }
        about = {"variant": name, "against": against, "checkpoint": max(results.run.epochs), "member": BACKBONE}
        for origin, entries in _intervals(contrasts, draws).items():  # type: ignore[arg-type]
            compared += [{**about, "threshold_from": origin, **entry} for entry in entries]
    return compared


LastBackbones = dict[int, tuple[str, dict[str, Points]]]  # seed -> digest of the test set, threshold's origin -> points


def _last_backbones(stored: StoredResults, like: LastBackbones | None = None) -> LastBackbones:
    """The points of the backbone at the last checkpoint. like: only seeds with the same test set there."""
    backbones: LastBackbones = {}
    for seed, epoch in [cell for cell in stored.run.scored() if cell[1] == max(stored.run.epochs)]:
        note = stored.run.sets_file(seed, epoch)
        test = str(read_json(note, "note of the sets scored").get("test")) if note.is_file() else ""
        if like is None or (seed in like and like[seed][0] == test):
            points = stored.points((seed, epoch))
            backbones[seed] = test, {origin: values for (origin, name), values in points.items() if name == BACKBONE}
    return backbones


def compare(points: Mapping[Key, Mapping[int, Points]], draws: int = DRAWS) -> list[dict[str, Any]]:
    """Entries of comparisons.json for one checkpoint, from {(origin of the threshold, name): {seed: points}}.

    Over the seeds that both sides have: those of an ensemble may be fewer, where a head was dropped.
    """
    contrasts: dict[Key, dict[int, Contrast]] = {}
    for (origin, name), runs in points.items():
        backbone = points.get((origin, BACKBONE), {})
        pairs = {seed: [(1.0, runs[seed]), (-1.0, backbone[seed])] for seed in backbone if seed in runs}
        if name != BACKBONE and pairs:
            contrasts[origin, name] = pairs  # type: ignore[assignment]
    return [
        {"member": name, "threshold_from": origin, **entry}
        for (origin, name), entries in _intervals(contrasts, draws).items()
        for entry in entries
    ]


def measures(stored: StoredResults) -> Measures:
    """The points and costs of all members of all checkpoints."""
    measured: Measures = {}
    for cell in stored.run.scored():
        points = stored.points(cell)
        for row in stored.run.rows(cell):
            key = row.threshold_from, row.name
            measured.setdefault(cell[1], {}).setdefault(key, {})[cell[0]] = Measured(points[key], row.cost)
    return measured


def compare_equal_cost(measured: Measures, draws: int = DRAWS) -> list[dict[str, Any]]:
    """Every member against the backbone tuned, with the same seed, for as long as the member took in all.

    That backbone's score is interpolated between checkpoints. An entry has, beside what `compare` gives, `by` (the
    cost that is equal) and its mean over seeds `cost`; `epoch`: the epochs of tuning with that cost; and `how`:
    "exact" if a checkpoint has this cost, "interpolated", or "beyond" if the backbone was not tuned that long with some
    seed, and is the last checkpoint.
    """
    return [entry for by in EQUAL for entry in _equal_cost(measured, by, draws)]


def _equal_cost(measured: Measures, by: str, draws: int) -> Iterator[dict[str, Any]]:
    contrasts: dict[tuple[float, str, str], dict[int, Contrast]] = {}
    rivals: dict[tuple[float, str, str], list[tuple[float, EqualCost]]] = {}
    for epoch in sorted(measured):
        for (origin, name), seeds in measured[epoch].items():
            key = epoch, origin, name
            for seed, member in seeds.items() if name != BACKBONE else ():
                tuned = _backbones_with_cost(measured, origin, seed, by)
                cost = getattr(member.cost, by)
                if epoch not in tuned or cost is None:
                    continue
                rival = equal_cost({e: getattr(backbone.cost, by) for e, backbone in tuned.items()}, cost)
                rivals.setdefault(key, []).append((cost, rival))
                blend = [(-share, tuned[e].points) for e, share in rival.weights.items()]
                contrasts.setdefault(key, {})[seed] = [(1.0, member.points), *blend]
    for key, entries in _intervals(contrasts, draws).items():
        named = dict(zip(("checkpoint", "threshold_from", "member"), key))
        about = _describe_rivals(by, rivals[key])
        yield from (named | entry | about for entry in entries)


def _backbones_with_cost(measured: Measures, origin: str, seed: int, by: str) -> dict[float, Measured]:
    """{epoch: the backbone of a seed} at all checkpoints where this cost of it is known."""
    backbones = {epoch: members.get((origin, BACKBONE), {}).get(seed) for epoch, members in measured.items()}
    return {epoch: known for epoch, known in backbones.items() if known and getattr(known.cost, by) is not None}


def _describe_rivals(by: str, rivals: Sequence[tuple[float, EqualCost]]) -> dict[str, Any]:
    """The part of an entry that describes the backbones of equal cost, one per seed."""
    epochs = [rival.epoch for _, rival in rivals if rival.epoch is not None]
    how = max((rival.how for _, rival in rivals), key=("exact", "interpolated", "beyond").index)
    cost = fmean(cost for cost, _ in rivals)
    return {"by": by, "cost": cost, "epoch": fmean(epochs) if len(epochs) == len(rivals) else None, "how": how}


def _intervals(contrasts: Mapping[K, Mapping[int, Contrast]], draws: int) -> dict[K, list[dict[str, Any]]]:
    """Entries of each contrast, one per metric. Contrasts with the same seeds share the resamples."""
    groups: dict[tuple[int, ...], list[K]] = {}
    for key, runs in contrasts.items():
        groups.setdefault(tuple(runs), []).append(key)
    entries: dict[K, list[dict[str, Any]]] = {}
    for seeds, keys in groups.items():
        questions = len(contrasts[keys[0]][seeds[0]][0][1].values)
        about = {"seeds": list(seeds), "questions": questions, "draws": draws}
        intervals = bootstrap({key: list(contrasts[key].values()) for key in keys}, draws=draws)
        for key, metrics in intervals.items():
            entries[key] = [{"metric": metric, **asdict(interval), **about} for metric, interval in metrics.items()]
    return {key: entries[key] for key in contrasts}


def analyze_run(directory: Path, *, epoch: float | None = None, seed: int | None = None) -> dict[str, Any]:
    """The analysis of a run, finished or not; comparisons.json is brought up to date as well."""
    stored = StoredResults.open(directory)
    analysis = write_analysis(stored, stored.run.cell(epoch, seed))
    write_comparisons(stored)
    return analysis


def write_analysis(stored: StoredResults, cell: Cell | None = None) -> dict[str, Any]:
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
    judged = {
        row.name: Judged(stored.predictions(row.ensemble, "test"), row.threshold, row.ensemble.is_single)
        for row in rows
    }
    analysis = task.analyse(test, judged)
    weights = _layer_weights(stored, cell)
    for name, entry in analysis["members"].items():
        entry["layer_weights"] = weights.get(name)
    analysis = {"made_from": run.digest(), "checkpoint": cell[1], "seed": cell[0], "task": task.name, **analysis}
    write_json(run.analysis_file, analysis)
    return analysis


def _layer_weights(stored: StoredResults, cell: Cell) -> dict[str, list[float]]:
    """{member: what it takes from each layer}, for heads that have learnt it and are still there."""
    if not stored.run.checkpoint(*cell).is_dir():
        return {}
    heads = {member.name: head.encoder_weights() for member, head in stored.load(*cell).heads.items()}
    return {
        name: [round(float(weight), 6) for weight in weights] for name, weights in heads.items() if weights is not None
    }
