"""Tune a backbone with one head on top, and leave checkpoints at fractions of an epoch."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import find_tuned, load_tuned, save_tuned, start_from
from bertvision.backbone.cpu_kernels import check_bf16, in_bf16
from bertvision.backbone.split import split
from bertvision.backbone.states import Reads, together
from bertvision.backbone.tuning import (
    Tuning,
    apply,
    first_trained,
    is_added,
    is_split,
    set_attention_dropout,
    set_training,
)
from bertvision.data.batches import collate
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import fitting, load_tensors, remove, save_tensors
from bertvision.heads import Head, build_head
from bertvision.recipe import BankRecipe, FinetuneRecipe, head_spec, reached
from bertvision.runtime import CPU
from bertvision.states.store import stored
from bertvision.tasks import Dataset, Task
from bertvision.train import agenda
from bertvision.train.bank import HeadBank, bank_learners, bank_path, training_notes
from bertvision.train.feeding import store_states
from bertvision.train.learner import Learner
from bertvision.train.loop import Feed, Loop, plan_batches
from bertvision.train.progress import Journal

SNAPSHOT = "finetune.snapshot.safetensors"
STATES = "finetune.states"  # of the frozen part, where it is stored


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tuned backbone on disk: a directory with what was trained of the encoder, and the head trained with it."""

    directory: Path

    @property
    def done(self) -> bool:
        return self.directory.is_dir()

    def save(self, backbone: Backbone, tuning: Tuning, head: Head, about: dict[str, Any]) -> None:
        """Writes all of it or nothing: the directory appears under its name when it is complete."""
        unfinished = self.directory.with_name(f".{self.directory.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_tuned(backbone.model, tuning, unfinished / "backbone.safetensors")
        save_tensors(unfinished / self._head.name, head.state_dict(), about)
        unfinished.rename(self.directory)

    def about(self) -> dict[str, Any]:
        """What was noted when it was saved: head, epoch, step, seconds, seed, identity."""
        return load_tensors(self._head, "head")[1]

    def load(self, task: Task, name: str) -> tuple[Backbone, Head, dict[str, Any]]:
        """The tuned backbone and its head, both in eval mode, and `about`."""
        backbone = Backbone.load(name)
        load_tuned(backbone.model, self.directory / "backbone.safetensors")
        tensors, about = load_tensors(self._head, "head")
        with fitting(self._head, "head"):
            head = make_head(about["head"], backbone, task)
            head.load_state_dict(tensors)
        return backbone.eval(), head.eval(), about

    @property
    def _head(self) -> Path:
        return self.directory / "head.safetensors"


def checkpoint_epochs(recipe: FinetuneRecipe) -> list[float]:
    """The epochs at which there are checkpoints."""
    return reached(recipe.epochs, recipe.checkpoints)


def planned_checkpoints(directory: Path, recipe: FinetuneRecipe) -> dict[float, Checkpoint]:
    """{epoch: the checkpoint that tuning leaves, or has left, in `directory`}"""
    return {epoch: Checkpoint(directory / f"checkpoint-{epoch:g}") for epoch in checkpoint_epochs(recipe)}


@dataclass(frozen=True, slots=True)
class Along:
    """A bank whose heads learn while the backbone is tuned, on the states it makes anyway."""

    bank: HeadBank
    recipe: BankRecipe


def finetune(
    backbone: Backbone,
    task: Task,
    train: Dataset,
    recipe: FinetuneRecipe,
    *,
    seed: int,
    directory: Path,
    identity: str,
    snapshot_seconds: float,
    journal: Journal,
    along: Along | None = None,
) -> dict[float, Checkpoint]:
    """Tunes `backbone` in place as the recipe says; {epoch: checkpoint}. Goes on where an earlier run was killed.

    along: heads that learn beside it, and are saved with each checkpoint as they are then. They do not move it.
    """
    checkpoints = planned_checkpoints(directory, recipe)
    tuning = Tuning(recipe.train_layers, recipe.adapters, recipe.lora, recipe.norms)
    set_attention_dropout(backbone.model, recipe.attention_dropout)
    if recipe.start:
        start_from(backbone.model, find_tuned(recipe.start), tuning)
    else:
        apply(backbone.model, tuning, seed)
    spec = head_spec(recipe.head)
    head = make_head(spec, backbone, task, seed)
    windows = train.windows
    plan = plan_batches(windows, recipe, seed)
    learner = _joint_learner(backbone, head, recipe, len(plan), seed)
    others = bank_learners(along.bank, along.recipe, windows, plan, seed) if along else []
    marks = {epoch: plan.steps_at(epoch) for epoch in checkpoints}  # with little data, several may be at one step
    marks[max(marks)] = len(plan)

    def save_checkpoint(step: int) -> None:
        for epoch in [epoch for epoch, mark in marks.items() if mark == step and not checkpoints[epoch].done]:
            if along:  # first: a checkpoint that is there has its heads
                along.bank.save(bank_path(directory, epoch), training_notes(others, 0.0, identity))
            seconds = loop.feed_seconds + learner.seconds
            about = {"head": spec, "epoch": epoch, "step": step, "seconds": seconds, "seed": seed, "identity": identity}
            checkpoints[epoch].save(backbone, tuning, head, about)
            journal.log("checkpoint", seed=seed, epoch=epoch, step=step, seconds=round(seconds, 2))

    reads = together([head.reads, *([along.bank.reads] if along else [])], backbone.layers)
    feed, seconds = _feed(backbone, windows, tuning, recipe, reads, directory / STATES, journal)
    set_training(backbone.model, tuning)
    loop = Loop(
        task,
        windows,
        plan,
        [learner, *others],
        feed,
        pad=backbone.pad,
        seed=seed,
        snapshot=directory / SNAPSHOT,
        identity=identity,
        snapshot_seconds=snapshot_seconds,
        journal=journal,
        at_step=save_checkpoint,
        marks=marks.values(),
        moving=True,
    )
    loop.feed_seconds = seconds  # those of an earlier run are in its snapshot
    save_checkpoint(0)  # epoch 0: the encoder as it came
    loop.run(agenda.tuning(seed))
    clear_tuning(directory)
    backbone.eval()
    return checkpoints


def clear_tuning(directory: Path) -> None:
    """Removes what tuning needed and its checkpoints do not: a kill may have left it."""
    (directory / SNAPSHOT).unlink(missing_ok=True)
    remove(directory / STATES)


def _feed(
    backbone: Backbone,
    windows: Windows,
    tuning: Tuning,
    recipe: FinetuneRecipe,
    reads: Reads,
    directory: Path,
    journal: Journal,
) -> tuple[Feed, float]:
    """batch -> States with gradients, from text or from the stored states of the frozen part; and the seconds that
    storing them took."""
    if recipe.lower == "live" and recipe.precision == "bf16":
        check_bf16()
        return lambda batch: in_bf16(backbone, batch, reads), 0.0
    if recipe.lower == "live":
        return lambda batch: backbone(batch, reads), 0.0
    if not is_split(backbone.model, tuning):
        raise UserError(
            'finetune.lower: "stored" needs a part that is entirely frozen: set norms = "trained", train_layers to '
            "fewer than all, and neither adapters nor lora"
        )
    if not len(windows):
        raise UserError("finetune.lower: there is nothing to store; give data with at least one question")
    began = time.perf_counter()
    reads = "last" if reads == "last" else "all"  # of the part below: only its last states enter what is above
    shortest = collate(windows, np.argsort(windows.lengths, kind="stable")[:2], backbone.pad)
    lower, upper = split(backbone, first_trained(backbone.model, tuning), shortest)
    store = store_states(
        directory,
        lower,
        windows,
        dtype="fp32",  # as exact as it gets: tuning differs only by how products round in other company, see `source`
        reads=reads,
        positions="all",
        journal=journal,
        stage="storing the frozen part",
    )
    below = stored(store, reads)
    return lambda batch: upper(batch, below(batch)), time.perf_counter() - began


def make_head(spec: dict[str, Any], backbone: Backbone, task: Task, seed: int = 0) -> Head:
    """A new head for this backbone; its starting values come from `seed` alone."""
    with CPU.seed(seed, "head"):
        return build_head(spec, layers=backbone.layers, width=backbone.width, task=task.name, outputs=task.outputs)


def _joint_learner(backbone: Backbone, head: Head, recipe: FinetuneRecipe, steps: int, seed: int) -> Learner:
    moving = {key: p for key, p in backbone.model.named_parameters() if p.requires_grad}
    added = {key: p for key, p in moving.items() if is_added(key)}
    own = {key: p for key, p in moving.items() if key not in added}
    rate = recipe.learning_rate
    return Learner(
        "backbone",
        head.train(),
        recipe,
        steps=steps,
        seed=seed,
        rate=recipe.head_learning_rate or rate,
        backbone=moving,
        groups=[(rate, own), (recipe.adapter_learning_rate or rate, added)],
    )
