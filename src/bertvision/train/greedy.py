"""greedy.json: for every scored checkpoint the ensemble that forward selection on tune makes of its members."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import GREEDY, How, greedy_selection
from bertvision.files import read_json, write_json
from bertvision.tasks import Dataset
from bertvision.train.analysis import is_partial
from bertvision.train.combine import Committee, Sitter
from bertvision.train.compare import Key, compare
from bertvision.train.members import BACKBONE, WEIGHT_BYTES
from bertvision.train.stored import Cell, data_of

if TYPE_CHECKING:
    from bertvision.evaluate.bootstrap import Points
    from bertvision.train.study import Study

FILE = "greedy.json"
HOW: How = "mean"  # of the probabilities: whom selection takes twice weighs twice
Row = dict[str, Any]


def write_greedy(study: "Study", data: Mapping[str, Dataset] | None = None) -> dict[str, Any]:
    """Chooses an ensemble for every scored checkpoint of every seed, from what is stored; writes greedy.json.

    Members, weights and threshold are chosen on tune; `test` has the rows of scores, `comparisons` the differences to
    the backbone over all seeds, as comparisons.json has them of others. A checkpoint with a single member, or one whose
    log-probabilities were not kept, has none. data: the run's data sets, if they are at hand.
    """
    found: list[dict[str, Any]] = []
    points: dict[float, dict[Key, dict[int, Points]]] = {}
    places = _open_cells(study)
    sets = data_of(study, data) if places else {}
    for place in places:
        ensemble, own = _choose(place, sets)
        found.append(ensemble)
        for key, value in own.items():
            points.setdefault(place.epoch, {}).setdefault(key, {})[place.seed] = value
    compared = [{"checkpoint": epoch, **entry} for epoch in sorted(points) for entry in compare(points[epoch])]
    whole = {"ensembles": found, "comparisons": compared}
    write_json(study.directory / FILE, whole)
    return whole


def is_chosen(study: "Study") -> bool:
    """Whether there is a sound greedy.json younger than all scores."""
    path = study.directory / FILE
    if not path.is_file() or path.stat().st_mtime < max(scores.stat().st_mtime for scores in study.scored):
        return False
    try:
        return isinstance(read_json(path, "file of ensembles"), dict)
    except UserError:
        return False


def _open_cells(study: "Study") -> list[Cell]:
    """Those that have several members and what these said."""
    cells = [Cell(study, seed, epoch) for seed in study.recipe.seeds for epoch in study.epochs]
    return [
        place
        for place in cells
        if len(_candidates(place.rows())) > 1
        and all((place.place(split) / "logits.safetensors").is_file() for split in ("tune", "test"))
    ]


def _candidates(rows: Sequence[Row]) -> list[str]:
    """Backbone and heads as they were in the end; heads that saw a share of the training set join nobody."""
    return list(dict.fromkeys(row["member"] for row in rows if row["role"] != "ensemble" and not is_partial(row)))


def _choose(place: Cell, data: Mapping[str, Dataset]) -> tuple[dict[str, Any], "dict[Key, Points]"]:
    """The ensemble of a checkpoint as ensemble.json describes one; its points and the backbone's, per question."""
    task, known = place.study.task, place.rows()
    sitters = [Sitter(name, place.epoch, place.seed) for name in _candidates(known)]
    committee = Committee(place.study, HOW, sitters, data)
    labels = [one.label for one in sitters]
    weights, _ = greedy_selection(labels, lambda shares: committee.tuned(shares)[1])
    chosen = [one.member for one in sitters if one.label in weights]
    rows = [{**row, "member": GREEDY, **_price(known, chosen)} for row in committee.report(weights)]
    points: dict[Key, Points] = {}
    said = committee.predict("test", weights)
    base = place.predictions("test", BACKBONE, data["test"])
    for row in rows:
        points[row["threshold_from"], GREEDY] = task.points(said, data["test"], row["threshold"])
    for row in known:
        if row["member"] == BACKBONE:
            points[row["threshold_from"], BACKBONE] = task.points(base, data["test"], row["threshold"])
    return {"chosen": "greedy", **committee.description(weights, rows)}, points


def _price(rows: Sequence[Row], chosen: Sequence[str]) -> Row:
    """What the chosen take together, from what their rows say of each; they share one encoder."""
    price = {row["member"]: row for row in rows if row["role"] != "ensemble"}
    parts = [price[name] for name in chosen]
    heads = sum(row["parameters"] for row in parts if row["member"] != BACKBONE)
    seconds = sum(row["head_seconds"] for row in parts)
    # The first as it stands, and of every other what it adds to the encoder.
    added = heads if BACKBONE in chosen else heads - parts[0]["parameters"]
    first = price[BACKBONE] if BACKBONE in chosen else parts[0]
    return {
        "parameters": sum(row["parameters"] for row in parts),
        "total_parameters": first["total_parameters"] + added,
        "tuning_seconds": first["tuning_seconds"],
        "head_seconds": round(seconds, 3),
        "train_seconds": round(first["tuning_seconds"] + seconds, 3),
        "disk_bytes": first["disk_bytes"] + WEIGHT_BYTES * added,
    }
