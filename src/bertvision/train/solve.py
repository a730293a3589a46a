"""Linear heads solved instead of trained: regularised regression on the reduced states of a frozen backbone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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

# Half of this, times the squared weights, is added to the sum of the losses; the mean square of the features is 1.
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PRIOR = 1.0  # the penalty unless another is clearly better,
PER_FACTOR = 16  # and for each factor that it differs so many examples are needed: noise would choose among fewer
FOLDS = 4  # of a cross-validation,
SOLVED = 1600  # which is repeated, or broken off, so that about so many examples are solved with each penalty,
REPEATS = 4  # but not more often than this
STEPS = 200  # most of L-BFGS
TOKENS = 2048  # of a batch
Features = list[Tensor]  # (N, H) for each head


def solve_bank(bank: HeadBank, backbone: Backbone, task: Task, data: Mapping[str, Dataset], job: Job) -> HeadBank:
    """Solves every head of the bank on train, its penalty chosen there by cross-validation; saves `job.result`."""
    runtime = backbone.runtime
    began = runtime.clock()
    runtime.to(bank.eval())
    train = data["train"].windows
    with job.journal.stage(job.stage, int(train.lengths.sum())) as progress:
        features_of_heads = _features(bank, backbone, train, progress.advance)
    feed, seconds = runtime.clock() - began, dict[str, float]()
    targets = torch.from_numpy(train.targets)
    for (name, head), features in zip(bank.items(), features_of_heads):
        began = runtime.clock()
        penalty = solve_readout(_readout(head, name), task, features, runtime.to(targets), job.seed)
        seconds[name] = runtime.clock() - began
        job.journal.say(f"{name}: penalty {penalty:g}, chosen by cross-validation on train")
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
    features_of_heads = [
        torch.empty(len(windows), readout.in_features, device=readout.weight.device) for readout in readouts
    ]
    for head in bank.heads:
        head.readout = nn.Identity()
    for index in by_length(windows.lengths, TOKENS):
        batch = backbone.runtime.to(collate(windows, index, backbone.pad))
        for features, logits in zip(features_of_heads, bank(source(batch)).values()):
            features[torch.from_numpy(index)] = logits.float()  # (B, H)
        advance(batch.tokens)
    for head, readout in zip(bank.heads, readouts):
        head.readout = readout
    return features_of_heads


def solve_readout(readout: nn.Linear, task: Task, features: Tensor, targets: Tensor, seed: int) -> float:
    """Sets the read-out, which reads `features` (N, H) of examples with `targets` (N,); the penalty that was chosen."""
    centre = features.mean(dim=0)
    scale = (features - centre).square().sum(dim=1).mean().sqrt().clamp(min=1e-6)
    scaled = (features - centre) / scale
    start = torch.zeros_like(readout.weight), torch.zeros_like(readout.bias)
    penalty = _choose(task, scaled, targets, start, seed)
    weight, bias = _minimise(task, scaled, targets, penalty, start)
    with torch.no_grad():
        readout.weight.copy_(weight / scale)
        readout.bias.copy_(bias - readout.weight @ centre)
    return penalty


def _choose(task: Task, features: Tensor, targets: Tensor, start: tuple[Tensor, Tensor], seed: int) -> float:
    """The penalty next to PRIOR that is, but for one standard error, as good on held-out examples as the best one."""
    furthest = np.log(max(1.0, len(targets) / PER_FACTOR))
    penalties = [penalty for penalty in PENALTIES if abs(np.log(penalty / PRIOR)) <= furthest]
    if len(penalties) < 2:
        return PRIOR
    losses = []  # of each split those of all penalties
    for held in _held_out(targets.cpu().numpy(), seed):
        held = held.to(features.device)
        solved, row = start, {}
        for penalty in sorted(penalties, reverse=True):  # from flat to steep, each from the one before
            solved = _minimise(task, features[~held], targets[~held], penalty, solved)
            row[penalty] = float(task.loss(features[held] @ solved[0].T + solved[1], _batch(targets[held])))
        losses.append([row[penalty] for penalty in penalties])
    by_split = np.array(losses)  # (splits, penalties)
    worse = by_split - by_split[:, by_split.mean(axis=0).argmin(), None]
    error = worse.std(axis=0) / np.sqrt(min(FOLDS, len(by_split)))  # repeats see the same examples
    good = [penalty for penalty, is_good in zip(penalties, worse.mean(axis=0) <= error + 1e-9) if is_good]
    return min(good, key=lambda penalty: abs(np.log(penalty / PRIOR)))


def _held_out(targets: NDArray[Any], seed: int) -> list[Tensor]:
    """(N,) bool for each split: a part of the examples with its share of every label, of scores of every range."""
    random, count = np.random.default_rng([seed, 0xF01D]), len(targets)
    splits: list[Tensor] = []
    for _ in range(int(np.clip(SOLVED // (FOLDS * count), 1, REPEATS))):
        order = random.permutation(count)
        order = order[np.argsort(targets[order], kind="stable")]
        fold = np.empty(count, np.int64)
        fold[order] = np.arange(count) % FOLDS
        splits += [torch.from_numpy(fold == number) for number in range(FOLDS)]
    return splits[: 1 if count >= SOLVED else None]


def _batch(targets: Tensor) -> Batch:
    """Targets alone, as a batch without tokens."""
    nothing = torch.empty(len(targets), 0, dtype=torch.int64)
    return Batch(np.arange(len(targets)), nothing, nothing, nothing.bool(), targets)


def _minimise(
    task: Task, features: Tensor, targets: Tensor, penalty: float, start: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the least penalised loss, by L-BFGS from `start`."""
    weight, bias = (one.detach().clone().requires_grad_() for one in start)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_grad=1e-5)
    batch = _batch(targets)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = task.loss(features @ weight.T + bias, batch) + 0.5 * penalty / len(targets) * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach(), bias.detach()
