"""Scoring: the members of a checkpoint, one pass of the encoder over a set for all ensembles, score rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter as clock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import States, together
from bertvision.data.batches import Batch, by_length, collate
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, How, Member
from bertvision.evaluate.ragged import Ragged
from bertvision.evaluate.score import WEIGHT_BYTES, Cost, Score, join_costs
from bertvision.heads import Head
from bertvision.recipe import EvaluateRecipe, Recipe
from bertvision.states.store import live
from bertvision.tasks import Dataset, Task
from bertvision.train.bank import HeadBank, unique_names
from bertvision.train.finetune import Checkpoint
from bertvision.train.progress import Journal
from bertvision.train.run_dir import RunDir, file_name


@dataclass(frozen=True, slots=True)
class Loaded:
    """The members of one checkpoint, loaded. costs: of each alone. specs: the recipe's entries of the heads. about:
    what was noted with the checkpoint. dropped: why heads are not among the members."""

    backbone: Backbone
    heads: dict[Member, Head]
    costs: dict[Member, Cost] = field(default_factory=dict)
    specs: dict[Member, Mapping[str, Any]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    dropped: dict[Member, str] = field(default_factory=dict)

    @property
    def singles(self) -> list[Ensemble]:
        return [Ensemble.of(member) for member in self.heads]

    def pairs(self, hows: Sequence[How]) -> list[Ensemble]:
        """The backbone with each head that was trained to its end on the whole training set, blended in each way."""
        own = next(member for member in self.heads if member.kind == "backbone")
        whole = [member for member in self.heads if member.kind == "head" and not member.is_partial]
        return [Ensemble((own, member), how=how, chosen="pair") for how in hows for member in whole]

    def without(self, dropped: Mapping[Member, str]) -> "Loaded":
        heads = {member: head for member, head in self.heads.items() if member not in dropped}
        return replace(self, heads=heads, dropped={**self.dropped, **dropped})


def load_members(run: RunDir, task: Task, seed: int, epoch: float, onto: Backbone | str = "") -> Loaded:
    """Backbone and heads of a checkpoint. onto: a backbone in memory, untuned or tuned by the same recipe."""
    recipe = run.recipe()
    checkpoint = Checkpoint(run.checkpoint(seed, epoch))
    backbone, head, about = checkpoint.load(task, onto or recipe.backbone.name)
    total = sum(p.numel() for p in backbone.model.parameters())
    moved = sum(p.numel() for p in backbone.model.parameters() if p.requires_grad) + head.parameter_count()
    disk, tuning = (checkpoint.directory / "backbone.safetensors").stat().st_size, float(about["seconds"])

    def cost(one: Head, trained: int, seconds: float) -> Cost:
        own = one.parameter_count()
        parts = (round(tuning, 3), round(seconds, 3), round(tuning + seconds, 3))
        return Cost(trained, total + own, *parts, disk + WEIGHT_BYTES * own)

    member = Member("", seed, epoch)
    heads, specs = {member: head}, {member: about["head"]}
    costs = {member: cost(head, moved if about["step"] else 0, 0.0)}  # at step 0 nothing was trained
    dropped: dict[Member, str] = {}
    for age, path in run.banks(seed, epoch).items():
        bank, notes = HeadBank.load(path)
        for (called, one), entry, (name, share) in zip(bank.items(), bank.entries, planned_heads(recipe), strict=True):
            member = Member(name, seed, epoch, share, age)
            if called in notes["stopped"]:
                dropped |= {} if age is not None else {member: notes["stopped"][called]}
                continue
            heads[member], specs[member] = one, entry
            costs[member] = cost(one, one.parameter_count(), notes["feed_seconds"] + notes["seconds"][called])
    return Loaded(backbone, heads, costs, specs, about, dropped)


def planned_heads(recipe: Recipe) -> list[tuple[str, float]]:
    """(name, share of the training set) of the heads of a bank, in its order."""
    return [(name, share) for share in recipe.bank.fractions for name in unique_names(recipe.heads)]


def check_names(recipe: Recipe) -> None:
    """UserError if two ensembles would write the same file of predictions."""
    ages = [None, *(age for age in recipe.bank.checkpoints if age < recipe.bank.epochs)]
    heads = [Member(name, 0, 0.0, share, age) for age in ages for name, share in planned_heads(recipe)]
    planned = Loaded(None, dict.fromkeys([Member("", 0, 0.0), *heads]))  # type: ignore[arg-type]
    taken: set[str] = set()
    for one in [*planned.singles, *planned.pairs(recipe.evaluate.ensembles)]:
        name = file_name(one.parts).lower()
        if name in taken:
            raise UserError(f"heads: {one.parts!r} is also the name of another; give the head another name")
        taken.add(name)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass gave: predictions of each ensemble, and the seconds each would have needed alone.

    logits: of each member, where they were to be kept: windows one after the other, see `Ragged`.
    dropped: why members are missing; ensembles with them are missing too.
    """

    predictions: dict[Ensemble, Any]
    seconds: dict[Ensemble, float]
    logits: dict[Member, Tensor] = field(default_factory=dict)
    dropped: dict[Member, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """How sets are predicted: the task, its options, and where progress is reported."""

    task: Task
    options: EvaluateRecipe
    journal: Journal


@torch.no_grad()
def predict(
    backbone: Backbone,
    heads: Mapping[Member, Head],
    ensembles: Sequence[Ensemble],
    dataset: Dataset,
    setting: Setting,
    *,
    keep: bool = False,
    stage: str = "predicting",
) -> Pass:
    """Predictions of all ensembles. States live no longer than their batch, logits until they are decoded.

    A head whose logits are not finite is dropped, with a note; for the backbone's own that is an error.
    keep: whether the members' logits are kept.
    """
    needed = {member: heads[member].eval() for one in ensembles for member in one.members}
    reads = together((head.reads for head in needed.values()), backbone.layers)
    source = live(backbone, reads, "cls" if all(head.positions == "cls" for head in needed.values()) else "all")
    scorers = _Scorers(needed, ensembles, dataset, setting, keep)
    windows = dataset.windows
    with setting.journal.stage(stage, int(windows.lengths.sum())) as progress:
        for index in by_length(windows.lengths, setting.options.batch_tokens):
            began = clock()
            batch = collate(windows, index, backbone.pad)
            states = source(batch)
            scorers.shared += clock() - began
            scorers.take(batch, states)
            del states  # before those of the next batch are made
            progress.advance(batch.tokens)
    return scorers.finish()


class _Scorers:
    """Collects the predictions and seconds of all ensembles of a pass. shared: seconds of the states."""

    def __init__(
        self,
        heads: dict[Member, Head],
        ensembles: Sequence[Ensemble],
        dataset: Dataset,
        setting: Setting,
        keep: bool,
    ) -> None:
        self.heads, self.ensembles, self.task, self.journal = heads, list(ensembles), setting.task, setting.journal
        self.collectors = {one: setting.task.collector(dataset, setting.options) for one in ensembles}
        starts = dataset.windows.starts if self.task.per_token else np.arange(len(dataset.windows) + 1)
        self.normalise = self.task.decodes_probabilities(setting.options.decoding)
        self.kept = {member: Ragged(starts, self.task.outputs) for member in heads} if keep else {}
        self.head_seconds = dict.fromkeys(heads, 0.0)
        self.log_seconds = dict.fromkeys(heads, 0.0)  # of log-probabilities, which a single member does not need
        self.own_seconds = dict.fromkeys(self.collectors, 0.0)  # of blending and decoding
        self.shared = 0.0
        self.dropped: dict[Member, str] = {}

    def take(self, batch: Batch, states: States) -> None:
        logits: dict[Member, Tensor] = {}
        logs: dict[Member, Tensor] = {}
        for member, head in list(self.heads.items()):
            with _timed(self.head_seconds, member):
                logits[member] = head.logits(states)
            if not logits[member].isfinite().all():
                self._drop(member)
                continue
            with _timed(self.log_seconds, member):
                logs[member] = self.task.log_probabilities(logits[member], batch.mask)
            if member in self.kept:
                own = logits[member]
                self.kept[member].add(batch.index, own[batch.mask] if self.task.per_token else own)
        for one in self.ensembles:
            with _timed(self.own_seconds, one):
                alone = len(one.members) == 1 and not self.normalise
                blended = logits[one.members[0]] if alone else self._blend(one, logs)
                self.collectors[one].add(batch.index, blended)

    def _blend(self, ensemble: Ensemble, logs: Mapping[Member, Tensor]) -> Tensor:
        how = self.task.joined_by(ensemble.how)
        return replace(ensemble, how=how).blend([logs[member] for member in ensemble.members])

    def finish(self) -> Pass:
        predictions = {}
        for one in self.ensembles:
            with _timed(self.own_seconds, one):
                predictions[one] = self.collectors[one].finish()
        seconds = {}
        for one in self.ensembles:
            own = sum(
                self.head_seconds[m] + (self.log_seconds[m] if self.normalise or len(one.members) > 1 else 0.0)
                for m in one.members
            )
            seconds[one] = self.shared + own + self.own_seconds[one]
        logits = {member: self.kept[member].values for member in self.heads if member in self.kept}
        return Pass(predictions, seconds, logits, self.dropped)

    def _drop(self, member: Member) -> None:
        if member.kind == "backbone":
            raise UserError(f"{member.name}: its logits are not finite; tune it again with a lower learning rate")
        self.dropped[member] = "its logits are not finite; a lower learning rate may help"
        self.journal.note(f"{member.name} is dropped: {self.dropped[member]}")
        del self.heads[member]
        self.ensembles = [one for one in self.ensembles if member not in one.members]


@contextmanager
def _timed(seconds: dict[Any, float], key: Any) -> Iterator[None]:
    """Adds the seconds of the block to those of `key`."""
    began = clock()
    yield
    seconds[key] += clock() - began


def score_rows(
    costs: Mapping[Member, Cost], found: Pass, task: Task, dataset: Dataset, tuned: Mapping[Ensemble, float]
) -> Iterator[Score]:
    """Score rows of a pass over `dataset`: every ensemble at the thresholds its task reports.

    tuned: thresholds chosen elsewhere; an ensemble without one is scored at zero alone.
    """
    for one, predictions in found.predictions.items():
        seconds = found.seconds[one]
        speed = round(1000 * seconds / max(len(dataset.records), 1), 4)
        joined = join_costs({member: costs[member] for member in one.members})
        cost = replace(joined, infer_seconds=round(seconds, 3), ms_per_question=speed)
        for origin, threshold in task.thresholds(tuned.get(one, 0.0)):
            if origin != "tune" or one in tuned:
                metrics = task.scores(predictions, dataset, threshold)
                note = metrics.pop("note", "")
                yield Score(one, threshold, origin, metrics, cost, task.metrics[-1], note=note)


def report_rows(
    loaded: Loaded, passes: Mapping[str, Pass], task: Task, data: Mapping[str, Dataset]
) -> tuple[list[Score], dict[Ensemble, Any]]:
    """The rows of a checkpoint, scored on test; thresholds and the reported pair are chosen on tune. And the test
    predictions of the ensembles in the rows.

    passes: over `tune`, `test` and, where a second set is reported, `also`.
    """
    main, tune, test = task.metrics[-1], passes["tune"].predictions, passes["test"]
    tuned = {one: task.choose(found, data["tune"]) for one, found in tune.items()}
    on_tune = {one: task.scores(found, data["tune"], tuned[one])[main] for one, found in tune.items()}
    everything = [one for one in test.predictions if not {*one.members} & loaded.dropped.keys()]
    pairs = [one for one in everything if not one.is_single]
    source = {one: one for one in everything if one.is_single}
    if pairs:
        best = max(pairs, key=on_tune.__getitem__)
        source[replace(best, chosen="best")] = best
    reported = {one: test.predictions[pair] for one, pair in source.items()}
    seconds = {one: test.seconds[pair] for one, pair in source.items()}
    thresholds = {one: tuned[pair] for one, pair in source.items()}
    rows = []
    for row in score_rows(loaded.costs, Pass(reported, seconds), task, data["test"], thresholds):
        pair, more = source[row.ensemble], {}
        if "also" in passes:
            scores = task.scores(passes["also"].predictions[pair], data["also"], row.threshold)
            more = {metric: scores[metric] for metric in task.metrics}
        rows.append(replace(row, tune=on_tune[pair], also=more))
    return rows, reported
