"""Ensembles of what a run has stored: any members, of any checkpoints and seeds; chosen on tune, reported on test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertvision.data.batches import by_length
from bertvision.errors import UserError, nearest
from bertvision.evaluate.ensemble import HOWS, How, combine, greedy_selection
from bertvision.files import write_json
from bertvision.tasks import Dataset
from bertvision.train.progress import Journal
from bertvision.train.stored import Cell, cell, data_of, open_run

if TYPE_CHECKING:  # a study ends by choosing an ensemble
    from bertvision.train.study import Study


@dataclass(frozen=True, slots=True, order=True)
class Sitter:
    """A member that can sit on a committee: who, of which checkpoint and seed."""

    member: str
    epoch: float
    seed: int

    @property
    def label(self) -> str:
        return f"{self.member} @ epoch {self.epoch:g}, seed {self.seed}"


def ensemble_run(
    directory: Path,
    *,
    members: str = "",
    greedy: bool = False,
    how: str = "max",
    checkpoints: Sequence[float] = (),
    seed: int | None = None,
    all_seeds: bool = False,
    out: Path | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Rows like those of metrics.json: the ensemble's, then those of its members. Writes ensemble.json (or `out`).

    members: names with commas between them, such as "backbone, pool" or "pool @ epoch 0.3, seed 2"; all if empty.
    A name without checkpoint and seed stands for those chosen by `checkpoints` (the last) and seed (the first), or for
    all seeds. greedy: let forward selection on tune choose among them.
    """
    if how not in HOWS:
        raise UserError(f"--how {how}: {nearest(how, HOWS)}")
    if all_seeds and seed is not None:
        raise UserError("--all-seeds: choose either this or --seed")
    study = open_run(directory, quiet=quiet)
    everyone = _everyone(study)
    inside = _scope(study, everyone, checkpoints, seed, all_seeds)
    chosen = named(members, everyone, inside) if members else inside
    committee = Committee(study, how, chosen, data_of(study))
    if greedy:
        Journal(quiet=quiet).say(f"choosing among {len(chosen)} members on tune")
        weights, _ = greedy_selection(
            [one.label for one in chosen], lambda shares: committee.tuned(shares)[1], repeats=how != "max"
        )
    else:
        weights = {one.label: 1 / len(chosen) for one in chosen}
    rows = committee.report(weights)
    found = {"chosen": "greedy" if greedy else "given", **committee.description(weights, rows)}
    write_json(out or directory / "ensemble.json", found)
    return rows + [row for one in chosen if one.label in weights for row in _rows_of(study, one)]


class Committee:
    """Members of a run whose stored log-probabilities can be combined under any weights {label: weight}."""

    def __init__(self, study: "Study", how: Any, members: Sequence[Sitter], data: Mapping[str, Dataset]) -> None:
        self.study, self.task, self.data = study, study.task, data
        self.members = {one.label: one for one in members}
        self.how: How = study.task.joined_by(how)
        self.called = how
        self._logs: dict[tuple[str, str], Tensor] = {}
        self._tuned: dict[tuple[tuple[str, float], ...], tuple[float, float]] = {}

    def tuned(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """The threshold chosen on tune, and the main metric there."""
        key = tuple(sorted(weights.items()))
        if key not in self._tuned:
            found = self.predict("tune", weights)
            threshold = self.task.choose(found, self.data["tune"])
            score = self.task.scores(found, self.data["tune"], threshold)[self.task.metrics[-1]]
            self._tuned[key] = threshold, score
        return self._tuned[key]

    def predict(self, split: str, weights: Mapping[str, float]) -> Any:
        """Predictions of the ensemble on a split: combined without padding, decoded batch by batch."""
        dataset, options = self.data[split], self.study.recipe.evaluate
        self._load(split, weights)
        joined = combine(((self._logs[split, label], weight) for label, weight in weights.items()), self.how)
        collector = self.task.collector(dataset, options)
        for index in by_length(dataset.windows.lengths, options.batch_tokens):
            logits = padded(joined, dataset.windows.starts, index) if self.task.per_token else joined[index]
            collector.add(index, logits)
        return collector.finish()

    def report(self, weights: Mapping[str, float]) -> list[dict[str, Any]]:
        """The ensemble's rows on test, at the thresholds its task reports."""
        tuned, on_tune = self.tuned(weights)
        self._logs.clear()  # those of tune, of all candidates
        found = self.predict("test", weights)
        sitters = [self.members[label] for label in weights]
        about = {
            "seed": min(one.seed for one in sitters),
            "checkpoint": max(one.epoch for one in sitters),
            "member": f"ensemble ({self.called})",
            "role": "ensemble",
            "parts": " + ".join(self._short(one) for one in sitters),
        }
        return [
            {
                **about,
                "threshold": threshold,
                "threshold_from": origin,
                **self.task.scores(found, self.data["test"], threshold),
                f"tune_{self.task.metrics[-1]}": on_tune,
            }
            for origin, threshold in self.task.thresholds(tuned)
        ]

    def description(self, weights: Mapping[str, float], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What ensemble.json says: how to form this ensemble again, and what it was worth."""
        threshold, on_tune = self.tuned(weights)
        members = [
            {"member": one.member, "checkpoint": one.epoch, "seed": one.seed, "weight": weights[label]}
            for label, one in self.members.items()
            if label in weights
        ]
        chosen = {"how": self.called, "members": members, "threshold": threshold}
        return chosen | {f"tune_{self.task.metrics[-1]}": on_tune, "test": list(rows)}

    def _load(self, split: str, labels: Mapping[str, float]) -> None:
        missing = [self.members[label] for label in labels if (split, label) not in self._logs]
        for epoch, seed in dict.fromkeys((one.epoch, one.seed) for one in missing):
            source = Cell(self.study, seed, epoch)
            stored = source.log_probabilities(split)
            for one in missing:
                if (one.epoch, one.seed) != (epoch, seed):
                    continue
                if one.member not in stored:
                    raise UserError(f"{source.place(split)}: no log-probabilities of {one.member}; score it again")
                windows = self.data[split].windows
                if len(stored[one.member]) != (windows.starts[-1] if self.task.per_token else len(windows)):
                    raise UserError(f"{source.place(split)}: made from other data than the recipe's {split} set is now")
                self._logs[split, one.label] = stored[one.member]

    def _short(self, one: Sitter) -> str:
        """A member's name, with checkpoint and seed only where they tell members apart."""
        everyone = self.members.values()
        if len({other.epoch for other in everyone}) == len({other.seed for other in everyone}) == 1:
            return one.member
        return one.label


def padded(flat: Tensor, starts: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
    """What the windows `index` (B,) have in a flat tensor (T, ...), window n owning rows starts[n]:starts[n + 1].

    (B, S, ...), filled up with a window's last row: no decoding looks behind a window's end.
    """
    first, lengths = starts[index], starts[index + 1] - starts[index]
    rows = first[:, None] + np.minimum(np.arange(lengths.max(initial=1)), lengths[:, None] - 1)  # (B, S)
    return flat[torch.from_numpy(rows)]


def _everyone(study: "Study") -> list[Sitter]:
    """All single members that have been scored, in the order of the rows."""
    rows = [row for row in study.rows() if row["role"] != "ensemble"]
    if not rows:
        raise UserError(f"{study.directory}: nothing has been scored yet; `bertvision study` goes on with it")
    return list(dict.fromkeys(Sitter(row["member"], row["checkpoint"], row["seed"]) for row in rows))


def _scope(
    study: "Study", everyone: Sequence[Sitter], checkpoints: Sequence[float], seed: int | None, all_seeds: bool
) -> list[Sitter]:
    """The members of the checkpoints and seeds asked for."""
    epochs = [cell(study, epoch, seed).epoch for epoch in checkpoints] or [cell(study, None, seed).epoch]
    first = cell(study, epochs[0], seed).seed
    return [one for one in everyone if one.epoch in epochs and (all_seeds or one.seed == first)]


def named(text: str, everyone: Sequence[Sitter], inside: Sequence[Sitter]) -> list[Sitter]:
    """The members that a list with commas names; a comma may also be part of a name, so the longest match counts."""
    known = {one.label: [one] for one in everyone}
    for one in inside:
        known.setdefault(one.member, []).append(one)
    words = [word.strip() for word in text.split(",")]
    found: list[Sitter] = []
    while words:
        size = next((n for n in range(len(words), 0, -1) if ", ".join(words[:n]) in known), 0)
        if not size:
            raise UserError(f"--members {words[0]}: {nearest(words[0], known)}")
        found += known[", ".join(words[:size])]
        words = words[size:]
    return list(dict.fromkeys(found))


def _rows_of(study: "Study", one: Sitter) -> list[dict[str, Any]]:
    return [row for row in Cell(study, one.seed, one.epoch).rows() if row["member"] == one.member]
