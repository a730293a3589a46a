"""Results of a run: the members of a checkpoint, loaded again; their stored predictions and logits; its data."""

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
    """The members of one checkpoint, in memory. costs: of each alone. specs: the recipe's entries of the heads. about:
    what was noted with the checkpoint. dropped: why heads are not among the members."""

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
        own = next(member for member in self.heads if member.kind == "backbone")
        whole = [member for member in self.heads if member.kind == "head" and not member.is_partial]
        return [Ensemble((own, member), how=how, chosen="pair") for how in hows for member in whole]

    def without(self, dropped: Mapping[Member, str]) -> "Members":
        heads = {member: head for member, head in self.heads.items() if member not in dropped}
        return replace(self, heads=heads, dropped={**self.dropped, **dropped})


def load_members(run: RunDir, task: Task, seed: int, epoch: float, onto: Backbone | str = "") -> Members:
    """Backbone and heads of a checkpoint. onto: a backbone in memory, untuned or tuned by the same recipe."""
    recipe = run.recipe()
    checkpoint = Checkpoint(run.checkpoint(seed, epoch))
    backbone, head, about = checkpoint.load(task, onto or recipe.backbone.name)
    total = sum(p.numel() for p in backbone.model.parameters())
    moved = sum(p.numel() for p in backbone.model.parameters() if p.requires_grad) + head.parameter_count()
    disk, tuning = (checkpoint.directory / "backbone.safetensors").stat().st_size, float(about["seconds"])

    def cost(one: Head, trained: int, notes: Mapping[str, Any], called: str = "") -> Cost:
        own = one.parameter_count()
        spent: dict[str, Any] = {}
        for unit, tuned in (("seconds", round(tuning, 3)), ("flops", about.get("flops"))):
            feed, alone = notes.get(f"feed_{unit}"), notes.get(unit, {}).get(called)
            feed = None if feed is None else round(feed, 3)
            head = None if feed is None or alone is None else round(feed + alone, 3)
            whole = None if tuned is None or head is None else round(tuned + head, 3)
            spent |= {f"tuning_{unit}": tuned, f"feed_{unit}": feed, f"head_{unit}": head, f"train_{unit}": whole}
        return Cost(trained, total + own, disk_bytes=disk + WEIGHT_BYTES * own, **spent)

    member = Member("", seed, epoch)
    heads, specs = {member: head}, {member: about["head"]}
    nothing = {"feed_seconds": 0.0, "seconds": {"": 0.0}, "feed_flops": 0, "flops": {"": 0}}
    costs = {member: cost(head, moved if about["step"] else 0, nothing)}  # at step 0 nothing was trained
    dropped: dict[Member, str] = {}
    for age, path in run.banks(seed, epoch).items():
        bank, notes = HeadBank.load(path)
        for (called, one), entry, (name, share) in zip(bank.items(), bank.entries, planned_heads(recipe), strict=True):
            member = Member(name, seed, epoch, share, age)
            if called in notes["stopped"]:
                dropped |= {} if age is not None else {member: notes["stopped"][called]}
                continue
            heads[member], specs[member] = one, entry
            costs[member] = cost(one, one.parameter_count(), notes, called)
    return Members(backbone, heads, costs, specs, about, dropped)


def planned_heads(recipe: Recipe) -> list[tuple[str, float]]:
    """(name, share of the training set) of the heads of a bank, in its order."""
    return [(name, share) for share in recipe.bank.fractions for name in unique_names(recipe.heads)]


def check_names(recipe: Recipe) -> None:
    """UserError if two ensembles would write the same file of predictions, or a head is called like an ensemble."""
    ages = [None, *(age for age in recipe.bank.checkpoints if age < recipe.bank.epochs)]
    heads = [Member(name, 0, 0.0, share, age) for age in ages for name, share in planned_heads(recipe)]
    planned = Members(None, dict.fromkeys([Member("", 0, 0.0), *heads]))  # type: ignore[arg-type]
    own = (Member("", 0, 0.0),)
    later = [Ensemble(own, how=how, chosen=chosen) for how in HOWS for chosen in ("best", "greedy", "given")]
    taken = {file_name(one.name).lower() for one in later}
    for one in [*planned.singles, *planned.pairs(recipe.evaluate.ensembles)]:
        name = file_name(one.parts).lower()
        if name in taken:
            raise UserError(f"heads: {one.parts!r} is also the name of another; give the head another name")
        taken.add(name)


class StoredResults:
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
    unused = [] if recipe.data.metric else ["metric"]
    unused += [] if recipe.data.pairs == "apart" else ["pairs"]
    for key in ("also", "broken", *unused):
        plain["data"].pop(key)
    plain["bank"].pop("at")
    if not recipe.bank.solve:
        plain["bank"].pop("solve")
    if recipe.bank.precision == "fp32":
        plain["bank"].pop("precision")
    if not recipe.bank.settle:
        plain["bank"].pop("settle")
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
