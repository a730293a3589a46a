"""What a run has stored, read again without a pass of its backbone: predictions, log-probabilities, and its data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bertvision.backbone.loading import tokenizer_of
from bertvision.errors import UserError
from bertvision.files import load_tensors, read_json
from bertvision.tasks import Dataset
from bertvision.train.bank import file_name
from bertvision.train.sets import SPLITS, refuse_other_sets

if TYPE_CHECKING:  # a study ends by calling what reads it
    from bertvision.train.study import Study


@dataclass(frozen=True, slots=True)
class Cell:
    """One checkpoint of one seed of a run."""

    study: "Study"
    seed: int
    epoch: float

    def place(self, split: str) -> Path:
        """Where what its members said about a split is kept."""
        return self.study.directory / f"seed-{self.seed}" / "predictions" / f"{self.epoch:g}" / split

    def predictions(self, split: str, member: str, dataset: Dataset) -> Any:
        """The stored predictions of a member or an ensemble for `dataset`, which must be what they were made from."""
        path = self.place(split) / f"{file_name(member)}.json"
        rows = read_json(path, "predictions file")
        if not isinstance(rows, dict):
            raise UserError(f"{path}: not a predictions file of this program")
        if rows.keys() != {record.id for record in dataset.records}:
            scores = f"seed-{self.seed}/scores-{self.epoch:g}.json"
            raise UserError(
                f"{path}: made from other questions than {dataset.source} holds now; restore it, or delete {scores} "
                "and run `bertvision study` again"
            )
        return self.study.task.read_predictions(rows, str(path))

    def log_probabilities(self, split: str) -> dict[str, Tensor]:
        """{member: fp16 log-probabilities}, windows one after the other: spans (T, 2), labels (N, C)."""
        path = self.place(split) / "logits.safetensors"
        if not path.is_file():
            scores = f"seed-{self.seed}/scores-{self.epoch:g}.json"
            raise UserError(
                f"{path}: this run has not kept its log-probabilities; delete {scores} there and run "
                "`bertvision study` again, which then predicts again and trains nothing"
            )
        return load_tensors(path, "file of log-probabilities")[0]

    def rows(self) -> list[dict[str, Any]]:
        """Its rows of metrics.json."""
        return [row for row in self.study.rows() if row["seed"] == self.seed and row["checkpoint"] == self.epoch]


def open_run(directory: Path, *, quiet: bool = False) -> "Study":
    """The study in a directory; that of a recipe with variants is refused, for it holds several."""
    from bertvision.train.study import Study

    study = Study.open(directory, quiet=quiet)
    if study.recipe.variants:
        names = ", ".join(str(directory / file_name(str(variant["name"]))) for variant in study.recipe.variants)
        raise UserError(f"{directory}: holds a run for each variant; name one of them: {names}")
    return study


def cell(study: "Study", epoch: float | None = None, seed: int | None = None) -> Cell:
    """A scored checkpoint: of the first seed and the last epoch that has scores, unless named."""
    done = sorted({(row["seed"], row["checkpoint"]) for row in study.rows()})
    fitting = [(s, e) for s, e in done if seed in (None, s) and epoch in (None, e)]
    if not fitting:
        there = ", ".join(f"seed {s} epoch {e:g}" for s, e in done) or "nothing yet; `bertvision study` goes on"
        raise UserError(f"{study.directory}: no scores of that seed and checkpoint; there is: {there}")
    first = next(s for s in (*study.recipe.seeds, *(s for s, _ in fitting)) if s in {s for s, _ in fitting})
    return Cell(study, first, max(e for s, e in fitting if s == first))


def data_of(
    study: "Study", data: Mapping[str, Dataset] | None = None, used: Sequence[str] = SPLITS
) -> Mapping[str, Dataset]:
    """The data sets of a run: those given, or made again from the recipe with the tokenizer alone.

    used: those that are going to be, which must be the sets that the run was scored on.
    """
    if data is None:
        data = study.task.load(study.recipe.data, tokenizer_of(study.recipe.backbone.name), seed=0)
    refuse_other_sets(study.scored, data, used)
    return data
