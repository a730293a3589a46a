"""The bank: heads that compete, trained together on the same states, each with its own optimiser."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.flops import head_work
from bertvision.backbone.states import Reads, States, together
from bertvision.data.batches import BatchPlan
from bertvision.data.windows import Windows
from bertvision.devices import find_precision, memory
from bertvision.errors import TooLarge, UserError
from bertvision.files import fitting, load_tensors, readable, save_tensors
from bertvision.heads import SPECS, Head, build_head, head_name, saved_spec
from bertvision.heads.head import head_size
from bertvision.recipe import BankRecipe, Recipe, head_spec
from bertvision.runtime import CPU, Runtime
from bertvision.states.layout import Selection
from bertvision.tasks import Dataset
from bertvision.train.feed import Feeds
from bertvision.train.learner import Learner, Share, Task
from bertvision.train.loop import EarlyStop, Feed, Job, Plan, Prune, check_steps, fit, gather_learners, plan_batches
from bertvision.train.run_dir import file_name

STEPS = 10_000_000  # a plan of all batches is kept in memory
TRAINED = 16  # bytes per parameter in training: value, gradient and two moments
ADDED = 4  # matrices (width, size) that adapters or LoRA add to a block
CANDIDATE = 24  # bytes of an answer that is kept: its score and its place


class HeadBank(nn.Module):
    """Named heads that read the same states. Calling it gives {name: logits}.

    entries: recipe tables, {"kind": ..., options}; optional: "name", "learning_rate", "weight_decay", "warmup",
    "fraction".
    seed: decides the starting values; a head's do not depend on which others are in the bank.
    learnt: notes of an earlier training that the next one goes on from; what that has cost is added.
    """

    learnt: Mapping[str, Any] = {}

    def __init__(
        self,
        entries: Sequence[Mapping[str, Any]],
        *,
        layers: int,
        width: int,
        task: str,
        outputs: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.entries = [dict(entry) for entry in entries]
        self.shape: dict[str, Any] = {"layers": layers, "width": width, "task": task, "outputs": outputs}
        self.names = unique_names(entries)
        heads = []
        for name, entry in zip(self.names, entries):
            with CPU.seed(seed, name):  # on the CPU, whichever device it then goes to
                heads.append(build_head(_architecture(entry), layers=layers, width=width, task=task, outputs=outputs))
        self.heads = nn.ModuleList(heads)

    @property
    def reads(self) -> Reads:
        """The layers its heads together need."""
        return together((head.reads for _, head in self.items()), self.shape["layers"])

    @property
    def positions(self) -> Literal["all", "cls"]:
        """The tokens its heads together need: all, or [CLS] alone."""
        return "cls" if all(head.positions == "cls" for _, head in self.items()) else "all"

    def items(self) -> list[tuple[str, Head]]:
        return list(zip(self.names, self.heads))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> Head:
        return dict(self.items())[name]

    def forward(self, states: States) -> dict[str, Tensor]:
        return {name: head.logits(states) for name, head in self.items()}

    def save(self, path: Path, about: Mapping[str, Any] | None = None) -> None:
        """All heads in one safetensors file, with what is needed to build them again."""
        notes = {"entries": self.entries, "shape": self.shape, "specs": SPECS}
        save_tensors(path, self.state_dict(), {**notes, **(about or {})})

    @classmethod
    def load(cls, path: Path) -> tuple["HeadBank", dict[str, Any]]:
        """A saved bank, in eval mode, and what was noted with it."""
        tensors, about = load_tensors(path, "bank of heads")
        with fitting(path, "bank of heads"):
            entries = about["entries"]
            if about.get("specs") != SPECS:  # names are made from specs: they stay what they were
                names = unique_names(entries)
                entries = [saved_spec(entry, about) | {"name": name} for name, entry in zip(names, entries)]
            bank = cls(entries, **about["shape"])
            bank.load_state_dict(tensors)
        return bank.eval(), about


def load_along(path: Path) -> HeadBank:
    """The heads that learnt along with a checkpoint, to be finished; UserError if they are gone."""
    if not path.exists():
        way_out = f"delete {path.parent} to tune it again"
        raise UserError(f"{path}: is gone, and its heads learn only while the backbone is tuned; {way_out}")
    bank, learnt = HeadBank.load(path)
    bank.learnt = learnt
    return bank


def unique_names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The given name of each head, or one made from its options; names that give the same file name are numbered."""
    names: list[str] = []
    taken = {"backbone"}
    for entry in entries:
        name = base = str(entry.get("name") or head_name(_architecture(entry)))
        number = 1
        while file_name(name).lower() in taken:
            number += 1
            name = f"{base} #{number}"
        names.append(name)
        taken.add(file_name(name).lower())
    return names


def at_fractions(entries: Sequence[Mapping[str, Any]], fractions: Sequence[float]) -> list[dict[str, Any]]:
    """Every head once per share of the training set. One that sees 30 % of it is called `NAME @ 30 %`."""
    return [
        {**entry, **({} if fraction == 1 else {"name": f"{name} @ {100 * fraction:g} %", "fraction": fraction})}
        for fraction in fractions
        for name, entry in zip(unique_names(entries), entries)
    ]


def _architecture(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an entry that describes the architecture."""
    return {key: value for key, value in head_spec(entry).items() if key != "fraction"}


def refuse_too_large(recipe: Recipe, data: Mapping[str, Dataset], shape: Mapping[str, Any]) -> None:
    """TooLarge, naming the key, where something of a recipe cannot be done. shape: arguments of `build_head`."""
    tuning, bank = recipe.finetune, recipe.bank
    windows = {split: len(dataset.windows) for split, dataset in data.items()}
    for key, epochs, size in (
        ("finetune.epochs", tuning.epochs, tuning.batch_size),
        ("bank.epochs", bank.epochs, bank.batch_size),
    ):
        if (steps := epochs * windows["train"] / size) > STEPS:
            raise TooLarge(key, f"{epochs:g} epochs are {steps:,.0f} steps, of which at most {STEPS:,} are planned")
    if bank.patience and bank.epochs * bank.checks > STEPS:
        raise TooLarge("bank.checks", f"{bank.checks:,} checks per epoch")
    heads = {f"heads.{number}": head_spec(entry) for number, entry in enumerate(recipe.heads)}
    for key, spec in {"finetune.head": head_spec(tuning.head), **heads}.items():
        copies = len(bank.fractions) if key in heads else 1
        _refuse_above_memory(key, TRAINED * copies * head_size(spec, **shape, key=key))
    for key, size in (("finetune.adapters", tuning.adapters), ("finetune.lora", tuning.lora)):
        _refuse_above_memory(key, TRAINED * ADDED * (shape["layers"] - 1) * shape["width"] * size)
    candidates = max(windows.values()) * (len(heads) + 1) * recipe.evaluate.nbest
    _refuse_above_memory("evaluate.nbest", CANDIDATE * candidates)


def _refuse_above_memory(key: str, needed: int) -> None:
    if needed > (available := memory()):
        raise TooLarge(key, f"it needs {readable(needed)} of memory, and this machine has {readable(available)}")


def bank_learners(bank: HeadBank, recipe: BankRecipe, windows: Windows, plan: BatchPlan, seed: int) -> list[Learner]:
    """A learner for every head of the bank, in training mode."""
    for parameter in list(bank.parameters())[:1]:
        find_precision(recipe.precision, parameter.device.type, "bank.precision")
    entries = [(entry, float(entry.get("fraction", 1))) for entry in bank.entries]
    shares = {
        fraction: Share(windows, plan, fraction, batch_size=recipe.batch_size, seed=seed) if fraction < 1 else None
        for _, fraction in entries
    }
    learners = [
        Learner(name, head.train(), _training(recipe, entry), steps=len(plan), seed=seed, share=shares[fraction])
        for (name, head), (entry, fraction) in zip(bank.items(), entries)
    ]
    for learner in learners:
        learner.work = head_work(learner.head, bank.shape["layers"], bank.shape["width"])
        if bank.learnt:
            learner.seconds, learner.flops = (bank.learnt[what][learner.name] for what in ("seconds", "flops"))
            learner.stopped = bank.learnt["stopped"].get(learner.name, "")
    return learners


def _training(recipe: BankRecipe, entry: Mapping[str, Any]) -> BankRecipe:
    """The training of one head: the bank's, unless its entry says otherwise."""
    return dataclasses.replace(
        recipe,
        learning_rate=float(entry.get("learning_rate") or recipe.learning_rate),
        weight_decay=float(entry.get("weight_decay", recipe.weight_decay)),
        warmup=float(entry.get("warmup", recipe.warmup)),
    )


def training_notes(learners: Sequence[Learner], feed: Feed | None, identity: str) -> dict[str, Any]:
    """The notes saved with a bank: seconds and FLOPs of heads and feed, why heads were dropped, its identity.

    feed: None for heads that learned along, whose states cost nothing.
    """
    return {
        "seconds": {learner.name: learner.seconds for learner in learners},
        "flops": {learner.name: learner.flops for learner in learners},
        "feed_seconds": feed.seconds if feed else 0.0,
        "feed_flops": feed.flops if feed else 0,
        "stopped": {learner.name: learner.stopped for learner in learners if learner.stopped},
        "identity": identity,
    }


def bank_feeds(
    bank: HeadBank, backbone: Backbone, recipe: BankRecipe, job: Job, *, tapped: Path | None = None, rounds: int = 1
) -> Feeds:
    """Feeds of the states that the heads of a bank read."""
    selection = Selection(recipe.dtype, bank.reads, bank.positions)
    return Feeds(backbone, recipe, selection, job, tapped=tapped, rounds=rounds)


def train_bank(
    bank: HeadBank,
    feeds: Feeds,
    task: Task,
    data: Mapping[str, Dataset],
    job: Job,
    *,
    prune: Prune | None = None,
    only: Collection[str] | None = None,
    path_at: Callable[[float], Path] | None = None,
) -> HeadBank:
    """Trains all heads of the bank on a frozen backbone in the same passes and saves them as `job.result`.

    Resumes after a kill. data: `train`, and `tune` for early stopping, if the recipe has a `patience`, and for `prune`.
    only: names of heads; the others stay as they are. path_at: where the bank is saved after each of the recipe's
    `checkpoints`, too.
    """
    recipe, windows, runtime = feeds.recipe, data["train"].windows, feeds.backbone.runtime
    plan = plan_batches(windows, recipe, job.seed, feeds.selection.lengths(windows))
    learners = bank_learners(runtime.to(bank), recipe, windows, plan, job.seed)
    learners = [learner for learner in learners if only is None or learner.name in only]
    own = runtime.mine(learners)
    tune = data["tune"].windows if "tune" in data and (recipe.patience or prune) else None
    tune = tune if tune is not None and len(tune) else None
    checks = check_steps(plan, recipe.epochs, recipe.checks) if tune else set()
    feeds.choose(windows, list(bank.heads), tune, len(checks))
    tune_feed, feed = feeds.feed(tune, "tune") if tune else None, feeds.feed(windows, "train")
    early = EarlyStop(task, tune_feed, own, recipe, job.journal, prune, runtime) if tune_feed else None
    if tune_feed:
        feed.charge(tune_feed)
    inner = [epoch for epoch in recipe.checkpoints if epoch < recipe.epochs]
    due = {path_at(epoch): plan.steps_at(epoch) for epoch in inner} if path_at else {}

    def at_step(step: int) -> None:
        if early is not None and step in checks:
            early.check(step)
            feed.charge(early.feed)
        for path in [path for path, due_step in due.items() if due_step == step]:
            _save(bank, path, learners, feed, job.identity, runtime)

    fit(learners, feed, Plan(task, plan, job, at_step, due.values()), runtime)
    for learner in own:
        learner.take_best()
    _save(bank, job.result, learners, feed, job.identity, runtime, with_best=True)
    if runtime.is_main:
        job.clear()
    runtime.wait()
    return bank.eval()


def _save(
    bank: HeadBank,
    path: Path,
    learners: Sequence[Learner],
    feed: Feed,
    identity: str,
    runtime: Runtime,
    with_best: bool = False,
) -> None:
    """Saves a bank with its notes from the main process. with_best: note each head's lowest loss on tune, and when."""
    gather_learners(learners, runtime)
    if runtime.is_main:
        notes = training_notes(learners, feed, identity)
        checked = [learner for learner in learners if learner.best.step >= 0]
        best = {learner.name: {"step": learner.best.step, "loss": learner.best.loss} for learner in checked}
        bank.save(path, notes | ({"best": best} if with_best else {}))
