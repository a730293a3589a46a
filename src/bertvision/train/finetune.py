"""Tune a backbone with one head on top, and leave checkpoints at fractions of an epoch."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import find_tuned, load_tuned, save_tuned, start_from
from bertvision.backbone.cpu_kernels import in_bf16, training_kernels
from bertvision.backbone.flops import NO_FLOPS, Flops, Work, added, encoder_work, head_work
from bertvision.backbone.states import POOLED, Reads, numbered, together
from bertvision.backbone.tuning import (
    Tuning,
    apply,
    first_trained,
    is_added,
    is_split,
    leaner,
    set_attention_dropout,
    set_training,
)
from bertvision.data.batches import collate
from bertvision.data.windows import Windows
from bertvision.devices import find_precision
from bertvision.errors import UserError
from bertvision.evaluate.score import total_flops
from bertvision.files import fitting, load_tensors, save_tensors, sync
from bertvision.heads import SPECS, Head, build_head, saved_spec
from bertvision.recipe import BankRecipe, FinetuneRecipe, head_spec
from bertvision.runtime import CPU, Runtime
from bertvision.states.layout import Selection
from bertvision.states.store import Source, stored
from bertvision.tasks import Dataset, Task
from bertvision.train.bank import HeadBank, bank_learners, training_notes
from bertvision.train.feed import write_states
from bertvision.train.learner import Learner
from bertvision.train.loop import Feed, Job, Plan, fit, plan_batches

NAME = "finetune"  # of the job, in the names of its files


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tuned backbone on disk: a directory with what was trained of the encoder, and the head trained with it."""

    directory: Path

    @property
    def done(self) -> bool:
        return self.directory.is_dir()

    @property
    def encoder_file(self) -> Path:
        return self.directory / "backbone.safetensors"

    def save(self, backbone: Backbone, tuning: Tuning, head: Head, about: dict[str, Any]) -> None:
        """Writes all of it or nothing: the directory appears under its name when it is complete."""
        unfinished = self.directory.with_name(f".{self.directory.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            save_tuned(backbone.model, tuning, unfinished / self.encoder_file.name)
            save_tensors(unfinished / self._head.name, head.state_dict(), about)
            unfinished.rename(self.directory)
            sync(self.directory.parent)
        finally:  # on a full disk what was written would take the room that is left
            shutil.rmtree(unfinished, ignore_errors=True)

    def about(self) -> dict[str, Any]:
        """The notes saved with it: head, specs, epoch, step, seconds, FLOPs, seed, identity."""
        return load_tensors(self._head, "head", self._way_out)[1]

    def load(self, task: Task, onto: Backbone | str) -> tuple[Backbone, Head, dict[str, Any]]:
        """The tuned backbone and its head, both in eval mode, and `about`.

        onto: the name of the encoder, or the encoder itself, untuned or tuned by the same plan; it is changed in place.
        """
        backbone = Backbone.load(onto) if isinstance(onto, str) else onto
        load_tuned(backbone.model, self.encoder_file)
        tensors, about = load_tensors(self._head, "head", self._way_out, finite=True)
        with fitting(self._head, "head", self._way_out):
            about["head"] = saved_spec(about["head"], about)
            head = make_head(about["head"], backbone, task)
            head.load_state_dict(tensors)
        return backbone.eval(), backbone.runtime.to(head.eval()), about

    @property
    def _head(self) -> Path:
        return self.directory / "head.safetensors"

    @property
    def _way_out(self) -> str:
        return f"delete {self.directory} to have it tuned again"


@dataclass(frozen=True, slots=True)
class Along:
    """A bank whose heads train while the backbone is tuned, on the states it computes anyway.

    path: where the bank is saved with the checkpoint of an epoch.
    """

    bank: HeadBank
    recipe: BankRecipe
    path: Callable[[float], Path]


def finetune(
    backbone: Backbone,
    task: Task,
    train: Dataset,
    recipe: FinetuneRecipe,
    job: Job,
    checkpoints: Mapping[float, Checkpoint],
    along: Along | None = None,
) -> None:
    """Tunes `backbone` in place as the recipe says, and leaves `checkpoints`, by their epochs. Resumes after a kill.

    along: heads that train on the same states, and are saved with each checkpoint. They do not change the backbone.
    """
    runtime, windows, spec = backbone.runtime, train.windows, head_spec(recipe.head)
    if runtime.world > 1:
        _check_processes(runtime, job)
    tuning = _prepare(backbone, recipe, job.seed)
    head = runtime.to(_first_head(spec, backbone, task, job.seed, recipe.start))
    plan = plan_batches(windows, recipe, job.seed)
    learner = _joint_learner(backbone, head, recipe, len(plan), job.seed)
    bank = bank_learners(runtime.to(along.bank), along.recipe, windows, plan, job.seed) if along else []
    below = _frozen(backbone, tuning) if recipe.lower == "stored" else NO_FLOPS
    learner.work = tuning_work(backbone, head, below)
    reads = together([head.reads, *([along.bank.reads] if along else [])], backbone.layers)
    feed = _joint_feed(backbone, windows, tuning, recipe, reads, job, below)
    due = {epoch: plan.steps_at(epoch) for epoch in checkpoints}  # with little data, several may be at one step
    due[max(due)] = len(plan)

    def save_checkpoints(step: int) -> None:
        for epoch, checkpoint in checkpoints.items():
            if not runtime.is_main or due[epoch] != step or checkpoint.done:
                continue
            if along:  # first: a checkpoint that exists has its heads
                along.bank.save(along.path(epoch), training_notes(bank, None, job.identity))
            seconds, flops = feed.seconds + learner.seconds, total_flops([feed.flops, learner.flops])
            about = {"head": spec, "specs": SPECS, "epoch": epoch, "step": step, "seconds": seconds, "flops": flops}
            checkpoint.save(backbone, tuning, head, about | {"seed": job.seed, "identity": job.identity})
            job.journal.log("checkpoint", seed=job.seed, epoch=epoch, step=step, seconds=round(seconds, 2))

    set_training(backbone.model, tuning)
    save_checkpoints(0)  # epoch 0: the encoder as it came
    savings: Any = {"checkpointing": runtime.checkpointing, "compiled": runtime.compiled}
    with leaner(backbone.model, **savings, kernels=lambda: training_kernels(runtime)):
        fit([learner, *bank], feed, Plan(task, plan, job, save_checkpoints, due.values()), runtime)
    if runtime.is_main:
        job.clear()
    runtime.wait()
    backbone.eval()


def _check_processes(runtime: Runtime, job: Job) -> None:
    """UserError unless the processes can share the steps of tuning."""
    from bertvision.train.micro_batches import check_parts

    check_parts(runtime)
    if runtime.reduce == "fast":
        job.journal.note(f"gradients of {runtime.world} processes are added as fast as they can: other bits every time")


def _prepare(backbone: Backbone, recipe: FinetuneRecipe, seed: int) -> Tuning:
    """Makes the encoder ready for tuning: what trains, what is added to it, and the weights it starts from."""
    tuning = tuning_of(recipe)
    set_attention_dropout(backbone.model, recipe.attention_dropout)
    if recipe.start:
        start_from(backbone.model, find_tuned(recipe.start), tuning)
    else:
        apply(backbone.model, tuning, seed)
    return tuning


def tuning_of(recipe: FinetuneRecipe) -> Tuning:
    """The tuning plan of a recipe; the pooler belongs to a read-out that reads it, and trains with it."""
    spec = head_spec(recipe.head)
    plan = recipe.train_layers, recipe.adapters, recipe.lora, recipe.norms, bool(spec.get("pooled")), recipe.biases
    return Tuning(*plan, depth=spec.get("depth", 0))


def _joint_feed(
    backbone: Backbone,
    windows: Windows,
    tuning: Tuning,
    recipe: FinetuneRecipe,
    reads: Reads,
    job: Job,
    below: Flops | None,
) -> Feed:
    """The feed of tuning. below: FLOPs per window of the frozen part, if that is stored."""
    began = backbone.runtime.clock()
    source = _source(backbone, windows, tuning, recipe, reads, job)
    seconds = backbone.runtime.clock() - began if recipe.lower == "stored" else 0.0
    return Feed(windows, source, backbone.pad, moves=True, seconds=seconds, flops=added(0, below, windows.lengths))


def _source(
    backbone: Backbone, windows: Windows, tuning: Tuning, recipe: FinetuneRecipe, reads: Reads, job: Job
) -> Source:
    """batch -> States with gradients, from text or from the stored states of the frozen part."""
    if recipe.lower == "live":
        if find_precision(recipe.precision, backbone.runtime.device, "finetune.precision") == "bf16":
            return lambda batch: in_bf16(backbone, batch, reads)
        return lambda batch: backbone(batch, reads)
    if not is_split(backbone.model, tuning):
        raise UserError(
            'finetune.lower: "stored" needs a part that is entirely frozen: set norms = "trained", train_layers to '
            "fewer than all, and neither adapters nor lora"
        )
    if POOLED in numbered(reads, backbone.layers):
        raise UserError('finetune.lower: "stored" has no pooler to read; use lower = "live"')
    if not len(windows):
        raise UserError("finetune.lower: there is nothing to store; give data with at least one question")
    from bertvision.backbone.split import split

    reads = "last" if reads == "last" else "all"  # of the part below: only its last states enter what is above
    shortest = collate(windows, np.argsort(windows.lengths, kind="stable")[:2], backbone.pad)
    first, stop = first_trained(backbone.model, tuning), tuning.depth or None
    lower, upper = split(backbone, first, backbone.runtime.to(shortest), stop)
    selection = Selection("fp32", reads, "all")  # so that only the rounding of products in other batches differs
    store = write_states(job.states, lower, windows, selection, job.journal, "storing the frozen part")
    lower_states = stored(store, reads, runtime=backbone.runtime)
    return lambda batch: upper(batch, lower_states(batch))


def _frozen(backbone: Backbone, tuning: Tuning) -> Flops | None:
    """FLOPs per window of the blocks below the first that trains."""
    return encoder_work(backbone.model, below=first_trained(backbone.model, tuning)).forward


def tuning_work(backbone: Backbone, head: Head, below: Flops | None = NO_FLOPS) -> Work:
    """FLOPs per window of a backbone that was prepared for tuning and of the head on top; without those `below`."""
    encoder = encoder_work(backbone.model, head.reads)
    readout = head_work(head, backbone.layers, backbone.width, joint=True)
    if encoder.train is None or readout.train is None or below is None:
        return Work(None, None)
    return Work(train=encoder.train + readout.train - below)


def make_head(spec: dict[str, Any], backbone: Backbone, task: Task, seed: int = 0) -> Head:
    """A new head for this backbone; its starting values come from `seed` alone."""
    with CPU.seed(seed, "head"):
        return build_head(spec, **head_shape(backbone, task))


def start_files(start: str) -> list[Path]:
    """The tuned encoder in `start`, a checkpoint or a reader, and the file with its head, where there is one."""
    encoder = find_tuned(start)
    heads = [encoder.with_name(name) for name in ("head.safetensors", "heads.safetensors")]
    return [encoder, *(file for file in heads if file.is_file())]


def _first_head(spec: dict[str, Any], backbone: Backbone, task: Task, seed: int, start: str) -> Head:
    """The head that tuning begins with: that of `start` if it has this spec, else a new one."""
    head = make_head(spec, backbone, task, seed)
    if not start or len(files := start_files(start)) == 1:
        return head
    file, prefix = files[1], ""
    tensors, about = load_tensors(file, "head", "give another finetune.start", finite=True)
    if "head" not in about:  # a reader: one file for all its tasks and heads
        about, prefix = about.get(task.name, {}), f"{task.name}/backbone/"
        about = {"head": about.get("entries", {}).get("backbone"), "specs": about.get("specs")}
    if about["head"] and head_spec(saved_spec(about["head"], about)) == spec:
        with fitting(file, "head", "give another finetune.start"):
            head.load_state_dict({key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)})
    return head


def head_shape(backbone: Backbone, task: Task) -> dict[str, Any]:
    """The arguments of `build_head` and `HeadBank` beside the heads themselves."""
    return {"layers": backbone.layers, "width": backbone.width, "task": task.name, "outputs": task.outputs}


def _joint_learner(backbone: Backbone, head: Head, recipe: FinetuneRecipe, steps: int, seed: int) -> Learner:
    """The learner of the backbone and the head on top, each group of parameters at its own learning rate."""
    rate = recipe.learning_rate
    adapter_rate = recipe.adapter_learning_rate or rate
    trained = {
        name: (parameter, adapter_rate if is_added(name) else rate)
        for name, parameter in backbone.model.named_parameters()
        if parameter.requires_grad
    }
    training = replace(recipe, learning_rate=recipe.head_learning_rate or rate)
    return Learner("backbone", head.train(), training, steps=steps, seed=seed, backbone=trained)
