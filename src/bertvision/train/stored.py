"""Stored results of a run, read again without a pass of its encoder: predictions, logits, its data."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bertvision.backbone.loading import tokenizer_of
from bertvision.devices import find_precision
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points
from bertvision.evaluate.ensemble import Ensemble
from bertvision.files import load_tensors, read_json, write_json
from bertvision.recipe import FinetuneRecipe, Recipe
from bertvision.runtime import Runtime, start_runtime
from bertvision.tasks import TASKS, Dataset, Task
from bertvision.train.progress import Journal
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.scoring import Members, load_members

SPLITS = ("tune", "test")  # those a checkpoint is scored on
Key = tuple[str, str]  # origin of the threshold, display name


class Stored:
    """Predictions of a run. load: how the members of a cell are loaded.

    What a study has just predicted is passed on with `keep` and is not read from its files.
    """

    def __init__(self, run: RunDir, task: Task, load: Callable[[int, float], Members] | None = None) -> None:
        self.run, self.task = run, task
        self.load = load or (lambda seed, epoch: load_members(run, task, seed, epoch))
        self.data: Mapping[str, Dataset] | None = None
        self._points: dict[Cell, dict[Key, Points]] = {}
        self._kept: tuple[Cell, dict[Ensemble, Any]] | None = None

    @classmethod
    def open(cls, directory: Path) -> "Stored":
        run = RunDir.open(directory, variants=False)
        return cls(run, task_of(run))

    def sets(self, *used: str) -> Mapping[str, Dataset]:
        """The data sets of the run; `used` must be those it was scored on. Read with the tokenizer alone."""
        recipe = self.run.recipe()
        if self.data is None:
            self.data = self.task.load(recipe.data, tokenizer_of(recipe.backbone.name), seed=0)
        self.refuse_other_sets(self.data, used or SPLITS)
        return self.data

    def refuse_other_sets(self, data: Mapping[str, Dataset], splits: Sequence[str] = SPLITS) -> None:
        """UserError if any score file was made from other sets than `data`; where no digest is noted, any will do."""
        noted = {cell: self.run.sets_file(*cell) for cell in self.run.scored() if self.run.sets_file(*cell).is_file()}
        now = {split: digest(data[split]) for split in splits} if noted else {}
        for cell, note in noted.items():
            then = read_json(note, "note of the sets scored")
            for split in splits:
                if then.get(split) != now[split]:
                    raise UserError(
                        f"{self.run.scores_file(*cell)}: was scored when the {split} set ({data[split].source}) was "
                        "not what it is now; restore it, choose another --out, or delete these scores and run "
                        "`bertvision study` again"
                    )

    def note_sets(self, cell: Cell, data: Mapping[str, Dataset]) -> None:
        write_json(self.run.sets_file(*cell), {split: digest(data[split]) for split in SPLITS})

    def keep(self, cell: Cell, rows: Sequence[Any], predictions: Mapping[Ensemble, Any], test: Dataset) -> None:
        """Passes on what was just predicted for the test set, and the rows of it."""
        self._points[cell] = {
            (row.threshold_from, row.name): self.task.points(predictions[row.ensemble], test, row.threshold)
            for row in rows
        }
        if cell[0] == self.run.recipe().seeds[0]:  # that of the analysis is the last of these
            self._kept = cell, dict(predictions)

    def predictions(self, ensemble: Ensemble, split: str) -> Any:
        """The predictions of a member or a pair, which must be for the present data."""
        cell = next(iter(ensemble.cells))
        if split == "test" and self._kept and self._kept[0] == cell and ensemble in self._kept[1]:
            return self._kept[1][ensemble]
        dataset, path = self.sets(split)[split], self.run.predictions_file(ensemble, split)
        rows = read_json(path, "predictions file", self._way_out(cell))
        if not isinstance(rows, dict):
            raise UserError(f"{path}: not a predictions file of this program")
        if rows.keys() != {record.id for record in dataset.records}:
            raise UserError(
                f"{path}: made from other questions than {dataset.source} holds now; restore it, or delete "
                f"{self._scores(cell)} and run `bertvision study` again"
            )
        return self.task.read_predictions(rows, str(path))

    def points(self, cell: Cell) -> dict[Key, Points]:
        """{(origin of the threshold, name): points on test} of all rows of a cell."""
        if cell not in self._points:
            test = self.sets("test")["test"]
            found: dict[Key, Points] = {}
            last: tuple[Ensemble, Any] | None = None
            for row in self.run.rows(cell):
                if last is None or last[0] != row.ensemble:  # the rows of an ensemble follow one another
                    last = row.ensemble, self.predictions(row.ensemble, "test")
                found[row.threshold_from, row.name] = self.task.points(last[1], test, row.threshold)
            self._points[cell] = found
        return self._points[cell]

    def logits(self, cell: Cell, split: str) -> dict[str, Tensor]:
        """{name of a member: its logits}, windows one after the other: spans (T, 2), labels (N, C).

        Runs of version 0.1 hold log-probabilities in fp16 in their place, which serve as logits too, less exactly.
        """
        path = self.run.logits_file(*cell, split)
        if not path.is_file():
            raise UserError(
                f"{path}: this run has not kept its logits; delete {self._scores(cell)} there and run "
                "`bertvision study` again, which then predicts again and trains nothing"
            )
        return load_tensors(path, "file of logits", self._way_out(cell))[0]

    def _scores(self, cell: Cell) -> Path:
        return self.run.scores_file(*cell).relative_to(self.run.path)

    def _way_out(self, cell: Cell) -> str:
        return f"delete {self._scores(cell)} and run `bertvision study` again, which predicts again and trains nothing"


def runtime_of(run: RunDir, device: str = "", alone: bool = False) -> Runtime:
    """Where a run computes. device: another than its recipe's. alone: without other processes. What `auto` found for
    the precision stays."""
    wanted = run.recipe().runtime
    return start_runtime(replace(wanted, device=device or wanted.device), run.facts().get("runtime", {}), alone)


def trained_part(recipe: Recipe, runtime: Any) -> dict[str, Any]:
    """A recipe without what does not affect training, shows in the windows or is not asked for."""
    plain = asdict(recipe)
    for key in ("also", "broken", *([] if recipe.data.metric else ["metric"])):
        plain["data"].pop(key)
    plain["bank"].pop("at")
    if not recipe.bank.solve:
        plain["bank"].pop("solve")
    if recipe.bank.precision == "fp32":
        plain["bank"].pop("precision")
    if not recipe.finetune.biases:
        plain["finetune"].pop("biases")
    del plain["runtime"]
    return plain | ({"runtime": runtime} if runtime else {})


def tuning_of(run: RunDir, runtime: Runtime) -> FinetuneRecipe:
    """How the encoder of a run is tuned, with the precision that `auto` means there."""
    wanted, noted = run.recipe().finetune, run.facts().get("runtime", {}).get("tuning", "auto")
    precision = noted if wanted.precision == "auto" else wanted.precision
    if wanted.lower == "stored":
        precision = "fp32"  # the only one it has
    return replace(wanted, precision=find_precision(precision, runtime.device, "finetune.precision"))


def note_runtime(run: RunDir, runtime: Runtime, journal: Journal) -> None:
    """Notes device, precision and processes; a run continued on another device ends in other bits."""
    before = run.facts().get("runtime", {}).get("device", runtime.kind)
    if before != runtime.kind:
        journal.note(f"this run began on {before} and goes on on {runtime.kind}, which rounds otherwise")
    precision = {"precision": runtime.precision, "tuning": tuning_of(run, runtime).precision}
    run.add_facts(runtime={"device": runtime.kind, **precision, "processes": runtime.world})


def note_peak(run: RunDir, runtime: Runtime) -> None:
    """Notes the most memory that was held, here and on the device."""
    if runtime.is_main:
        run.note_peak()
        known = run.facts().get("device_peak_gib", 0.0)
        run.add_facts(device_peak_gib=max(known, runtime.peak_gib()) or None)


def note_dropped(run: RunDir, loaded: Members) -> None:
    """Notes which heads are not among the members, and why."""
    found = [
        {"seed": one.seed, "checkpoint": one.epoch, "member": one.name, "why": why}
        for one, why in loaded.dropped.items()
    ]
    if found:
        known = [one for one in run.facts().get("dropped", []) if one not in found]
        run.add_facts(dropped=known + found)


def task_of(run: RunDir) -> Task:
    """The task of a run, with what it learnt from the training data."""
    recipe = run.recipe()
    task = TASKS[recipe.task]()
    task.settle(recipe.data, run.facts().get("task", {}))
    return task


def digest(dataset: Dataset) -> str:
    """Of the records and the gold of a set, in order, wherever its files lie."""
    found = hashlib.sha256()
    for record in dataset.records:
        found.update(json.dumps(record.content).encode())
    if dataset.gold is not None:
        found.update(dataset.gold.tobytes())
    return found.hexdigest()
