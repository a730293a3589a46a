"""The directory of a run: paths, score rows, facts, digests. No other code knows how a run lies on disk.

RUN/ recipe.toml, study.json (facts), log.jsonl, metrics.json (all score rows), comparisons.json, greedy.json,
ensemble.json, analysis.json, depth.*, report.*, reader/, states/, search/, tensorboard/, trackio/; per seed: seed-N/
checkpoint-E/, heads-E.safetensors, heads-E@K.safetensors, along-E.safetensors, scores-E.json, sets-E.json,
predictions/E/SPLIT/ (ENSEMBLE.json, logits.safetensors). A run with variants holds a run for each: RUN/VARIANT/.
Cells that are done by processes of their own leave log and facts in .cells/ID/ until the run is completed.
"""

import hashlib
import os
import platform
import re
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bertvision import __version__, toml
from bertvision.devices import peak_memory
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble
from bertvision.evaluate.score import Cost, Score
from bertvision.files import read_json, read_with_digest, remove, with_digest, write_json, write_text
from bertvision.recipe import Recipe, load_recipe, reached
from bertvision.train.run_contents import Contents, read_contents

__all__ = ["Contents", "Cost", "RunDir", "Score", "file_name"]
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
Cell = tuple[int, float]  # seed, epoch of the checkpoint


LONGEST = 200  # bytes of a name; its ending and that of its scratch directory stay below the usual limit of 255


def file_name(name: str, where: str = "heads") -> str:
    """A display name as a file name: `backbone + pool` -> `backbone+pool`. where: the key that an error names."""
    return checked(re.sub(r"[^\w=+.#-]+", "-", name.replace(" + ", "+")), f"{where}: {_short(name)!r}")


def checked(part: str, what: str, way_out: str = "choose another name") -> str:
    """One part of a path made from a name, unchanged; UserError, beginning with `what`, if it must not be one."""
    if not part or part.startswith("."):  # `..`, hidden files, and names that `claim` removes
        raise UserError(f"{what} {'begins with a dot' if part else 'is empty'}; {way_out}")
    if (size := len(part.encode(errors="surrogateescape"))) > LONGEST:
        raise UserError(f"{what} is too long for a file name ({size} bytes, at most {LONGEST}); {way_out}")
    return part


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:60]}…"


class RunDir:
    """The files of a run; each is read when it is needed. recipe: what recipe.toml is going to hold.

    cell: the id of the only cell that this process works on, while other processes work on others. Its log and facts
    are then kept in a directory of its own until `gather`, and files of the whole run are not written.
    """

    def __init__(self, path: Path, recipe: Recipe | None = None, cell: str = "") -> None:
        self.path, self._recipe = path, recipe
        self.recipe_file = path / "recipe.toml"
        self.cells, self.apart = path / ".cells", bool(cell)
        notes = self.cells / cell.replace("/", ",") if cell else path
        self.facts_file = notes / "study.json"
        self.log_file = notes / "log.jsonl"
        self.metrics_file = path / "metrics.json"
        self.comparisons_file = path / "comparisons.json"
        self.greedy_file = path / "greedy.json"
        self.ensemble_file = path / "ensemble.json"
        self.analysis_file = path / "analysis.json"
        self.depth_file = path / "depth.json"
        self.reader = path / "reader"
        self.reader_note = self.reader / "made_from.json"  # the digest of the scores that the reader was made from
        self.states = path / "states"  # stores that `bertvision tap` left
        self.search = path / "search"
        self.tensorboard, self.trackio = path / "tensorboard", path / "trackio"  # curves

    @classmethod
    def open(cls, path: Path, *, variants: bool = True) -> "RunDir":
        """An existing run. variants: whether it may be one that holds a run for each variant."""
        run = cls(path)
        if not run.recipe_file.is_file():
            hint = "`bertvision study RECIPE` makes one"
            raise UserError(f"{path}: not the directory of a run (no recipe.toml); {hint}")
        if not variants and (variant_runs := run.variants()):
            names = ", ".join(str(variant.path) for variant in variant_runs.values())
            raise UserError(f"{path}: holds a run for each variant; name one of them: {names}")
        return run

    def seed(self, seed: int) -> Path:
        return self.path / f"seed-{seed}"

    def checkpoint(self, seed: int, epoch: float) -> Path:
        return self.seed(seed) / f"checkpoint-{epoch:g}"

    def bank(self, seed: int, epoch: float, head_epochs: float | None = None) -> Path:
        """The bank of a checkpoint, at its end or after some epochs of its training."""
        suffix = "" if head_epochs is None else f"@{head_epochs:g}"
        return self.seed(seed) / f"heads-{epoch:g}{suffix}.safetensors"

    def along(self, seed: int, epoch: float) -> Path:
        """The bank as tuning left it at a checkpoint, where its heads are finished afterwards."""
        return self.seed(seed) / f"along-{epoch:g}.safetensors"

    def banks(self, seed: int, epoch: float) -> dict[float | None, Path]:
        """{head_epochs: bank} of those that exist: at the end (None), then in the order of epochs."""
        bank = self.recipe().bank
        inner = [epochs for epochs in reached(bank.epochs, bank.checkpoints) if epochs < bank.epochs]
        paths = {epochs: self.bank(seed, epoch, epochs) for epochs in (None, *inner)}
        return {epochs: path for epochs, path in paths.items() if path.exists()}

    def predictions(self, seed: int, epoch: float, split: str) -> Path:
        """The directory of the predictions for a split."""
        return self.seed(seed) / "predictions" / f"{epoch:g}" / split

    def predictions_file(self, ensemble: Ensemble, split: str) -> Path:
        """The predictions of a single member, or of a pair, for a split."""
        member = ensemble.members[0]
        return self.predictions(member.seed, member.epoch, split) / f"{file_name(ensemble.parts)}.json"

    def logits_file(self, seed: int, epoch: float, split: str) -> Path:
        """The logits of the members, by name."""
        return self.predictions(seed, epoch, split) / "logits.safetensors"

    def scores_file(self, seed: int, epoch: float) -> Path:
        return self.seed(seed) / f"scores-{epoch:g}.json"

    def scores_files(self) -> list[Path]:
        """The score files that exist, whatever the recipe says."""
        return sorted(self.path.glob("seed-*/scores-*.json"))

    def sets_file(self, seed: int, epoch: float) -> Path:
        """Digests of the sets that a checkpoint was scored on."""
        return self.seed(seed) / f"sets-{epoch:g}.json"

    def recipe(self) -> Recipe:
        if self._recipe is None:
            read_with_digest(self.recipe_file, "recipe", "restore it")
            self._recipe = load_recipe(self.recipe_file)
        return self._recipe

    def write_recipe(self, recipe: Recipe) -> None:
        write_text(self.recipe_file, with_digest(toml.write(recipe)), durable=True)

    @property
    def epochs(self) -> list[float]:
        """The epochs of the checkpoints that the recipe asks for."""
        tuning = self.recipe().finetune
        return reached(tuning.epochs, tuning.checkpoints)

    def variants(self) -> dict[str, "RunDir"]:
        """{name: run} of a recipe with variants."""
        names = [str(variant["name"]) for variant in self.recipe().variants]
        return {name: RunDir(self.path / file_name(name, "variants")) for name in names}

    def own_names(self) -> set[str]:
        """Names of its own files and directories, which no variant may have."""
        paths = [path for path in vars(self).values() if isinstance(path, Path) and path.parent == self.path]
        return {path.name for path in paths} | {"figures", "report.html", "report.md", "depth.svg"}

    def facts(self) -> dict[str, Any]:
        """Facts about the run: versions, machine, data, times, memory."""
        return read_json(self.facts_file, "study file") if self.facts_file.is_file() else {}

    def add_facts(self, **values: Any) -> None:
        """Adds facts; a value of None removes one."""
        facts = (self.facts() or _environment()) | values
        write_json(self.facts_file, {key: value for key, value in facts.items() if value is not None})

    def gather(self) -> None:
        """Adds logs and facts of cells that processes of their own did. No process may be at work on a cell."""
        for notes in sorted(self.cells.glob("*/")):
            if (log := notes / "log.jsonl").is_file():
                with self.log_file.open("ab") as file:
                    file.write(log.read_bytes())
            if not (notes / "study.json").is_file():
                continue
            self.add_facts(**_joined_facts(self.facts(), read_json(notes / "study.json", "study file")))
        remove(self.cells)

    @property
    def peak(self) -> float:
        """The most memory that a process of the run held, in GiB."""
        return float(self.facts().get("peak", {}).get("memory_gib", 0.0))

    def note_peak(self, others: float = 0.0) -> None:
        """Notes the peak memory of this process, or of `others`, if it is higher than what is known."""
        most = max(self.peak, round(peak_memory() / 2**30, 2), others)
        if most > self.peak:
            self.add_facts(peak={"memory_gib": most})

    def start(self, finished: bool) -> None:
        """Notes time and command of the first start. finished: whether everything is done already."""
        if not self.facts_file.is_file():
            self.add_facts(started=_now(), command=shlex.join(["bertvision", *sys.argv[1:]]))
        elif not finished:
            self.add_facts(finished=None)  # a seed or a variant was added

    def finish(self) -> None:
        """Notes that everything is done."""
        self.note_peak()
        self.add_facts(finished=_now())

    def planned(self) -> list[Cell]:
        """Every (seed, epoch) that the recipe asks for."""
        return [(seed, epoch) for seed in self.recipe().seeds for epoch in self.epochs]

    def scored(self) -> list[Cell]:
        """The (seed, epoch) that have scores."""
        return [cell for cell in self.planned() if self.scores_file(*cell).exists()]

    def is_tuned(self, seed: int) -> bool:
        """Whether all checkpoints of a seed are there."""
        return all(self.checkpoint(seed, epoch).is_dir() for epoch in self.epochs)

    def cell(self, epoch: float | None = None, seed: int | None = None) -> Cell:
        """A scored (seed, epoch): the first seed of the recipe and the last epoch that has scores, unless named."""
        done = self.scored()
        fitting = [cell for cell in done if seed in (None, cell[0]) and epoch in (None, cell[1])]
        if not fitting:
            names = [f"seed {cell[0]} epoch {cell[1]:g}" for cell in done]
            available = ", ".join(names) or "nothing yet; `bertvision study` goes on"
            raise UserError(f"{self.path}: no scores of that seed and checkpoint; there is: {available}")
        first = fitting[0][0]
        return first, max(cell[1] for cell in fitting if cell[0] == first)

    def scores(self) -> list[Score]:
        """All score rows, the greedy ensembles' last."""
        return [*self.rows(), *self.greedy()]

    def rows(self, cell: Cell | None = None) -> list[Score]:
        """The score rows of one cell or of all. For a run with variants: those of all variants."""
        if variants := self.variants():
            begun = {name: run for name, run in variants.items() if run.recipe_file.is_file()}
            return [replace(row, variant=name) for name, run in begun.items() for row in run.rows()]
        rows: list[Score] = []
        for file in [self.scores_file(*scored) for scored in ([cell] if cell else self.scored())]:
            rows += read_rows(read_json(file, "scores file"), str(file))
        return rows

    def greedy(self) -> list[Score]:
        """The score rows of the greedy ensembles of cells that have scores."""
        rows = self._read_ensembles(self.greedy_file, "ensembles")  # a run with variants has none of its own
        return [row for row in rows if row.cell in self.scored()]

    def ensemble(self) -> list[Score]:
        """The score rows of the ensemble that `bertvision ensemble` made last."""
        return self._read_ensembles(self.ensemble_file)

    def _read_ensembles(self, path: Path, key: str = "") -> list[Score]:
        """Rows of a file that describes ensembles; none if there is no such file."""
        if not path.exists():
            return []
        contents = read_json(path, "file of ensembles")
        tables = contents.get(key) if key and isinstance(contents, dict) else [contents]
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise UserError(f"{path}: not a file of ensembles; delete it to have it made again")
        return [row for table in tables for row in read_rows(table.get("test"), str(path))]

    def comparisons(self, which: str = "comparisons") -> list[dict[str, Any]]:
        """Differences to the backbone with their intervals, or (`equal_cost`) to the backbone of equal cost."""
        return read_json(self.comparisons_file, "file of comparisons")[which]

    def analysis(self) -> dict[str, Any]:
        return read_json(self.analysis_file, "analysis")

    def write_metrics(self) -> list[Score]:
        """Writes metrics.json anew from the rows of all cells."""
        rows = self.rows()
        write_json(self.metrics_file, [row.to_json() for row in rows], durable=True)
        return rows

    def contents(self) -> Contents:
        """Everything the run holds, finished or not; what is damaged is left out and named in `problems`."""
        return read_contents(self)

    def digest(self, *, epoch: float | None = None, choices: bool = False) -> str:
        """The digest of the score files, of all checkpoints or of one. choices: with greedy.json and ensemble.json."""
        paths = [self.scores_file(*cell) for cell in self.scored() if epoch in (None, cell[1])]
        paths += [path for path in (self.greedy_file, self.ensemble_file) if choices and path.is_file()]
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.relative_to(self.path)}\n".encode() + path.read_bytes())
        return digest.hexdigest()

    def is_current(self, derived: Path, *, choices: bool = False) -> bool:
        """Whether a JSON file is whole and says that it was made from the scores there are now."""
        try:
            contents = read_json(derived)
        except UserError:
            return False
        return isinstance(contents, dict) and contents.get("made_from") == self.digest(choices=choices)


def read_rows(rows: Any, where: str) -> list[Score]:
    """Score rows of a JSON file, strictly."""
    if not isinstance(rows, list):
        raise UserError(f"{where}: not a list of score rows; delete it and run `bertvision study` again")
    return [Score.from_json(row, where) for row in rows]


def _joined_facts(run: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run and those of a cell: the earlier start, the higher peak, the dropped heads of both."""
    dropped = list(run.get("dropped", []))
    dropped += [entry for entry in cell.get("dropped", []) if entry not in dropped]
    peak = max(facts.get("peak", {}).get("memory_gib", 0.0) for facts in (run, cell))
    earlier = min((facts for facts in (run, cell) if facts), key=lambda facts: facts.get("started", "~"))
    start = {key: earlier[key] for key in ("started", "command") if key in earlier}
    return run | cell | start | {"peak": {"memory_gib": peak}, "dropped": dropped or None}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _environment() -> dict[str, Any]:
    """Versions and machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    own = {"python": platform.python_version(), "bertvision": __version__}
    return {
        "versions": own | {name: version(name) for name in PACKAGES},
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "memory_gib": round(memory / 2**30),
        },
    }
