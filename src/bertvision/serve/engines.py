"""The engine of readers in torch: batch -> logits of their tasks, from one pass of the encoder."""

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.backbone.states import Reads, States, deepest, together
from bertvision.data.batches import Batch, collate
from bertvision.data.windows import Windows
from bertvision.registry import TASKS
from bertvision.serve.config import TaskConfig
from bertvision.serve.reader_dir import Heads


class TorchEngine:
    """Encoder and heads in torch. heads: {task's name: {head's name: head}}; tasks: their configurations."""

    def __init__(self, backbone: Backbone, heads: Heads, tasks: dict[str, TaskConfig]) -> None:
        self.backbone, self.tasks = backbone.eval(), dict(tasks)
        backbone.cut(deepest((head.reads for own in heads.values() for head in own.values()), backbone.layers))
        self._frozen, moved = frozen(backbone), backbone.runtime.to
        self.heads: Heads = {
            name: {key: moved(head.eval()) for key, head in own.items()} for name, own in heads.items()
        }
        self.tokenizer, self.pad, self.longest = backbone.tokenizer, backbone.pad, backbone.longest
        self._lock = threading.Lock()  # one pass at a time: each uses all cores

    def collate(self, windows: Windows, index: NDArray[np.int64]) -> Batch:
        return collate(windows, index, self.pad)

    def states(self, batch: Batch, names: Sequence[str]) -> States:
        """The states that the heads of these tasks read, without gradients, on the device."""
        wanted = [self.heads[name][key] for name in names for key in self.tasks[name].heads]
        return self.run(batch, together((head.reads for head in wanted), self.backbone.layers))

    def run(self, batch: Batch, reads: Reads) -> States:
        """The states of these layers."""
        with self._lock:
            return self._frozen(batch, reads)

    @torch.no_grad()
    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        states = self.states(batch, names)
        return {
            name: blend(config, [self.heads[name][key].logits(states).cpu() for key in config.heads], batch)
            for name, config in ((name, self.tasks[name]) for name in names)
        }


def blend(config: TaskConfig, members: Sequence[Tensor], batch: Batch) -> Tensor:
    """The logits of an ensemble from those of its members, in its order.

    A single member's stay as they are, unless the rule of decoding compares probabilities.
    """
    task = TASKS[config.task]()
    if len(members) == 1 and not task.decodes_probabilities(config.decoding.rule):
        return members[0].float()
    ensemble = dataclasses.replace(config.ensemble, how=task.joined_by(config.ensemble.how))
    return ensemble.blend([task.log_probabilities(logits, batch.mask) for logits in members])
