"""Score rows for tests, from what they are to show.

from report.rows import comparison, row, scored, study, summarised, with_ensemble
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.evaluate.ensemble import BEST, GREEDY, Ensemble, Member
from bertvision.evaluate.score import Score
from bertvision.report.reading import Study, study_of
from bertvision.report.rows import Row, summarise
from bertvision.train.run_contents import Contents

Plain = dict[str, Any]


def row(member: str, f1: float, kind: str = "tune", checkpoint: float = 1.0, seed: int = 1, **more: Any) -> Plain:
    """A row of metrics.json as it shows a member: `backbone`, `pool`, `backbone + pool`, BEST or GREEDY."""
    key = {"seed": seed, "checkpoint": checkpoint, "member": member, "threshold_from": kind}
    return with_ensemble(key | {"exact": f1 - 2, "f1": f1} | more)


def comparison(difference: float, low: float | None, high: float | None, member: str = "pool", **more: Any) -> Plain:
    """An entry of comparisons.json: of F1 at the tuned threshold of checkpoint 1, unless `more` says otherwise."""
    key = {"checkpoint": 1.0, "member": member, "threshold_from": "tune", "metric": "f1", "seeds": [1]}
    return key | {"difference": difference, "low": low, "high": high} | more


def with_ensemble(numbers: Mapping[str, Any], name: str = "") -> Plain:
    """The row with its ensemble, its threshold and its display name."""
    name = name or numbers["member"]
    seed_and_epoch = (numbers.get("seed", 1), float(numbers.get("checkpoint", 1.0)))
    backbone, pool = Member("", *seed_and_epoch), Member("pool", *seed_and_epoch)
    if name in (BEST, GREEDY):
        weights = (0.5, 0.5) if name == GREEDY else ()
        how, chosen = ("mean", "greedy") if name == GREEDY else ("max", "best")
        ensemble = Ensemble((backbone, pool), weights, how, chosen)  # type: ignore[arg-type]
    elif name.startswith("backbone + "):
        ensemble = Ensemble((backbone, Member(name.removeprefix("backbone + "), *seed_and_epoch)), chosen="pair")
    else:
        head = "" if name == "backbone" else name
        ensemble = Ensemble.of(Member(head, *seed_and_epoch, numbers.get("fraction", 1.0), numbers.get("head_epochs")))
    return {"threshold": 0.0, "threshold_from": "", **numbers, "member": ensemble.name, "ensemble": ensemble.to_json()}


def scored(rows: Iterable[Mapping[str, Any]]) -> list[Score]:
    return [Score.from_json(entry if "ensemble" in entry else with_ensemble(entry), "test") for entry in rows]


def summarised(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    return summarise(scored(rows))


def study(rows: Sequence[Mapping[str, Any]] = (), comparisons: Sequence[Plain] = (), **more: Any) -> Study:
    """A study of these rows. more: other contents of its run."""
    return study_of(Contents(Path("x"), scores=scored(rows), comparisons=list(comparisons), **more), "x")
