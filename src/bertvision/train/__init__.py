"""Training: one loop for tuned backbones and banks of heads; runs, their scores and comparisons."""

from pathlib import Path
from typing import TYPE_CHECKING

from bertvision.recipe import Recipe

if TYPE_CHECKING:
    from bertvision.train.study import Study
    from bertvision.train.study_variants import VariantStudies


def make_run(recipe: Recipe, directory: Path, *, quiet: bool = False) -> "Study | VariantStudies":
    """The run of a recipe in a directory: a study, or one for each of its variants."""
    if recipe.variants:
        from bertvision.train.study_variants import VariantStudies as kind
    else:
        from bertvision.train.study import Study as kind  # type: ignore[assignment]
    return kind(recipe, directory, quiet=quiet)
