"""The stages a study will go through, with the tokens of each and what of them is done already."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertvision.train import agenda
from bertvision.train.agenda import Agenda, Planned
from bertvision.train.bank import bank_path
from bertvision.train.finetune import planned_checkpoints

if TYPE_CHECKING:
    from bertvision.train.study import Study


def plan_study(study: "Study") -> None:
    """Puts the stages of a study on the agenda of its journal; the study has begun."""
    study.journal.agenda.plan(planned_stages(study, tokens_of(study)), study.journal.part)


def plan_variants(variants: Mapping[str, "Study"]) -> None:
    """One agenda for all variants: the first that is not done tells the sizes, until the others' data are read."""
    first = next((study for study in variants.values() if not study.finished), None)
    if first is None:
        return
    first.begin()
    sizes, common = tokens_of(first), Agenda()
    for name, study in variants.items():
        study.journal.agenda, study.journal.part = common, name
        common.plan(planned_stages(study, sizes), name)


def tokens_of(study: "Study") -> dict[str, int]:
    """Tokens of one pass over each set."""
    return {split: int(data.windows.lengths.sum()) for split, data in study.data.items()}


def planned_stages(study: "Study", tokens: Mapping[str, int]) -> list[Planned]:
    """Everything that `Study.run` does, in its order."""
    recipe, found = study.recipe, []
    scored = {(row["seed"], row["checkpoint"]) for row in study.rows()}
    learnt_along = not recipe.heads or recipe.bank.feed == "along"
    for seed in recipe.seeds:
        place = study.directory / f"seed-{seed}"
        tuned = all(checkpoint.done for checkpoint in planned_checkpoints(place, recipe.finetune).values())
        passes = round(recipe.finetune.epochs * tokens["train"])
        found.append(Planned(agenda.tuning(seed), "tuning", passes, tuned))
        for epoch in study.epochs:
            if not learnt_along:
                passes = round(recipe.bank.epochs * tokens["train"])
                trained = bank_path(place, epoch).exists()
                found.append(Planned(agenda.heads(epoch, seed), "heads", passes, trained))
            for split in agenda.scored_splits(recipe.data.also):
                done = (seed, epoch) in scored
                size = tokens.get(split, tokens["test"])  # the sizes may be those of another variant
                found.append(Planned(agenda.scoring(epoch, split, seed), "scoring", size, done))
    return found
