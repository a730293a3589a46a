"""What runs a reader: batch -> logits of its tasks, all from one pass of the backbone."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.evaluate.ensemble import combine
from bertvision.heads import Head
from bertvision.serve.config import TaskConfig

if TYPE_CHECKING:  # it brings transformers along, which an exported reader can do without
    from bertvision.backbone.backbone import Backbone


class Engine(Protocol):
    """Whatever can run a reader's encoder and heads. pad: the id that fills padding; longest: most tokens in a window.

    Calling it from several threads at once is allowed.
    """

    tokenizer: Tokenizer
    pad: int
    longest: int

    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """{task's name: logits of its ensemble}, (B, S, 2) for spans, else (B, outputs); for the tasks in `names`."""
        ...


class TorchEngine:
    """Encoder and heads in torch. heads: {task's name: {head's name: head}}; tasks: their configurations."""

    def __init__(
        self, backbone: "Backbone", heads: Mapping[str, Mapping[str, Head]], tasks: Mapping[str, TaskConfig]
    ) -> None:
        from bertvision.backbone.cpu_kernels import packed

        self.backbone, self.tasks = backbone.eval(), dict(tasks)
        self._frozen = packed(backbone)
        self.heads = {name: {key: head.eval() for key, head in own.items()} for name, own in heads.items()}
        self.tokenizer, self.pad, self.longest = backbone.tokenizer, backbone.pad, backbone.longest
        # One pass at a time: each uses all cores anyway, and two at once would only fight for them.
        self._turn = threading.Lock()

    def states(self, batch: Batch, names: Sequence[str]) -> States:
        """The states that the heads of these tasks read, cut off from any graph."""
        wanted = [head for name in names for head in self.heads[name].values()]
        reads: Literal["all", "last"] = "last" if all(head.reads == "last" for head in wanted) else "all"
        with self._turn, torch.no_grad():
            return self._frozen(batch, reads)

    @torch.no_grad()
    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        states = self.states(batch, names)
        return {name: self._blended(name, states, batch) for name in names}

    def _blended(self, name: str, states: States, batch: Batch) -> Tensor:
        config = self.tasks[name]
        return blend(config, [self.heads[name][key].logits(states) for key in config.ensemble.members], batch)


def blend(config: TaskConfig, members: Sequence[Tensor], batch: Batch) -> Tensor:
    """The logits of an ensemble from those of its members, in the order of the configuration; one alone stays as it is.

    Joined are probabilities: of spans over the real tokens of the window, of labels over the classes. Numbers have
    none; of scores it is the weighted mean.
    """
    if len(members) == 1:
        return members[0].float()
    weights = config.ensemble.weights
    if config.task == "score":
        return torch.stack([logits.float() * weight for logits, weight in zip(members, weights)]).sum(0) / sum(weights)
    if config.task == "spans":
        padding = ~batch.mask[..., None]  # (B, S, 1)
        logs = [logits.float().masked_fill(padding, float("-inf")).log_softmax(dim=1) for logits in members]
    else:
        logs = [logits.float().log_softmax(dim=-1) for logits in members]
    return combine(zip(logs, weights), config.ensemble.how)
