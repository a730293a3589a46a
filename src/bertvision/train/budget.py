"""Budget of a study before it runs: FLOPs, memory, hours and money of every cell, without weights and without data.

FLOPs are counted. Hours are FLOPs / (published peak rate x efficiency): padding, disks and networks are not in them.
"""

import heapq
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision.backbone.anatomy import layer_count, width
from bertvision.backbone.flops import Flops, Work, encoder_work, head_work
from bertvision.backbone.loading import (
    PACKAGED,
    configuration,
    empty_model,
    fetch_folder,
    find_encoder,
    load_tokenizer,
)
from bertvision.backbone.states import numbered
from bertvision.backbone.tuning import apply, first_trained
from bertvision.data.splits import sources_of
from bertvision.errors import UserError, nearest
from bertvision.evaluate.score import join_costs
from bertvision.heads.head import Head, build_head
from bertvision.recipe import has_heads, head_spec, reached
from bertvision.states.layout import Layout
from bertvision.train.bank import HeadBank, at_fractions
from bertvision.train.cells import Cells, StudyCell
from bertvision.train.finetune import tuning_of
from bertvision.train.progress import scored_splits
from bertvision.train.study import Study

RATES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("devices.json").read_text(encoding="utf-8"))
EFFICIENCY = {"cpu": 0.5}  # of the measured rate of one product; assumed
GPU_EFFICIENCY = 0.35  # of the published peak; assumed
TRAIN, DEV = 130_319, 11_873  # questions of SQuAD 2.0
SQUAD2 = {"squad_v2": TRAIN, "train-v2.0.json": TRAIN} | dict.fromkeys(
    ("squad_v2:validation", "dev-v2.0.json", "squad2-dev"), DEV
)
TOKENS = 174  # of a question with its paragraph; assumed
VALUE, TRAINED = 4, 16  # bytes per parameter: fp32; with gradient and two moments of Adam
FILES = ("config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json")  # of an encoder, no weights
PROBE = 768  # rows of the matrices that measure a CPU


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices of one kind. rates: TFLOP/s by precision. price: dollars per hour and device."""

    name: str
    rates: Mapping[str, float]
    source: str
    count: int
    efficiency: float
    price: float

    @classmethod
    def named(cls, name: str, count: int = 1, efficiency: float | None = None, price: float = 0.0) -> "Machine":
        share = efficiency if efficiency is not None else EFFICIENCY.get(name, GPU_EFFICIENCY)
        if name == "cpu":
            source = f"measured here: one product in fp32 on {torch.get_num_threads()} threads"
            return cls(name, {"fp32": _measured_rate()}, source, count, share, price)
        if name not in RATES:
            raise UserError(f"--device {name}: {nearest(name, [*RATES, 'cpu'])}")
        about = dict(RATES[name])
        return cls(name, about, about.pop("source"), count, share, price)

    def seconds(self, flops: int, precision: str) -> float:
        """On one device. precision: as a recipe says; a CPU's rate for bf16 is taken to be that for fp32."""
        wanted = "fp32" if self.name == "cpu" or (precision == "auto" and "bf16" not in self.rates) else precision
        wanted = "bf16" if wanted == "auto" else wanted
        if wanted not in self.rates:
            raise UserError(f'precision: {self.name} has no {wanted}; --set finetune.precision="fp32", and runtime\'s')
        return flops / (1e12 * self.rates[wanted] * self.efficiency)


def _measured_rate() -> float:
    """TFLOP/s of a matrix product on this CPU; the best of several."""
    left, best = torch.ones(PROBE, PROBE), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        left @ left
        best = min(best, time.perf_counter() - began)
    return 2 * PROBE**3 / best / 1e12


class StudyBudget:
    """FLOPs, tokens and bytes of one study. notes: what was assumed."""

    def __init__(self, study: Study) -> None:
        self.study, self.recipe, self.notes = study, study.recipe, list[str]()
        self.lengths = self._lengths()  # first: a task of labels knows its outputs then
        name = self.recipe.backbone.name
        self.model = empty_model(_local(name) or name)
        self.plan = apply(self.model, tuning_of(self.recipe.finetune))
        self.shape = {"layers": layer_count(self.model), "width": width(self.model)}
        head_shape: dict[str, Any] = {**self.shape, "task": study.task.name, "outputs": study.task.outputs}
        with torch.device("meta"):
            self.joint = build_head(head_spec(self.recipe.finetune.head), **head_shape)
            self.bank = HeadBank(at_fractions(self.recipe.heads, self.recipe.bank.fractions), **head_shape)
        self.encoder = encoder_work(self.model, self.joint.reads)
        if self.recipe.bank.states == "auto" and self.recipe.bank.epochs > 1:
            self.notes.append('bank.states = "auto" is counted as "live": a store saves all passes but the first')

    def _lengths(self) -> dict[str, NDArray[np.int64]]:
        """{split: (windows,) tokens}: of the data, or of as many equal windows as SQuAD 2.0 has questions."""
        recipe = self.recipe
        sources = sources_of(recipe.data)
        try:
            for source in sources.values():  # before the hub is asked for a tokenizer
                if _last_part(source) in SQUAD2 and _is_absent(source):
                    raise UserError(f"{source}: no such file")
            directory = _local(recipe.backbone.name) or fetch_folder(recipe.backbone.name, FILES)
            if directory is None:
                raise UserError(f"{recipe.backbone.name}: its tokenizer is not here, and the hub cannot be reached")
            tokenizer = load_tokenizer(directory, recipe.backbone.name, configuration(directory).vocab_size)
            data = self.study.task.load(recipe.data, tokenizer, seed=0)
            return {split: dataset.windows.lengths for split, dataset in data.items()}
        except UserError as error:
            sizes = {split: SQUAD2.get(_last_part(source), 0) for split, source in sources.items()}
            if not all(sizes.values()):
                raise
            why = str(error).partition(";")[0]
        if "tune" not in sizes:
            sizes["tune"] = round(sizes["train"] * recipe.data.tune_share)
            sizes["train"] -= sizes["tune"]
        share = min(recipe.data.fraction, (recipe.data.limit or sizes["train"]) / sizes["train"])
        sizes["train"] = round(sizes["train"] * share)
        self.notes.append(
            f"assumed: {TRAIN:,} and {DEV:,} questions of SQuAD 2.0, each one window of {TOKENS} tokens ({why})"
        )
        return {split: np.full(size, min(TOKENS, recipe.data.max_length), np.int64) for split, size in sizes.items()}

    def _flops_of(self, work: Flops | None, split: str, passes: float = 1.0) -> int:
        """FLOPs of some passes over a split; UserError where they cannot be counted."""
        if work is None:
            raise UserError(f"{self.recipe.backbone.name}: its FLOPs, or a head's, cannot be counted without weights")
        return round(work(self.lengths[split]) * passes)

    @cached_property
    def heads(self) -> list[tuple[Work, float]]:
        """(FLOPs, share of the training set) of every head of the bank."""
        shares = [float(entry.get("fraction", 1)) for entry in self.bank.entries]
        return [(self._head_work(head), share) for (_, head), share in zip(self.bank.items(), shares)]

    def _head_work(self, head: Head, joint: bool = False) -> Work:
        return head_work(head, *self.shape.values(), joint=joint)

    def tuning(self) -> dict[str, int]:
        """{part: FLOPs} of tuning one seed."""
        recipe = self.recipe.finetune
        step = self._flops_of(self.encoder.train, "train")
        step += self._flops_of(self._head_work(self.joint, joint=True).train, "train")
        below = 0
        if recipe.lower == "stored":
            first = first_trained(self.model, tuning_of(recipe))
            below = self._flops_of(encoder_work(self.model, below=first).forward, "train")
        along = self._training_flops(recipe.epochs) if self.recipe.bank.along else 0
        return {"tuning": round((step - below) * recipe.epochs) + below, "heads": along}

    def _training_flops(self, epochs: float) -> int:
        """FLOPs of training all heads of the bank, without their states."""
        return sum(self._flops_of(work.train, "train", epochs * share) for work, share in self.heads)

    def heads_and_scores(self, epoch: float) -> dict[str, int]:
        """{part: FLOPs} of the bank of one checkpoint, and of scoring every member."""
        bank, splits = self.recipe.bank, scored_splits(self.recipe.data.also)
        flops = {"states": 0, "heads": 0}
        heads = self.heads if has_heads(self.recipe, epoch) else []
        if heads and bank.after.epochs:
            checks = bank.epochs * bank.checks if bank.patience else 0
            once = bank.states == "stored"
            flops["states"] = self._flops_of(self.encoder.forward, "train", 1 if once else bank.after.epochs)
            flops["states"] += self._flops_of(self.encoder.forward, "tune", min(1, checks) if once else checks)
            flops["heads"] = self._training_flops(bank.after.epochs)
            flops["heads"] += sum(self._flops_of(work.forward, "tune", checks) for work, _ in heads)
        versions = len(reached(bank.epochs, bank.checkpoints))
        works = [(self._head_work(self.joint), 1), *((work, versions) for work, _ in heads)]
        flops["scoring"] = sum(self._flops_of(self.encoder.forward, split) for split in splits)
        flops["scoring heads"] = sum(
            self._flops_of(work.forward, split, times) for work, times in works for split in splits
        )
        return flops

    def row(self, cell: StudyCell, machine: Machine) -> dict[str, Any]:
        """The forecast of a cell. memory_bytes: weights, gradients and moments, without activations."""
        tuning, bank = self.recipe.finetune, self.recipe.bank
        bank_parameters = sum(p.numel() for p in self.bank.parameters())
        is_tuning, along = cell.epoch is None, bank.along
        without_bank = not bank.after.epochs or cell.epoch is None or not has_heads(self.recipe, cell.epoch)
        epochs = tuning.epochs if is_tuning else 0 if without_bank else bank.after.epochs
        passes = {"train": epochs} | ({} if is_tuning else dict.fromkeys(scored_splits(self.recipe.data.also), 1.0))
        trained_parameters = bank_parameters if along == is_tuning else 0
        trained_parameters += self.plan.trainable + self.joint.parameter_count() if is_tuning else 0
        parameters = self.plan.base + self.plan.added + self.joint.parameter_count() + bank_parameters
        flops = self.tuning() if cell.epoch is None else self.heads_and_scores(cell.epoch)
        precision = {"tuning": tuning.precision, "heads": bank.precision, "scoring heads": "fp32"}
        seconds = {
            part: machine.seconds(part_flops, precision.get(part, self.recipe.runtime.precision))
            for part, part_flops in flops.items()
        }
        return {
            "id": cell.id,
            "windows": round(sum(len(self.lengths[split]) * times for split, times in passes.items())),
            "tokens": round(sum(int(self.lengths[split].sum()) * times for split, times in passes.items())),
            "flops": sum(flops.values()),
            "parts": {part: {"flops": part_flops, "seconds": seconds[part]} for part, part_flops in flops.items()},
            "store_bytes": 0 if without_bank else self._store_bytes(),
            "memory_bytes": VALUE * parameters + (TRAINED - VALUE) * trained_parameters,
            "hours": sum(seconds.values()) / 3600,
            "dollars": sum(seconds.values()) / 3600 * machine.price,
            "measured_hours": self._measured(cell),
        }

    def _store_bytes(self) -> int:
        """Bytes of a store of the training states that the bank reads."""
        lengths = self.lengths["train"]
        if self.recipe.data.pairs == "apart":
            lengths = np.full_like(lengths, 2)  # the mean of each text
        kept = lengths if self.bank.positions == "all" else np.ones_like(lengths)
        layers = len(numbered(self.bank.reads, self.shape["layers"]))
        return Layout(kept, layers, self.shape["width"], self.recipe.bank.dtype).bytes

    def _measured(self, cell: StudyCell) -> float | None:
        """Hours of training that a run of this recipe has noted, if there is one."""
        run = self.study.run_dir
        epoch = max(run.epochs) if cell.epoch is None else cell.epoch
        if not run.recipe_file.is_file() or (cell.seed, epoch) not in run.scored():
            return None
        singles = [row for row in run.rows((cell.seed, epoch)) if row.ensemble.is_single]
        cost = join_costs({row.ensemble.members[0]: row.cost for row in singles})
        return ((cost.tuning_seconds if cell.epoch is None else cost.head_seconds) or 0.0) / 3600


def budget(cells: Cells, machine: Machine) -> dict[str, Any]:
    """Rows of all cells, their total, and the hours until all are done: by cells, and by processes of torchrun."""
    cells.whole.refuse_other()
    studies: dict[str, StudyBudget] = {}
    rows = []
    for cell in cells.all:
        if cell.variant not in studies:
            studies[cell.variant] = StudyBudget(cells.study(cell))
        rows.append(studies[cell.variant].row(cell, machine))
    keys = ("windows", "tokens", "flops", "hours", "dollars")
    total = {key: sum(row[key] for row in rows) for key in keys} | {
        key: max(row[key] for row in rows) for key in ("store_bytes", "memory_bytes")
    }
    wall_hours = {
        "cells": _hours_by_cells(cells, rows, machine.count),
        "torchrun": _hours_by_processes(cells, rows, machine.count),
    }
    device = {"name": machine.name, "count": machine.count, "tflops": dict(machine.rates), "source": machine.source}
    notes = {note: None for study_budget in studies.values() for note in study_budget.notes}
    return {
        "device": device | {"efficiency": machine.efficiency, "price": machine.price},
        "cells": rows,
        "total": total,
        "wall_hours": wall_hours,
        "wall_dollars": {way: hours * machine.count * machine.price for way, hours in wall_hours.items()},
        "notes": [*notes, "hours: no padding, disk or network; a measured time is that of training alone"],
    }


def _hours_by_cells(cells: Cells, rows: list[dict[str, Any]], count: int) -> float:
    """Hours where every device does a cell at a time, heads after the tuning of their seed."""
    free, tuned, last = [0.0] * count, dict[tuple[str, int], float](), 0.0
    for cell, row in zip(cells.all, rows):
        begin = max(heapq.heappop(free), tuned.get((cell.variant, cell.seed), 0.0))
        end = begin + row["hours"]
        heapq.heappush(free, end)
        if cell.epoch is None:
            tuned[cell.variant, cell.seed] = end
        last = max(last, end)
    return last


def _hours_by_processes(cells: Cells, rows: list[dict[str, Any]], count: int) -> float:
    """Hours where all devices share each cell: all but live states, which each of them makes for its own heads."""
    hours = 0.0
    for cell, row in zip(cells.all, rows):
        recipe = cells.study(cell).recipe
        shared = min(count, recipe.runtime.accumulate)
        shared = 1 << (shared.bit_length() - 1)  # 2, 4, 8, ... processes
        not_shared = "" if recipe.bank.states == "stored" else "states"
        parts = row["parts"].items()
        hours += sum(costs["seconds"] / (1 if part == not_shared else shared) for part, costs in parts) / 3600
    return hours


def _local(name: str) -> Path | None:
    """The directory of an encoder that is on this machine, or comes with a package."""
    return find_encoder(name) if name in PACKAGED or Path(name).expanduser().is_dir() else None


def _last_part(source: str) -> str:
    return source.rpartition("/")[2]


def _is_absent(source: str) -> bool:
    return source.endswith(".json") and not Path(source).is_file()
