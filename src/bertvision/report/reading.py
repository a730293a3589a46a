"""The plain files of a run -> what there is to report, and what is still missing."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Interval
from bertvision.files import read_json
from bertvision.report.missing import counted, unscored
from bertvision.report.paper import for_run, for_variant, of_another_run
from bertvision.report.summary import Row, summarise

Plain = Mapping[str, Any]
AGAIN = "run the study again to have it written anew"


@dataclass(frozen=True)
class Study:
    """A study as its directory tells it, finished or not.

    scores: the rows of metrics.json; rows: their summary, with the intervals of comparisons.json. recipe: recipe.toml,
    parsed, and recipe_text as written. facts: study.json. paper: published results, as `for_run` gives them. missing:
    one sentence for each thing that is not there yet. chosen: one sentence for each ensemble whose parts differ from
    cell to cell, saying what they are. notes: what score rows say about themselves. analysis, ensemble: the files of
    these names. variants: the studies within this one, by name.
    """

    title: str
    scores: Sequence[Plain] = ()
    rows: Sequence[Row] = ()
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    facts: Plain = field(default_factory=dict)
    paper: Sequence[Plain] = ()
    missing: Sequence[str] = ()
    chosen: Sequence[str] = ()
    notes: Sequence[str] = ()
    analysis: Plain = field(default_factory=dict)
    ensemble: Plain = field(default_factory=dict)
    variants: Mapping[str, "Study"] = field(default_factory=dict)

    def synthetic(self) -> bool:
        """Whether any of the data was made by a program: as study.json labels it, or as the recipe asks for."""
        asked = [str(source) for source in self.recipe.get("data", {}).values()]
        labels = self.facts.get("data") or {}
        return (
            bool(self.facts.get("synthetic"))
            or any(source.startswith("sample:") for source in asked)
            or any(_says_synthetic(label) for label in (labels.values() if isinstance(labels, Mapping) else [labels]))
            or any(variant.synthetic() for variant in self.variants.values())
        )

    def source(self, split: str) -> str:
        """Where a set came from: as study.json says, else as the recipe asks; "" if neither tells."""
        labels = self.facts.get("data")
        label = labels.get(split) if isinstance(labels, Mapping) else None
        known = label.get("source") if isinstance(label, Mapping) else label
        return str(known or self.recipe.get("data", {}).get(split) or "")


def read_study(directory: Path) -> Study:
    """What a directory holds of metrics.json, recipe.toml, study.json, and comparisons, analysis and ensemble.json."""
    if not directory.is_dir():
        raise UserError(f"{directory}: not the directory of a run: no such directory; give one that `study` has made")
    metrics, facts = _read(directory / "metrics.json", list), _read(directory / "study.json", dict)
    recipe_text = _read_text(directory / "recipe.toml")
    if metrics is None and facts is None and recipe_text is None:
        held = "holds none of metrics.json, recipe.toml, study.json"
        raise UserError(f"{directory}: not the directory of a run: {held}; give one that `study` has made")
    recipe, missing = _parse(recipe_text)
    if facts is None:
        missing.append("study.json is missing: versions, machine and command are unknown.")
    elif not facts.get("finished"):
        missing.append("The study has not finished.")
    scores = metrics or []
    comparisons = _read_beside(directory / "comparisons.json", list, missing)
    study = Study(
        title=str(recipe.get("title") or directory.resolve().name),
        scores=scores,
        rows=with_intervals(summarise(scores), comparisons or []),
        recipe=recipe,
        recipe_text=recipe_text or "",
        facts=facts or {},
        paper=[*recipe.get("paper", []), *(facts or {}).get("paper", [])],
        missing=missing,
        chosen=chosen_parts(scores),
        notes=row_notes(scores),
        analysis=_read_beside(directory / "analysis.json", dict, missing) or {},
        ensemble=_read_beside(directory / "ensemble.json", dict, missing) or {},
    )
    names = [str(table.get("name")) for table in recipe.get("variants", [])]
    names = list(dict.fromkeys([*names, *(row.variant for row in study.rows if row.variant)]))
    if names:
        return _with_variants(study, directory, names)
    missing += unscored(study.rows, recipe, study.facts.get("dropped", []))
    return replace(study, paper=for_run(study.paper, recipe), missing=missing)


def with_intervals(rows: Sequence[Row], comparisons: Sequence[Plain]) -> list[Row]:
    """The rows with what comparisons.json says of their difference to the backbone."""
    known: dict[tuple[str, float, str, str], dict[str, Interval]] = {}
    for one in comparisons:
        values = [one.get(key) for key in ("checkpoint", "difference", "low", "high")]
        numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
        if len(numbers) == len(values):  # else there is no interval: a metric may be undefined in some resamples
            point, *bounds = numbers
            place = (str(one.get("variant") or ""), round(point, 6))
            key = (*place, str(one.get("member")), str(one.get("threshold_from") or ""))
            known.setdefault(key, {})[str(one.get("metric"))] = Interval(*bounds)
    return [
        replace(row, intervals=known.get((row.variant, row.checkpoint or 0.0, row.member, row.threshold_from), {}))
        for row in rows
    ]


def chosen_parts(metrics: Sequence[Plain]) -> list[str]:
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


def row_notes(metrics: Sequence[Plain]) -> list[str]:
    """What rows say about their own scores, once for each member: that it always says the same, for one."""
    found = {(str(row.get("member")), str(row["note"])): None for row in metrics if row.get("note")}
    return [f"{member}: {note}." for member, note in found]


def _with_variants(study: Study, directory: Path, names: Sequence[str]) -> Study:
    """The study with those within it: their scores from its own files, the rest from directories of their names."""
    tables = {str(table.get("name")): table for table in study.recipe.get("variants", [])}
    places = study.facts.get("variants") or {}
    missing, variants, claimed = list(study.missing), {}, []
    for name in names:
        rows = [replace(row, variant="") for row in study.rows if row.variant == name]
        own = directory / str(places.get(name, name))
        inside = own.is_dir() and own.resolve().parent == directory.resolve()  # a name is not a way out
        recipe = _parse(_read_text(own / "recipe.toml") if inside else None)[0] or _laid_over(
            study.recipe, tables, name
        )
        facts = (_read(own / "study.json", dict) if inside else None) or {}
        paper = for_variant(study.paper, name, recipe)
        claimed += paper
        scores = [row for row in study.scores if row.get("variant") == name]
        variants[name] = Study(
            title=name,
            scores=scores,
            rows=rows,
            recipe=recipe,
            facts=facts,
            paper=paper,
            chosen=chosen_parts(scores),
            notes=row_notes(scores),
            analysis=(_read_beside(own / "analysis.json", dict, missing) if inside else None) or {},
        )
        if rows:
            missing += [f"{name}: {sentence}" for sentence in unscored(rows, recipe, facts.get("dropped", []))]
    if absent := [name for name, variant in variants.items() if not variant.rows]:
        missing.append(f"Not scored yet: {counted('variant', absent)}.")
    left = [of_another_run(entry) for entry in study.paper if entry not in claimed]
    return replace(study, variants=variants, missing=missing, paper=left)


def _laid_over(recipe: Plain, tables: Mapping[str, Plain], name: str) -> Plain:
    """The recipe of a variant: nested tables laid over that of the study."""

    def merged(under: Plain, over: Plain) -> dict[str, Any]:
        both = {key: (under.get(key), value) for key, value in over.items()}
        nested = {k: merged(u, v) if isinstance(u, dict) and isinstance(v, dict) else v for k, (u, v) in both.items()}
        return {**under, **nested}

    return merged({k: v for k, v in recipe.items() if k != "variants"}, tables.get(name, {}))


def _parse(text: str | None) -> tuple[dict[str, Any], list[str]]:
    if text is None:
        return {}, ["recipe.toml is missing: what was asked for is unknown."]
    try:
        return tomllib.loads(text), []
    except tomllib.TOMLDecodeError as error:
        return {}, [f"recipe.toml is not TOML ({error}): what was asked for is unknown."]


def _says_synthetic(label: Any) -> bool:
    return bool(label.get("synthetic")) if isinstance(label, Mapping) else "synthetic" in str(label).lower()


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text: {error}") from None


def _read_beside(path: Path, kind: type, missing: list[str]) -> Any:
    """The JSON of a file that a report can do without; what is wrong with it is added to missing."""
    try:
        return _read(path, kind)
    except UserError as error:
        missing.append(f"{path.name} is left out: {error}.")
        return None


def _read(path: Path, kind: type) -> Any:
    """The JSON of a file that may not be there yet."""
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, kind):
        raise UserError(f"{path}: holds no {kind.__name__}; {AGAIN}")
    return value
