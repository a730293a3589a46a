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
        below = [early for early in self.exits if early.depth < end]
        steps = [*((early.depth, [heads[early.head]], early) for early in below), (end, final, None)]
        staying, logits_of_all = torch.arange(len(batch.ids)), torch.empty(0)
        layers: list[Tensor] = []
        before: Tensor | None = None
        for depth, own, leaving in steps:
            layers = self._further(batch, layers, depth)
            reads = together((head.reads for head in own), self.backbone.layers)
            numbers = numbered(reads, self.backbone.layers)
            states = States(torch.stack([layers[number] for number in numbers], dim=1), batch.mask, numbers)
            logits = [head.logits(states).cpu() for head in own]
            now = blend(config, logits, batch) if leaving is None else adjusted(logits[0].float(), leaving)
            if not logits_of_all.numel():
                logits_of_all = now.new_zeros(len(staying), *now.shape[1:])
            sure, says = certainty(config, now, batch.mask.cpu())
            leaves = leaves_by(self.rule, sure, says, before) if leaving else torch.ones(len(now), dtype=torch.bool)
            rows = staying[leaves]
            logits_of_all[rows, : now.shape[1]] = now[leaves]
            self.left[depth] += len(rows)
            if bool(leaves.all()):
                break
            staying, before = staying[~leaves], says[~leaves]
            batch, layers = _rest(batch, layers, ~leaves)
        return logits_of_all

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
    best, position = logs.max(dim=1) if logs.dim() == 3 else logs.max(dim=1, keepdim=True)
    return best.sum(dim=1).exp(), position


def leaves_by(rule: ExitRule, sure: Tensor, says: Tensor, before: Tensor | None) -> Tensor:
    """(B,) which windows leave: those sure enough, and with the same prediction as before those nearly so."""
    leaves = sure >= rule.sure
    if before is not None:
        leaves |= (says == before).all(dim=1) & (sure >= rule.sure * rule.agree)
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
        self.seen = self._predict(engine, [heads[name] for name in self.depths])

    def _predict(self, engine: TorchEngine, exits: Sequence[Head]) -> list[tuple[NDArray[np.int64], Tensor, list]]:
        """Of each batch its windows, its mask, and the logits of every exit and of the reader's own heads."""
        windows, seen = self.dataset.windows, []
        own = [engine.heads[self.task.name][key] for key in self.config.heads]
        reads = together((head.reads for head in [*own, *exits]), engine.backbone.layers)
        for index in by_length(windows.lengths, BATCH_TOKENS):
            batch = engine.collate(windows, index)
            with torch.no_grad():
                states = engine.run(batch, reads)
                last = blend(self.config, [head.logits(states).cpu() for head in own], batch)
                seen.append((index, batch.mask, [*(head.logits(states).cpu().float() for head in exits), last]))
        return seen

    def fit(self) -> Exits:
        """The exits, calibrated, and for each of LOSSES the quickest rule."""
        heads = tuple(self._calibrated(number, *one) for number, one in enumerate(self.depths.items()))
        whole = self._score([np.full(len(index), len(heads)) for index, _, _ in self.seen], heads)
        tried = []
        seen = [adjusted(logits[n], one) for n, one in enumerate(heads) for _, _, logits in self.seen]
        masks = [mask for _ in heads for _, mask, _ in self.seen]
        sures = [certainty(self.config, one, mask)[0] for one, mask in zip(seen, masks, strict=True)]
        for sure in np.unique(np.quantile(torch.cat(sures).numpy(), LEVELS)).tolist():
            for agree in AGREE if len(heads) > 1 else AGREE[-1:]:
                rule = ExitRule(0.0, sure, agree, 0.0, 0.0)
                places = [self._places(rule, heads, masks, logits) for _, masks, logits in self.seen]
                score = self._score(places, heads)
                tried.append(replace(rule, loss=max(0.0, whole - score), blocks=self._blocks(places), score=score))
        rules = [
            replace(min(fitting, key=lambda one: one.blocks), loss=loss)
            for loss in LOSSES
            if (fitting := [one for one in tried if one.loss <= loss])
        ]
        return Exits(heads, tuple(rules), whole, self.end)

    def _calibrated(self, number: int, name: str, depth: int) -> Exit:
        plain = Exit(name, depth, 1.0, 0.0)
        final, task = self.config.calibration, self.task
        found = self._collected([np.full(len(index), number) for index, _, _ in self.seen], None)
        if not task.positions_compete:
            return plain
        has = answerable(self.dataset.articles)
        doubts = found.no_answer_scores()
        own = fit_calibration([doubts[key] for key in has], list(has.values()))
        if final is None or own is None:  # at least "no answer" begins where it does for the reader's own
            return replace(plain, shift=self.config.threshold - float(task.choose(found, self.dataset)))
        return replace(plain, scale=own.slope / final.slope, shift=(own.intercept - final.intercept) / final.slope)

    def _places(self, rule: ExitRule, heads: Sequence[Exit], mask: Tensor, logits: Sequence[Tensor]) -> NDArray:
        """(B,) the number of the exit at which each window leaves; that of the reader's own heads is the last."""
        places, before = np.full(len(mask), len(heads)), None
        for number, early in enumerate(heads):
            sure, says = certainty(self.config, adjusted(logits[number], early), mask)
            leaves = leaves_by(rule, sure, says, before).numpy()
            places[leaves & (places == len(heads))] = number
            before = says
        return places

    def _collected(self, places: Sequence[NDArray], heads: Sequence[Exit] | None) -> Any:
        collector = self.task.collector(self.dataset, self.options)
        for (index, _, logits), where in zip(self.seen, places, strict=True):
            every = [adjusted(part, heads[n]) if heads and n < len(heads) else part for n, part in enumerate(logits)]
            collector.add(index, torch.stack([every[number][row] for row, number in enumerate(where.tolist())]))
        return collector.finish()

    def _score(self, places: Sequence[NDArray], heads: Sequence[Exit]) -> float:
        predictions = self._collected(places, heads)
        return float(self.task.scores(predictions, self.dataset, self.config.threshold)[self.task.metrics[-1]])

    def _blocks(self, places: Sequence[NDArray]) -> float:
        """Blocks that a token passes, on average."""
        depths = np.array([*self.depths.values(), self.end])
        lengths = self.dataset.windows.lengths
        passed = [float((depths[where] * lengths[index]).sum()) for (index, _, _), where in zip(self.seen, places)]
        return sum(passed) / float(lengths.sum())


def describe(exits: Exits, metric: str) -> str:
    """A section of a reader's card: what each rule costs and saves, on the tune set."""
    named = ", ".join(f"{one.head} (block {one.depth})" for one in exits.heads)
    lines = [
        f"\n## Early exit\n\nRead-outs below the last: {named}. With `exit=LOSS` a window that they are sure of runs",
        "no further. On the tune set, where the rules were chosen:\n",
        f"| `exit` | {metric} | blocks per token |\n|---|---|---|\n| off | {exits.score:.2f} | {exits.blocks} |",
    ]
    lines += [f"| {one.loss:g} | {one.score:.2f} | {one.blocks:.2f} |" for one in exits.rules]
    return "\n".join(lines) + "\n"
