"""analysis.json: what the members of one checkpoint get right and wrong, and why; from stored predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.evaluate.analysis import agreement, describe, judge
from bertvision.evaluate.mistakes import instructive
from bertvision.evaluate.text_analysis import (
    describe_labels,
    describe_scores,
    label_agreement,
    label_mistakes,
    score_agreement,
    score_mistakes,
)
from bertvision.files import write_json
from bertvision.tasks import Dataset
from bertvision.tasks.protocol import gold_of
from bertvision.train.compare import write_comparisons
from bertvision.train.stored import Cell, cell, data_of, open_run

if TYPE_CHECKING:
    from bertvision.train.study import Study

Rows = Mapping[str, Mapping[str, Any]]  # member -> its row of metrics.json


def analyze_run(
    directory: Path, *, epoch: float | None = None, seed: int | None = None, quiet: bool = False
) -> dict[str, Any]:
    """The analysis of a run, finished or not; comparisons.json is brought up to date as well."""
    study = open_run(directory, quiet=quiet)
    data = data_of(study)
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
    are told of single members; an ensemble is described beside them. data: the run's data sets, if they are at hand.
    """
    test = data_of(study, data)["test"]
    place = cell(study, epoch, seed)
    main = study.task.thresholds(0.0)[-1][0]
    rows = {row["member"]: row for row in place.rows() if row["threshold_from"] == main}
    found = ANALYSES[study.task.name](place, test, rows)
    weights = layer_weights(place)
    for name, entry in found["members"].items():
        entry["layer_weights"] = weights.get(name)
    found = {"checkpoint": place.epoch, "seed": place.seed, "task": study.task.name, **found}
    write_json(study.directory / "analysis.json", found)
    return found


def _spans(place: Cell, test: Dataset, rows: Rows) -> dict[str, Any]:
    verdicts = {
        name: judge(test.records, place.predictions("test", row.get("parts", name)), row["threshold"])
        for name, row in rows.items()
    }
    singles = {name: verdict for name, verdict in verdicts.items() if rows[name]["role"] != "ensemble"}
    return {
        "members": {
            name: describe(test.records, verdict, [one for other, one in singles.items() if other != name])
            for name, verdict in verdicts.items()
        },
        "agreement": agreement({name: verdict.answers for name, verdict in singles.items()}),
        "errors": instructive(test.records, singles),
    }


def _labels(place: Cell, test: Dataset, rows: Rows) -> dict[str, Any]:
    gold, found, singles = _texts(place, test, rows)
    return {
        "members": {name: describe_labels(gold, one) for name, one in found.items()},
        "agreement": label_agreement(singles),
        "errors": label_mistakes(test.records, gold, singles),
    }


def _score(place: Cell, test: Dataset, rows: Rows) -> dict[str, Any]:
    gold, found, singles = _texts(place, test, rows)
    return {
        "members": {name: describe_scores(gold, one) for name, one in found.items()},
        "agreement": score_agreement(singles),
        "errors": score_mistakes(test.records, gold, singles),
    }


def _texts(place: Cell, test: Dataset, rows: Rows) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Gold, the predictions of all members, and those of single ones."""
    found = {name: place.predictions("test", row.get("parts", name)) for name, row in rows.items()}
    return gold_of(test), found, {name: one for name, one in found.items() if rows[name]["role"] != "ensemble"}


ANALYSES = {"spans": _spans, "labels": _labels, "score": _score}


def layer_weights(place: Cell) -> dict[str, list[float]]:
    """{member: what it takes from each layer}, for those that have learnt it and are still there."""
    found = {}
    if (place.study.directory / f"seed-{place.seed}" / f"checkpoint-{place.epoch:g}").is_dir():
        for name, head in place.study.members(place.seed, place.epoch).heads.items():
            if (weights := head.layer_weights()) is not None:
                found[name] = [round(float(weight), 6) for weight in weights]
    return found
