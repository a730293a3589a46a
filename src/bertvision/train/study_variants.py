"""Studies of the variants of a recipe, each in a directory of its own, and the tables that join them."""

import dataclasses
from pathlib import Path
from typing import Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.files import claim
from bertvision.recipe import Recipe, from_table, load_recipe
from bertvision.runtime import is_main
from bertvision.train.compare import join_comparisons
from bertvision.train.progress import Journal, Stages, planned_stages
from bertvision.train.run_dir import RunDir, file_name
from bertvision.train.study import Study


class VariantStudies:
    """A study per variant of a recipe, each in a directory of its own; the same methods as a Study, as far as they
    apply. Every variant is checked when the series is made: an error in the last shows before the first begins."""

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False) -> None:
        self.recipe, self.directory, self.run_dir = recipe, directory, RunDir(directory, recipe)
        main = is_main()
        self.journal = Journal(self.run_dir.log_file if main else None, quiet=quiet or not main)
        self.variants = {
            name: Study(variant, directory / file_name(name, "variants"), quiet=quiet)
            for name, variant in variant_recipes(recipe).items()
        }

    @property
    def studies(self) -> list[Study]:
        return list(self.variants.values())

    @property
    def finished(self) -> bool:
        return all(study.finished for study in self.studies)

    def run(self) -> list[dict[str, Any]]:
        """Every variant that is not done yet; the rows of metrics.json."""
        self.begin()
        self.plan()
        for name, study in self.variants.items():
            self.journal.say(f"{name}:")
            study.run()
            if is_main():
                self.run_dir.write_metrics()
                join_comparisons(self.run_dir, {each: self.variants[each].stored for each in self.variants})
        if is_main():
            self.run_dir.note_peak(max(study.run_dir.peak for study in self.studies))
            self.run_dir.finish()
        return self.rows()

    def plan(self) -> None:
        """Plans the stages of all variants, with the sizes of the first that is not done, until the others' data are
        read."""
        first = next((study for study in self.studies if not study.finished), None)
        if first is None:
            return
        first.begin()
        common = Stages()
        for name, study in self.variants.items():
            study.journal.stages, study.journal.part = common, name
            common.plan(planned_stages(study.run_dir, first.tokens), name)

    def begin(self) -> None:
        """Claims the directory. One that holds another run is refused, and so is one whose variants were others."""
        if is_main():
            self._claim()
        self.studies[0].runtime.wait()

    def _claim(self) -> None:
        self.refuse_other()
        claim(self.directory)
        self.run_dir.gather()
        self.run_dir.write_recipe(self.recipe)
        self.run_dir.start(self.finished)
        self.run_dir.add_facts(variants={name: study.directory.name for name, study in self.variants.items()})

    def refuse_other(self) -> None:
        """UserError if the directory, or that of a variant, holds a run of another recipe."""
        path = self.run_dir.recipe_file
        if path.is_file() and not load_recipe(path).variants:
            raise UserError(f"{self.directory}: holds a run without variants; choose another --out, or delete it")
        for study in self.studies:
            study.refuse_other()

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all variants done so far, each with its `variant`."""
        return [row.to_json() for row in self.run_dir.rows()]


def variant_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """{name: the recipe with that variant laid over it}, all of them checked.

    Tables are laid over tables, key by key; anything else takes the place of what was there. Of the published results
    a variant keeps those that name it, which are its own from then on, and those that name none.
    """
    common = {key: value for key, value in dataclasses.asdict(recipe).items() if key != "variants"}
    recipes: dict[str, Recipe] = {}
    taken = RunDir(Path("run")).own_names()
    for number, variant in enumerate(recipe.variants):
        name = variant.get("name")
        if not isinstance(name, str) or not name.strip():
            raise UserError(f"variants.{number}.name: every variant needs a name; it is also that of its directory")
        if (directory := file_name(name, f"variants.{number}.name").lower()) in taken:
            raise UserError(f"variants.{number}.name: {name!r} is taken already; give it another")
        taken.add(directory)
        own = [entry for entry in common["paper"] if entry.get("variant", name) == name]
        paper = [{key: value for key, value in entry.items() if key != "variant"} for entry in own]
        table = toml.merged(common | {"paper": paper}, {key: value for key, value in variant.items() if key != "name"})
        recipes[name] = from_table(table, f"variants.{number} ({name})")
    return recipes
