"""A study: tune with checkpoints, train the bank at each, score everything. Every cell is done once."""

import dataclasses
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import find_tuned
from bertvision.data.sources import is_synthetic
from bertvision.errors import UserError
from bertvision.files import claim, save_tensors, write_json, write_text
from bertvision.recipe import DataRecipe, Recipe, load_recipe, to_toml
from bertvision.tasks import Dataset
from bertvision.train.bank import HeadBank, at_fractions, bank_feeds, train_bank
from bertvision.train.choose import write_greedy
from bertvision.train.compare import write_analysis, write_comparisons
from bertvision.train.finetune import NAME, Along, Checkpoint, finetune, head_shape, planned_checkpoints
from bertvision.train.loop import Job
from bertvision.train.progress import (
    Journal,
    heads_stage,
    planned_stages,
    scored_splits,
    scoring_stage,
    tuning_stage,
)
from bertvision.train.run_dir import RunDir
from bertvision.train.scoring import Loaded, Setting, check_names, load_members, predict, report_rows
from bertvision.train.stored import Stored, task_of

COSMETIC = ("seeds", "title", "paper", "snapshot_seconds", "search")  # may change without invalidating what is done
NO_CHECKPOINT = -1.0  # in place of an epoch: tuned, but with the weights of no checkpoint


class Study:
    """A recipe and the directory it is run in; see `RunDir` for the files there."""

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False) -> None:
        self.recipe, self.directory, self.run_dir = recipe, directory, RunDir(directory, recipe)
        self.journal = Journal(self.run_dir.log_file, quiet=quiet)
        self.task = task_of(self.run_dir)
        self.stored = Stored(self.run_dir, self.task, self.members)
        self._encoder: Backbone | None = None  # in memory: untuned, or tuned by this recipe
        self._holds: tuple[int, float] | None = None  # the checkpoint whose weights it has
        check_names(recipe)

    @classmethod
    def open(cls, directory: Path, *, quiet: bool = False) -> "Study":
        """A study that was begun earlier."""
        return cls(RunDir.open(directory).recipe(), directory, quiet=quiet)

    @property
    def studies(self) -> list["Study"]:
        """Itself: a series has several."""
        return [self]

    @property
    def epochs(self) -> list[float]:
        """The epochs of the checkpoints."""
        return self.run_dir.epochs

    @property
    def finished(self) -> bool:
        """Whether every cell has its scores."""
        return len(self.run_dir.scored()) == len(self.recipe.seeds) * len(self.epochs)

    def run(self) -> list[dict[str, Any]]:
        """Everything that is not done yet; the rows of metrics.json."""
        self.begin()
        if self.finished and self.run_dir.facts().get("finished"):
            self.journal.say(f"{self.directory}: already finished; nothing to do")
        else:
            self.stored.refuse_other_sets(self.data)
            self.plan()
            for seed in self.recipe.seeds:
                self.tune(seed)
                for epoch in self.epochs:
                    self.train(seed, epoch)
                    self.score(seed, epoch)
            self.run_dir.finish()
        self.run_dir.write_metrics()
        write_comparisons(self.stored)
        if not self.run_dir.is_current(self.run_dir.greedy_file):
            self.journal.say("choosing ensembles on tune")
            write_greedy(self.stored)
        if not self.run_dir.is_current(self.run_dir.analysis_file):
            write_analysis(self.stored)
        self._encoder = self._holds = None
        return self.rows()

    def plan(self) -> None:
        """Puts the stages on the agenda of the journal."""
        self.journal.agenda.plan(planned_stages(self.run_dir, self.tokens), self.journal.part)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of one pass over each set."""
        return {split: int(data.windows.lengths.sum()) for split, data in self.data.items()}

    def begin(self) -> None:
        """Claims the directory for this recipe; a directory with another recipe is refused."""
        self.refuse_other()
        claim(self.directory)
        write_text(self.run_dir.recipe_file, to_toml(self.recipe))
        self.run_dir.start(self.finished)

    def refuse_other(self) -> None:
        """UserError if the directory holds a run of another recipe."""
        if not self.run_dir.recipe_file.is_file():
            return
        if changed := _differences(self.recipe, load_recipe(self.run_dir.recipe_file)):
            raise UserError(
                f"{self.directory}: holds a run of another recipe (it differs in {', '.join(changed)}); "
                "choose another --out, or delete it"
            )

    def tune(self, seed: int) -> dict[float, Checkpoint]:
        """Tunes the backbone, or finds it tuned."""
        recipe = self.recipe
        checkpoints = planned_checkpoints(self.run_dir.seed(seed), recipe.finetune)
        job = self._job(seed, NAME, tuning_stage(seed))
        if all(checkpoint.done for checkpoint in checkpoints.values()):
            job.clear()  # a kill may have come between the last checkpoint and this
            return checkpoints
        for checkpoint in checkpoints.values():
            if checkpoint.done:
                self._check(checkpoint)
        job = dataclasses.replace(job, identity=self.identity)
        backbone = self._untuned()
        with_heads = recipe.bank.feed == "along" and recipe.heads
        along = Along(self._new_bank(backbone, seed), recipe.bank) if with_heads else None
        self._holds = seed, NO_CHECKPOINT
        found = finetune(backbone, self.task, self.data["train"], recipe.finetune, job, along)
        self.run_dir.note_peak()
        return found

    def train(self, seed: int, epoch: float) -> Path:
        """Trains the bank on one checkpoint, or finds it trained."""
        path = self.run_dir.bank(seed, epoch)
        job = self._job(seed, path.stem, heads_stage(epoch, seed))
        if path.exists() or not self.recipe.heads:
            job.clear()
            return path
        self._check(self.checkpoint(seed, epoch))
        if self.recipe.bank.feed == "along":
            raise UserError(
                f"{path}: is gone, and its heads learn only while the backbone is tuned; "
                f"delete {path.parent} to tune it again"
            )
        backbone, job = self.tuned(seed, epoch), dataclasses.replace(job, identity=self.identity)
        bank = self._new_bank(backbone, seed)
        feeds = bank_feeds(bank, backbone, self.recipe.bank, job, tapped=self.run_dir.states)
        train_bank(bank, feeds, self.task, self.data["train"], job, tune=self.data["tune"])
        self.run_dir.note_peak()
        return path

    def _job(self, seed: int, name: str, stage: str) -> Job:
        """Without an identity, which needs the data."""
        return Job(self.run_dir.seed(seed), name, seed, "", self.recipe.snapshot_seconds, self.journal, stage)

    def _new_bank(self, backbone: Backbone, seed: int) -> HeadBank:
        """The untrained heads of the recipe, once per share of the training set."""
        entries = at_fractions(self.recipe.heads, self.recipe.bank.fractions)
        return HeadBank(entries, **head_shape(backbone, self.task), seed=seed)

    def score(self, seed: int, epoch: float) -> None:
        """Predicts tune and the reported sets with every member of one checkpoint, in a pass each; writes scores."""
        run, cell = self.run_dir, (seed, epoch)
        if run.scores_file(*cell).exists():
            return
        self._check(self.checkpoint(*cell))
        self.stored.refuse_other_sets(self.data)
        loaded, passes = self.members(*cell), {}
        setting = Setting(self.task, self.recipe.evaluate, self.journal)
        for split in scored_splits(self.recipe.data.also):
            ensembles = [*loaded.singles, *loaded.pairs(self.recipe.evaluate.ensembles)]
            stage = scoring_stage(epoch, split, seed)
            found = predict(loaded.backbone, loaded.heads, ensembles, self.data[split], setting, keep=True, stage=stage)
            loaded, passes[split] = loaded.without(found.dropped), found
            for one, predictions in found.predictions.items():
                write_json(run.predictions_file(one, split), predictions.to_json())
            logits = {member.name: values for member, values in found.logits.items()}
            per = {"per": "token" if self.task.per_token else "window"}
            save_tensors(run.logits_file(*cell, split), logits, per)
            found.logits.clear()
        rows, reported = report_rows(loaded, passes, self.task, self.data)
        self._note_dropped(loaded)
        run.note_peak()
        self.stored.note_sets(cell, self.data)
        plain = [row.to_json() for row in rows]
        write_json(run.scores_file(*cell), plain)  # last: with it the cell is done
        self.stored.keep(cell, rows, reported, self.data["test"])
        if self.journal.scalars is not None:
            self.journal.scalars.scores(seed, epoch, plain, self.task.metrics)
        run.write_metrics()
        write_comparisons(self.stored)

    def members(self, seed: int, epoch: float) -> Loaded:
        """Backbone and heads of a checkpoint, loaded into the encoder in memory."""
        backbone = self._encoder or self._untuned()
        self._holds = seed, NO_CHECKPOINT
        found = load_members(self.run_dir, self.task, seed, epoch, backbone)
        self._holds = seed, epoch
        return found

    def checkpoint(self, seed: int, epoch: float) -> Checkpoint:
        """A finished checkpoint of this study; UserError if there is none."""
        found = Checkpoint(self.run_dir.checkpoint(seed, epoch))
        if epoch not in self.epochs or not found.done:
            raise UserError(f"{found.directory}: no such checkpoint; `bertvision finetune` makes it")
        return found

    def tuned(self, seed: int, epoch: float) -> Backbone:
        """The backbone of a checkpoint, which must have been tuned on the data and settings of now."""
        checkpoint = self.checkpoint(seed, epoch)
        self._check(checkpoint)
        backbone = self._encoder or self._untuned()
        if self._holds != (seed, epoch):
            checkpoint.load(self.task, backbone)
            self._holds = seed, epoch
        return backbone

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all cells done so far, as in metrics.json."""
        return [row.to_json() for row in self.run_dir.rows()]

    @cached_property
    def data(self) -> dict[str, Dataset]:
        """The sets of the recipe, cut into windows."""
        data = self.task.load(self.recipe.data, self._origin.tokenizer, seed=0)
        if not len(data["train"].windows):
            raise UserError(f"data.train: {self.recipe.data.train} holds nothing to learn from")
        sizes = {split: {"questions": len(one.records), "windows": len(one.windows)} for split, one in data.items()}
        self.journal.log("data", **sizes)
        for note in (note for one in data.values() for note in one.notes):
            self.journal.note(note)
        origins = {n: {"source": one.source, "synthetic": is_synthetic(one.source)} for n, one in data.items()}
        self.run_dir.add_facts(
            data={split: origins[split] | sizes[split] for split in data},
            task=self.task.facts() or None,
            constant=self.task.constant(data["test"]) or None,
        )
        self.stored.data = data
        return data

    @cached_property
    def identity(self) -> str:
        """What training depends on beside the seed: recipe, weights, tokenizer, windows."""
        plain = dataclasses.asdict(self.recipe)
        # Left out: what does not affect training, what shows in the windows, what is not asked for.
        for key in ("also", "broken", *([] if self.recipe.data.metric else ["metric"])):
            plain["data"].pop(key)
        digest = hashlib.sha256(json.dumps({k: v for k, v in plain.items() if k not in COSMETIC}).encode())
        digest.update(self._origin.fingerprint.encode())
        if start := self.recipe.finetune.start:
            digest.update(find_tuned(start).read_bytes())
        windows = self.data["train"].windows
        for array in (windows.ids, windows.starts, windows.targets):
            digest.update(array.tobytes())
        return digest.hexdigest()

    @cached_property
    def _origin(self) -> "Origin":
        backbone = self._untuned()
        refuse_too_long(self.recipe.data, backbone)
        return Origin(backbone.tokenizer, backbone.fingerprint)

    def _untuned(self) -> Backbone:
        """The encoder as it came: that in memory, unless it was tuned; then it is loaded in its place."""
        if self._encoder is None or self._holds is not None:
            self._encoder = self._holds = None  # before the new one stands beside it
            self._encoder = Backbone.load(self.recipe.backbone.name)
        return self._encoder

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuses to go on from a checkpoint if data, encoder or settings have changed since it was made."""
        if checkpoint.about().get("identity") != self.identity:
            data, encoder = self.recipe.data.train, self.recipe.backbone.name
            raise UserError(
                f"{checkpoint.directory}: was tuned when {data} or {encoder} were not what they are now; "
                "restore them, choose another --out, or delete the run"
            )

    def _note_dropped(self, loaded: Loaded) -> None:
        found = [
            {"seed": one.seed, "checkpoint": one.epoch, "member": one.name, "why": why}
            for one, why in loaded.dropped.items()
        ]
        if found:
            known = [one for one in self.run_dir.facts().get("dropped", []) if one not in found]
            self.run_dir.add_facts(dropped=known + found)


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The tokenizer of the untuned encoder, and the fingerprint of its weights."""

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
