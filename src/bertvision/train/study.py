"""A study: tune with checkpoints, train the bank at each, score everything, report. Every cell is done once."""

import dataclasses
import hashlib
import json
import shlex
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import find_tuned
from bertvision.data.sources import is_synthetic
from bertvision.errors import UserError
from bertvision.files import claim, read_json, save_tensors, write_json, write_text
from bertvision.recipe import DataRecipe, Recipe, load_recipe, to_toml
from bertvision.tasks import TASKS, Dataset
from bertvision.train.analysis import is_analysed, write_analysis
from bertvision.train.bank import HeadBank, at_fractions, bank_feeds, bank_path, file_name, train_bank
from bertvision.train.compare import write_comparisons
from bertvision.train.finetune import (
    NAME,
    Along,
    Checkpoint,
    checkpoint_epochs,
    finetune,
    planned_checkpoints,
)
from bertvision.train.greedy import is_chosen, write_greedy
from bertvision.train.loop import Job
from bertvision.train.members import Members, load_members, report_rows
from bertvision.train.predict import predict
from bertvision.train.progress import (
    Journal,
    heads_stage,
    plan_study,
    scored_splits,
    scoring_stage,
    tuning_stage,
)
from bertvision.train.record import Record, now
from bertvision.train.run_dir import RunDir
from bertvision.train.sets import note_sets, refuse_other_sets

COSMETIC = ("seeds", "title", "paper", "snapshot_seconds", "search")  # may change without invalidating what is done


class Study:
    """A recipe and the directory it is run in.

    directory/ recipe.toml, study.json, log.jsonl, metrics.json, report.*; per seed: seed-N/ checkpoint-E/,
    heads-E.safetensors, predictions/E/SPLIT/ (MEMBER.json, logits.safetensors), scores-E.json, sets-E.json.
    """

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False) -> None:
        self.recipe, self.directory = recipe, directory
        self.journal = Journal(directory / "log.jsonl", quiet=quiet)
        self.record = Record(directory / "study.json")
        self.task = TASKS[recipe.task]()
        self.task.settle(recipe.data, self.record.read().get("task", {}))

    @classmethod
    def open(cls, directory: Path, *, quiet: bool = False) -> "Study":
        """A study that was begun earlier."""
        path = directory / "recipe.toml"
        if not path.is_file():
            raise UserError(
                f"{directory}: not the directory of a run (no recipe.toml); `bertvision study RECIPE` makes one"
            )
        return cls(load_recipe(path), directory, quiet=quiet)

    @property
    def studies(self) -> list["Study"]:
        """Itself: a series has several."""
        return [self]

    @property
    def epochs(self) -> list[float]:
        """The epochs of the checkpoints."""
        return checkpoint_epochs(self.recipe.finetune)

    @property
    def scored(self) -> list[Path]:
        """The files of scores there are."""
        cells = [self._scores(seed, epoch) for seed in self.recipe.seeds for epoch in self.epochs]
        return [path for path in cells if path.is_file()]

    @property
    def finished(self) -> bool:
        """Whether every cell has its scores."""
        return len(self.scored) == len(self.recipe.seeds) * len(self.epochs)

    def run(self) -> list[dict[str, Any]]:
        """Everything that is not done yet; the rows of metrics.json."""
        self.begin()
        if self.finished and self.record.read().get("finished"):
            self.journal.say(f"{self.directory}: already finished; nothing to do")
        else:
            refuse_other_sets(self.scored, self.data)
            plan_study(self)
            for seed in self.recipe.seeds:
                self.tune(seed)
                for epoch in self.epochs:
                    self.train(seed, epoch)
                    self.score(seed, epoch)
            self.record.finish()
        rows = self.rows()
        write_json(self.directory / "metrics.json", rows)
        self._look_back()
        return rows

    def _look_back(self) -> None:
        """Comparisons, ensembles and analysis of all that was scored, from what is stored, unless up to date."""
        data = vars(self).get("data")  # read again only where something is to be written anew
        write_comparisons(self, data)
        if not is_chosen(self):
            self.journal.say("choosing ensembles on tune")
            write_greedy(self, data)
        if not is_analysed(self):
            write_analysis(self, data)

    def begin(self) -> None:
        """Claims the directory for this recipe; a directory with another recipe is refused."""
        self.refuse_other()
        claim(self.directory)
        write_text(self.directory / "recipe.toml", to_toml(self.recipe))
        if not self.record.path.is_file():
            self.record.add(started=now(), command=shlex.join(["bertvision", *sys.argv[1:]]))
        elif not self.finished:
            self.record.add(finished=None)  # a seed was added

    def refuse_other(self) -> None:
        """UserError if the directory holds a run of another recipe."""
        if not (self.directory / "recipe.toml").is_file():
            return
        if changed := _differences(self.recipe, Study.open(self.directory, quiet=True).recipe):
            raise UserError(
                f"{self.directory}: holds a run of another recipe (it differs in {', '.join(changed)}); "
                "choose another --out, or delete it"
            )

    def tune(self, seed: int) -> dict[float, Checkpoint]:
        """Tunes the backbone, or finds it tuned."""
        place, recipe = self._seed(seed), self.recipe
        checkpoints = planned_checkpoints(place, recipe.finetune)
        job = self._job(seed, NAME, tuning_stage(seed))
        if all(checkpoint.done for checkpoint in checkpoints.values()):
            job.clear()  # a kill may have come between the last checkpoint and this
            return checkpoints
        for checkpoint in checkpoints.values():
            if checkpoint.done:
                self._check(checkpoint)
        backbone = Backbone.load(recipe.backbone.name)
        with_heads = recipe.bank.feed == "along" and recipe.heads
        along = Along(self._new_bank(backbone, seed), recipe.bank) if with_heads else None
        job = dataclasses.replace(job, identity=self.identity)
        found = finetune(backbone, self.task, self.data["train"], recipe.finetune, job, along)
        self.record.note_peak()
        return found

    def train(self, seed: int, epoch: float) -> Path:
        """Trains the bank on one checkpoint, or finds it trained."""
        path = self._bank(seed, epoch)
        job = self._job(seed, path.stem, heads_stage(epoch, seed))
        if path.exists() or not self.recipe.heads:
            job.clear()
            return path
        checkpoint = self.checkpoint(seed, epoch)
        self._check(checkpoint)
        if self.recipe.bank.feed == "along":
            raise UserError(
                f"{path}: is gone, and its heads learn only while the backbone is tuned; "
                f"delete {path.parent} to tune it again"
            )
        backbone, _, _ = checkpoint.load(self.task, self.recipe.backbone.name)
        job = dataclasses.replace(job, identity=self.identity)
        bank = self._new_bank(backbone, seed)
        feeds = bank_feeds(bank, backbone, self.recipe.bank, job, tapped=RunDir(self.directory).states)
        train_bank(bank, feeds, self.task, self.data["train"], job, tune=self.data["tune"])
        self.record.note_peak()
        return path

    def _job(self, seed: int, name: str, stage: str) -> Job:
        """Without an identity, which needs the data."""
        return Job(self._seed(seed), name, seed, "", self.recipe.snapshot_seconds, self.journal, stage)

    def _new_bank(self, backbone: Backbone, seed: int) -> HeadBank:
        """The untrained heads of the recipe, once per share of the training set."""
        return HeadBank(
            at_fractions(self.recipe.heads, self.recipe.bank.fractions),
            layers=backbone.layers,
            width=backbone.width,
            task=self.task.name,
            outputs=self.task.outputs,
            seed=seed,
        )

    def score(self, seed: int, epoch: float) -> None:
        """Predicts tune and what is reported with every member of one checkpoint, in a pass each; writes the scores."""
        path = self._scores(seed, epoch)
        if path.exists():
            return
        self._check(self.checkpoint(seed, epoch))
        refuse_other_sets(self.scored, self.data)
        members = self.members(seed, epoch)
        passes = {}
        for split in scored_splits(self.recipe.data.also):
            passes[split] = predict(
                members.backbone,
                members.heads,
                self.task,
                self.data[split],
                self.recipe.evaluate,
                self.journal,
                ensembles=members.pairs,
                keep=True,
                stage=scoring_stage(epoch, split, seed),
            )
            members = members.without(passes[split].dropped)
            place = self._seed(seed) / "predictions" / f"{epoch:g}" / split
            for name, predictions in passes[split].predictions.items():
                write_json(place / f"{file_name(name)}.json", predictions.to_json())
            logs = passes[split].log_probabilities
            save_tensors(place / "logits.safetensors", logs, {"per": "token" if self.task.per_token else "window"})
            logs.clear()
        found = report_rows(members, passes, self.task, self.data)
        rows = [{"seed": seed, "checkpoint": epoch, **row} for row in found]
        self._note_dropped(seed, epoch, members.dropped)
        self.record.note_peak()
        note_sets(path, self.data)
        write_json(path, rows)  # last: with it the cell is done
        if self.journal.scalars is not None:
            self.journal.scalars.scores(seed, epoch, rows, self.task.metrics)
        write_json(self.directory / "metrics.json", self.rows())
        write_comparisons(self, self.data)

    def members(self, seed: int, epoch: float) -> Members:
        """Backbone and heads of a checkpoint, loaded."""
        name, hows = self.recipe.backbone.name, self.recipe.evaluate.ensembles
        return load_members(self.checkpoint(seed, epoch), self._bank(seed, epoch), self.task, name, hows)

    def checkpoint(self, seed: int, epoch: float) -> Checkpoint:
        """A finished checkpoint of this study; UserError if there is none."""
        found = planned_checkpoints(self._seed(seed), self.recipe.finetune).get(epoch)
        if found is None or not found.done:
            place = found.directory if found else f"{self._seed(seed)}, epoch {epoch:g}"
            raise UserError(f"{place}: no such checkpoint; `bertvision finetune` makes it")
        return found

    def tuned(self, seed: int, epoch: float) -> Backbone:
        """The backbone of a checkpoint, which must have been tuned on the data and settings of now."""
        checkpoint = self.checkpoint(seed, epoch)
        self._check(checkpoint)
        return checkpoint.load(self.task, self.recipe.backbone.name)[0]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all cells done so far."""
        return [row for path in self.scored for row in read_json(path, "scores file")]

    @cached_property
    def data(self) -> dict[str, Dataset]:
        """The sets of the recipe, cut into windows."""
        data = self.task.load(self.recipe.data, self._untouched.tokenizer, seed=0)
        if not len(data["train"].windows):
            raise UserError(f"data.train: {self.recipe.data.train} holds nothing to learn from")
        sizes = {split: {"questions": len(one.records), "windows": len(one.windows)} for split, one in data.items()}
        self.journal.log("data", **sizes)
        for note in (note for one in data.values() for note in one.notes):
            self.journal.note(note)
        origins = {n: {"source": one.source, "synthetic": is_synthetic(one.source)} for n, one in data.items()}
        self.record.add(
            data={split: origins[split] | sizes[split] for split in data},
            task=self.task.facts() or None,
            constant=self.task.constant(data["test"]) or None,
        )
        return data

    @cached_property
    def identity(self) -> str:
        """What training depends on beside the seed: recipe, weights, tokenizer, windows."""
        plain = dataclasses.asdict(self.recipe)
        # Left out: what is no matter of training, what shows in the windows, what is not asked for.
        for key in ("also", "broken", *([] if self.recipe.data.metric else ["metric"])):
            plain["data"].pop(key)
        digest = hashlib.sha256(json.dumps({k: v for k, v in plain.items() if k not in COSMETIC}).encode())
        digest.update(self._untouched.fingerprint.encode())
        if start := self.recipe.finetune.start:
            digest.update(find_tuned(start).read_bytes())
        windows = self.data["train"].windows
        for array in (windows.ids, windows.starts, windows.targets):
            digest.update(array.tobytes())
        return digest.hexdigest()

    @cached_property
    def _untouched(self) -> "Untouched":
        backbone = Backbone.load(self.recipe.backbone.name)
        refuse_too_long(self.recipe.data, backbone)
        return Untouched(backbone.tokenizer, backbone.fingerprint)

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuses to go on from a checkpoint if data, encoder or settings have changed since it was made."""
        if checkpoint.about().get("identity") != self.identity:
            data, encoder = self.recipe.data.train, self.recipe.backbone.name
            raise UserError(
                f"{checkpoint.directory}: was tuned when {data} or {encoder} were not what they are now; "
                "restore them, choose another --out, or delete the run"
            )

    def _note_dropped(self, seed: int, epoch: float, dropped: dict[str, str]) -> None:
        found = [{"seed": seed, "checkpoint": epoch, "member": name, "why": why} for name, why in dropped.items()]
        if found:
            known = [one for one in self.record.read().get("dropped", []) if one not in found]
            self.record.add(dropped=known + found)

    def _seed(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}"

    def _bank(self, seed: int, epoch: float) -> Path:
        return bank_path(self._seed(seed), epoch)

    def _scores(self, seed: int, epoch: float) -> Path:
        return self._seed(seed) / f"scores-{epoch:g}.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Untouched:
    """What outlives the untuned backbone: its tokenizer, and the fingerprint of its weights."""

    tokenizer: Tokenizer
    fingerprint: str


def refuse_too_long(data: DataRecipe, backbone: Backbone) -> None:
    """UserError if windows may be longer than the encoder has positions for."""
    if data.max_length > backbone.longest:
        room = f"more than {backbone.name} has positions for ({backbone.longest})"
        raise UserError(f"data.max_length: {data.max_length} is {room}")


def _differences(one: Recipe, other: Recipe) -> list[str]:
    """The keys, such as finetune.epochs, in which two recipes differ beyond the cosmetic."""
    a, b = dataclasses.asdict(one), dataclasses.asdict(other)
    keys = []
    for key in a:
        if key in COSMETIC or a[key] == b[key]:
            continue
        keys += [f"{key}.{sub}" for sub in a[key] if a[key][sub] != b[key][sub]] if isinstance(a[key], dict) else [key]
    return keys
