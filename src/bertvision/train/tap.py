"""Tap a backbone: write the states of a set of questions to a store, after a forecast of what that will cost."""

import time
from typing import Any

from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, numbered, spelt, together
from bertvision.data.windows import Windows
from bertvision.errors import UserError, nearest
from bertvision.states.forecast import Forecast, forecast
from bertvision.states.layout import DTYPES, Dtype, Positions, Selection, padded_bytes
from bertvision.train.bank import HeadBank
from bertvision.train.feeding import store_states
from bertvision.train.finetune import Checkpoint, planned_checkpoints
from bertvision.train.study import Study, refuse_too_long
from bertvision.train.tapped import place_of

SPLITS = ("train", "tune", "test")


class Tap:
    """States of one split of a study: those of a checkpoint, or of the encoder as it came.

    layers: "all", "last" or numbers such as "0,6,12". checkpoint: its epoch; None: the last there is, or the untouched
    encoder. seed: None = the study's first.
    Nothing is written before `write`.
    """

    def __init__(
        self,
        study: Study,
        *,
        split: str = "train",
        checkpoint: float | None = None,
        seed: int | None = None,
        layers: str = "all",
        positions: Positions = "all",
        dtype: Dtype = "fp16",
    ) -> None:
        _known("--split", split, SPLITS)
        _known("--positions", positions, ("all", "cls"))
        _known("--dtype", dtype, DTYPES)
        self.study, self.split, self.positions, self.dtype = study, split, positions, dtype
        seed = study.recipe.seeds[0] if seed is None else seed
        if seed not in study.recipe.seeds:
            raise UserError(f"--seed {seed}: the recipe has seeds {list(study.recipe.seeds)}")
        study.refuse_other()
        epoch, found = self._checkpoint(seed, checkpoint)
        self.backbone = Backbone.load(study.recipe.backbone.name)
        self.layers = chosen_layers(layers, self.backbone.layers)
        self.windows = self._windows()
        if found is not None:
            self.backbone, _, _ = found.load(study.task, study.recipe.backbone.name)
        self.states = f"epoch {epoch:g}, seed {seed}" if found else "the encoder as it came"
        origin = f"seed-{seed}-epoch-{epoch:g}" if found else "untuned"
        self.directory = place_of(study.directory) / f"{origin}-{split}-{spelt(self.layers)}-{positions}-{dtype}"

    def forecast(self) -> Forecast:
        """What a store would weigh, and what training the recipe's heads would take live and from the store."""
        return forecast(
            self.backbone,
            self.windows,
            self._heads(),
            self.study.recipe.bank,
            directory=self.directory,
            selection=Selection(self.dtype, self.layers, self.positions),
        )

    def write(self) -> dict[str, Any]:
        """Begins the study, writes the store, or what of it is not yet there; what there is to say about it."""
        self.study.begin()
        began = time.perf_counter()
        store = store_states(
            self.directory,
            self.backbone,
            self.windows,
            dtype=self.dtype,
            reads=self.layers,
            positions=self.positions,
            journal=self.study.journal,
            stage=f"states of {self.split}, {self.states}",
        )
        kept = store.manifest
        padded = padded_bytes(len(store), int(store.lengths.max(initial=0)), kept.layers, kept.width)
        return {
            "store": str(self.directory),
            "states": self.states,
            "split": self.split,
            "windows": len(store),
            "tokens": int(self.windows.lengths.sum()),
            "layers": kept.layers,
            "width": kept.width,
            "dtype": kept.dtype,
            "shards": len(kept.shards),
            "bytes": store.bytes,
            "padded_fp32_bytes": padded,
            "seconds": round(time.perf_counter() - began, 3),
        }

    def _checkpoint(self, seed: int, epoch: float | None) -> tuple[float, Checkpoint | None]:
        if epoch is not None:
            return epoch, self.study.checkpoint(seed, epoch)
        planned = planned_checkpoints(self.study.directory / f"seed-{seed}", self.study.recipe.finetune)
        done = [(epoch, one) for epoch, one in planned.items() if one.done]
        return done[-1] if done else (0.0, None)

    def _windows(self) -> Windows:
        data = self.study.recipe.data
        refuse_too_long(data, self.backbone)
        return self.study.task.load(data, self.backbone.tokenizer, seed=0)[self.split].windows

    def _heads(self) -> list[nn.Module]:
        """The recipe's heads that can read these states."""
        bank = HeadBank(
            self.study.recipe.heads,
            layers=self.backbone.layers,
            width=self.backbone.width,
            task=self.study.task.name,
            outputs=self.study.task.outputs,
        )
        kept, depth = set(numbered(self.layers, self.backbone.layers)), self.backbone.layers
        return [
            head
            for _, head in bank.items()
            if kept.issuperset(numbered(head.reads, depth)) and (self.positions == "all" or head.positions == "cls")
        ]


def chosen_layers(text: str, depth: int) -> Reads:
    """`all`, `last`, or layers of an encoder by number, such as `0,6,12`."""
    if text in ("all", "last"):
        return text  # type: ignore[return-value]
    if not all(number.strip().isdecimal() for number in text.split(",")):
        raise UserError(f"--layers {text}: name all, last, or numbers such as 0,{depth - 1}")
    return together([tuple(sorted({int(number) for number in text.split(",")}))], depth)


def _known(option: str, given: str, known: Any) -> None:
    if given not in known:
        raise UserError(f"{option} {given}: {nearest(given, known)}")
