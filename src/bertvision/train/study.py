"""A study: tune with checkpoints, train the bank at each, score everything. What is done is not done again."""

import dataclasses
import hashlib
import json
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bertvision import toml
from bertvision.backbone.backbone import Backbone
from bertvision.data.sources import is_synthetic
from bertvision.errors import UserError
from bertvision.files import claim, sync, write_json
from bertvision.recipe import FinetuneRecipe, Recipe, has_heads, head_spec, load_recipe
from bertvision.runtime import Runtime, is_main
from bertvision.tasks import Dataset
from bertvision.train.bank import HeadBank, at_fractions, bank_feeds, load_along, refuse_too_large, train_bank
from bertvision.train.compare import write_analysis, write_comparisons
from bertvision.train.ensembling import write_greedy
from bertvision.train.finetune import NAME, Along, Checkpoint, finetune, head_shape, start_files
from bertvision.train.loop import Job
from bertvision.train.progress import Journal, heads_stage, planned_stages, tuning_stage
from bertvision.train.run_dir import Cell, RunDir
from bertvision.train.run_results import (
    Members,
    StoredResults,
    check_names,
    load_members,
    note_dropped,
    note_peak,
    note_runtime,
    runtime_of,
    task_of,
    trained_part,
    tuning_of,
)
from bertvision.train.scoring import Pass, Setting, predict_splits, report_rows

# May change without invalidating what is done.
COSMETIC = ("seeds", "title", "paper", "snapshot_seconds", "search", "runtime.device", "runtime.gradient_checkpointing")
NO_CHECKPOINT = -1.0  # in place of an epoch: tuned, but with the weights of no checkpoint


class Study:
    """A recipe and the directory it is run in; see `RunDir` for the files there. cell: the only one it works on."""

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False, cell: str = "") -> None:
        self.recipe, self.directory, self.run_dir = recipe, directory, RunDir(directory, recipe, cell)
        main = is_main()
        self.journal = Journal(self.run_dir.log_file if main else None, quiet=quiet or not main)
        self.task = task_of(self.run_dir)
        self.stored = StoredResults(self.run_dir, self.task, self.members)
        self._encoder: Backbone | None = None  # in memory: untuned, or tuned by this recipe
        self._loaded_checkpoint: Cell | None = None  # the one whose weights the encoder has; None: untuned
        check_names(recipe)

    @classmethod
    def open(cls, directory: Path, *, quiet: bool = False) -> "Study":
        """A study that was begun earlier."""
        return cls(RunDir.open(directory).recipe(), directory, quiet=quiet)

    @property
    def studies(self) -> list["Study"]:
        """This study alone; `VariantStudies` has several."""
        return [self]

    @property
    def finished(self) -> bool:
        """Whether every checkpoint of every seed has scores."""
        return self.run_dir.scored() == self.run_dir.planned()

    def run(self) -> list[dict[str, Any]]:
        """Everything that is not done yet; the rows of metrics.json."""
        self.begin()
        if self.runtime.tell(self.finished and bool(self.run_dir.facts().get("finished"))):
            self.journal.say(f"{self.directory}: already finished; nothing to do")
        else:
            self.stored.refuse_other_sets(self.data)
            self.plan()
            for seed in self.recipe.seeds:
                self.tune(seed)
                for epoch in self.run_dir.epochs:
                    self.train(seed, epoch)
                    self.score(seed, epoch)
            if self.runtime.is_main:
                self.run_dir.finish()
        if self.runtime.is_main:
            self._conclude()
        self.runtime.wait()
        self._encoder = self._loaded_checkpoint = None
        return self.rows()

    def _conclude(self) -> None:
        """Writes what is computed from all cells together, unless it is up to date."""
        self.run_dir.write_metrics()
        write_comparisons(self.stored)
        if not self.run_dir.is_current(self.run_dir.greedy_file):
            self.journal.say("choosing ensembles on tune")
            write_greedy(self.stored)
        if not self.run_dir.is_current(self.run_dir.analysis_file):
            write_analysis(self.stored)

    def plan(self) -> None:
        """Tells the journal the stages of the whole study, for its progress bar."""
        self.journal.stages.plan(planned_stages(self.run_dir, self.tokens), self.journal.part)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of one pass over each set."""
        return {split: int(data.windows.lengths.sum()) for split, data in self.data.items()}

    def begin(self, elsewhere: bool = False) -> None:
        """Claims the directory for this recipe; one with another recipe is refused. elsewhere: others will compute."""
        if self.runtime.is_main:
            self.refuse_other()
            claim(self.directory)
            self.run_dir.gather()
            self.run_dir.write_recipe(self.recipe)
            self.run_dir.start(self.finished)
            if not self.finished and not elsewhere:  # else nothing is computed here
                note_runtime(self.run_dir, self.runtime, self.journal)
        self.runtime.wait()

    def refuse_other(self) -> None:
        """UserError if the directory holds a run of another recipe."""
        if not self.run_dir.recipe_file.is_file():
            return
        if changed := toml.differing_keys(self.recipe, load_recipe(self.run_dir.recipe_file), COSMETIC):
            raise UserError(
                f"{self.directory}: holds a run of another recipe (it differs in {', '.join(changed)}); "
                "choose another --out, or delete it"
            )

    def tune(self, seed: int) -> dict[float, Checkpoint]:
        """The checkpoints of a seed; the backbone is tuned unless that is done."""
        recipe, checkpoints = self.recipe, self.checkpoints(seed)
        job = self._job(seed, NAME, tuning_stage(seed))
        if self.runtime.tell(self.run_dir.is_tuned(seed)):
            if self.runtime.is_main:
                job.clear()  # a kill may have come between the last checkpoint and this
            return checkpoints
        for checkpoint in checkpoints.values():
            if checkpoint.done:
                self._refuse_changed(checkpoint)
        job = dataclasses.replace(job, identity=self.identity)
        backbone = self._untuned()
        trains_heads = recipe.bank.along and recipe.heads
        path_at = partial(self.run_dir.along if recipe.bank.settle else self.run_dir.bank, seed)
        along = Along(self._new_bank(backbone, seed), recipe.bank, path_at) if trains_heads else None
        self._loaded_checkpoint = seed, NO_CHECKPOINT
        finetune(backbone, self.task, self.data["train"], self._tuning, job, checkpoints, along)
        note_peak(self.run_dir, self.runtime)
        return checkpoints

    def train(self, seed: int, epoch: float) -> Path:
        """The bank of one checkpoint; it is trained unless that is done."""
        path = self.run_dir.bank(seed, epoch)
        job = self._job(seed, path.stem, heads_stage(epoch, seed))
        if self.runtime.tell(path.exists() or not has_heads(self.recipe, epoch)):
            if self.runtime.is_main:
                job.clear()
            return path
        self._refuse_changed(self.checkpoint(seed, epoch))
        recipe = self.recipe.bank
        trained_along = load_along(self.run_dir.along(seed, epoch) if recipe.settle else path) if recipe.along else None
        backbone, job = self.tuned(seed, epoch), dataclasses.replace(job, identity=self.identity)
        bank, recipe = trained_along or self._new_bank(backbone, seed), recipe.after
        if recipe.solve:
            from bertvision.train.solve import solve_bank

            solve_bank(bank, backbone, self.task, self.data, job)
        else:
            feeds = bank_feeds(bank, backbone, recipe, job, tapped=self.run_dir.states)
            path_at = partial(self.run_dir.bank, seed, epoch)
            train_bank(bank, feeds, self.task, self.data, job, path_at=path_at)
        note_peak(self.run_dir, self.runtime)
        return path

    def _job(self, seed: int, name: str, stage: str) -> Job:
        """A training of one seed, without its identity, which needs the data."""
        return Job(self.run_dir.seed(seed), name, seed, "", self.recipe.snapshot_seconds, self.journal, stage)

    def _new_bank(self, backbone: Backbone, seed: int) -> HeadBank:
        """The untrained heads of the recipe, once per share of the training set."""
        entries = at_fractions(self.recipe.heads, self.recipe.bank.fractions)
        return HeadBank(entries, **head_shape(backbone, self.task), seed=seed)

    def score(self, seed: int, epoch: float) -> None:
        """Predicts tune and the reported sets with every member of one checkpoint, in a pass each; writes scores."""
        run, cell = self.run_dir, (seed, epoch)
        if self.runtime.tell(run.scores_file(*cell).exists()):
            return
        self._refuse_changed(self.checkpoint(*cell))
        self.stored.refuse_other_sets(self.data)
        setting = Setting(self.task, self.recipe.evaluate, self.journal)
        members, passes = predict_splits(self.members(*cell), cell, self.data, setting, run)
        if self.runtime.is_main:
            self._write_scores(cell, members, passes)

    def _write_scores(self, cell: Cell, members: Members, passes: dict[str, Pass]) -> None:
        """Writes the score rows of a checkpoint whose sets have been predicted."""
        run = self.run_dir
        rows, predictions = report_rows(members, passes, self.task, self.data)
        note_dropped(run, members)
        note_peak(self.run_dir, self.runtime)
        self.stored.note_sets(cell, self.data)
        tables = [row.to_json() for row in rows]
        sync(run.facts_file, run.sets_file(*cell), *run.predictions(*cell, "").rglob("*.json"))
        write_json(run.scores_file(*cell), tables, durable=True)  # last: with it the cell is done
        self.stored.keep(cell, rows, predictions, self.data["test"])
        if self.journal.scalars is not None:
            self.journal.scalars.scores(*cell, tables, self.task.metrics)
        if not run.apart:
            run.write_metrics()
            write_comparisons(self.stored, whole=False)

    def members(self, seed: int, epoch: float) -> Members:
        """Backbone and heads of a checkpoint, loaded into the encoder in memory."""
        backbone = self._encoder or self._untuned()
        self._loaded_checkpoint = seed, NO_CHECKPOINT
        members = load_members(self.run_dir, self.task, seed, epoch, backbone)
        self._loaded_checkpoint = seed, epoch
        return members

    def checkpoints(self, seed: int) -> dict[float, Checkpoint]:
        """{epoch: the checkpoint that tuning leaves, or has left}"""
        return {epoch: Checkpoint(self.run_dir.checkpoint(seed, epoch)) for epoch in self.run_dir.epochs}

    def checkpoint(self, seed: int, epoch: float) -> Checkpoint:
        """A finished checkpoint of this study; UserError if there is none."""
        checkpoint = Checkpoint(self.run_dir.checkpoint(seed, epoch))
        if epoch not in self.run_dir.epochs or not checkpoint.done:
            raise UserError(f"{checkpoint.directory}: no such checkpoint; `bertvision finetune` makes it")
        return checkpoint

    def tuned(self, seed: int, epoch: float) -> Backbone:
        """The backbone of a checkpoint, which must have been tuned on the present data and settings."""
        checkpoint = self.checkpoint(seed, epoch)
        self._refuse_changed(checkpoint)
        backbone = self._encoder or self._untuned()
        if self._loaded_checkpoint != (seed, epoch):
            checkpoint.load(self.task, backbone)
            self._loaded_checkpoint = seed, epoch
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
        sizes = {
            split: {"questions": len(dataset.records), "windows": len(dataset.windows)}
            for split, dataset in data.items()
        }
        self.journal.log("data", **sizes)
        for dataset in data.values():
            for note in dataset.notes:
                self.journal.note(note)
        shape = {"task": self.task.name, "outputs": self.task.outputs}
        refuse_too_large(self.recipe, data, shape | {"layers": self._origin.layers, "width": self._origin.width})
        if self.runtime.is_main:
            facts = {
                split: {"source": dataset.source, "synthetic": is_synthetic(dataset.source), **sizes[split]}
                for split, dataset in data.items()
            }
            self.run_dir.add_facts(
                data=facts,
                task=self.task.facts() or None,
                constant=self.task.constant(data["test"]) or None,
            )
        self.stored.data = data
        return data

    @cached_property
    def identity(self) -> str:
        """A digest of everything that training depends on beside the seed: recipe, weights, tokenizer, windows."""
        settings = trained_part(dataclasses.replace(self.recipe, finetune=self._tuning), self.runtime.identity)
        digest = hashlib.sha256(
            json.dumps({key: value for key, value in settings.items() if key not in COSMETIC}).encode()
        )
        digest.update(self._origin.fingerprint.encode())
        if start := self.recipe.finetune.start:
            for file in start_files(start):
                digest.update(file.read_bytes())
        windows = self.data["train"].windows
        for array in (windows.ids, windows.starts, windows.targets):
            digest.update(array.tobytes())
        return digest.hexdigest()

    @cached_property
    def runtime(self) -> Runtime:
        """Device, precision and processes."""
        return runtime_of(self.run_dir)

    @cached_property
    def _tuning(self) -> FinetuneRecipe:
        return tuning_of(self.run_dir, self.runtime)

    @cached_property
    def _origin(self) -> "Origin":
        backbone = self._untuned()
        backbone.check_length(self.recipe.data.max_length)
        entries = [("finetune.head", self.recipe.finetune.head), *(("heads", head) for head in self.recipe.heads)]
        for where, entry in entries:
            if head_spec(entry).get("pooled"):
                backbone.check_pooler(f"{where}: pooled")
        return Origin(backbone.tokenizer, backbone.fingerprint, backbone.layers, backbone.width)

    def _untuned(self) -> Backbone:
        """The untuned encoder: the one in memory, unless it was tuned; then a new one is loaded."""
        if self._encoder is None or self._loaded_checkpoint is not None:
            self._encoder = self._loaded_checkpoint = None  # before the new one stands beside it
            self._encoder = Backbone.load(self.recipe.backbone.name, self.runtime)
        return self._encoder

    def _refuse_changed(self, checkpoint: Checkpoint) -> None:
        """Refuses to go on from a checkpoint if data, encoder or settings have changed since it was made."""
        if checkpoint.about().get("identity") != self.identity:
            data_source, encoder_name = self.recipe.data.train, self.recipe.backbone.name
            raise UserError(
                f"{checkpoint.directory}: was tuned when {data_source} or {encoder_name} were not what they are now; "
                "restore them, choose another --out, or delete the run"
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The tokenizer of the untuned encoder, the fingerprint of its weights, and its shape."""

    tokenizer: Tokenizer
    fingerprint: str
    layers: int
    width: int
