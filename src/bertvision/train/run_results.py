"""Results of a run: the members of a checkpoint, their stored predictions and logits, the sets they are for."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.loading import tokenizer_of
from bertvision.devices import find_precision
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Points
from bertvision.evaluate.ensemble import HOWS, Ensemble, How, Member
from bertvision.evaluate.score import WEIGHT_BYTES, Cost
from bertvision.files import load_tensors, read_json, write_json
from bertvision.heads import Head
from bertvision.recipe import FinetuneRecipe, Recipe
from bertvision.runtime import Runtime, start_runtime
from bertvision.tasks import TASKS, Dataset, Task
from bertvision.train.bank import HeadBank, unique_names
from bertvision.train.finetune import Checkpoint
from bertvision.train.progress import Journal
from bertvision.train.run_dir import Cell, RunDir, file_name

SPLITS = ("tune", "test")  # those a checkpoint is scored on
Key = tuple[str, str]  # origin of the threshold, display name


@dataclass(frozen=True, slots=True)
class Members:
    """The members of one checkpoint, in memory.

    costs: of each alone. specs: the recipe's entries of the heads. about: the notes of the checkpoint. dropped: heads
    that are not among the members, and why.
    """

    backbone: Backbone
    heads: dict[Member, Head]
    costs: dict[Member, Cost] = field(default_factory=dict)
    specs: dict[Member, Mapping[str, Any]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    dropped: dict[Member, str] = field(default_factory=dict)

    @property
    def singles(self) -> list[Ensemble]:
        return [Ensemble.of(member) for member in self.heads]

    def pairs(self, hows: Sequence[How]) -> list[Ensemble]:
        """The backbone with each head that was trained to its end on the whole training set, blended in each way."""
        backbone = next(member for member in self.heads if member.kind == "backbone")
        heads = [member for member in self.heads if member.kind == "head" and not member.is_partial]
        return [Ensemble((backbone, member), how=how, chosen="pair") for how in hows for member in heads]

    def without(self, dropped: Mapping[Member, str]) -> "Members":
        kept = {member: head for member, head in self.heads.items() if member not in dropped}
        return replace(self, heads=kept, dropped={**self.dropped, **dropped})


def load_members(run: RunDir, task: Task, seed: int, epoch: float, onto: Backbone | str = "") -> Members:
    """Backbone and heads of a checkpoint. onto: a backbone in memory, untuned or tuned by the same recipe."""
    recipe = run.recipe()
    checkpoint = Checkpoint(run.checkpoint(seed, epoch))
    backbone, head, about = checkpoint.load(task, onto or recipe.backbone.name)
    encoder = list(backbone.model.parameters())
    parameters, disk = sum(p.numel() for p in encoder), checkpoint.encoder_file.stat().st_size
    tuned = sum(p.numel() for p in encoder if p.requires_grad) + head.parameter_count()

    def cost(head: Head, trained: int, spent: Mapping[str, Any]) -> Cost:
        own = head.parameter_count()
        return Cost(trained, parameters + own, disk_bytes=disk + WEIGHT_BYTES * own, **spent)

    member = Member("", seed, epoch)
    heads, specs = {member: head}, {member: about["head"]}
    costs = {member: cost(head, tuned if about["step"] else 0, _spent(about))}  # at step 0 nothing was trained
    dropped: dict[Member, str] = {}
    for head_epochs, path in run.banks(seed, epoch).items():
        bank, notes = HeadBank.load(path)
        planned = planned_heads(recipe)
        for (bank_name, head), entry, (name, fraction) in zip(bank.items(), bank.entries, planned, strict=True):
            member = Member(name, seed, epoch, fraction, head_epochs)
            if bank_name not in notes["stopped"]:
                heads[member], specs[member] = head, entry
                costs[member] = cost(head, head.parameter_count(), _spent(about, notes, bank_name))
            elif head_epochs is None:
                dropped[member] = notes["stopped"][bank_name]
    return Members(backbone, heads, costs, specs, about, dropped)


NO_HEAD: Mapping[str, Any] = {"feed_seconds": 0.0, "seconds": {"": 0.0}, "feed_flops": 0, "flops": {"": 0}}


def _spent(checkpoint: Mapping[str, Any], bank: Mapping[str, Any] = NO_HEAD, name: str = "") -> dict[str, Any]:
    """Seconds and FLOPs of the tuning and of a head, from the notes of a checkpoint and of a bank, as in `Cost`."""
    spent: dict[str, Any] = {}
    for unit, tuning in (("seconds", round(float(checkpoint["seconds"]), 3)), ("flops", checkpoint.get("flops"))):
        feed, own = bank.get(f"feed_{unit}"), bank.get(unit, {}).get(name)
        feed = None if feed is None else round(feed, 3)
        head = None if feed is None or own is None else round(feed + own, 3)
        whole = None if tuning is None or head is None else round(tuning + head, 3)
        spent |= {f"tuning_{unit}": tuning, f"feed_{unit}": feed, f"head_{unit}": head, f"train_{unit}": whole}
    return spent


def planned_heads(recipe: Recipe) -> list[tuple[str, float]]:
    """(name, share of the training set) of the heads of a bank, in its order."""
    return [(name, share) for share in recipe.bank.fractions for name in unique_names(recipe.heads)]


def check_names(recipe: Recipe) -> None:
    """UserError if two ensembles would write the same file of predictions, or a head is called like an ensemble."""
    head_epochs = [None, *(age for age in recipe.bank.checkpoints if age < recipe.bank.epochs)]
    heads = [Member(name, 0, 0.0, share, epochs) for epochs in head_epochs for name, share in planned_heads(recipe)]
    planned = Members(None, dict.fromkeys([Member("", 0, 0.0), *heads]))  # type: ignore[arg-type]
    backbone = (Member("", 0, 0.0),)
    chosen_later = [
        Ensemble(backbone, how=how, chosen=chosen) for how in HOWS for chosen in ("best", "greedy", "given")
    ]
    taken = {file_name(ensemble.name).lower() for ensemble in chosen_later}
    for ensemble in [*planned.singles, *planned.pairs(recipe.evaluate.ensembles)]:
        name = file_name(ensemble.parts).lower()
        if name in taken:
            raise UserError(f"heads: {ensemble.parts!r} is also the name of another; give the head another name")
        taken.add(name)


class StoredResults:
    """The stored predictions of a run, and the data sets they are for. load: loads the members of a cell.

    What a study has just predicted is handed over with `keep` and not read from its files again.
    """

    def __init__(self, run: RunDir, task: Task, load: Callable[[int, float], Members] | None = None) -> None:
        self.run, self.task = run, task
        self.load = load or (lambda seed, epoch: load_members(run, task, seed, epoch))
        self.data: Mapping[str, Dataset] | None = None
        self._points: dict[Cell, dict[Key, Points]] = {}
        self._kept: tuple[Cell, dict[Ensemble, Any]] | None = None

    @classmethod
    def open(cls, directory: Path) -> "StoredResults":
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
        noted_files = {
            cell: self.run.sets_file(*cell) for cell in self.run.scored() if self.run.sets_file(*cell).is_file()
        }
        current = {split: digest(data[split]) for split in splits} if noted_files else {}
        for cell, path in noted_files.items():
            noted = read_json(path, "note of the sets scored")
            for split in splits:
                if noted.get(split) != current[split]:
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
        tables = read_json(path, "predictions file", self._way_out(cell))
        if not isinstance(tables, dict):
            raise UserError(f"{path}: not a predictions file of this program")
        if tables.keys() != {record.id for record in dataset.records}:
            raise UserError(
                f"{path}: made from other questions than {dataset.source} holds now; restore it, or delete "
                f"{self._scores(cell)} and run `bertvision study` again"
            )
        return self.task.read_predictions(tables, str(path))

    def points(self, cell: Cell) -> dict[Key, Points]:
        """{(origin of the threshold, name): points on test} of all rows of a cell."""
        if cell not in self._points:
            test = self.sets("test")["test"]
            points: dict[Key, Points] = {}
            previous: tuple[Ensemble, Any] | None = None
            for row in self.run.rows(cell):
                if previous is None or previous[0] != row.ensemble:  # the rows of an ensemble follow one another
                    previous = row.ensemble, self.predictions(row.ensemble, "test")
                points[row.threshold_from, row.name] = self.task.points(previous[1], test, row.threshold)
            self._points[cell] = points
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
        """The score file of a cell, relative to the run."""
        return self.run.scores_file(*cell).relative_to(self.run.path)

    def _way_out(self, cell: Cell) -> str:
        """What to do about damaged predictions of a cell."""
        return f"delete {self._scores(cell)} and run `bertvision study` again, which predicts again and trains nothing"


def runtime_of(run: RunDir, device: str = "", alone: bool = False) -> Runtime:
    """Where a run computes. device: another than its recipe's. alone: without other processes. What `auto` found for
    the precision stays."""
    runtime = run.recipe().runtime
    return start_runtime(replace(runtime, device=device or runtime.device), run.facts().get("runtime", {}), alone)


def trained_part(recipe: Recipe, runtime: Any) -> dict[str, Any]:
    """The settings of a recipe that decide what is trained, as plain values.

    Without those that do not, those that already show in the windows, and newer ones at their defaults: the identity of
    an older run stays the same.
    """
    settings = asdict(recipe)
    unused = [] if recipe.data.metric else ["metric"]
    unused += [] if recipe.data.pairs == "apart" else ["pairs"]
    for key in ("also", "broken", *unused):
        settings["data"].pop(key)
    settings["bank"].pop("at")
    if not recipe.bank.solve:
        settings["bank"].pop("solve")
    if recipe.bank.precision == "fp32":
        settings["bank"].pop("precision")
    if not recipe.bank.settle:
        settings["bank"].pop("settle")
    if not recipe.finetune.biases:
        settings["finetune"].pop("biases")
    del settings["runtime"]
    return settings | ({"runtime": runtime} if runtime else {})


def tuning_of(run: RunDir, runtime: Runtime) -> FinetuneRecipe:
    """How the encoder of a run is tuned, with the precision that `auto` means there."""
    tuning, noted = run.recipe().finetune, run.facts().get("runtime", {}).get("tuning", "auto")
    precision = noted if tuning.precision == "auto" else tuning.precision
    if tuning.lower == "stored":
        precision = "fp32"  # the only one it has
    return replace(tuning, precision=find_precision(precision, runtime.device, "finetune.precision"))


def note_runtime(run: RunDir, runtime: Runtime, journal: Journal) -> None:
    """Notes device, precision and processes; a run continued on another device ends in other bits."""
    before = run.facts().get("runtime", {}).get("device", runtime.kind)
    if before != runtime.kind:
        journal.note(f"this run began on {before} and goes on on {runtime.kind}, which rounds otherwise")
    precision = {"precision": runtime.precision, "tuning": tuning_of(run, runtime).precision}
    run.add_facts(runtime={"device": runtime.kind, **precision, "processes": runtime.world})


def note_peak(run: RunDir, runtime: Runtime) -> None:
    """Notes the peak memory of this process, and of its device."""
    if runtime.is_main:
        run.note_peak()
        peak = run.facts().get("device_peak_gib", 0.0)
        run.add_facts(device_peak_gib=max(peak, runtime.peak_gib()) or None)


def note_dropped(run: RunDir, loaded: Members) -> None:
    """Notes which heads are not among the members, and why."""
    entries = [
        {"seed": member.seed, "checkpoint": member.epoch, "member": member.name, "why": why}
        for member, why in loaded.dropped.items()
    ]
    if entries:
        others = [entry for entry in run.facts().get("dropped", []) if entry not in entries]
        run.add_facts(dropped=others + entries)


def task_of(run: RunDir) -> Task:
    """The task of a run, with what it learnt from the training data."""
    recipe = run.recipe()
    task = TASKS[recipe.task]()
    task.settle(recipe.data, run.facts().get("task", {}))
    return task


def digest(dataset: Dataset) -> str:
    """A digest of the records and the gold of a set, in order; the place of its files does not matter."""
    digest = hashlib.sha256()
    for record in dataset.records:
        digest.update(json.dumps(record.content).encode())
    if dataset.gold is not None:
        digest.update(dataset.gold.tobytes())
    return digest.hexdigest()
