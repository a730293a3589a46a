"""A finished run -> a reader: the member or ensemble that did best on the tune set, with everything it needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning
from bertvision.data.examples import is_text
from bertvision.errors import UserError
from bertvision.files import read_json
from bertvision.heads import Head, options
from bertvision.recipe import Recipe
from bertvision.serve.card import write_card
from bertvision.serve.config import Cutting, Decoding, Ensemble, ReaderConfig, TaskConfig
from bertvision.serve.engine import TorchEngine
from bertvision.serve.reader import Reader
from bertvision.train.bank import HeadBank, bank_path
from bertvision.train.finetune import Checkpoint
from bertvision.train.study import Study

BACKBONE = "backbone"  # how the head that was tuned with the backbone is called


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a run: heads of one checkpoint and seed that decide together, and their row of scores."""

    seed: int
    epoch: float
    ensemble: Ensemble
    threshold: float
    merit: float
    row: dict[str, Any]


def build_reader(
    run: Path,
    out: Path,
    *,
    checkpoint: float | None = None,
    seed: int | None = None,
    members: Sequence[str] | None = None,
    storage: Any = "fp32",
) -> Path:
    """Writes the reader of a run to `out`: of the last checkpoint (or `checkpoint`) and of all seeds (or `seed`) what
    scored best on tune, be it a single head or an ensemble; or the ensemble of `members`, if it was scored.
    """
    rows = _rows(run)
    if variants := list(dict.fromkeys(row["variant"] for row in rows if row.get("variant"))):
        raise UserError(f"{run}: holds one study per variant; name the directory of one of {', '.join(variants)}")
    epoch = max(row["checkpoint"] for row in rows) if checkpoint is None else checkpoint
    choices = [*_scored(rows), *_committee(run)]
    fitting = [one for one in choices if one.epoch == epoch and seed in (None, one.seed)]
    if members is not None:
        fitting = [one for one in fitting if set(one.ensemble.members) == set(members)]
    if not fitting:
        known = sorted({f"{' + '.join(c.ensemble.members)} (epoch {c.epoch:g}, seed {c.seed})" for c in choices})
        raise UserError(f"{run}: nothing like this was scored; there is: {', '.join(known)}")
    return _assemble(run, max(fitting, key=lambda one: one.merit)).save_pretrained(out, storage=storage)


def leave_reader(run: Path) -> Path:
    """The reader of a finished run, at RUN/reader; one that is younger than the scores stays as it is."""
    place = run / "reader"
    scores = max((path.stat().st_mtime for path in run.glob("seed-*/scores-*.json")), default=0.0)
    if (place / "config.json").is_file() and (place / "config.json").stat().st_mtime > scores:
        return place
    return build_reader(run, place)


def _rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.json at tuned thresholds."""
    rows = read_json(run / "metrics.json", "scores of a run; `bertvision study RECIPE` makes them")
    found = [row for row in rows if row.get("threshold_from") in ("tune", "")]
    if not found:
        raise UserError(f"{run}: nothing has been scored yet; `bertvision study` goes on with it")
    return found


def _merit(row: Mapping[str, Any]) -> float:
    """The main metric on the tune set."""
    return next(float(value) for key, value in row.items() if key.startswith("tune_"))


def _scored(rows: Sequence[dict[str, Any]]) -> Iterator[Choice]:
    for row in rows:
        how = row.get("how", "max")
        members = row["parts"].removesuffix(f", {how}").split(" + ") if "parts" in row else [row["member"]]
        ensemble = Ensemble.of(members, how)
        yield Choice(row["seed"], row["checkpoint"], ensemble, row["threshold"], _merit(row), row)


def _committee(run: Path) -> Iterator[Choice]:
    """The ensemble that `bertvision ensemble` has chosen, if its members share one checkpoint, and so one pass."""
    path = run / "ensemble.json"
    if not path.is_file():
        return
    found = read_json(path, "ensemble")
    members = found["members"]
    if len({(one["checkpoint"], one["seed"]) for one in members}) == 1:
        ensemble = Ensemble.of([one["member"] for one in members], found["how"], [one["weight"] for one in members])
        row = found["test"][-1]
        yield Choice(members[0]["seed"], members[0]["checkpoint"], ensemble, found["threshold"], _merit(row), row)


def _assemble(run: Path, choice: Choice) -> Reader:
    study = Study.open(run, quiet=True)
    recipe, name = study.recipe, study.task.name
    place = run / f"seed-{choice.seed}"
    checkpoint = Checkpoint(place / f"checkpoint-{choice.epoch:g}")
    fingerprint = Backbone.load(recipe.backbone.name).fingerprint
    backbone, head, about = checkpoint.load(study.task, recipe.backbone.name)
    heads, entries = _chosen_heads(place, choice, head, about["head"])
    tuning = {one.name: getattr(recipe.finetune, one.name) for one in fields(Tuning)}
    if about["step"] == 0 and not (tuning["adapters"] or tuning["lora"]):
        tuning = {}  # the encoder as it came
    tasks = {name: _task_config(recipe, choice, study.task.facts())}
    config = ReaderConfig(_lasting(recipe.backbone.name), fingerprint, tuning, tasks)
    notes = {name: {"entries": entries, "outputs": study.task.outputs}}
    card = write_card(recipe.title or run.name, config, choice.row, study.record.read())
    return Reader(config, TorchEngine(backbone, {name: heads}, tasks), about=notes, card=card, name=run.name)


def _chosen_heads(
    place: Path, choice: Choice, joint: Head, joint_entry: Mapping[str, Any]
) -> tuple[dict[str, Head], dict[str, dict[str, Any]]]:
    """The heads of the chosen ensemble by name, and how to build each. place: the directory of the seed."""
    known = {BACKBONE: (joint, joint_entry)}
    if set(choice.ensemble.members) != {BACKBONE}:
        known |= _banked(place, choice.epoch)
    missing = [name for name in choice.ensemble.members if name not in known]
    if missing:
        raise UserError(f"{place}: the head {missing[0]!r} of epoch {choice.epoch:g} is not there; run the study again")
    kept = {name: known[name] for name in choice.ensemble.members}
    return {name: head for name, (head, _) in kept.items()}, {name: _spec(entry) for name, (_, entry) in kept.items()}


def _banked(place: Path, epoch: float) -> dict[str, tuple[Head, Mapping[str, Any]]]:
    """{name: (head, its recipe entry)} of the bank of a checkpoint, and of the same bank K epochs into its training."""
    last = bank_path(place, epoch)
    found: dict[str, tuple[Head, Mapping[str, Any]]] = {}
    for path in [last, *last.parent.glob(f"{last.stem}@*.safetensors")]:
        bank, _ = HeadBank.load(path)
        age = path.stem.partition("@")[2]
        for (name, head), entry in zip(bank.items(), bank.entries):
            found[f"{name}, epoch {float(age):g}" if age else name] = head, entry
    return found


def _spec(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What of a recipe's entry describes the head itself: its kind and that kind's options."""
    known = options(entry["kind"])
    return {key: value for key, value in entry.items() if key == "kind" or key in known}


def _task_config(recipe: Recipe, choice: Choice, facts: Mapping[str, Any]) -> TaskConfig:
    data, evaluate = recipe.data, recipe.evaluate
    too_long = "windows" if recipe.task == "spans" or not is_text(data.train) else "trim"
    low, high = facts.get("scale", (-1.0, 1.0))
    return TaskConfig(
        recipe.task,
        choice.ensemble.members,
        choice.ensemble,
        float(choice.threshold),
        Decoding(evaluate.decoding, evaluate.nbest, evaluate.answer_tokens),
        Cutting(data.max_length, data.overlap, too_long),
        tuple(facts.get("labels", ())),
        (float(low), float(high)),
    )


def _lasting(backbone: str) -> str:
    """A backbone's name that means the same from any directory."""
    path = Path(backbone).expanduser()
    return str(path.resolve()) if (path / "config.json").is_file() else backbone
