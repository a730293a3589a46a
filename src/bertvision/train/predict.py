"""One backbone pass over a set of questions for all members: backbone, heads and their ensembles."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.packed import packed
from bertvision.data.batches import by_length, collate
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import How
from bertvision.evaluate.ragged import Ragged
from bertvision.heads import Head
from bertvision.recipe import EvaluateRecipe
from bertvision.tasks import Dataset, Task
from bertvision.train.progress import Journal


class Joined(NamedTuple):
    """An ensemble: the names of its members, and how their probabilities are joined."""

    parts: tuple[str, ...]
    how: How = "max"


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass gave: predictions of each member, and the seconds each would have needed alone.

    log_probabilities: of each single member, if they were to be kept: fp16, windows one after the other, unpadded.
    """

    predictions: dict[str, Any]
    seconds: dict[str, float]
    log_probabilities: dict[str, Tensor] = field(default_factory=dict)


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
    """Predictions of all members and ensembles. Logits live no longer than their batch.

    keep: whether the members' log-probabilities are kept, in half precision and without padding.
    """
    ensembles = ensembles or {}
    collectors = {name: task.collector(dataset, options) for name in [*members, *ensembles]}
    spent = dict.fromkeys(collectors, 0.0)
    shared = 0.0
    reads: Literal["all", "last"] = "all" if any(head.reads == "all" for head in members.values()) else "last"
    windows = dataset.windows
    starts = windows.starts if task.per_token else np.arange(len(windows) + 1)
    kept = {name: Ragged(starts, task.outputs) for name in members} if keep else {}
    frozen = packed(backbone)
    for head in members.values():
        head.eval()
    with journal.stage(stage, int(windows.lengths.sum())) as progress:
        for index in by_length(windows.lengths, options.batch_tokens):
            began = time.perf_counter()
            batch = collate(windows, index, backbone.pad)
            states = frozen(batch, reads)
            shared += time.perf_counter() - began
            logits: dict[str, Tensor] = {}
            for name, collector in collectors.items():
                began = time.perf_counter()
                if name in members:
                    logits[name] = _finite(name, members[name](states))
                else:
                    parts, how = ensembles[name]
                    logits[name] = task.blend([logits[part] for part in parts], batch, how)
                collector.add(index, logits[name])
                spent[name] += time.perf_counter() - began
                if name in kept:
                    kept[name].add(index, task.log_probabilities(logits[name], batch))
            del states, logits  # before the next batch's are made beside them
            progress.advance(batch.tokens)
    parts_of = {name: joined.parts for name, joined in ensembles.items()}
    alone = {name: spent[name] + sum(spent[part] for part in parts_of.get(name, ())) for name in collectors}
    return Pass(
        {name: collector.finish() for name, collector in collectors.items()},
        {name: shared + seconds for name, seconds in alone.items()},
        {name: ragged.values for name, ragged in kept.items()},
    )


def _finite(name: str, logits: Tensor) -> Tensor:
    if not logits.isfinite().all():
        raise UserError(f"{name}: its logits are not finite; train it again with a lower learning rate")
    return logits
