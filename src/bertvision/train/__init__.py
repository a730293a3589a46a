"""Training: one loop for tuned backbones and banks of heads; runs, their scores and comparisons."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.files import claim
from bertvision.recipe import Recipe
from bertvision.runtime import Runtime, is_main
from bertvision.train.progress import Journal
from bertvision.train.run_dir import RunDir

if TYPE_CHECKING:
    from bertvision.train.study import Study


class Run(ABC):
    """A recipe and the directory it is run in: one study, or one for each variant. See `RunDir` for the files there.

    studies: {variant: study}, with "" as the variant of a recipe without any. cell: the id of the only cell that this
    process works on.
    """

    studies: Mapping[str, "Study"]

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False, cell: str = "") -> None:
        self.recipe, self.directory, self.run_dir = recipe, directory, RunDir(directory, recipe, cell)
        self.journal = Journal(self.run_dir.log_file if is_main() else None, quiet=quiet or not is_main())

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Device, precision and processes."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether every checkpoint of every seed has scores."""

    @abstractmethod
    def run(self) -> list[dict[str, Any]]:
        """Does everything that is not done yet; the rows of metrics.json."""

    @abstractmethod
    def refuse_other(self) -> None:
        """UserError if the directory holds a run of another recipe."""

    @abstractmethod
    def _note_facts(self, elsewhere: bool) -> None:
        """Notes facts that are known when the run begins or goes on."""

    def begin(self, elsewhere: bool = False) -> None:
        """Claims the directory for this recipe; one with another recipe is refused. elsewhere: others will compute."""
        if self.runtime.is_main:
            self.refuse_other()
            claim(self.directory)
            self.run_dir.gather()
            self.run_dir.write_recipe(self.recipe)
            self.run_dir.start(self.finished)
            self._note_facts(elsewhere)
        self.runtime.wait()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all cells done so far, as in metrics.json."""
        return [row.to_json() for row in self.run_dir.rows()]


def make_run(recipe: Recipe, directory: Path, *, quiet: bool = False) -> Run:
    """The run of a recipe in a directory: a study, or one for each of its variants."""
    if recipe.variants:
        from bertvision.train.study_variants import VariantStudies as kind
    else:
        from bertvision.train.study import Study as kind  # type: ignore[assignment]
    return kind(recipe, directory, quiet=quiet)
