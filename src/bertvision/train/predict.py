"""One backbone pass over a set of questions for all members: backbone, heads and their ensembles."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import States, together
from bertvision.data.batches import Batch, by_length, collate
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import How
from bertvision.evaluate.ragged import Ragged
from bertvision.heads import Head
from bertvision.recipe import EvaluateRecipe
from bertvision.states.store import live
from bertvision.tasks import Dataset, Task
from bertvision.train.progress import Journal

BACKBONE = "backbone"  # how the head that was tuned with the encoder is called


class Joined(NamedTuple):
    """An ensemble: the names of its members, and how their probabilities are joined."""

    parts: tuple[str, ...]
    how: How = "max"


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass gave: predictions of each member, and the seconds each would have needed alone.

    log_probabilities: of each single member, if they were to be kept: fp16, windows one after the other, unpadded.
    dropped: why members are missing; ensembles of theirs are missing with them.
    """

    predictions: dict[str, Any]
    seconds: dict[str, float]
    log_probabilities: dict[str, Tensor] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)


@torch.no_grad()
def predict(
    backbone: Backbone,
    members: Mapping[str, Head],
    task: Task,
    dataset: Dataset,
    options: EvaluateRecipe,
    journal: Journal,
    *,
    ensembles: Mapping[str, Joined] | None = None,
    keep: bool = False,
    stage: str = "predicting",
) -> Pass:
    """Predictions of all members and ensembles. States live no longer than their batch, logits until they are decoded.

    A head whose logits are not finite is dropped, with a note; where it is the backbone's own, that is an error.
    keep: whether the members' log-probabilities are kept, in half precision and without padding.
    """
    windows = dataset.windows
    reads = together((head.reads for head in members.values()), backbone.layers)
    source = live(backbone, reads, "cls" if all(head.positions == "cls" for head in members.values()) else "all")
    for head in members.values():
        head.eval()
    scorers = Scorers(members, ensembles or {}, task, dataset, options, journal, keep)
    with journal.stage(stage, int(windows.lengths.sum())) as progress:
        for index in by_length(windows.lengths, options.batch_tokens):
            began = time.perf_counter()
            batch = collate(windows, index, backbone.pad)
            states = source(batch)
            scorers.shared += time.perf_counter() - began
            scorers.take(batch, states)
            del states  # before the next batch's are made beside them
            progress.advance(batch.tokens)
    return scorers.finish()


class Scorers:
    """Who reads the states of a pass: every member and every ensemble, each with its predictions and its seconds.

    shared: seconds of the states, which each would need alone too.
    """

    def __init__(
        self,
        members: Mapping[str, Head],
        ensembles: Mapping[str, Joined],
        task: Task,
        dataset: Dataset,
        options: EvaluateRecipe,
        journal: Journal,
        keep: bool,
    ) -> None:
        self.members, self.ensembles, self.task, self.journal = dict(members), dict(ensembles), task, journal
        self.collectors = {name: task.collector(dataset, options) for name in [*members, *ensembles]}
        starts = dataset.windows.starts if task.per_token else np.arange(len(dataset.windows) + 1)
        self.kept = {name: Ragged(starts, task.outputs) for name in members} if keep else {}
        self.heads_seconds = dict.fromkeys(members, 0.0)
        self.own_seconds = dict.fromkeys(self.collectors, 0.0)  # of joining and decoding
        self.shared = 0.0
        self.dropped: dict[str, str] = {}

    def take(self, batch: Batch, states: States) -> None:
        """Takes in one batch."""
        logits: dict[str, Tensor] = {}
        for name, head in list(self.members.items()):
            with timed(self.heads_seconds, name):
                logits[name] = head.logits(states)
            if not logits[name].isfinite().all():
                self._drop(name)
                continue
            with timed(self.own_seconds, name):
                self.collectors[name].add(batch.index, logits[name])
            if name in self.kept:
                logs = self.task.log_probabilities(logits[name], batch.mask)
                self.kept[name].add(batch.index, logs[batch.mask] if self.task.per_token else logs)
        for name, (parts, how) in self.ensembles.items():
            with timed(self.own_seconds, name):
                blended = self.task.blend([logits[part] for part in parts], batch.mask, how)
                self.collectors[name].add(batch.index, blended)

    def finish(self) -> Pass:
        """What is left to decode is decoded: in a small set that is all of it."""
        predictions = {}
        for name in [*self.members, *self.ensembles]:
            with timed(self.own_seconds, name):
                predictions[name] = self.collectors[name].finish()
        parts = {name: (name,) for name in self.members} | {name: one.parts for name, one in self.ensembles.items()}
        seconds = {
            name: self.shared + sum(self.heads_seconds[part] for part in set(read)) + self.own_seconds[name]
            for name, read in parts.items()
        }
        logs = {name: self.kept[name].values for name in self.members if name in self.kept}
        return Pass(predictions, seconds, logs, self.dropped)

    def _drop(self, name: str) -> None:
        if name == BACKBONE:
            raise UserError(f"{name}: its logits are not finite; tune it again with a lower learning rate")
        self.dropped[name] = "its logits are not finite; a lower learning rate may help"
        self.journal.note(f"{name} is dropped: {self.dropped[name]}")
        del self.members[name]
        self.ensembles = {key: one for key, one in self.ensembles.items() if name not in one.parts}


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of what is done inside to those of `name`."""
    began = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - began
