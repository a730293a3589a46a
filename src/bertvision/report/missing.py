"""What a recipe asks for and the scores do not have, one sentence for each thing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertvision.recipe import reached
from bertvision.report.summary import Row

Recipe = Mapping[str, Any]


def unscored(rows: Sequence[Row], recipe: Recipe, dropped: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Sentences on seeds, checkpoints and heads that are not there.

    dropped: heads whose training broke off, {"seed", "checkpoint", "member", "why"}.
    """
    if not rows:
        return ["metrics.json holds no scores yet: no member has been evaluated."]
    result = []
    seeds = {seed for row in rows for seed in row.seeds}
    if absent := [seed for seed in recipe.get("seeds", []) if seed not in seeds]:
        result.append(f"Not scored yet: {counted('seed', absent)} of {len(recipe['seeds'])}.")
    tuning = recipe.get("finetune", {})
    wanted = reached(tuning["epochs"], tuning.get("checkpoints", [])) if "epochs" in tuning else []
    asked = len(recipe.get("heads", [])) * len(recipe.get("bank", {}).get("fractions") or [1])
    for seed in sorted(seeds, key=str):
        mine = [row for row in rows if seed in row.seeds]
        points = {row.checkpoint for row in mine}
        if absent := [f"{point:g}" for point in wanted if point not in points]:
            result.append(f"Not scored yet: {counted('checkpoint', absent)} of seed {seed}.")
        for point in dict.fromkeys(row.checkpoint for row in mine if row.checkpoint is not None):
            lost = [one for one in dropped if (one.get("seed"), one.get("checkpoint")) == (seed, point)]
            here = [row for row in mine if row.checkpoint == point]
            result += _heads(here, asked, lost, f"checkpoint {point:g} of seed {seed}")
    return result


def counted(noun: str, names: Sequence[Any]) -> str:
    """`seed 2`, or `seeds 2, 3`."""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"


def _heads(rows: Sequence[Row], asked: int, lost: Sequence[Mapping[str, Any]], where: str) -> Iterator[str]:
    for one in lost:
        yield f"Dropped at {where}: {one.get('member')} ({one.get('why')})."
    whole = {row.member for row in rows if row.role == "head" and row.head_epochs is None}
    found = whole | {str(one.get("member")) for one in lost}
    if (left := asked - len(found)) > 0:
        yield f"Not scored yet: {left} of {asked} heads at {where}."
