"""Early exit: read-outs at several depths of the encoder; a window that one of them is sure of runs no further.

The logits of a read-out are scaled, and shifted at [CLS], so that thresholds and probabilities of the reader hold for
them too. Whether a window leaves depends on its own logits alone; those that stay go on as a smaller batch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.backbone.cpu_kernels import packed
from bertvision.backbone.split import entered
from bertvision.backbone.states import States, deepest, numbered, together
from bertvision.data.batches import Batch, by_length
from bertvision.errors import UserError
from bertvision.evaluate.calibration import fit_calibration
from bertvision.evaluate.squad import answerable
from bertvision.heads import Head
from bertvision.recipe import EvaluateRecipe
from bertvision.registry import TASKS
from bertvision.serve.config import Exit, ExitRule, Exits, TaskConfig
from bertvision.serve.engines import TorchEngine, blend
from bertvision.tasks import Dataset, Task

LOSSES = (0.25, 0.5, 1.0, 2.0)  # of the main metric on tune: what a rule may lose
# Shares of windows that are less sure than the probabilities that are tried; the last let hardly any window leave.
LEVELS = (*np.linspace(0.05, 0.95, 13), 0.98, 0.995)
AGREE = (0.5, 0.75, 1.0)  # of these, the share that is enough where the read-out before says the same
BATCH_TOKENS = 1024


class ExitEngine(TorchEngine):
    """Encoder and heads of a reader with one task, leaving early by `rule`. left: {blocks: windows that left there}."""

    def __init__(self, engine: TorchEngine, name: str, rule: ExitRule) -> None:
        runtime = engine.backbone.runtime
        if runtime.kind != "cpu" or runtime.precision != "fp32":
            raise UserError(f'exit: needs the CPU and fp32, not {runtime.device}; give device="cpu", precision="fp32"')
        super().__init__(engine.backbone, engine.heads, engine.tasks)
        exits = engine.tasks[name].exits
        assert exits is not None
        self.name, self.rule, self.exits, self.left = name, rule, exits.heads, Counter[int]()
        self._run = packed(engine.backbone)

    @torch.no_grad()
    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        if list(names) != [self.name]:
            return super().logits(batch, names)
        with self._lock:
            return {self.name: self._staged(self.backbone.runtime.to(batch))}

    def _staged(self, batch: Batch) -> Tensor:
        config = self.tasks[self.name]
        heads = self.heads[self.name]
        final = [heads[key] for key in config.heads]
        end = deepest((head.reads for head in final), self.backbone.layers)
        below = [exit for exit in self.exits if exit.depth < end]
        steps = [*((exit.depth, [heads[exit.head]], exit) for exit in below), (end, final, None)]
        staying, result = torch.arange(len(batch.ids)), torch.empty(0)
        layers: list[Tensor] = []
        before: Tensor | None = None
        for depth, readouts, exit in steps:
            layers = self._further(batch, layers, depth)
            reads = together((head.reads for head in readouts), self.backbone.layers)
            numbers = numbered(reads, self.backbone.layers)
            states = States(torch.stack([layers[number] for number in numbers], dim=1), batch.mask, numbers)
            members = [head.logits(states).cpu() for head in readouts]
            logits = blend(config, members, batch) if exit is None else adjusted(members[0].float(), exit)
            if not result.numel():
                result = logits.new_zeros(len(staying), *logits.shape[1:])
            sure, best = certainty(config, logits, batch.mask.cpu())
            leaves = leaves_by(self.rule, sure, best, before) if exit else torch.ones(len(logits), dtype=torch.bool)
            rows = staying[leaves]
            result[rows, : logits.shape[1]] = logits[leaves]
            self.left[depth] += len(rows)
            if bool(leaves.all()):
                break
            staying, before = staying[~leaves], best[~leaves]
            batch, layers = _rest(batch, layers, ~leaves)
        return result

    def _further(self, batch: Batch, layers: list[Tensor], depth: int) -> list[Tensor]:
        """The states of layers 0 to `depth`, (B, S, H) each, from those that are there."""
        if not layers:
            return self._run.encode(batch, tuple(range(depth + 1)))
        return layers + entered(self._run, batch, layers[-1], len(layers) - 1, depth)


def _rest(batch: Batch, layers: list[Tensor], stay: Tensor) -> tuple[Batch, list[Tensor]]:
    """The windows that stay, cut to the longest of them."""
    mask = batch.mask[stay]
    tokens = int(mask.sum(dim=1).max())
    ids, types = batch.ids[stay, :tokens], batch.types[stay, :tokens]
    rest = Batch(batch.index[stay.numpy()], ids, types, mask[:, :tokens], batch.targets[stay])
    return rest, [layer[stay, :tokens] for layer in layers]


def adjusted(logits: Tensor, exit: Exit) -> Tensor:
    """Logits of an exit on the scale of the reader's own: (B, S, 2) shifted at [CLS], or (B, outputs)."""
    scaled = exit.scale * logits
    if logits.dim() == 3:
        scaled[:, 0] += exit.shift / 2
    return scaled


def certainty(config: TaskConfig, logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """How probable the most probable prediction of each window is, (B,), and what it is: (B, 2) or (B, 1)."""
    logs = TASKS[config.task]().log_probabilities(logits, mask)
    highest, prediction = logs.max(dim=1) if logs.dim() == 3 else logs.max(dim=1, keepdim=True)
    return highest.sum(dim=1).exp(), prediction


def leaves_by(rule: ExitRule, sure: Tensor, prediction: Tensor, before: Tensor | None) -> Tensor:
    """(B,) which windows leave: those sure enough, and with the same prediction as before those nearly so."""
    leaves = sure >= rule.sure
    if before is not None:
        leaves |= (prediction == before).all(dim=1) & (sure >= rule.sure * rule.agree)
    return leaves


def rule_for(config: TaskConfig, loss: float) -> ExitRule:
    """The quickest rule that loses no more than `loss` on the tune set."""
    if config.exits is None:
        raise UserError("exit: this reader has no read-outs below its last; build one with `bertvision reader --exits`")
    if fitting := [rule for rule in config.exits.rules if rule.loss <= loss]:
        return min(fitting, key=lambda rule: rule.blocks)
    if not config.exits.rules:
        raise UserError("exit: every rule lost too much on this reader's tune set; leave it out, or take higher exits")
    least = min(rule.loss for rule in config.exits.rules)
    raise UserError(f"exit: {loss:g} is less than any rule loses on the tune set; give {least:g} or more, or none")


class Fitting:
    """Chooses exits of a task on a tune set. engine: with the final heads and those of `names`, any depths."""

    def __init__(self, engine: TorchEngine, task: Task, names: Sequence[str], dataset: Dataset) -> None:
        self.task, self.dataset, self.config = task, dataset, engine.tasks[task.name]
        self.options = EvaluateRecipe(
            decoding=self.config.decoding.rule,
            nbest=self.config.decoding.nbest,
            answer_tokens=self.config.decoding.answer_tokens,
        )
        if self.config.windows.pairs == "apart":
            raise UserError("--exits: this reader encodes pairs of texts apart, so that no window leaves; leave it out")
        layers = engine.backbone.layers
        heads = engine.heads[task.name]
        self.end = deepest((heads[key].reads for key in self.config.heads), layers)
        depths = {name: deepest([heads[name].reads], layers) for name in names}
        if late := [name for name, depth in depths.items() if depth >= self.end]:
            raise UserError(f"--exits: {late[0]} is not below the reader's own depth, {self.end}; leave it out")
        self.depths = dict(sorted(depths.items(), key=lambda item: item[1]))
        self.batches = self._logits(engine, [heads[name] for name in self.depths])

    def _logits(self, engine: TorchEngine, exits: Sequence[Head]) -> list[tuple[NDArray[np.int64], Tensor, list]]:
        """Of each batch its windows, its mask, and the logits of every exit and of the reader's own heads."""
        windows, batches = self.dataset.windows, []
        final = [engine.heads[self.task.name][key] for key in self.config.heads]
        reads = together((head.reads for head in [*final, *exits]), engine.backbone.layers)
        for index in by_length(windows.lengths, BATCH_TOKENS):
            batch = engine.collate(windows, index)
            with torch.no_grad():
                states = engine.run(batch, reads)
                last = blend(self.config, [head.logits(states).cpu() for head in final], batch)
                batches.append((index, batch.mask, [*(head.logits(states).cpu().float() for head in exits), last]))
        return batches

    def fit(self) -> Exits:
        """The exits, calibrated, and for each of LOSSES the quickest rule."""
        exits = tuple(self._calibrated(number, *item) for number, item in enumerate(self.depths.items()))
        whole = self._score([np.full(len(index), len(exits)) for index, _, _ in self.batches], exits)
        sures = [
            certainty(self.config, adjusted(logits[number], exit), mask)[0]
            for number, exit in enumerate(exits)
            for _, mask, logits in self.batches
        ]
        tried = []
        for sure in np.unique(np.quantile(torch.cat(sures).numpy(), LEVELS)).tolist():
            for agree in AGREE if len(exits) > 1 else AGREE[-1:]:
                rule = ExitRule(0.0, sure, agree, 0.0, 0.0)
                chosen = [self._chosen_exits(rule, exits, mask, logits) for _, mask, logits in self.batches]
                score = self._score(chosen, exits)
                tried.append(replace(rule, loss=max(0.0, whole - score), blocks=self._blocks(chosen), score=score))
        rules = [
            replace(min(fitting, key=lambda rule: rule.blocks), loss=loss)
            for loss in LOSSES
            if (fitting := [rule for rule in tried if rule.loss <= loss])
        ]
        return Exits(exits, tuple(rules), whole, self.end)

    def _calibrated(self, number: int, name: str, depth: int) -> Exit:
        plain = Exit(name, depth, 1.0, 0.0)
        final, task = self.config.calibration, self.task
        predictions = self._predictions([np.full(len(index), number) for index, _, _ in self.batches], None)
        if not task.positions_compete:
            return plain
        has = answerable(self.dataset.articles)
        doubts = predictions.no_answer_scores()
        fitted = fit_calibration([doubts[key] for key in has], list(has.values()))
        if final is None or fitted is None:  # at least "no answer" begins where it does for the reader's own
            return replace(plain, shift=self.config.threshold - float(task.choose(predictions, self.dataset)))
        shift = (fitted.intercept - final.intercept) / final.slope
        return replace(plain, scale=fitted.slope / final.slope, shift=shift)

    def _chosen_exits(self, rule: ExitRule, exits: Sequence[Exit], mask: Tensor, logits: Sequence[Tensor]) -> NDArray:
        """(B,) the number of the exit at which each window leaves; that of the reader's own heads is the last."""
        chosen, before = np.full(len(mask), len(exits)), None
        for number, exit in enumerate(exits):
            sure, prediction = certainty(self.config, adjusted(logits[number], exit), mask)
            leaves = leaves_by(rule, sure, prediction, before).numpy()
            chosen[leaves & (chosen == len(exits))] = number
            before = prediction
        return chosen

    def _predictions(self, chosen: Sequence[NDArray], exits: Sequence[Exit] | None) -> Any:
        """The predictions where each window leaves at its chosen exit; the logits as they are without `exits`."""
        collector = self.task.collector(self.dataset, self.options)
        for (index, _, logits), numbers in zip(self.batches, chosen, strict=True):
            scaled = [*map(adjusted, logits, exits or ()), *logits[len(exits or ()) :]]
            collector.add(index, torch.stack([scaled[number][row] for row, number in enumerate(numbers.tolist())]))
        return collector.finish()

    def _score(self, chosen: Sequence[NDArray], exits: Sequence[Exit]) -> float:
        predictions = self._predictions(chosen, exits)
        return float(self.task.scores(predictions, self.dataset, self.config.threshold)[self.task.metrics[-1]])

    def _blocks(self, chosen: Sequence[NDArray]) -> float:
        """Blocks that a token passes, on average."""
        depths = np.array([*self.depths.values(), self.end])
        lengths = self.dataset.windows.lengths
        passed = [float((depths[n] * lengths[index]).sum()) for (index, _, _), n in zip(self.batches, chosen)]
        return sum(passed) / float(lengths.sum())


def describe(exits: Exits, metric: str) -> str:
    """A section of a reader's card: what each rule costs and saves, on the tune set."""
    named = ", ".join(f"{exit.head} (block {exit.depth})" for exit in exits.heads)
    lines = [
        f"\n## Early exit\n\nRead-outs below the last: {named}. With `exit=LOSS` a window that they are sure of runs",
        "no further. On the tune set, where the rules were chosen:\n",
        f"| `exit` | {metric} | blocks per token |\n|---|---|---|\n| off | {exits.score:.2f} | {exits.blocks} |",
    ]
    lines += [f"| {rule.loss:g} | {rule.score:.2f} | {rule.blocks:.2f} |" for rule in exits.rules]
    return "\n".join(lines) + "\n"
