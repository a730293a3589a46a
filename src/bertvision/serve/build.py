"""A finished run -> a reader: the member or ensemble that scored best on the tune set."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning
from bertvision.data.sources import is_text
from bertvision.errors import UserError, nearest
from bertvision.evaluate.ensemble import Ensemble, How, Member
from bertvision.evaluate.score import Score
from bertvision.files import write_json
from bertvision.recipe import Recipe, head_spec
from bertvision.serve.card import write_card
from bertvision.serve.config import Cutting, Decoding, ReaderConfig, TaskConfig
from bertvision.serve.engines import TorchEngine
from bertvision.serve.reader import Progress, Reader
from bertvision.serve.reader_dir import lasting
from bertvision.tasks import Task
from bertvision.train.choose import named
from bertvision.train.run_dir import RunDir
from bertvision.train.scoring import load_members
from bertvision.train.stored import task_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which scores of a run a reader is made of; None: any. checkpoint: its epoch, None for the last one.

    members: names, a list or a text with commas. how: how their probabilities are blended.
    """

    checkpoint: float | None = None
    seed: int | None = None
    members: str | Sequence[str] | None = None
    how: How | None = None


def build_reader(
    run: Path,
    out: Path,
    wanted: Wanted | None = None,
    *,
    storage: Any = "fp32",
    threshold_data: str = "",
    progress: Progress | None = None,
) -> Path:
    """Writes the reader of a run to `out`: of what is wanted the best on tune, a single head or an ensemble.

    threshold_data: questions on which the no-answer threshold is chosen anew; the members then need not have been
    scored together.
    """
    opened, wanted = RunDir.open(run, variants=False), wanted or Wanted()
    if not task_of(opened).served:
        raise UserError(f"{run}: there are no readers for the task {opened.recipe().task}")
    choices = _choices(opened)
    epoch = max(one.epoch for one in choices) if wanted.checkpoint is None else wanted.checkpoint
    singles = [one.ensemble.members[0] for one in choices if one.ensemble.is_single and one.epoch == epoch]
    names = wanted.members
    if isinstance(names, str):
        names = list(dict.fromkeys(one.name for one in named(names, singles, singles)))
    fitting = [one for one in choices if one.epoch == epoch and wanted.seed in (None, one.seed)]
    if names is not None:
        fitting = [one for one in fitting if {member.name for member in one.ensemble.members} == set(names)]
    if wanted.how is not None:
        fitting = [one for one in fitting if one.ensemble.how == wanted.how or len(one.ensemble.members) == 1]
    if not fitting and names and threshold_data:
        fitting = [_unscored(singles, wanted.seed, names, wanted.how or "max")]
    if not fitting:
        known = sorted({f"{one.ensemble.parts} (epoch {one.epoch:g}, seed {one.seed})" for one in choices})
        raise UserError(f"{run}: nothing like this was scored; there is: {', '.join(known)}")
    best = max(fitting, key=lambda one: one.tune or 0.0)
    return _assemble(opened, best, threshold_data, progress).save_pretrained(out, storage=storage)


def leave_reader(run: Path) -> Path:
    """The reader of a finished run, at RUN/reader; one that was made from the same scores stays as it is."""
    opened = RunDir.open(run)
    made = opened.reader / "made_from.json"
    if (opened.reader / "config.json").is_file() and opened.is_current(made, choices=True):
        return opened.reader
    place = build_reader(run, opened.reader)
    write_json(made, {"made_from": opened.digest(choices=True)})
    return place


def _choices(run: RunDir) -> list[Score]:
    """Scores at tuned thresholds of everything a reader can be made of: it makes one pass, so that the members must
    share one checkpoint."""
    rows = [*run.rows(), *run.ensemble(), *run.greedy()]
    scored = {*run.scored()}
    found = [row for row in rows if row.threshold_from in ("tune", "") and len(row.ensemble.cells) == 1]
    found = [row for row in found if row.ensemble.cells <= scored]
    if not found:
        raise UserError(f"{run.path}: nothing has been scored yet; `bertvision study` goes on with it")
    return found


def _unscored(singles: Sequence[Member], seed: int | None, names: Sequence[str], how: How) -> Score:
    """Members that were never judged together; their threshold is yet to be chosen."""
    first = min(one.seed for one in singles) if seed is None else seed
    known = {one.name: one for one in singles if one.seed == first}
    for name in names:
        if name not in known:
            raise UserError(f"--members {name}: {nearest(name, known)}")
    return Score(Ensemble(tuple(known[name] for name in names), how=how, chosen="given"), 0.0, "", {})


def _assemble(run: RunDir, choice: Score, threshold_data: str = "", progress: Progress | None = None) -> Reader:
    recipe, task = run.recipe(), task_of(run)
    name = task.name
    plain = Backbone.load(recipe.backbone.name)
    fingerprint = plain.fingerprint
    loaded = load_members(run, task, choice.seed, choice.epoch, plain)
    missing = [one.name for one in choice.ensemble.members if one not in loaded.heads]
    if missing:
        place = run.seed(choice.seed)
        raise UserError(f"{place}: the head {missing[0]!r} of epoch {choice.epoch:g} is not there; run the study again")
    heads = {one.name: loaded.heads[one] for one in choice.ensemble.members}
    entries = {
        one.name: {key: value for key, value in head_spec(loaded.specs[one]).items() if key != "fraction"}
        for one in choice.ensemble.members
    }
    tuning = {one.name: getattr(recipe.finetune, one.name) for one in fields(Tuning)}
    if loaded.about["step"] == 0 and not (tuning["adapters"] or tuning["lora"]):
        tuning = {}  # the encoder as it came
    tasks = {name: _task_config(recipe, choice, task)}
    config = ReaderConfig(lasting(recipe.backbone.name), fingerprint, tuning, tasks)
    notes = {name: {"entries": entries, "outputs": task.outputs}}
    reader = Reader(config, TorchEngine(loaded.backbone, {name: heads}, tasks), about=notes, name=run.path.name)
    row = choice.to_json()
    if threshold_data:
        threshold, found = _choose_threshold(reader, task, recipe, threshold_data, progress)
        tasks = {name: replace(tasks[name], threshold=threshold)}
        reader.config = replace(config, tasks=tasks)
        row = row | {"threshold_data": threshold_data, "threshold_score": found}
    reader.card = write_card(recipe.title or run.path.name, reader.config, row, run.facts())
    return reader


def _choose_threshold(
    reader: Reader, task: Task, recipe: Recipe, source: str, progress: Progress | None
) -> tuple[float, float]:
    """The no-answer threshold that is best on a set of questions, and the main metric there."""
    if reader.config.tasks[task.name].verb != "answer":
        raise UserError(f"--threshold-data: a reader that gives {recipe.task} has no threshold; leave it out")
    dataset = task.dataset(source, reader.engine.tokenizer, recipe.data)
    collector = task.collector(dataset, recipe.evaluate)
    reader.read_windows(dataset.windows, {task.name: collector}, progress)
    found = collector.finish()
    threshold = task.choose(found, dataset)
    return float(threshold), task.scores(found, dataset, threshold)[task.metrics[-1]]


def _task_config(recipe: Recipe, choice: Score, task: Task) -> TaskConfig:
    data, evaluate, facts = recipe.data, recipe.evaluate, task.facts()
    too_long: Any = "windows" if task.per_token or not is_text(data.train) else "trim"
    low, high = facts.get("scale", (-1.0, 1.0))
    size = len(choice.ensemble.members)
    weights = choice.ensemble.weights or (1.0 / size,) * size
    kind: Any = recipe.task
    return TaskConfig(
        kind,
        replace(choice.ensemble, weights=weights),
        float(choice.threshold),
        Decoding(evaluate.decoding, evaluate.nbest, evaluate.answer_tokens),
        Cutting(data.max_length, data.overlap, too_long),
        tuple(facts.get("labels", ())),
        (float(low), float(high)),
    )
