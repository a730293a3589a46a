"""Probes: what one batch costs in every part of the work, measured by doing it."""

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, States
from bertvision.data.batches import by_length, collate, cut
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.layout import Dtype, Layout, Positions, encode
from bertvision.states.manifest import kept_lengths
from bertvision.states.source import live
from bertvision.states.store import OpenShard
from bertvision.states.write import write_shard


@dataclass(frozen=True, slots=True)
class Probe:
    """What a batch of `tokens` tokens took, in seconds. length: mean tokens of its windows.

    heads: learning from it; looks: heads that only read it.
    """

    length: float
    tokens: int
    encoder: float
    heads: float
    looks: float
    write: float
    check: float
    read: float


class Bench:
    """Runs a batch through everything: the encoder, the heads and back, a shard written and read."""

    def __init__(
        self,
        backbone: Backbone,
        windows: Windows,
        heads: Sequence[Any],
        reads: Reads,
        positions: Positions,
        dtype: Dtype,
        path: Path,
    ) -> None:
        self.windows, self.pad, self.dtype, self.path = windows, backbone.pad, dtype, path
        self.lengths = kept_lengths(windows, positions)
        self.feed = live(backbone, reads, positions)
        self.heads = [copy.deepcopy(head).train() for head in heads]
        self.optimizers = [torch.optim.AdamW(head.parameters(), fused=True) for head in self.heads]

    def measure(self, index: NDArray[np.int64]) -> Probe:
        clock = [time.perf_counter()]
        states = self.feed(collate(self.windows, index, self.pad))
        clock.append(time.perf_counter())
        for head, optimizer in zip(self.heads, self.optimizers):
            head.logits(states).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        clock.append(time.perf_counter())
        with torch.no_grad():
            for head in self.heads:
                head.logits(states)
        clock.append(time.perf_counter())
        tokens = int(self.windows.lengths[index].sum())
        encoder, learning, looks = np.diff(clock).tolist()
        return Probe(tokens / len(index), tokens, encoder, learning, looks, *self._store(index, states))

    def _store(self, index: NDArray[np.int64], states: States) -> tuple[float, float, float]:
        """Seconds of writing, checking and reading."""
        clock = [time.perf_counter()]
        try:
            shard = self._write(index, states)
        except UserError:  # a full disk, or one that must not be written to: then states can only be live
            return math.inf, 0.0, 0.0
        clock.append(time.perf_counter())
        shard.verify()
        clock.append(time.perf_counter())
        rows = np.arange(len(index))
        shard.read(rows, self.lengths[index], torch.empty(states.layers.shape), rows)
        clock.append(time.perf_counter())
        write, check, read = np.diff(clock).tolist()
        return write, check, read

    def _write(self, index: NDArray[np.int64], states: States) -> OpenShard:
        _, layers, _, width = states.layers.shape
        layout = Layout(self.lengths[index], layers, width, self.dtype)
        pieces = [(np.arange(len(index)), encode(states.layers, self.dtype))]
        return OpenShard(self.path, layout, write_shard(self.path, layout, pieces))


def spread(lengths: NDArray[np.int64], batch_size: int, batch_tokens: int) -> list[NDArray[np.int64]]:
    """The batch of the shortest windows, one of the middle, and that of the longest."""
    falling = by_length(lengths, batch_tokens, batch_size)
    rising = cut(np.argsort(lengths, kind="stable"), lengths, batch_size, batch_tokens)
    return [rising[0], falling[len(falling) // 2], falling[0]]
