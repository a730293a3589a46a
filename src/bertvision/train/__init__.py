"""Training: one loop for tuned backbones and banks of heads; runs, their scores and comparisons."""

from pathlib import Path
from typing import TYPE_CHECKING

from bertvision.recipe import Recipe

if TYPE_CHECKING:
    from bertvision.train.series import Series
    from bertvision.train.study import Study


def make_run(recipe: Recipe, directory: Path, *, quiet: bool = False) -> "Study | Series":
    """The run of a recipe in a directory: a study, or one for each of its variants."""
    if recipe.variants:
        from bertvision.train.series import Series as kind
    else:
        from bertvision.train.study import Study as kind  # type: ignore[assignment]
    return kind(recipe, directory, quiet=quiet)
