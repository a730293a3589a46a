"""The engine of readers in torch: logits of all tasks from one pass of the encoder, and layer contributions."""

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.backbone.states import Reads, States, deepest, together
from bertvision.data.batches import Batch, by_length, collate
from bertvision.data.windows import Windows
from bertvision.heads import Head
from bertvision.registry import TASKS
from bertvision.serve.answers import Ranking
from bertvision.serve.config import TaskConfig
from bertvision.serve.reader_dir import Heads
from bertvision.tasks.decode import SpanCollector

BATCH_TOKENS = 2048  # a gradient of all layers is kept beside the states


class TorchEngine:
    """Encoder and heads in torch. heads: {task's name: {head's name: head}}; tasks: their configurations."""

    def __init__(self, backbone: Backbone, heads: Heads, tasks: dict[str, TaskConfig]) -> None:
        self.backbone, self.tasks = backbone.eval(), dict(tasks)
        every_head = (head for of_task in heads.values() for head in of_task.values())
        backbone.cut(deepest((head.reads for head in every_head), backbone.layers))
        self._frozen, moved = frozen(backbone), backbone.runtime.to
        self.heads: Heads = {
            name: {key: moved(head.eval()) for key, head in of_task.items()} for name, of_task in heads.items()
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


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A span in the windows: a window, and its first and last token; (0, 0) is [CLS], no answer."""

    window: int
    first: int
    last: int


def add_layers(engine: TorchEngine, name: str, collector: SpanCollector, rankings: Sequence[Ranking]) -> None:
    """Adds "layers", the share of every layer, to all answers of a task. collector: what they were decoded from."""
    spans = [_token_span(collector, row, chars) for row, ranking in enumerate(rankings) for chars in ranking.chars]
    if spans:
        answers = (answer for ranking in rankings for answer in ranking.answers)
        for answer, shares in zip(answers, layer_shares(engine, name, collector.windows, spans)):
            answer["layers"] = shares


def layer_shares(engine: TorchEngine, name: str, windows: Windows, spans: Sequence[TokenSpan]) -> list[list[float]]:
    """Of each span the share of every layer in its start and end logits, (spans, L): the weighted mean of the members'.

    A head that has learned layer weights gives those. Of any other it is gradient times activation: how the sum of the
    span's two logits depends on the states of each layer, |sum over the width of d logit / d h * h| over all tokens.
    """
    layers, config = engine.backbone.layers, engine.tasks[name]
    weights = config.ensemble.weights or (1.0,) * len(config.heads)
    total = torch.zeros(len(spans), layers)
    unweighted: list[tuple[Head, float]] = []
    for key, weight in zip(config.heads, weights):
        learned = engine.heads[name][key].encoder_weights()
        if learned is None:
            unweighted.append((engine.heads[name][key], weight))
        else:
            total += weight * learned.float().cpu()
    if unweighted:
        index = np.array([span.window for span in spans], dtype=np.int64)
        for part in by_length(windows.lengths[index], BATCH_TOKENS):
            states = engine.states(collate(windows, index[part], engine.pad), [name])
            chosen = [spans[row] for row in part]
            for head, weight in unweighted:
                total[part] += weight * _attributed(head, states, chosen, layers).cpu()
    return (total / total.sum(dim=1, keepdim=True)).tolist()


def _attributed(head: Head, states: States, spans: Sequence[TokenSpan], layers: int) -> Tensor:
    """Gradient times activation as shares, (B, layers); equal ones where nothing has any influence. A row per span."""
    with torch.enable_grad():
        leaf = states.layers.detach().requires_grad_()  # (B, L', S, H)
        logits = head.logits(replace(states, layers=leaf))  # (B, S, 2)
        places = [(row, span.first, span.last) for row, span in enumerate(spans)]
        rows, first, last = torch.tensor(places, device=logits.device).T
        (gradient,) = torch.autograd.grad((logits[rows, first, 0] + logits[rows, last, 1]).sum(), leaf)
    influence = (gradient * leaf).sum(dim=-1).abs()  # (B, L', S)
    influences = (influence * states.mask[:, None]).sum(dim=-1)  # (B, L')
    shares = influences.new_zeros(len(spans), layers)
    shares[:, states.numbers or range(layers)] = influences  # a source may leave out layers that no head reads
    total = shares.sum(dim=1, keepdim=True)
    return torch.where(total > 0, shares / total.clamp_min(torch.finfo(total.dtype).tiny), 1 / layers)


def _token_span(collector: SpanCollector, row: int, chars: tuple[int, int]) -> TokenSpan:
    """Where an answer to question `row` was read. chars: its decoded offsets, equal for "no answer".

    Of several windows that hold a span, the one with most context around it; for "no answer" the least sure,
    or the surest where the best window wins.
    """
    windows = collector.windows
    begin, end = np.searchsorted(windows.example, [row, row + 1])
    if chars[0] == chars[1]:
        pick = np.argmin if collector.rule == "joint" else np.argmax
        return TokenSpan(int(begin) + int(pick(collector.nulls[begin:end])), 0, 0)
    spans = (_within(windows, window, *chars) for window in range(int(begin), int(end)))
    return max(spans, key=lambda around: around[0])[1]


def _within(windows: Windows, window: int, start: int, end: int) -> tuple[int, TokenSpan]:
    """How many tokens of context a window has on the narrower side of the span, below 0 if it does not hold it."""
    at, size = int(windows.context_at[window]), int(windows.context_end[window] - windows.context_at[window])
    row = int(windows.context_token[window])
    chars = windows.chars[row : row + size]
    first = int(np.searchsorted(chars[:, 1], start, side="right"))
    last = int(np.searchsorted(chars[:, 0], end, side="left")) - 1
    if first > last or chars[first, 0] > start or chars[last, 1] < end:
        return -1, TokenSpan(window, 0, 0)
    return min(first, size - 1 - last), TokenSpan(window, at + first, at + last)
