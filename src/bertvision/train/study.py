"""A study: tune with checkpoints, train the bank at each, score everything, report. Every cell is done once."""

import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.data.source import is_synthetic
from bertvision.errors import UserError
from bertvision.files import read_json, write_json, write_text
from bertvision.recipe import Recipe, from_table, to_toml
from bertvision.tasks import TASKS, Dataset
from bertvision.train.bank import HeadBank, train_bank
from bertvision.train.finetune import Checkpoint, checkpoint_epochs, finetune
from bertvision.train.predict import Pass, predict
from bertvision.train.progress import Journal

COSMETIC = ("seeds", "title", "paper", "snapshot_seconds")  # may change without invalidating what is done


class Study:
    """A recipe and the directory it is run in.

    directory/ recipe.toml, study.json, log.jsonl, metrics.json, report.*; per seed: seed-N/ checkpoint-E/,
    heads-E.safetensors, predictions/E/SPLIT/MEMBER.json, scores-E.json.
    """

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False) -> None:
        self.recipe, self.directory = recipe, directory
        self.task = TASKS[recipe.task]()
        self.journal = Journal(directory / "log.jsonl", quiet=quiet)

    @classmethod
    def open(cls, directory: Path, *, quiet: bool = False) -> "Study":
        """A study that was begun earlier."""
        path = directory / "recipe.toml"
        if not path.is_file():
            raise UserError(f"{directory}: not the directory of a run (no recipe.toml); `bertvision study RECIPE` makes one")
        return cls(from_table(tomllib.loads(path.read_text(encoding="utf-8")), str(path)), directory, quiet=quiet)

    def run(self) -> list[dict[str, Any]]:
        """Everything that is not done yet; the rows of metrics.json."""
        self.begin()
        for seed in self.recipe.seeds:
            self.tune(seed)
            for epoch in checkpoint_epochs(self.recipe.finetune):
                self.train(seed, epoch)
                self.score(seed, epoch)
        self.about(finished=datetime.now(UTC).isoformat(timespec="seconds"))
        return self.rows()

    def begin(self) -> None:
        """Claims the directory for this recipe; a directory with another recipe is refused."""
        path = self.directory / "recipe.toml"
        if path.is_file():
            other = Study.open(self.directory, quiet=True).recipe
            if changed := _differences(self.recipe, other):
                raise UserError(
                    f"{self.directory} holds a run of another recipe (it differs in {', '.join(changed)}); "
                    "choose another --out, or delete it"
                )
        write_text(path, to_toml(self.recipe))
        if not (self.directory / "study.json").is_file():
            self.about(started=datetime.now(UTC).isoformat(timespec="seconds"), command=shlex.join(["bertvision", *sys.argv[1:]]))

    def tune(self, seed: int) -> dict[float, Checkpoint]:
        """Tunes the backbone, or finds it tuned."""
        place = self._seed(seed)
        checkpoints = {e: Checkpoint(place / f"checkpoint-{e:g}") for e in checkpoint_epochs(self.recipe.finetune)}
        if all(checkpoint.done for checkpoint in checkpoints.values()):
            return checkpoints
        recipe = self.recipe
        return finetune(
            Backbone.load(recipe.backbone.name),
            self.task,
            self.data["train"],
            recipe.finetune,
            seed=seed,
            directory=place,
            identity=self.identity,
            snapshot_seconds=recipe.snapshot_seconds,
            journal=self.journal,
        )

    def train(self, seed: int, epoch: float) -> Path:
        """Trains the bank on one checkpoint, or finds it trained."""
        path = self._seed(seed) / f"heads-{epoch:g}.safetensors"
        if path.exists() or not self.recipe.heads:
            return path
        backbone, _, _ = self.checkpoint(seed, epoch).load(self.task, self.recipe.backbone.name)
        shape = {"layers": backbone.layers, "width": backbone.width, "task": self.task.name, "outputs": self.task.outputs}
        train_bank(
            HeadBank(self.recipe.heads, **shape, seed=seed),
            backbone,
            self.task,
            self.data["train"],
            self.recipe.bank,
            seed=seed,
            path=path,
            identity=self.identity,
            snapshot_seconds=self.recipe.snapshot_seconds,
            journal=self.journal,
            stage=f"heads on epoch {epoch:g}, seed {seed}",
        )
        return path

    def score(self, seed: int, epoch: float) -> None:
        """Predicts tune and test with every member of one checkpoint, in one pass each, and writes the scores."""
        path = self._seed(seed) / f"scores-{epoch:g}.json"
        if path.exists():
            return
        members = self.members(seed, epoch)
        pairs = {f"backbone + {name}": ("backbone", name) for name in members.heads if name != "backbone"}
        passes = {}
        for split in ("tune", "test"):
            passes[split] = predict(
                members.backbone,
                members.heads,
                self.task,
                self.data[split],
                self.recipe.evaluate,
                self.journal,
                ensembles=pairs,
                stage=f"scoring epoch {epoch:g} on {split}, seed {seed}",
            )
            for name, predictions in passes[split].predictions.items():
                write_json(self._predictions(seed, epoch, split, name), predictions.to_json())
        rows = [{"seed": seed, "checkpoint": epoch, **row} for row in self._rows(members, passes, pairs)]
        write_json(path, rows)
        write_json(self.directory / "metrics.json", self.rows())

    def members(self, seed: int, epoch: float) -> "Members":
        """Backbone and heads of a checkpoint, loaded."""
        backbone, head, about = self.checkpoint(seed, epoch).load(self.task, self.recipe.backbone.name)
        heads, seconds = {"backbone": head}, {"backbone": about["seconds"]}
        path = self._seed(seed) / f"heads-{epoch:g}.safetensors"
        if path.exists():
            bank, notes = HeadBank.load(path)
            alive = {name: one for name, one in bank.items() if name not in notes["stopped"]}
            heads |= alive
            seconds |= {name: notes["feed_seconds"] + notes["seconds"][name] for name in alive}
        trained = sum(p.numel() for p in backbone.model.parameters() if p.requires_grad)
        parameters = {name: one.parameter_count() for name, one in heads.items()}
        parameters["backbone"] += trained
        return Members(backbone, heads, seconds, parameters)

    def checkpoint(self, seed: int, epoch: float) -> Checkpoint:
        """A finished checkpoint of this study; UserError if there is none, or if data or settings have changed since."""
        found = Checkpoint(self._seed(seed) / f"checkpoint-{epoch:g}")
        if not found.done:
            raise UserError(f"{found.directory}: no such checkpoint; `bertvision finetune` makes it")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all cells done so far."""
        return [
            row
            for seed in self.recipe.seeds
            for epoch in checkpoint_epochs(self.recipe.finetune)
            if (path := self._seed(seed) / f"scores-{epoch:g}.json").is_file()
            for row in read_json(path, "scores file")
        ]

    @cached_property
    def data(self) -> dict[str, Dataset]:
        """The sets of the recipe, cut into windows."""
        longest = self._tokens.longest
        if self.recipe.data.max_length > longest:
            raise UserError(
                f"data.max_length: {self.recipe.data.max_length} is more than {self.recipe.backbone.name} has positions for ({longest})"
            )
        data = self.task.load(self.recipe.data, self._tokens.tokenizer, seed=0)
        sizes = {split: {"questions": len(one.records), "windows": len(one.windows)} for split, one in data.items()}
        self.journal.log("data", **sizes)
        self.about(
            data={
                split: {"source": one.source, "synthetic": is_synthetic(one.source), **sizes[split]} for split, one in data.items()
            }
        )
        return data

    @cached_property
    def identity(self) -> str:
        """What training depends on beside the seed: recipe, backbone weights, tokenizer, windows."""
        plain = dataclasses.asdict(self.recipe)
        digest = hashlib.sha256(json.dumps({k: v for k, v in plain.items() if k not in COSMETIC}).encode())
        digest.update(self._tokens.fingerprint.encode())
        windows = self.data["train"].windows
        for array in (windows.ids, windows.starts, windows.targets):
            digest.update(array.tobytes())
        return digest.hexdigest()

    @cached_property
    def _tokens(self) -> Backbone:
        """The untouched backbone, for its tokenizer and fingerprint."""
        return Backbone.load(self.recipe.backbone.name)

    def about(self, **values: Any) -> None:
        """Adds to study.json, which says what this run is: versions, machine, data, times."""
        path = self.directory / "study.json"
        known = read_json(path, "study file") if path.is_file() else _environment(self.recipe)
        write_json(path, known | values)

    def _rows(self, members: "Members", passes: dict[str, Pass], pairs: dict[str, tuple[str, str]]) -> Iterator[dict]:
        tune, test = passes["tune"], passes["test"]
        tuned = {name: self.task.choose(found, self.data["tune"]) for name, found in tune.predictions.items()}
        main = self.task.metrics[-1]
        on_tune = {n: self.task.scores(p, self.data["tune"], tuned[n])[main] for n, p in tune.predictions.items()}
        best_pair = max(pairs, key=on_tune.__getitem__, default=None)  # one ensemble is reported: the best on tune
        for name, predictions in test.predictions.items():
            if name in pairs and name != best_pair:
                continue
            parts = pairs.get(name, (name,))
            for origin, threshold in self.task.thresholds(tuned[name]):
                yield {
                    "member": name,
                    "role": "ensemble" if name in pairs else "backbone" if name == "backbone" else "head",
                    "threshold": threshold,
                    "threshold_from": origin,
                    **self.task.scores(predictions, self.data["test"], threshold),
                    f"tune_{main}": on_tune[name],
                    "parameters": sum(members.parameters[part] for part in parts),
                    "train_seconds": round(sum(members.seconds[part] for part in parts), 3),
                    "infer_seconds": round(test.seconds[name], 3),
                }

    def _seed(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}"

    def _predictions(self, seed: int, epoch: float, split: str, member: str) -> Path:
        return self._seed(seed) / "predictions" / f"{epoch:g}" / split / f"{file_name(member)}.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Members:
    """What is scored at one checkpoint: heads by name ("backbone" is the one it was tuned with), training seconds
    each would have taken alone, and parameters trained."""

    backbone: Backbone
    heads: dict[str, Any]
    seconds: dict[str, float]
    parameters: dict[str, int]


def file_name(member: str) -> str:
    """A member's name as a file name: `backbone + pool` -> `backbone+pool`."""
    return re.sub(r"[^\w=+.#-]+", "-", member.replace(" + ", "+"))


def _differences(one: Recipe, other: Recipe) -> list[str]:
    """The keys, such as finetune.epochs, in which two recipes differ beyond the cosmetic."""
    a, b = dataclasses.asdict(one), dataclasses.asdict(other)
    keys = []
    for key in a:
        if key in COSMETIC or a[key] == b[key]:
            continue
        keys += [f"{key}.{sub}" for sub in a[key] if a[key][sub] != b[key][sub]] if isinstance(a[key], dict) else [key]
    return keys


def _environment(recipe: Recipe) -> dict[str, Any]:
    packages = ("bertvision", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "title": recipe.title,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": round(memory / 2**30),
        },
    }
