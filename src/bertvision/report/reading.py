"""The plain files of a study -> what there is to report, and what is still missing."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.files import read_json
from bertvision.report.paper import for_run
from bertvision.report.summary import Row, summarise


@dataclass(frozen=True)
class Study:
    """A study as its directory tells it, finished or not.

    rows: the summary of metrics.json. recipe: recipe.toml, parsed, and recipe_text as written. facts: study.json.
    paper: published results, as `for_run` gives them. missing: one sentence for each thing that is not there yet.
    chosen: one sentence for each ensemble whose parts differ from cell to cell, saying what they are.
    """

    title: str
    rows: list[Row]
    recipe: Mapping[str, Any]
    recipe_text: str
    facts: Mapping[str, Any]
    paper: list[Mapping[str, Any]]
    missing: list[str]
    chosen: list[str]

    def synthetic(self) -> bool:
        """Whether any of the data was made by a program: as study.json labels it, or as the recipe asks for."""
        asked = [str(source) for source in self.recipe.get("data", {}).values()]
        labels = self.facts.get("data") or {}
        return (
            bool(self.facts.get("synthetic"))
            or any(source.startswith("sample:") for source in asked)
            or any(_says_synthetic(label) for label in (labels.values() if isinstance(labels, Mapping) else [labels]))
        )


def read_study(directory: Path) -> Study:
    """What the directory holds of metrics.json, recipe.toml and study.json; any of them may be missing."""
    if not directory.is_dir():
        raise UserError(f"{directory}: no such directory; give the directory of a study")
    metrics = _read(directory / "metrics.json", list)
    facts = _read(directory / "study.json", dict)
    recipe_text = _read_text(directory / "recipe.toml")
    if metrics is None and facts is None and recipe_text is None:
        raise UserError(
            f"{directory}: holds none of metrics.json, recipe.toml, study.json; give the directory of a study"
        )

    recipe, missing = _parse(recipe_text)
    if facts is None:
        missing.append("study.json is missing: versions, machine and command are unknown.")
    elif not facts.get("finished"):
        missing.append("The study has not finished.")
    rows = summarise(metrics or [])
    facts = facts or {}
    missing += unscored(rows, recipe, facts.get("dropped", []))
    return Study(
        title=str(recipe.get("title") or directory.resolve().name),
        rows=rows,
        recipe=recipe,
        recipe_text=recipe_text or "",
        facts=facts,
        paper=for_run([*recipe.get("paper", []), *facts.get("paper", [])], recipe),
        missing=missing,
        chosen=chosen_parts(metrics or []),
    )


def chosen_parts(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """What ensembles that were chosen on the tuning set turned out to be, checkpoint by checkpoint.

    metrics: score rows; `parts` of an ensemble's row names its members.
    """
    found: dict[str, dict[float, dict[str, None]]] = {}  # member -> checkpoint -> parts, in order
    for row in metrics:
        if row.get("parts") and row["parts"] != row.get("member"):
            points = found.setdefault(str(row.get("member")), {})
            points.setdefault(row.get("checkpoint", 0.0), {})[str(row["parts"])] = None
    return [
        f"{member}, chosen on the tuning set: "
        + "; ".join(f"at epoch {point:g} {' or '.join(parts)}" for point, parts in sorted(points.items()))
        + "."
        for member, points in found.items()
    ]


def unscored(rows: Sequence[Row], recipe: Mapping[str, Any], dropped: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Sentences on what the recipe asks for and the rows do not have: seeds, checkpoints, heads.

    dropped: heads whose training broke off, {"seed", "checkpoint", "member", "why"}.
    """
    if not rows:
        return ["metrics.json holds no scores yet: no member has been evaluated."]
    result = []
    seeds = {seed for row in rows for seed in row.seeds}
    if absent := [seed for seed in recipe.get("seeds", []) if seed not in seeds]:
        result.append(f"Not scored yet: {_counted('seed', absent)} of {len(recipe['seeds'])}.")
    wanted = _checkpoints(recipe)
    for seed in sorted(seeds, key=str):
        mine = [row for row in rows if seed in row.seeds]
        if absent := [f"{point:g}" for point in wanted if point not in {row.checkpoint for row in mine}]:
            result.append(f"Not scored yet: {_counted('checkpoint', absent)} of seed {seed}.")
        for point in dict.fromkeys(row.checkpoint for row in mine):
            if point is None:
                continue
            lost = [one for one in dropped if (one.get("seed"), one.get("checkpoint")) == (seed, point)]
            for one in lost:
                why = f"{one.get('member')} ({one.get('why')})"
                result.append(f"Dropped at checkpoint {point:g} of seed {seed}: {why}.")
            heads = len(recipe.get("heads", []))
            found = {row.member for row in mine if row.checkpoint == point and row.role == "head"}
            if (left := heads - len(found) - len(lost)) > 0:
                result.append(f"Not scored yet: {left} of {heads} heads at checkpoint {point:g} of seed {seed}.")
    return result


def _parse(text: str | None) -> tuple[dict[str, Any], list[str]]:
    if text is None:
        return {}, ["recipe.toml is missing: what was asked for is unknown."]
    try:
        return tomllib.loads(text), []
    except tomllib.TOMLDecodeError as error:
        return {}, [f"recipe.toml is not TOML ({error}): what was asked for is unknown."]


def _checkpoints(recipe: Mapping[str, Any]) -> list[float]:
    """The checkpoints a run reaches: those asked for, and the end of tuning."""
    tuning = recipe.get("finetune", {})
    if "epochs" not in tuning:
        return []
    end = round(float(tuning["epochs"]), 6)
    points = {round(float(point), 6) for point in tuning.get("checkpoints", [])}
    return sorted({point for point in points if point <= end} | {end})


def _counted(noun: str, names: Sequence[Any]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"


def _says_synthetic(label: Any) -> bool:
    return bool(label.get("synthetic")) if isinstance(label, Mapping) else "synthetic" in str(label).lower()


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error}") from None


def _read(path: Path, kind: type) -> Any:
    """The JSON of a file that may not be there yet."""
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, kind):
        raise UserError(f"{path}: holds no {kind.__name__}; run the study again to have it written anew")
    return value
