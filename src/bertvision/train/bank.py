"""The bank: heads that compete, trained together on the same states, each with its own optimiser."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import States
from bertvision.data.batches import BatchPlan
from bertvision.errors import UserError
from bertvision.files import fitting, load_tensors, save_tensors
from bertvision.heads import Head, build_head, head_name
from bertvision.recipe import BankRecipe, head_spec
from bertvision.states.source import live
from bertvision.tasks import Dataset, Spans
from bertvision.train.learner import Learner, fold
from bertvision.train.loop import Loop
from bertvision.train.progress import Journal


class HeadBank(nn.Module):
    """Named heads that read the same states. Calling it gives {name: logits}.

    entries: recipe tables, {"kind": ..., options, "name": optional, "learning_rate": optional}.
    seed: decides the starting values; a head's do not depend on which others are in the bank.
    """

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
        self.shape = {"layers": layers, "width": width, "task": task, "outputs": outputs}
        self.names = unique_names(entries)
        heads = []
        for name, entry in zip(self.names, entries):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(fold(seed, name))
                heads.append(build_head(head_spec(entry), layers=layers, width=width, task=task, outputs=outputs))
        self.heads = nn.ModuleList(heads)

    @property
    def reads(self) -> Literal["all", "last"]:
        """The layers its heads together need."""
        return "all" if any(head.reads == "all" for head in self.heads) else "last"

    def items(self) -> list[tuple[str, Head]]:
        return list(zip(self.names, self.heads))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> Head:
        return dict(self.items())[name]

    def forward(self, states: States) -> dict[str, Tensor]:
        return {name: head(states) for name, head in self.items()}

    def save(self, path: Path, about: Mapping[str, Any] | None = None) -> None:
        """All heads in one safetensors file, with what is needed to build them again."""
        save_tensors(path, self.state_dict(), {"entries": self.entries, "shape": self.shape, **(about or {})})

    @classmethod
    def load(cls, path: Path) -> tuple["HeadBank", dict[str, Any]]:
        """A saved bank, in eval mode, and what was noted with it."""
        tensors, about = load_tensors(path, "bank of heads")
        with fitting(path, "bank of heads"):
            bank = cls(about["entries"], **about["shape"])
            bank.load_state_dict(tensors)
        return bank.eval(), about


def unique_names(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The given name of each head, or a readable one from its options; those that are alike are numbered.

    Alike are names that would be the same as the name of a file.
    """
    names: list[str] = []
    taken = {"backbone"}
    for entry in entries:
        name = base = str(entry.get("name") or head_name(head_spec(entry)))
        if base.startswith("backbone + "):
            raise UserError(f"heads: {base!r} is how an ensemble is called; give the head another name")
        number = 1
        while file_name(name).lower() in taken:
            number += 1
            name = f"{base} #{number}"
        names.append(name)
        taken.add(file_name(name).lower())
    return names


def file_name(member: str) -> str:
    """A member's name as a file name: `backbone + pool` -> `backbone+pool`."""
    return re.sub(r"[^\w=+.#-]+", "-", member.replace(" + ", "+"))


def snapshot_of(path: Path) -> Path:
    """Where the bank that is to be saved at `path` is kept while it trains."""
    return path.with_suffix(".snapshot.safetensors")


def train_bank(
    bank: HeadBank,
    backbone: Backbone,
    task: Spans,
    train: Dataset,
    recipe: BankRecipe,
    *,
    seed: int,
    path: Path,
    identity: str,
    snapshot_seconds: float,
    journal: Journal,
    stage: str = "heads",
) -> HeadBank:
    """Trains all heads of the bank on a frozen backbone in the same passes and saves them at `path`.

    Goes on where an earlier run was killed. With the bank are noted: the seconds of each head and of the feed, why
    heads were dropped, and `identity`, what the training depended on beside the seed.
    """
    plan = BatchPlan(
        train.windows.lengths,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
        batch_tokens=recipe.batch_tokens,
        seed=seed,
    )
    learners = [
        Learner(
            name,
            head.train(),
            recipe,
            steps=len(plan),
            seed=seed,
            rate=float(entry.get("learning_rate") or recipe.learning_rate),
        )
        for (name, head), entry in zip(bank.items(), bank.entries)
    ]
    loop = Loop(
        task,
        train.windows,
        plan,
        learners,
        live(backbone, bank.reads),
        pad=backbone.pad,
        seed=seed,
        snapshot=snapshot_of(path),
        identity=identity,
        snapshot_seconds=snapshot_seconds,
        journal=journal,
    )
    loop.run(stage)
    about = {
        "seconds": {learner.name: learner.seconds for learner in learners},
        "feed_seconds": loop.feed_seconds,
        "stopped": {learner.name: learner.stopped for learner in learners if learner.stopped},
        "identity": identity,
    }
    bank.save(path, about)
    loop.finish()
    return bank.eval()
