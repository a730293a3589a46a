"""Studies of the variants of a recipe, each in a directory of its own, and the tables that join them."""

import dataclasses
from pathlib import Path
from typing import Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.recipe import Recipe, from_table, load_recipe
from bertvision.runtime import Runtime, is_main
from bertvision.train import Run
from bertvision.train.compare import join_comparisons
from bertvision.train.progress import Stages, planned_stages
from bertvision.train.run_dir import RunDir, file_name
from bertvision.train.study import Study


class VariantStudies(Run):
    """A study for each variant of a recipe, each in a directory of its own. All variants are checked at once, so that
    an error in the last is reported before the first begins."""

    def __init__(self, recipe: Recipe, directory: Path, *, quiet: bool = False) -> None:
        super().__init__(recipe, directory, quiet=quiet)
        self.studies = {
            name: Study(variant, directory / file_name(name, "variants"), quiet=quiet)
            for name, variant in variant_recipes(recipe).items()
        }

    @property
    def runtime(self) -> Runtime:
        return next(iter(self.studies.values())).runtime

    @property
    def finished(self) -> bool:
        return all(study.finished for study in self.studies.values())

    def run(self) -> list[dict[str, Any]]:
        self.begin()
        self.plan()
        for name, study in self.studies.items():
            self.journal.say(f"{name}:")
            study.run()
            if is_main():
                self.run_dir.write_metrics()
                join_comparisons(self.run_dir, {each: self.studies[each].stored for each in self.studies})
        if is_main():
            self.run_dir.note_peak(max(study.run_dir.peak for study in self.studies.values()))
            self.run_dir.finish()
        return self.rows()

    def plan(self) -> None:
        """Tells the journals the stages of all variants, with the sizes of the first unfinished one until the others'
        data are read."""
        first = next((study for study in self.studies.values() if not study.finished), None)
        if first is None:
            return
        first.begin()
        common = Stages()
        for name, study in self.studies.items():
            study.journal.stages, study.journal.part = common, name
            common.plan(planned_stages(study.run_dir, first.tokens), name)

    def _note_facts(self, elsewhere: bool) -> None:
        self.run_dir.add_facts(variants={name: study.directory.name for name, study in self.studies.items()})

    def refuse_other(self) -> None:
        path = self.run_dir.recipe_file
        if path.is_file() and not load_recipe(path).variants:
            raise UserError(f"{self.directory}: holds a run without variants; choose another --out, or delete it")
        for study in self.studies.values():
            study.refuse_other()


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
