"""A finished run -> a reader: the member or ensemble that did best on the tune set, with everything it needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning
from bertvision.data.sources import is_text
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import BACKBONE, Ensemble, How, Member
from bertvision.files import read_json
from bertvision.heads import Head, options
from bertvision.recipe import Recipe
from bertvision.serve.card import write_card
from bertvision.serve.config import Cutting, Decoding, ReaderConfig, TaskConfig
from bertvision.serve.engines import TorchEngine
from bertvision.serve.reader import Progress, Reader
from bertvision.serve.reader_dir import lasting
from bertvision.tasks import Task
from bertvision.train.bank import HeadBank, bank_path
from bertvision.train.combine import Sitter, named
from bertvision.train.finetune import Checkpoint
from bertvision.train.greedy import FILE
from bertvision.train.study import Study

ENSEMBLE = "ensemble.json"  # what `bertvision ensemble` leaves


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of a run: heads of one checkpoint and seed that decide together, and their row of scores."""

    seed: int
    epoch: float
    ensemble: Ensemble
    threshold: float
    merit: float
    row: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [member.name for member in self.ensemble.members]


def _ensemble(names: Sequence[str], how: How, weights: Sequence[float], seed: int, epoch: float) -> Ensemble:
    members = tuple(Member("" if name == BACKBONE else name, seed, epoch) for name in names)
    return Ensemble(members, tuple(weights), how, "" if len(names) == 1 else "given")


def build_reader(
    run: Path,
    out: Path,
    *,
    checkpoint: float | None = None,
    seed: int | None = None,
    members: str | Sequence[str] | None = None,
    how: str | None = None,
    storage: Any = "fp32",
    threshold_data: str = "",
    progress: Progress | None = None,
) -> Path:
    """Writes the reader of a run to `out`: of the last checkpoint (or `checkpoint`) and of all seeds (or `seed`) what
    scored best on tune, be it a single head or an ensemble; or that of `members`, a list, or a text with commas.

    how: how the members' probabilities are joined. threshold_data: questions on which the no-answer threshold is
    chosen anew; then the members need not have been scored together.
    """
    rows = _rows(run)
    if variants := list(dict.fromkeys(row["variant"] for row in rows if row.get("variant"))):
        raise UserError(f"{run}: holds one study per variant; name the directory of one of {', '.join(variants)}")
    epoch = max(row["checkpoint"] for row in rows) if checkpoint is None else checkpoint
    if isinstance(members, str):
        members = _names(members, rows, epoch)
    choices = [*_scored(rows), *_committees(run, rows)]
    fitting = [one for one in choices if one.epoch == epoch and seed in (None, one.seed)]
    if members is not None:
        fitting = [one for one in fitting if set(one.names) == set(members)]
    if how is not None:
        fitting = [one for one in fitting if one.ensemble.how == how or len(one.ensemble.members) == 1]
    if not fitting and members and threshold_data:
        fitting = [_unscored(rows, epoch, seed, members, cast(How, how or "max"))]
    if not fitting:
        known = sorted({f"{' + '.join(c.names)} (epoch {c.epoch:g}, seed {c.seed})" for c in choices})
        raise UserError(f"{run}: nothing like this was scored; there is: {', '.join(known)}")
    best = max(fitting, key=lambda one: one.merit)
    return _assemble(run, best, threshold_data, progress).save_pretrained(out, storage=storage)


def leave_reader(run: Path) -> Path:
    """The reader of a finished run, at RUN/reader; one that is younger than the scores stays as it is."""
    place = run / "reader"
    judged = [*run.glob("seed-*/scores-*.json"), *(path for path in (run / ENSEMBLE, run / FILE) if path.is_file())]
    scores = max((path.stat().st_mtime for path in judged), default=0.0)
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


def _names(text: str, rows: Sequence[dict[str, Any]], epoch: float) -> list[str]:
    """The members of a checkpoint that a text names, with commas between them."""
    single = [row for row in rows if row["role"] != "ensemble" and row["checkpoint"] == epoch]
    sitters = [Sitter(row["member"], epoch, row["seed"]) for row in single]
    return list(dict.fromkeys(one.member for one in named(text, sitters, sitters)))


def _unscored(
    rows: Sequence[dict[str, Any]], epoch: float, seed: int | None, members: Sequence[str], how: How
) -> Choice:
    """Members that were never judged together; their threshold is yet to be chosen."""
    first = min(row["seed"] for row in rows) if seed is None else seed
    ensemble = _ensemble(members, how, (), first, epoch)
    return Choice(first, epoch, ensemble, 0.0, 0.0, {"checkpoint": epoch, "seed": first})


def _scored(rows: Sequence[dict[str, Any]]) -> Iterator[Choice]:
    for row in rows:
        how = row.get("how", "max")
        members = row["parts"].removesuffix(f", {how}").split(" + ") if "parts" in row else [row["member"]]
        ensemble = _ensemble(members, how, (), row["seed"], row["checkpoint"])
        yield Choice(row["seed"], row["checkpoint"], ensemble, row["threshold"], _merit(row), row)


def _committees(run: Path, rows: Sequence[dict[str, Any]]) -> Iterator[Choice]:
    """The ensembles that the study and `bertvision ensemble` have chosen from what is stored, of checkpoints that have
    scores; a reader makes one pass, so their members must share one checkpoint."""
    found = [read_json(run / ENSEMBLE, "ensemble")] if (run / ENSEMBLE).is_file() else []
    if (run / FILE).is_file():
        found += read_json(run / FILE, "file of ensembles")["ensembles"]
    scored = {(row["checkpoint"], row["seed"]) for row in rows}
    for one in found:
        members = one["members"]
        places = {(member["checkpoint"], member["seed"]) for member in members}
        if len(places) == 1 and places <= scored:
            weights = [member["weight"] for member in members]
            row, ((epoch, seed),) = one["test"][-1], places
            ensemble = _ensemble([member["member"] for member in members], one["how"], weights, seed, epoch)
            yield Choice(seed, epoch, ensemble, one["threshold"], _merit(row), row)


def _assemble(run: Path, choice: Choice, threshold_data: str = "", progress: Progress | None = None) -> Reader:
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
    config = ReaderConfig(lasting(recipe.backbone.name), fingerprint, tuning, tasks)
    notes = {name: {"entries": entries, "outputs": study.task.outputs}}
    reader = Reader(config, TorchEngine(backbone, {name: heads}, tasks), about=notes, name=run.name)
    row = choice.row
    if threshold_data:
        threshold, found = _choose_threshold(reader, study.task, recipe, threshold_data, progress)
        tasks = {name: replace(tasks[name], threshold=threshold)}
        reader.config = replace(config, tasks=tasks)
        row = row | {"threshold_data": threshold_data, "threshold_score": found}
    reader.card = write_card(recipe.title or run.name, reader.config, row, study.record.read())
    return reader


def _choose_threshold(
    reader: Reader, task: Task, recipe: Recipe, source: str, progress: Progress | None
) -> tuple[float, float]:
    """The no-answer threshold that is best on a set of questions, and the main metric there."""
    if recipe.task != "spans":
        raise UserError(f"--threshold-data: a reader that gives {recipe.task} has no threshold; leave it out")
    dataset = task.dataset(source, reader.engine.tokenizer, recipe.data)
    collector = task.collector(dataset, recipe.evaluate)
    reader.read_windows(dataset.windows, {task.name: collector}, progress)
    found = collector.finish()
    threshold = task.choose(found, dataset)
    return float(threshold), task.scores(found, dataset, threshold)[task.metrics[-1]]


def _chosen_heads(
    place: Path, choice: Choice, joint: Head, joint_entry: Mapping[str, Any]
) -> tuple[dict[str, Head], dict[str, dict[str, Any]]]:
    """The heads of the chosen ensemble by name, and how to build each. place: the directory of the seed."""
    known = {BACKBONE: (joint, joint_entry)}
    if set(choice.names) != {BACKBONE}:
        known |= _banked(place, choice.epoch)
    missing = [name for name in choice.names if name not in known]
    if missing:
        raise UserError(f"{place}: the head {missing[0]!r} of epoch {choice.epoch:g} is not there; run the study again")
    kept = {name: known[name] for name in choice.names}
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
        choice.ensemble,
        float(choice.threshold),
        Decoding(evaluate.decoding, evaluate.nbest, evaluate.answer_tokens),
        Cutting(data.max_length, data.overlap, too_long),
        tuple(facts.get("labels", ())),
        (float(low), float(high)),
    )
