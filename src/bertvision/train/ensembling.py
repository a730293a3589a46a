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
from bertvision.train.run_dir import Cell
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
            found = self.predict("tune", weights)
            threshold = self.task.choose(found, self.data["tune"])
            score = self.task.scores(found, self.data["tune"], threshold)[self.task.metrics[-1]]
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
            joined = self._logits[split, next(iter(weights))]
        else:
            how = self.task.joined_by(self.how)
            joined = combine(((self._log(split, member), weight) for member, weight in weights.items()), how)
        collector = self.task.collector(dataset, options)
        for index in by_length(dataset.windows.lengths, options.batch_tokens):
            logits = padded(joined, dataset.windows.starts, index) if self.task.per_token else joined[index]
            collector.add(index, logits)
        return collector.finish()

    def report(self, ensemble: Ensemble, cost: Cost) -> tuple[list[Score], Any]:
        """The rows on test at the thresholds the task reports, and the predictions there."""
        size = len(ensemble.members)
        weights = dict(zip(ensemble.members, ensemble.weights or (1 / size,) * size, strict=True))
        tuned, on_tune = self.tuned(weights)
        self._logits.clear()  # those of all candidates on tune
        self._logs.clear()
        found = self.predict("test", weights)
        rows = []
        for origin, threshold in self.task.thresholds(tuned):
            metrics = self.task.scores(found, self.data["test"], threshold)
            note = metrics.pop("note", "")
            rows.append(Score(ensemble, threshold, origin, metrics, cost, self.task.metrics[-1], on_tune, note=note))
        return rows, found

    def _log(self, split: str, member: Member) -> Tensor:
        """The log-probabilities of a member, in the batches of the study, so that they are the same to the last bit."""
        if (split, member) not in self._logs:
            flat, windows, per_token = self._logits[split, member], self.data[split].windows, self.task.per_token
            found = Ragged(windows.starts if per_token else np.arange(len(windows) + 1), flat.shape[1])
            for index in by_length(windows.lengths, self.stored.run.recipe().evaluate.batch_tokens):
                mask = collate(windows, index).mask
                logits = padded(flat, windows.starts, index) if per_token else flat[index]
                logs = self.task.log_probabilities(logits, mask)
                found.add(index, logs[mask] if per_token else logs)
            self._logs[split, member] = found.values
        return self._logs[split, member]

    def _load(self, split: str, weights: Mapping[Member, float]) -> None:
        missing = [member for member in weights if (split, member) not in self._logits]
        windows = self.data[split].windows
        size = windows.starts[-1] if self.task.per_token else len(windows)
        for cell in dict.fromkeys((member.seed, member.epoch) for member in missing):
            place, found = self.stored.run.predictions(*cell, split), self.stored.logits(cell, split)
            for member in missing:
                if (member.seed, member.epoch) != cell:
                    continue
                if member.name not in found:
                    raise UserError(f"{place}: no logits of {member.name}; score it again")
                if len(found[member.name]) != size:
                    raise UserError(f"{place}: made from other data than the recipe's {split} set is now")
                self._logits[split, member] = found[member.name].float()


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
        {"member": one.name, "checkpoint": one.epoch, "seed": one.seed, "weight": weight}
        for one, weight in zip(ensemble.members, ensemble.weights, strict=True)
    ]
    about = {"chosen": "greedy" if ensemble.chosen == "greedy" else "given", "how": ensemble.how, "members": members}
    tune = {"threshold": main.threshold, f"tune_{main.main}": main.tune}
    return about | tune | {"test": [row.to_json() for row in rows]}


def has_readout(recipe: Recipe, epoch: float) -> bool:
    """Whether the head of the backbone has learnt anything by then: here, or in the run that tuning starts from."""
    return epoch > 0 or bool(recipe.finetune.start)


def write_greedy(stored: StoredResults) -> dict[str, Any]:
    """Chooses an ensemble for every scored checkpoint of every seed on tune; writes greedy.json.

    `test` has its score rows, `comparisons` and `equal_cost` the differences to the backbone over all seeds, at its
    checkpoint and at its cost. A checkpoint with a single member, or without stored logits, has none. Heads that are
    partial take no part.
    """
    run, found, scored = stored.run, [], measures(stored)
    # The backbone of every checkpoint, and the ensembles.
    known: Measures = {e: {key: runs for key, runs in keys.items() if key[1] == BACKBONE} for e, keys in scored.items()}
    for cell in run.scored():
        candidates = {
            row.ensemble.members[0]: row.cost
            for row in run.rows(cell)
            if row.ensemble.is_single and not row.ensemble.members[0].is_partial
            if row.name != BACKBONE or has_readout(run.recipe(), cell[1])
        }
        kept = all(run.logits_file(*cell, split).is_file() for split in ("tune", "test"))
        if len(candidates) < 2 or not kept:
            continue
        scorer = EnsembleScorer(stored, GREEDY_HOW)
        weights = scorer.select(list(candidates))
        ensemble = Ensemble(tuple(weights), tuple(weights.values()), GREEDY_HOW, "greedy")
        ordered = {member: cost for member, cost in candidates.items() if member in weights}
        rows, predictions = scorer.report(ensemble, join_costs(ordered))
        found.append(description(rows))
        for row in rows:
            own = Measured(stored.task.points(predictions, scorer.data["test"], row.threshold), row.cost)
            known[cell[1]].setdefault((row.threshold_from, row.name), {})[cell[0]] = own
    compared = []
    for epoch, keys in sorted(known.items()):
        points = {key: {seed: one.points for seed, one in runs.items()} for key, runs in keys.items()}
        compared += [{"checkpoint": epoch, **entry} for entry in compare(points)]
    equal = compare_equal_cost(known)
    whole = {"made_from": run.digest(), "ensembles": found, "comparisons": compared, "equal_cost": equal}
    write_json(run.greedy_file, whole)
    return whole


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
    everyone = list(dict.fromkeys(row.ensemble.members[0] for row in rows))
    only = seed if isinstance(seed, int) else None
    cells: list[Cell] = [run.cell(epoch, only) for epoch in checkpoints or (None,)]
    epochs = [epoch for _, epoch in cells]
    inside = [one for one in everyone if one.epoch in epochs and (seed == "all" or one.seed == cells[0][0])]
    chosen = named(members, everyone, inside) if members else inside
    scorer = EnsembleScorer(stored, how)
    weights = {one: 1 / len(chosen) for one in chosen}
    if greedy:
        Journal(quiet=quiet).say(f"choosing among {len(chosen)} members on tune")
        weights = scorer.select(chosen)
    ensemble = Ensemble(tuple(weights), tuple(weights.values()), how, "given")
    found, _ = scorer.report(ensemble, Cost())
    write_json(out or run.ensemble_file, description(found) | {"chosen": "greedy" if greedy else "given"})
    own = [row for one in chosen if one in weights for row in rows if row.ensemble.members[0] == one]
    return [row.to_json() for row in [*found, *own]]


def named(text: str, everyone: Sequence[Member], inside: Sequence[Member]) -> list[Member]:
    """The members that a list with commas names; a name may hold commas too, so the longest match counts."""
    known = {one.label: [one] for one in everyone}
    for one in inside:
        known.setdefault(one.name, []).append(one)
    words = [word.strip() for word in text.split(",")]
    found: list[Member] = []
    while words:
        size = next((n for n in range(len(words), 0, -1) if ", ".join(words[:n]) in known), 0)
        if not size:
            raise UserError(f"--members {words[0]}: {nearest(words[0], known)}")
        found += known[", ".join(words[:size])]
        words = words[size:]
    return list(dict.fromkeys(found))
