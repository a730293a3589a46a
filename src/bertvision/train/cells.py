"""Cells: the pieces of a study that can be done by processes of their own, which share no more than its directory.

A cell is the tuning of one seed, or the bank and the scores of one of its checkpoints. It writes files that no other
cell writes. What belongs to the whole run (metrics, comparisons, ensembles, report) is made when all cells are done.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertvision.errors import UserError, nearest
from bertvision.files import Busy, claim, release
from bertvision.train.run_dir import RunDir, file_name
from bertvision.train.run_results import note_runtime
from bertvision.train.study import Study
from bertvision.train.study_variants import VariantStudies

END = 10_000  # bytes of a log that are looked at for its last stage


@dataclass(frozen=True, slots=True)
class StudyCell:
    """epoch: that of the checkpoint whose bank is trained and scored; None: the tuning. variant: "" without any."""

    seed: int
    epoch: float | None = None
    variant: str = ""

    @property
    def id(self) -> str:
        """`seed-1`, `seed-1/epoch-0.5`, `VARIANT/seed-1/epoch-0.5`."""
        parts = [file_name(self.variant, "variants")] if self.variant else []
        parts += [f"seed-{self.seed}", *([] if self.epoch is None else [f"epoch-{self.epoch:g}"])]
        return "/".join(parts)


class Cells:
    """The cells of a run, those that need no other first. A cell's number is its place in `all`."""

    def __init__(self, whole: Study | VariantStudies) -> None:
        self.whole = whole
        self._studies = whole.variants if isinstance(whole, VariantStudies) else {"": whole}
        studies = list(self._studies.items())
        tunings = [StudyCell(seed, None, name) for name, study in studies for seed in study.recipe.seeds]
        banks = [StudyCell(seed, epoch, name) for name, study in studies for seed, epoch in study.run_dir.planned()]
        self.all = tunings + banks

    def named(self, text: str) -> StudyCell:
        """The cell of an id or a number."""
        by_id = {cell.id: cell for cell in self.all}
        if text.isdecimal() and int(text) < len(self.all):
            return self.all[int(text)]
        if text not in by_id:
            raise UserError(f"--only {text}: {nearest(text, by_id)}; `bertvision cells` lists all {len(by_id)}")
        return by_id[text]

    def study(self, cell: StudyCell) -> Study:
        return self._studies[cell.variant]

    def is_done(self, cell: StudyCell) -> bool:
        run = self.study(cell).run_dir
        if cell.epoch is not None:
            return run.scores_file(cell.seed, cell.epoch).is_file()
        return run.is_tuned(cell.seed)

    def is_ready(self, cell: StudyCell) -> bool:
        """Whether its checkpoint exists."""
        return cell.epoch is None or self.study(cell).run_dir.checkpoint(cell.seed, cell.epoch).is_dir()

    def notes(self, cell: StudyCell) -> Path:
        """Where the log and the facts of a cell are until the run is complete."""
        return self._apart(cell).log_file.parent

    def _apart(self, cell: StudyCell) -> RunDir:
        run = self.study(cell).run_dir
        return RunDir(run.path, run.recipe(), cell.id)

    def stage(self, cell: StudyCell) -> tuple[str, float]:
        """The last stage of a cell that is done elsewhere, and which share of it is done."""
        return last_stage(self._apart(cell).log_file)

    @property
    def done(self) -> bool:
        return all(map(self.is_done, self.all))

    @property
    def completed(self) -> bool:
        """Whether the run as a whole is finished, too."""
        return self.done and bool(self.whole.run_dir.facts().get("finished"))

    def run(self, cell: StudyCell, patience: float = 0.0) -> None:
        """Runs a cell unless it is done. Resumes after a kill. patience: seconds to wait for another process on it."""
        if self.is_done(cell):
            return
        if not self.is_ready(cell):
            tuning = StudyCell(cell.seed, None, cell.variant).id
            raise UserError(f"--only {cell.id}: its checkpoint is missing; run --only {tuning} first")
        with self.shared():
            original = self.study(cell)
            study = Study(original.recipe, original.directory, quiet=original.journal.quiet, cell=cell.id)
            notes = study.run_dir.facts_file.parent
            claim(notes, patience=patience)
            try:
                study.run_dir.start(finished=False)
                note_runtime(study.run_dir, study.runtime, study.journal)
                if cell.epoch is None:
                    study.tune(cell.seed)
                else:
                    study.train(cell.seed, cell.epoch)
                    study.score(cell.seed, cell.epoch)
                study.run_dir.note_peak()
            finally:
                release(notes)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within, only processes that run cells may work on the run."""
        self.whole.refuse_other()
        held: list[Path] = []
        try:
            for run in (self.whole, *self.whole.studies):
                if claim(run.directory, shared=True):
                    held.append(run.directory)
                if not run.run_dir.recipe_file.is_file():
                    run.run_dir.write_recipe(run.recipe)
            yield
        finally:
            for directory in held:
                release(directory)

    def complete(self) -> bool:
        """Finishes the run as a whole; False if cells are missing or another process is doing it."""
        if not self.done:
            return False
        try:
            self.whole.run()
        except Busy:
            return False
        return True


def last_stage(log: Path) -> tuple[str, float]:
    """The last stage in a log, and which share of it is done."""
    text = log.read_bytes()[-END:].decode(errors="replace") if log.is_file() else ""
    for line in reversed(text.splitlines()):
        try:
            entry = json.loads(line)
        except ValueError:  # being written, or cut off here
            continue
        if "share" in entry:
            return entry["event"], entry["share"]
    return "begins, or waits for a worker", 0.0
