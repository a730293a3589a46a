"""Tune a backbone with one head on top, and leave checkpoints at fractions of an epoch."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertvision.backbone import trained
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning, apply, is_added, set_attention_dropout
from bertvision.data.batches import BatchPlan
from bertvision.files import fitting, load_tensors, save_tensors
from bertvision.heads import Head, build_head
from bertvision.recipe import FinetuneRecipe, head_spec
from bertvision.tasks import Dataset, Spans
from bertvision.train.learner import Learner, fold
from bertvision.train.loop import Loop
from bertvision.train.progress import Journal

SNAPSHOT = "finetune.snapshot.safetensors"


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
        trained.save(backbone.model, tuning, unfinished / "backbone.safetensors")
        save_tensors(unfinished / self._head.name, head.state_dict(), about)
        unfinished.rename(self.directory)

    def about(self) -> dict[str, Any]:
        """What was noted when it was saved: head, epoch, step, seconds, seed, identity."""
        return load_tensors(self._head, "head")[1]

    def load(self, task: Spans, name: str) -> tuple[Backbone, Head, dict[str, Any]]:
        """The tuned backbone and its head, both in eval mode, and `about`."""
        backbone = Backbone.load(name)
        trained.load(backbone.model, self.directory / "backbone.safetensors")
        tensors, about = load_tensors(self._head, "head")
        with fitting(self._head, "head"):
            head = make_head(about["head"], backbone, task)
            head.load_state_dict(tensors)
        return backbone.eval(), head.eval(), about

    @property
    def _head(self) -> Path:
        return self.directory / "head.safetensors"


def checkpoint_epochs(recipe: FinetuneRecipe) -> list[float]:
    """The epochs at which there are checkpoints: those asked for that are reached, and the end."""
    epochs = {epoch for epoch in recipe.checkpoints if epoch < recipe.epochs} | {recipe.epochs}
    return sorted({float(f"{epoch:g}") for epoch in epochs})  # as in file names: 0.1 + 0.2 is 0.3


def planned_checkpoints(directory: Path, recipe: FinetuneRecipe) -> dict[float, Checkpoint]:
    """{epoch: the checkpoint that tuning leaves, or has left, in `directory`}"""
    return {epoch: Checkpoint(directory / f"checkpoint-{epoch:g}") for epoch in checkpoint_epochs(recipe)}


def finetune(
    backbone: Backbone,
    task: Spans,
    train: Dataset,
    recipe: FinetuneRecipe,
    *,
    seed: int,
    directory: Path,
    identity: str,
    snapshot_seconds: float,
    journal: Journal,
) -> dict[float, Checkpoint]:
    """Tunes `backbone` in place as the recipe says; {epoch: checkpoint}. Goes on where an earlier run was killed."""
    checkpoints = planned_checkpoints(directory, recipe)
    tuning = Tuning(recipe.train_layers, recipe.adapters, recipe.lora)
    set_attention_dropout(backbone.model, recipe.attention_dropout)
    apply(backbone.model, tuning, seed)
    spec = head_spec(recipe.head)
    head = make_head(spec, backbone, task, fold(seed, "head"))
    plan = BatchPlan(
        train.windows.lengths,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        batch_tokens=recipe.batch_tokens,
        seed=seed,
    )
    learner = _joint_learner(backbone, head, recipe, len(plan), seed)
    marks = {epoch: plan.steps_at(epoch) for epoch in checkpoints}  # with little data, several may be at one step
    marks[max(marks)] = len(plan)

    def save_checkpoint(step: int) -> None:
        for epoch in [epoch for epoch, mark in marks.items() if mark == step and not checkpoints[epoch].done]:
            seconds = loop.feed_seconds + learner.seconds
            about = {"head": spec, "epoch": epoch, "step": step, "seconds": seconds, "seed": seed, "identity": identity}
            checkpoints[epoch].save(backbone, tuning, head, about)
            journal.log("checkpoint", seed=seed, epoch=epoch, step=step, seconds=round(seconds, 2))

    backbone.train()
    loop = Loop(
        task,
        train.windows,
        plan,
        [learner],
        lambda batch: backbone(batch, head.reads),
        pad=backbone.pad,
        seed=seed,
        snapshot=directory / SNAPSHOT,
        identity=identity,
        snapshot_seconds=snapshot_seconds,
        journal=journal,
        at_step=save_checkpoint,
    )
    save_checkpoint(0)  # epoch 0: the encoder as it came
    loop.run(f"tuning, seed {seed}")
    loop.finish()
    backbone.eval()
    return checkpoints


def make_head(spec: dict[str, Any], backbone: Backbone, task: Spans, seed: int = 0) -> Head:
    """A new head for this backbone; its starting values come from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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
