"""Linear heads solved instead of trained: regularised regression on the reduced states of a frozen backbone."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import Batch, by_length, collate
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.states.store import live
from bertvision.tasks import Dataset
from bertvision.train.bank import HeadBank
from bertvision.train.learner import Task
from bertvision.train.loop import Job

PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # times half the squared weights, on features of variance 1
STEPS = 200  # most of L-BFGS
TOKENS = 2048  # of a batch
Features = list[Tensor]  # (N, H) for each head


def solve_bank(bank: HeadBank, backbone: Backbone, task: Task, data: Mapping[str, Dataset], job: Job) -> HeadBank:
    """Solves every head of the bank on train with the penalty whose loss on tune is lowest; saves `job.result`."""
    runtime = backbone.runtime
    began = runtime.clock()
    runtime.to(bank.eval())
    train, tune = data["train"].windows, data["tune"].windows
    with job.journal.stage(job.stage, int(train.lengths.sum() + tune.lengths.sum())) as progress:
        found = {name: _features(bank, backbone, data[name].windows, progress.advance) for name in ("train", "tune")}
    feed, seconds = runtime.clock() - began, dict[str, float]()
    batches = [_targets(windows, backbone) for windows in (train, tune)]
    for place, (name, head) in enumerate(bank.items()):
        began = runtime.clock()
        features = [found["train"][place], found["tune"][place]]
        penalty = _solve(_readout(head, name), task, features, batches)
        seconds[name] = runtime.clock() - began
        job.journal.say(f"{name}: penalty {penalty:g}, the best on tune")
    if runtime.is_main:
        notes = {"feed_seconds": feed, "feed_flops": 0, "seconds": seconds, "flops": dict.fromkeys(seconds, 0)}
        bank.save(job.result, {**notes, "stopped": {}, "identity": job.identity})
    runtime.wait()
    return bank


def _readout(head: nn.Module, name: str) -> nn.Linear:
    """The one layer with parameters; UserError if there are others."""
    readout = getattr(head, "readout", None)
    if not isinstance(readout, nn.Linear) or len(list(head.parameters())) != len(list(readout.parameters())):
        raise UserError(f"heads: {name} is more than a linear read-out and cannot be solved; leave out bank.solve")
    return readout


@torch.no_grad()
def _features(bank: HeadBank, backbone: Backbone, windows: Windows, advance: Callable[[int], None]) -> Features:
    """What the read-out of each head would read of every window, reduced as its logits are."""
    readouts = [_readout(head, name) for name, head in bank.items()]
    source = live(backbone, bank.reads, bank.positions)
    found = [torch.empty(len(windows), one.in_features, device=one.weight.device) for one in readouts]
    for head in bank.heads:
        head.readout = nn.Identity()
    for index in by_length(windows.lengths, TOKENS):
        batch = backbone.runtime.to(collate(windows, index, backbone.pad))
        for features, logits in zip(found, bank(source(batch)).values()):
            features[torch.from_numpy(index)] = logits.float()  # (B, H)
        advance(batch.tokens)
    for head, readout in zip(bank.heads, readouts):
        head.readout = readout
    return found


def _targets(windows: Windows, backbone: Backbone) -> Batch:
    """All targets of a set, as a batch without tokens."""
    nothing = torch.empty(len(windows), 0, dtype=torch.int64)
    targets = torch.from_numpy(windows.targets)
    return backbone.runtime.to(Batch(np.arange(len(windows)), nothing, nothing, nothing.bool(), targets))


def _solve(readout: nn.Linear, task: Task, features: Sequence[Tensor], batches: Sequence[Batch]) -> float:
    """Sets the read-out, which reads what `features` hold of train and tune; the penalty that was chosen."""
    centre, scale = features[0].mean(dim=0), features[0].std(dim=0).mean().clamp(min=1e-6)
    train, tune = ((one - centre) / scale for one in features)
    best: tuple[float, float, Tensor, Tensor] | None = None
    weight, bias = torch.zeros_like(readout.weight), torch.zeros_like(readout.bias)
    for penalty in sorted(PENALTIES, reverse=True):  # from flat to steep, each from the one before
        weight, bias = _minimise(task, train, batches[0], penalty, (weight, bias))
        loss = float(task.loss(tune @ weight.T + bias, batches[1]))
        if best is None or loss < best[0]:
            best = loss, penalty, weight, bias
    assert best is not None
    with torch.no_grad():
        readout.weight.copy_(best[2] / scale)
        readout.bias.copy_(best[3] - readout.weight @ centre)
    return best[1]


def _minimise(
    task: Task, features: Tensor, batch: Batch, penalty: float, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the least penalised loss, by L-BFGS from `start`."""
    weight, bias = (one.detach().clone().requires_grad_() for one in start)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_grad=1e-5)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = task.loss(features @ weight.T + bias, batch) + 0.5 * penalty * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()
