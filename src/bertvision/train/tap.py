"""Write the states of a set of questions to a store, after a forecast of its cost."""

import time
from typing import Any

from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Positions, Reads, numbered, spelt, together
from bertvision.errors import UserError, nearest
from bertvision.states.forecast import Forecast, forecast
from bertvision.states.layout import DTYPES, Dtype, Selection, padded_bytes
from bertvision.states.write import Elsewhere, write_one
from bertvision.train.bank import HeadBank
from bertvision.train.feed import write_states
from bertvision.train.finetune import Checkpoint, head_shape
from bertvision.train.study import Study

SPLITS = ("train", "tune", "test")


class Tap:
    """States of one split of a study, at a checkpoint or of the untuned encoder. Nothing is written before `write`.

    layers: "all", "last" or numbers such as "0,6,12". checkpoint: its epoch; None: the last that is done, or the
    untuned encoder. seed: None = the study's first.
    """

    def __init__(
        self,
        study: Study,
        split: str = "train",
        *,
        checkpoint: float | None = None,
        seed: int | None = None,
        layers: str = "all",
        positions: Positions = "all",
        dtype: Dtype = "fp16",
    ) -> None:
        for option, value, allowed in (
            ("--split", split, SPLITS),
            ("--positions", positions, ("all", "cls")),
            ("--dtype", dtype, DTYPES),
        ):
            if value not in allowed:
                raise UserError(f"{option} {value}: {nearest(value, allowed)}")
        self.study, self.split = study, split
        seed = study.recipe.seeds[0] if seed is None else seed
        if seed not in study.recipe.seeds:
            raise UserError(f"--seed {seed}: the recipe has seeds {list(study.recipe.seeds)}")
        study.refuse_other()
        epoch, tuned = self._checkpoint(seed, checkpoint)
        self.backbone = Backbone.load(study.recipe.backbone.name, study.runtime)
        self.selection = Selection(dtype, chosen_layers(layers, self.backbone.layers), positions)
        self.backbone.check_length(study.recipe.data.max_length)
        self.windows = study.task.load(study.recipe.data, self.backbone.tokenizer, seed=0)[split].windows
        if tuned is not None:
            self.backbone, _, _ = tuned.load(study.task, self.backbone)
        self.states = f"epoch {epoch:g}, seed {seed}" if tuned else "the encoder as it came"
        origin = f"seed-{seed}-epoch-{epoch:g}" if tuned else "untuned"
        name = f"{origin}-{split}-{spelt(self.selection.reads)}-{positions}-{dtype}"
        self.directory = study.run_dir.states / name

    def forecast(self) -> Forecast:
        """The size of a store, and the time to train the recipe's heads live and from the store."""
        bank = self.study.recipe.bank
        where: dict[str, Any] = {"directory": self.directory, "selection": self.selection}
        return forecast(self.backbone, self.windows, self._heads(), bank, **where)

    def write(self, elsewhere: Elsewhere | None = None) -> dict[str, Any]:
        """Begins the study and writes the store, or what is missing of it; facts about it. elsewhere: see
        `write_store`."""
        self.study.begin()
        began = time.perf_counter()
        stage = f"states of {self.split}, {self.states}"
        what = self.directory, self.backbone, self.windows, self.selection
        store = write_states(*what, self.study.journal, stage, elsewhere)
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

    def write_one(self, number: int) -> str:
        """Writes one shard of the store that another process has begun; its checksum."""
        return write_one(self.directory, self.backbone, self.windows, number)

    def _checkpoint(self, seed: int, epoch: float | None) -> tuple[float, Checkpoint | None]:
        if epoch is not None:
            return epoch, self.study.checkpoint(seed, epoch)
        done = [(epoch, checkpoint) for epoch, checkpoint in self.study.checkpoints(seed).items() if checkpoint.done]
        return done[-1] if done else (0.0, None)

    def _heads(self) -> list[nn.Module]:
        """The recipe's heads that can read these states."""
        bank = HeadBank(self.study.recipe.heads, **head_shape(self.backbone, self.study.task))
        depth, positions = self.backbone.layers, self.selection.positions
        kept = set(numbered(self.selection.reads, depth))
        fitting = [head for _, head in bank.items() if kept.issuperset(numbered(head.reads, depth))]
        return [head for head in fitting if positions in ("all", head.positions)]


def chosen_layers(text: str, depth: int) -> Reads:
    """`all`, `last`, or layers of an encoder by number, such as `0,6,12`."""
    if text in ("all", "last"):
        return text  # type: ignore[return-value]
    if not all(number.strip().isdecimal() for number in text.split(",")):
        raise UserError(f"--layers {text}: name all, last, or numbers such as 0,{depth - 1}")
    return together([tuple(sorted({int(number) for number in text.split(",")}))], depth)
