"""A finished run -> a reader: the member or ensemble that scored best on the tune set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import Compression, Plain, parse_compression
from bertvision.backbone.loading import tokenizer_of
from bertvision.backbone.states import deepest
from bertvision.backbone.tuning import Tuning
from bertvision.data.sources import is_text
from bertvision.errors import UserError, nearest
from bertvision.evaluate.calibration import Calibration, fit_calibration
from bertvision.evaluate.ensemble import BACKBONE, Ensemble, How, Member
from bertvision.evaluate.score import Score
from bertvision.evaluate.squad import answerable
from bertvision.files import write_json
from bertvision.heads import SPECS
from bertvision.recipe import Recipe, head_spec
from bertvision.runtime import CPU
from bertvision.serve.card import write_card
from bertvision.serve.config import VERBS, Cutting, Decoding, ReaderConfig, TaskConfig
from bertvision.serve.engines import TorchEngine
from bertvision.serve.reader import Progress, Reader
from bertvision.serve.reader_dir import CONFIG, absolute_name
from bertvision.tasks import Dataset, Task
from bertvision.train.bank import unique_names
from bertvision.train.ensembling import named
from bertvision.train.finetune import tuning_of
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import Members, StoredResults, load_members, runtime_of, task_of

LOSS = 0.2  # of the main metric on tune: what `rank=auto` may lose at most


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which scores of a run a reader is made of; None: any. checkpoint: its epoch, None for the last one.

    members: names, a list or a text with commas. how: how their probabilities are blended. depth: no more blocks than
    that. exits: names of heads of the same checkpoint with a `depth`, at which windows may leave early.
    """

    checkpoint: float | None = None
    seed: int | None = None
    members: str | Sequence[str] | None = None
    how: How | None = None
    depth: int | None = None
    exits: Sequence[str] = ()


def build_reader(
    run: Path,
    out: Path,
    wanted: Wanted | Score | None = None,
    *,
    storage: Any = "fp32",
    threshold_data: str = "",
    compress: str = "",
    progress: Progress | None = None,
    device: str = "",
) -> Path:
    """Writes the reader of a run to `out`: what was chosen, or of what is wanted the best on tune.

    threshold_data: questions on which the no-answer threshold is chosen anew; the members then need not have been
    scored together. compress: `rank=64,int8`, see `parse_compression`: the encoder as a compressed difference.
    device: where that is done, if not where the run's recipe says.
    """
    opened = RunDir.open(run, variants=False)
    if not task_of(opened).served:
        raise UserError(f"{run}: there are no readers for the task {opened.recipe().task}")
    chosen = wanted if isinstance(wanted, Score) else _choose(opened, wanted or Wanted(), bool(threshold_data))
    builder = _Builder(opened, chosen, threshold_data, progress, device)
    builder.exits = wanted.exits if isinstance(wanted, Wanted) else ()
    if builder.exits and VERBS[builder.recipe.task] == "entities":
        raise UserError("--exits: a reader of token labels has none; leave it out")
    return builder.build(compress).save_pretrained(out, storage=storage)


def _choose(run: RunDir, wanted: Wanted, threshold_data: bool) -> Score:
    """The best of what is wanted; a checkpoint without scores has its backbone alone."""
    scores = _usable_scores(run)
    if plain := _unscored_backbone(run, wanted, [score.epoch for score in scores]):
        return plain
    if not scores:
        raise UserError(f"{run.path}: nothing has been scored yet; `bertvision study` goes on with it")
    epoch = max(score.epoch for score in scores) if wanted.checkpoint is None else wanted.checkpoint
    singles = [score.ensemble.members[0] for score in scores if score.ensemble.is_single and score.epoch == epoch]
    names = wanted.members
    if isinstance(names, str):
        names = list(dict.fromkeys(member.name for member in named(names, singles, singles)))
    fitting = [score for score in scores if score.epoch == epoch and wanted.seed in (None, score.seed)]
    if names is not None:
        fitting = [score for score in fitting if _member_names(score) == set(names)]
    if wanted.depth is not None:
        shallow = {name for name, depth in head_depths(run.recipe()).items() if 0 < depth <= wanted.depth}
        fitting = [score for score in fitting if _member_names(score) <= shallow]
    if wanted.how is not None:
        fitting = [score for score in fitting if score.ensemble.how == wanted.how or len(score.ensemble.members) == 1]
    if not fitting and names and threshold_data:
        fitting = [_unscored(singles, wanted.seed, names, wanted.how or "max")]
    if not fitting:
        there = sorted({f"{score.ensemble.parts} (epoch {score.epoch:g}, seed {score.seed})" for score in scores})
        raise UserError(f"{run.path}: nothing like this was scored; there is: {', '.join(there)}")
    return max(fitting, key=lambda score: score.tune or 0.0)


def _member_names(score: Score) -> set[str]:
    return {member.name for member in score.ensemble.members}


def head_depths(recipe: Recipe) -> dict[str, int]:
    """{name of a member: its `depth`, 0 where it reads the whole encoder}"""
    backbone = {BACKBONE: head_spec(recipe.finetune.head).get("depth", 0)}
    return backbone | {name: head.get("depth", 0) for name, head in zip(unique_names(recipe.heads), recipe.heads)}


def leave_reader(run: Path) -> Path:
    """The reader of a finished run, at RUN/reader; one that was made from the same scores stays as it is."""
    opened = RunDir.open(run)
    if (opened.reader / CONFIG).is_file() and opened.is_current(opened.reader_note, choices=True):
        return opened.reader
    built = build_reader(run, opened.reader)
    write_json(opened.reader_note, {"made_from": opened.digest(choices=True)})
    return built


def _usable_scores(run: RunDir) -> list[Score]:
    """Scores at tuned thresholds of everything a reader can be made of: it makes one pass, so that the members must
    share one checkpoint."""
    scores = [*run.rows(), *run.ensemble(), *run.greedy()]
    scored = {*run.scored()}
    tuned = [score for score in scores if score.threshold_from in ("tune", "") and len(score.ensemble.cells) == 1]
    return [score for score in tuned if score.ensemble.cells <= scored]


def _unscored_backbone(run: RunDir, wanted: Wanted, scored: Sequence[float]) -> Score | None:
    """The backbone of a checkpoint that has no scores, as while a study runs or after `finetune`; None if not meant.

    Without a checkpoint named, the last there is, if nothing was scored.
    """
    names = [wanted.members] if isinstance(wanted.members, str) else wanted.members
    if (names and list(names) != [BACKBONE]) or wanted.checkpoint in scored or (scored and wanted.checkpoint is None):
        return None
    cells = [(s, e) for s in run.recipe().seeds for e in run.epochs if run.checkpoint(s, e).is_dir()]
    cells = [(s, e) for s, e in cells if wanted.seed in (None, s) and wanted.checkpoint in (None, e)]
    if not cells:
        return None
    first = cells[0][0]
    return Score(Ensemble.of(Member("", first, max(e for s, e in cells if s == first))), 0.0, "", {})


def _unscored(singles: Sequence[Member], seed: int | None, names: Sequence[str], how: How) -> Score:
    """Members that were never judged together; their threshold is yet to be chosen."""
    first = min(member.seed for member in singles) if seed is None else seed
    members = {member.name: member for member in singles if member.seed == first}
    for name in names:
        if name not in members:
            raise UserError(f"--members {name}: {nearest(name, members)}")
    return Score(Ensemble(tuple(members[name] for name in names), how=how, chosen="given"), 0.0, "", {})


@dataclass(frozen=True, slots=True)
class _Fit:
    """The results of one pass over the tune set: the best threshold, the main metric there, and a calibration."""

    threshold: float
    score: float
    calibration: Calibration | None


class _Builder:
    """Builds the reader of a choice. threshold_data: where its threshold is chosen; if empty, as in the study. device:
    where it is tried, if not where the run's recipe says."""

    def __init__(
        self, run: RunDir, choice: Score, threshold_data: str, progress: Progress | None, device: str = ""
    ) -> None:
        self.device = device
        self.exits: Sequence[str] = ()
        self.run, self.choice, self.threshold_data, self.progress = run, choice, threshold_data, progress
        self.recipe, self.task = run.recipe(), task_of(run)
        if threshold_data and VERBS[self.recipe.task] != "answer":
            raise UserError(f"--threshold-data: a reader that gives {self.recipe.task} has no threshold; leave it out")

    def build(self, compress: str = "") -> Reader:
        hows = parse_compression(compress) if compress else []
        name, facts = self.recipe.backbone.name, self.choice.to_json()
        backbone = Backbone.load(name, CPU if hows else runtime_of(self.run, self.device, alone=True))
        fingerprint, plain = backbone.fingerprint, Plain(backbone.model) if hows else None
        loaded = load_members(self.run, self.task, self.choice.seed, self.choice.epoch, backbone)
        tasks = {self.task.name: _task_config(self.recipe, self.choice, self.task)}
        config = ReaderConfig(absolute_name(name), fingerprint, self._tuning(loaded), tasks)
        fit: _Fit | None = None
        if plain:
            reader, fit, compressed = self._compressed(config, loaded, plain, hows)
            facts |= {"compressed": compressed}
        else:
            reader = self._assemble(config, loaded)
            fit = self._fit_or_none(reader) if VERBS[self.recipe.task] == "answer" else None
        if fit:
            task = replace(tasks[self.task.name], calibration=fit.calibration)
            if hows or self.threshold_data or not self.choice.metrics:
                task = replace(task, threshold=fit.threshold)
                facts |= {"threshold_data": self.source, "threshold_score": fit.score}
            reader.config = replace(config, tasks={self.task.name: task})
        reader.card = write_card(self.recipe.title or self.run.path.name, reader.config, facts, self.run.facts())
        return self._with_exits(reader) if self.exits else reader

    def _with_exits(self, reader: Reader) -> Reader:
        """The same reader, from which windows may leave early; rules are chosen on the tune set."""
        from bertvision.serve.exits import Fitting, describe

        name, engine = self.task.name, reader.torch_engine("exits")
        engine.tasks = dict(reader.config.tasks)
        exits = Fitting(engine, self.task, self.exits, self._tune_set).fit()
        tasks = {name: replace(reader.config.tasks[name], exits=exits)}
        reader.config, engine.tasks = replace(reader.config, tasks=tasks), tasks
        reader.card += describe(exits, self.task.metrics[-1])
        return reader

    @property
    def source(self) -> str:
        """Where threshold and calibration are fitted; empty if the tune set was split off the training set."""
        return self.threshold_data or self.recipe.data.tune

    def _tuning(self, loaded: Members) -> dict[str, Any]:
        tuning = asdict(tuning_of(self.recipe.finetune))
        changed = tuning["adapters"] or tuning["lora"] or self.recipe.finetune.start
        return tuning if loaded.about["step"] or changed else {}

    def _assemble(self, config: ReaderConfig, loaded: Members) -> Reader:
        name, members = self.task.name, self.choice.ensemble.members
        if missing := [member.name for member in members if member not in loaded.heads]:
            where, epoch = self.run.seed(self.choice.seed), self.choice.epoch
            raise UserError(f"{where}: the head {missing[0]!r} of epoch {epoch:g} is not there; run the study again")
        whole = {member.name: member for member in loaded.heads if not member.is_partial}
        for exit in self.exits:
            if exit not in whole:
                raise UserError(f"--exits {exit}: {nearest(exit, whole)}")
        members = tuple(dict.fromkeys([*members, *(whole[exit] for exit in self.exits)]))
        heads = {member.name: loaded.heads[member] for member in members}
        entries = {
            member.name: {key: value for key, value in head_spec(loaded.specs[member]).items() if key != "fraction"}
            for member in members
        }
        notes = {name: {"entries": entries, "outputs": self.task.outputs, "specs": SPECS}}
        engine = TorchEngine(loaded.backbone, {name: heads}, config.tasks)
        return Reader(config, engine, about=notes, name=self.run.path.name)

    def _compressed(
        self, config: ReaderConfig, loaded: Members, plain: Plain, hows: Sequence[Compression]
    ) -> tuple[Reader, _Fit, dict[str, Any]]:
        """The reader with its encoder compressed, the first way of `hows` that loses little; and facts for its card."""
        if not config.tuning:
            raise UserError("--compress: the encoder was not tuned, so there is nothing to compress; leave it out")
        backbone, before = loaded.backbone, self.choice.tune
        wanted = [head for member, head in loaded.heads.items() if member in self.choice.ensemble.members]
        backbone.cut(deepest((head.reads for head in wanted), backbone.layers))
        difference = plain.difference(backbone.model)
        if len(hows) > 1:
            before = self._fit(self._assemble(config, loaded)).score
        for how in hows:
            backbone.compressed = plain.compressed(backbone.model, Tuning(**config.tuning), difference, how)
            reader = self._assemble(config, loaded)
            fit = self._fit(reader)
            if before is None or fit.score >= before - LOSS:
                break
        return reader, fit, {"how": str(how), "score": fit.score, "before": before}

    def _fit_or_none(self, reader: Reader) -> _Fit | None:
        """None where a study has chosen the threshold, and its tune set is no longer there to calibrate on."""
        try:
            return self._fit(reader)
        except UserError:
            if self.threshold_data or not self.choice.metrics:
                raise
            return None

    def _fit(self, reader: Reader) -> _Fit:
        task, dataset = self.task, self._tune_set
        collector = task.collector(dataset, self.recipe.evaluate)
        reader.read_windows(dataset.windows, {task.name: collector}, self.progress)
        predictions = collector.finish()
        threshold = task.choose(predictions, dataset)
        score = task.scores(predictions, dataset, threshold)[task.metrics[-1]]
        if VERBS[self.recipe.task] != "answer":
            return _Fit(threshold, score, None)
        has = answerable(dataset.articles)
        doubts = predictions.no_answer_scores()
        return _Fit(float(threshold), score, fit_calibration([doubts[key] for key in has], list(has.values())))

    @cached_property
    def _tune_set(self) -> Dataset:
        if not self.source:
            return StoredResults(self.run, self.task).sets("tune")["tune"]
        return self.task.dataset(self.source, tokenizer_of(self.recipe.backbone.name), self.recipe.data)


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
        Cutting(data.max_length, data.overlap, too_long, data.pairs),
        tuple(facts.get("labels", ())),
        (float(low), float(high)),
    )
