"""Scoring: one pass of the encoder over a set for all ensembles; score rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter as clock
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.flops import added, encoder_work, head_work
from bertvision.backbone.states import together
from bertvision.data.batches import Batch, Ragged, by_length, collate
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.evaluate.score import Cost, Score, join_costs, total_flops
from bertvision.files import save_tensors, write_json
from bertvision.heads import Head
from bertvision.recipe import EvaluateRecipe
from bertvision.runtime import Runtime
from bertvision.states.store import Source, live
from bertvision.tasks import Dataset, Task
from bertvision.train.progress import Journal, scored_splits, scoring_stage
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.run_results import Members


@dataclass(frozen=True, slots=True)
class Pass:
    """The results of one pass: predictions of each ensemble, and the seconds and FLOPs each would have needed alone.

    logits: of members, where kept, see `Ragged`. dropped: why members are missing; ensembles with them are missing too.
    """

    predictions: dict[Ensemble, Any]
    seconds: dict[Ensemble, float]
    logits: dict[Member, Tensor] = field(default_factory=dict)
    dropped: dict[Member, str] = field(default_factory=dict)
    flops: dict[Ensemble, int | None] = field(default_factory=dict)
    losses: dict[Member, float] = field(default_factory=dict)


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

    Processes compute the logits of batches in turns; the main one decodes them in the order of a single process, and
    in others there are no predictions. Seconds are added up over processes.

    A head whose logits are not finite is dropped, with a note; for the backbone's own that is an error.
    keep: whether the members' logits are kept, and their losses taken: the set must have targets.
    """
    runtime = backbone.runtime
    needed = {member: runtime.to(heads[member].eval()) for ensemble in ensembles for member in ensemble.members}
    reads = together((head.reads for head in needed.values()), backbone.layers)
    source = live(backbone, reads, "cls" if all(head.positions == "cls" for head in needed.values()) else "all")
    collector = _PassCollector(needed, ensembles, dataset, setting, keep)
    windows = dataset.windows
    batches = by_length(windows.lengths, setting.options.batch_tokens)
    with setting.journal.stage(stage, int(windows.lengths.sum())) as progress:
        for first in range(0, len(batches), runtime.world):
            turn = [collate(windows, index, backbone.pad) for index in batches[first : first + runtime.world]]
            own = [_batch_logits(batch, source, needed, runtime) for batch in turn[runtime.rank :][:1]]
            for batch, logits in zip(turn, own if runtime.world == 1 else _gathered(own, runtime)):
                collector.add(batch, logits)
                progress.advance(batch.tokens)
    result = collector.finish() if runtime.is_main else Pass({}, {})
    reasons = runtime.tell([result.dropped.get(member, "") for member in needed])  # the same in all processes
    dropped = {member: why for member, why in zip(needed, reasons) if why}
    flops = {ensemble: _flops(backbone, ensemble, heads, windows) for ensemble in result.predictions}
    return replace(result, dropped=dropped, flops=flops)


@dataclass(frozen=True, slots=True)
class _BatchLogits:
    """Logits of a batch by member, on the CPU; and the seconds of the states, then of each member."""

    logits: list[Tensor]
    seconds: list[float]


def _batch_logits(batch: Batch, source: Source, heads: Mapping[Member, Head], runtime: Runtime) -> _BatchLogits:
    began = clock()
    states = source(batch)
    runtime.synchronize()
    seconds, logits = [clock() - began], []
    for head in heads.values():
        began = clock()
        logits.append(head.logits(states).cpu())  # what follows is done there
        seconds.append(clock() - began)
    return _BatchLogits(logits, seconds)


def _gathered(own: Sequence[_BatchLogits], runtime: Runtime) -> list[_BatchLogits]:
    """The batch logits of all processes by rank, in the main one alone. own: empty where there were too few batches."""
    content = b""
    for result in own:
        tensors = {f"{position:06d}": logits.contiguous() for position, logits in enumerate(result.logits)}
        content = save(tensors | {"seconds": torch.tensor(result.seconds, dtype=torch.float64)})
    results = []
    for tensors in [load(received) for received in runtime.gather(content) if received]:
        seconds = tensors.pop("seconds").tolist()
        results.append(_BatchLogits([tensors[key] for key in sorted(tensors)], seconds))
    return results


def _flops(backbone: Backbone, ensemble: Ensemble, heads: Mapping[Member, Head], windows: Windows) -> int | None:
    """Of predicting a set with an ensemble: the encoder once, and every head."""
    shape = backbone.layers, backbone.width
    reads = together((heads[member].reads for member in ensemble.members), backbone.layers)
    works = [encoder_work(backbone.model, reads), *(head_work(heads[member], *shape) for member in ensemble.members)]
    return total_flops(added(0, work.forward, windows.lengths) for work in works)


class _PassCollector:
    """Collects the predictions and seconds of all ensembles of a pass. shared: seconds of the states."""

    def __init__(
        self,
        heads: dict[Member, Head],
        ensembles: Sequence[Ensemble],
        dataset: Dataset,
        setting: Setting,
        keep: bool,
    ) -> None:
        self.heads, self.members, self.ensembles = dict(heads), list(heads), list(ensembles)  # less what is dropped
        self.task, self.journal = setting.task, setting.journal
        self.collectors = {ensemble: setting.task.collector(dataset, setting.options) for ensemble in ensembles}
        starts = dataset.windows.starts if self.task.per_token else np.arange(len(dataset.windows) + 1)
        self.normalise = self.task.decodes_probabilities(setting.options.decoding)
        self.windows = len(dataset.windows)
        self.kept = {member: Ragged(starts, self.task.outputs) for member in heads} if keep else {}
        self.head_seconds = dict.fromkeys(heads, 0.0)
        self.log_seconds = dict.fromkeys(heads, 0.0)  # of log-probabilities, which a single member does not need
        self.ensemble_seconds = dict.fromkeys(self.collectors, 0.0)  # of blending and decoding
        self.state_seconds = 0.0
        self.losses = dict.fromkeys(self.kept, 0.0)  # sums over windows
        self.dropped: dict[Member, str] = {}

    def add(self, batch: Batch, result: _BatchLogits) -> None:
        """Adds the logits of a batch: blends and decodes them for every ensemble, keeps them if asked."""
        self.state_seconds += result.seconds[0]
        logits = {
            member: member_logits for member, member_logits in zip(self.members, result.logits) if member in self.heads
        }
        logs: dict[Member, Tensor] = {}
        for member, seconds in zip(self.members, result.seconds[1:]):
            if member not in self.heads:
                continue
            self.head_seconds[member] += seconds
            if not logits[member].isfinite().all():
                self._drop(member)
                continue
            with _timed(self.log_seconds, member):
                logs[member] = self.task.log_probabilities(logits[member], batch.mask)
            if member in self.kept:
                member_logits = logits[member]
                self.kept[member].add(batch.index, member_logits[batch.mask] if self.task.per_token else member_logits)
                self.losses[member] += float(self.task.loss(member_logits, batch)) * len(batch.index)
        for ensemble in self.ensembles:
            with _timed(self.ensemble_seconds, ensemble):
                is_plain = len(ensemble.members) == 1 and not self.normalise
                blended = logits[ensemble.members[0]] if is_plain else self._blend(ensemble, logs)
                self.collectors[ensemble].add(batch.index, blended)

    def _blend(self, ensemble: Ensemble, logs: Mapping[Member, Tensor]) -> Tensor:
        how = self.task.joined_by(ensemble.how)
        return replace(ensemble, how=how).blend([logs[member] for member in ensemble.members])

    def finish(self) -> Pass:
        predictions = {}
        for ensemble in self.ensembles:
            with _timed(self.ensemble_seconds, ensemble):
                predictions[ensemble] = self.collectors[ensemble].finish()
        seconds = {}
        for ensemble in self.ensembles:
            uses_logs = self.normalise or len(ensemble.members) > 1
            parts = [self.head_seconds, *([self.log_seconds] if uses_logs else [])]
            of_members = sum(seconds_of[member] for seconds_of in parts for member in ensemble.members)
            seconds[ensemble] = self.state_seconds + of_members + self.ensemble_seconds[ensemble]
        logits = {member: self.kept[member].values for member in self.heads if member in self.kept}
        losses = {member: round(self.losses[member] / max(self.windows, 1), 4) for member in logits}
        return Pass(predictions, seconds, logits, self.dropped, losses=losses)

    def _drop(self, member: Member) -> None:
        if member.kind == "backbone":
            raise UserError(f"{member.name}: its logits are not finite; tune it again with a lower learning rate")
        self.dropped[member] = "its logits are not finite; a lower learning rate may help"
        self.journal.note(f"{member.name} is dropped: {self.dropped[member]}")
        del self.heads[member]
        self.ensembles = [ensemble for ensemble in self.ensembles if member not in ensemble.members]


@contextmanager
def _timed(seconds: dict[Any, float], key: Any) -> Iterator[None]:
    """Adds the seconds of the block to those of `key`."""
    began = clock()
    yield
    seconds[key] += clock() - began


def predict_splits(
    members: Members, cell: Cell, data: Mapping[str, Dataset], setting: Setting, run: RunDir
) -> tuple[Members, dict[str, Pass]]:
    """Predicts tune and the reported sets with every member of a checkpoint, in a pass each; writes predictions and
    logits. Returns the members that were not dropped, and the passes by split."""
    passes: dict[str, Pass] = {}
    for split in scored_splits(run.recipe().data.also):
        ensembles = [*members.singles, *members.pairs(setting.options.ensembles)]
        stage = scoring_stage(cell[1], split, cell[0])
        result = predict(members.backbone, members.heads, ensembles, data[split], setting, keep=True, stage=stage)
        members, passes[split] = members.without(result.dropped), result
        if not members.backbone.runtime.is_main:
            continue
        for ensemble, predictions in result.predictions.items():
            write_json(run.predictions_file(ensemble, split), predictions.to_json())
        logits = {member.name: values for member, values in result.logits.items()}
        layout = {"per": "token" if setting.task.per_token else "window"}
        save_tensors(run.logits_file(*cell, split), logits, layout)
        result.logits.clear()
    return members, passes


def score_rows(
    costs: Mapping[Member, Cost], result: Pass, task: Task, dataset: Dataset, tuned: Mapping[Ensemble, float]
) -> Iterator[Score]:
    """Score rows of a pass over `dataset`: every ensemble at the thresholds its task reports. tuned: thresholds chosen
    elsewhere; an ensemble without one is scored at zero alone."""
    for ensemble, predictions in result.predictions.items():
        seconds = result.seconds[ensemble]
        milliseconds = round(1000 * seconds / max(len(dataset.records), 1), 4)
        training = join_costs({member: costs[member] for member in ensemble.members})
        flops = result.flops.get(ensemble)
        cost = replace(training, infer_seconds=round(seconds, 3), ms_per_question=milliseconds, infer_flops=flops)
        for origin, threshold in task.thresholds(tuned.get(ensemble, 0.0)):
            if origin != "tune" or ensemble in tuned:
                metrics = task.scores(predictions, dataset, threshold)
                note = metrics.pop("note", "")
                yield Score(ensemble, threshold, origin, metrics, cost, task.metrics[-1], note=note)


def report_rows(
    members: Members, passes: Mapping[str, Pass], task: Task, data: Mapping[str, Dataset]
) -> tuple[list[Score], dict[Ensemble, Any]]:
    """The rows of a checkpoint on test, and the test predictions of the ensembles in them.

    Thresholds, and which pair is reported, are chosen on tune. passes: over `tune`, `test` and, where a second set is
    reported, `also`.
    """
    main, tune, test = task.metrics[-1], passes["tune"].predictions, passes["test"]
    tuned = {ensemble: task.choose(predictions, data["tune"]) for ensemble, predictions in tune.items()}
    on_tune = {
        ensemble: task.scores(predictions, data["tune"], tuned[ensemble])[main]
        for ensemble, predictions in tune.items()
    }
    complete = [ensemble for ensemble in test.predictions if not {*ensemble.members} & members.dropped.keys()]
    pairs = [ensemble for ensemble in complete if not ensemble.is_single]
    predicted_as = {ensemble: ensemble for ensemble in complete if ensemble.is_single}
    if pairs:
        best = max(pairs, key=on_tune.__getitem__)
        predicted_as[replace(best, chosen="best")] = best

    def named(values: Mapping[Ensemble, Any]) -> dict[Ensemble, Any]:
        return {ensemble: values[predicted] for ensemble, predicted in predicted_as.items()}

    reported, rows = Pass(named(test.predictions), named(test.seconds), flops=named(test.flops)), []
    for row in score_rows(members.costs, reported, task, data["test"], named(tuned)):
        predicted, also = predicted_as[row.ensemble], {}
        if "also" in passes:
            scores = task.scores(passes["also"].predictions[predicted], data["also"], row.threshold)
            also = {metric: scores[metric] for metric in task.metrics}
        loss = test.losses.get(predicted.members[0]) if predicted.is_single else None
        metrics = row.metrics if loss is None else row.metrics | {"loss": loss}
        rows.append(replace(row, metrics=metrics, tune=on_tune[predicted], also=also))
    return rows, reported.predictions
