"""Ensembles of stored members, of any checkpoints and seeds: chosen on tune, reported on test."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.batches import Ragged, by_length, collate
from bertvision.errors import UserError, nearest
from bertvision.evaluate.ensemble import BACKBONE, HOWS, Ensemble, How, Member, combine, greedy_selection
from bertvision.evaluate.score import Cost, Score, join_costs
from bertvision.files import write_json
from bertvision.recipe import Recipe
from bertvision.train.compare import Measured, Measures, compare, compare_equal_cost, measures
from bertvision.train.progress import Journal
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.run_results import StoredResults

GREEDY_HOW: How = "mean"  # a member that selection takes twice weighs twice


class EnsembleScorer:
    """Scores ensembles of stored members; how: of all of them."""

    def __init__(self, stored: StoredResults, how: How) -> None:
        self.stored, self.task, self.how = stored, stored.task, how
        self.data = stored.sets()
        self._logits: dict[tuple[str, Member], Tensor] = {}
        self._logs: dict[tuple[str, Member], Tensor] = {}  # log-probabilities, once they are needed
        self._tuned: dict[frozenset[tuple[Member, float]], tuple[float, float]] = {}

    def tuned(self, weights: Mapping[Member, float]) -> tuple[float, float]:
        """The threshold chosen on tune, and the main metric there."""
        key = frozenset(weights.items())
        if key not in self._tuned:
            predictions = self.predict("tune", weights)
            threshold = self.task.choose(predictions, self.data["tune"])
            score = self.task.scores(predictions, self.data["tune"], threshold)[self.task.metrics[-1]]
            self._tuned[key] = threshold, score
        return self._tuned[key]

    def select(self, candidates: Sequence[Member]) -> dict[Member, float]:
        """The weights that greedy selection on tune finds."""
        repeats = self.how != "max"
        return greedy_selection(candidates, lambda weights: self.tuned(weights)[1], repeats=repeats)[0]

    def predict(self, split: str, weights: Mapping[Member, float]) -> Any:
        """Predictions on a split: blended without padding, decoded batch by batch; a single member's are its own."""
        dataset, options = self.data[split], self.stored.run.recipe().evaluate
        self._load(split, weights)
        if len(weights) == 1 and not self.task.decodes_probabilities(options.decoding):
            blended = self._logits[split, next(iter(weights))]
        else:
            how = self.task.joined_by(self.how)
            blended = combine(((self._log(split, member), weight) for member, weight in weights.items()), how)
        collector = self.task.collector(dataset, options)
        for index in by_length(dataset.windows.lengths, options.batch_tokens):
            logits = padded(blended, dataset.windows.starts, index) if self.task.per_token else blended[index]
            collector.add(index, logits)
        return collector.finish()

    def report(self, ensemble: Ensemble, cost: Cost) -> tuple[list[Score], Any]:
        """The rows on test at the thresholds the task reports, and the predictions there."""
        size = len(ensemble.members)
        weights = dict(zip(ensemble.members, ensemble.weights or (1 / size,) * size, strict=True))
        tuned, on_tune = self.tuned(weights)
        self._logits.clear()  # those of all candidates on tune
        self._logs.clear()
        predictions = self.predict("test", weights)
        rows = []
        for origin, threshold in self.task.thresholds(tuned):
            metrics = self.task.scores(predictions, self.data["test"], threshold)
            note = metrics.pop("note", "")
            rows.append(Score(ensemble, threshold, origin, metrics, cost, self.task.metrics[-1], on_tune, note=note))
        return rows, predictions

    def _log(self, split: str, member: Member) -> Tensor:
        """The log-probabilities of a member, in the batches of the study, so that they are the same to the last bit."""
        if (split, member) not in self._logs:
            member_logits, per_token = self._logits[split, member], self.task.per_token
            windows = self.data[split].windows
            collected = Ragged(windows.starts if per_token else np.arange(len(windows) + 1), member_logits.shape[1])
            for index in by_length(windows.lengths, self.stored.run.recipe().evaluate.batch_tokens):
                mask = collate(windows, index).mask
                logits = padded(member_logits, windows.starts, index) if per_token else member_logits[index]
                logs = self.task.log_probabilities(logits, mask)
                collected.add(index, logs[mask] if per_token else logs)
            self._logs[split, member] = collected.values
        return self._logs[split, member]

    def _load(self, split: str, weights: Mapping[Member, float]) -> None:
        missing = [member for member in weights if (split, member) not in self._logits]
        windows = self.data[split].windows
        size = windows.starts[-1] if self.task.per_token else len(windows)
        for cell in dict.fromkeys((member.seed, member.epoch) for member in missing):
            directory, stored_logits = self.stored.run.predictions(*cell, split), self.stored.logits(cell, split)
            for member in missing:
                if (member.seed, member.epoch) != cell:
                    continue
                if member.name not in stored_logits:
                    raise UserError(f"{directory}: no logits of {member.name}; score it again")
                if len(stored_logits[member.name]) != size:
                    raise UserError(f"{directory}: made from other data than the recipe's {split} set is now")
                self._logits[split, member] = stored_logits[member.name].float()


def padded(flat: Tensor, starts: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
    """The rows of the windows `index` (B,) in a flat tensor (T, ...), where window n owns rows starts[n]:starts[n + 1].

    (B, S, ...), padded with a window's last row: decoding does not look beyond a window's end.
    """
    first, lengths = starts[index], starts[index + 1] - starts[index]
    rows = first[:, None] + np.minimum(np.arange(lengths.max(initial=1)), lengths[:, None] - 1)  # (B, S)
    return flat[torch.from_numpy(rows)]


def description(rows: Sequence[Score]) -> dict[str, Any]:
    """An ensemble as ensemble.json and greedy.json have it. rows: its score rows, the main one last."""
    ensemble, main = rows[-1].ensemble, rows[-1]
    members = [
        {"member": member.name, "checkpoint": member.epoch, "seed": member.seed, "weight": weight}
        for member, weight in zip(ensemble.members, ensemble.weights, strict=True)
    ]
    chosen = "greedy" if ensemble.chosen == "greedy" else "given"
    tune = {"threshold": main.threshold, f"tune_{main.main}": main.tune}
    test = [row.to_json() for row in rows]
    return {"chosen": chosen, "how": ensemble.how, "members": members, **tune, "test": test}


def has_readout(recipe: Recipe, epoch: float) -> bool:
    """Whether the backbone's own head is trained at a checkpoint, here or in the run that tuning starts from."""
    return epoch > 0 or bool(recipe.finetune.start)


def write_greedy(stored: StoredResults) -> dict[str, Any]:
    """Chooses an ensemble for every scored checkpoint of every seed on tune; writes greedy.json.

    `test` has its score rows, `comparisons` and `equal_cost` the differences to the backbone over all seeds, at its
    checkpoint and at its cost. A checkpoint with a single member, or without stored logits, has none. Heads that are
    partial take no part.
    """
    run, ensembles = stored.run, list[dict[str, Any]]()
    measured: Measures = {}  # the backbone of every checkpoint, and the ensembles
    for epoch, members in measures(stored).items():
        measured[epoch] = {key: seeds for key, seeds in members.items() if key[1] == BACKBONE}
    for cell in run.scored():
        costs = _candidates(run, cell)
        if len(costs) < 2 or not all(run.logits_file(*cell, split).is_file() for split in ("tune", "test")):
            continue
        scorer = EnsembleScorer(stored, GREEDY_HOW)
        weights = scorer.select(list(costs))
        ensemble = Ensemble(tuple(weights), tuple(weights.values()), GREEDY_HOW, "greedy")
        rows, predictions = scorer.report(ensemble, join_costs({m: cost for m, cost in costs.items() if m in weights}))
        ensembles.append(description(rows))
        for row in rows:
            points = stored.task.points(predictions, scorer.data["test"], row.threshold)
            by_seed = measured[cell[1]].setdefault((row.threshold_from, row.name), {})
            by_seed[cell[0]] = Measured(points, row.cost)
    comparisons = []
    for epoch, members in sorted(measured.items()):
        by_member = {key: {seed: one.points for seed, one in seeds.items()} for key, seeds in members.items()}
        comparisons += [{"checkpoint": epoch, **entry} for entry in compare(by_member)]
    contents = {"made_from": run.digest(), "ensembles": ensembles, "comparisons": comparisons}
    contents["equal_cost"] = compare_equal_cost(measured)
    write_json(run.greedy_file, contents)
    return contents


def _candidates(run: RunDir, cell: Cell) -> dict[Member, Cost]:
    """The members of a checkpoint that may be chosen, with their costs."""
    return {
        row.ensemble.members[0]: row.cost
        for row in run.rows(cell)
        if row.ensemble.is_single and not row.ensemble.members[0].is_partial
        if row.name != BACKBONE or has_readout(run.recipe(), cell[1])
    }


def ensemble_run(
    directory: Path,
    *,
    members: str = "",
    greedy: bool = False,
    how: str = "max",
    checkpoints: Sequence[float] = (),
    seed: int | str | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Rows like those of metrics.json: the ensemble's, then those of its members. Writes ensemble.json (or `out`).

    members: names with commas between them, such as "backbone, pool" or "pool @ epoch 0.3, seed 2"; all if empty.
    A name without checkpoint and seed stands for those chosen by `checkpoints` (the last) and `seed` (the first; "all"
    for all). greedy: let greedy selection on tune choose among them.
    """
    if how not in HOWS:
        raise UserError(f"--how {how}: {nearest(how, HOWS)}")
    stored = StoredResults.open(directory)
    run = stored.run
    rows = [row for row in run.rows() if row.ensemble.is_single]
    if not rows:
        raise UserError(f"{directory}: nothing has been scored yet; `bertvision study` goes on with it")
    all_members = list(dict.fromkeys(row.ensemble.members[0] for row in rows))
    only_seed = seed if isinstance(seed, int) else None
    cells: list[Cell] = [run.cell(epoch, only_seed) for epoch in checkpoints or (None,)]
    epochs = [epoch for _, epoch in cells]
    in_scope = [
        member for member in all_members if member.epoch in epochs and (seed == "all" or member.seed == cells[0][0])
    ]
    chosen = named(members, all_members, in_scope) if members else in_scope
    scorer = EnsembleScorer(stored, how)
    weights = {member: 1 / len(chosen) for member in chosen}
    if greedy:
        Journal(quiet=quiet).say(f"choosing among {len(chosen)} members on tune")
        weights = scorer.select(chosen)
    ensemble = Ensemble(tuple(weights), tuple(weights.values()), how, "given")
    ensemble_rows, _ = scorer.report(ensemble, Cost())
    write_json(out or run.ensemble_file, description(ensemble_rows) | {"chosen": "greedy" if greedy else "given"})
    member_rows = [row for member in chosen if member in weights for row in rows if row.ensemble.members[0] == member]
    return [row.to_json() for row in [*ensemble_rows, *member_rows]]


def named(text: str, everyone: Sequence[Member], in_scope: Sequence[Member]) -> list[Member]:
    """The members that a list with commas names; a name may hold commas too, so the longest match counts."""
    by_name = {member.label: [member] for member in everyone}
    for member in in_scope:
        by_name.setdefault(member.name, []).append(member)
    words = [word.strip() for word in text.split(",")]
    chosen: list[Member] = []
    while words:
        length = next((size for size in range(len(words), 0, -1) if ", ".join(words[:size]) in by_name), 0)
        if not length:
            raise UserError(f"--members {words[0]}: {nearest(words[0], by_name)}")
        chosen += by_name[", ".join(words[:length])]
        words = words[length:]
    return list(dict.fromkeys(chosen))
