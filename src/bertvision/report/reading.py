"""The plain files of a run -> what there is to report, and what is still missing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.evaluate.bootstrap import Interval
from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.files import Files, Plain, read_files
from bertvision.report.missing import counted, unscored
from bertvision.report.paper import for_run, for_variant, of_another_run
from bertvision.report.summary import Row, summarise


@dataclass(frozen=True)
class Study:
    """A study as its directory tells it, finished or not.

    scores: the rows of metrics.json; rows: their summary, with the intervals of comparisons.json. recipe: recipe.toml,
    parsed, and recipe_text as written. facts: study.json. paper: published results, as `for_run` gives them. missing:
    one sentence for each thing that is not there yet. chosen: one sentence for each ensemble whose parts differ from
    cell to cell, saying what they are. notes: what score rows say about themselves. analysis, ensemble: the files of
    these names. greedy: the ensembles of greedy.json. variants: the studies within this one, by name.
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
    greedy: Sequence[Plain] = ()
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
    """What a directory holds: recipe.toml, study.json, and metrics, comparisons, greedy, ensemble and analysis.json."""
    if not directory.is_dir():
        raise UserError(f"{directory}: not the directory of a run: no such directory; give one that `study` has made")
    files = read_files(directory)
    if not files.there:
        held = "holds none of metrics.json, recipe.toml, study.json"
        raise UserError(f"{directory}: not the directory of a run: {held}; give one that `study` has made")
    recipe, missing = files.recipe, list(files.missing)
    if files.facts and not files.facts.get("finished"):
        missing.append("The study has not finished.")
    study = Study(
        title=str(recipe.get("title") or directory.resolve().name),
        scores=files.scores,
        rows=with_intervals(summarise(files.scores), files.comparisons),
        recipe=recipe,
        recipe_text=files.recipe_text,
        facts=files.facts,
        paper=[*recipe.get("paper", []), *files.facts.get("paper", [])],
        missing=missing,
        chosen=chosen_parts(files.scores),
        notes=row_notes(files.scores),
        analysis=files.analysis,
        ensemble=files.ensemble,
        greedy=files.greedy,
    )
    names = [str(table.get("name")) for table in recipe.get("variants", [])]
    names += [*files.facts.get("variants", {}), *(row.variant for row in study.rows if row.variant)]
    if names:
        return _with_variants(study, directory, list(dict.fromkeys(names)))
    missing += unscored(study.rows, recipe, files.facts.get("dropped", []))
    return replace(study, paper=for_run(study.paper, recipe), missing=missing)


def with_intervals(rows: Sequence[Row], comparisons: Sequence[Plain]) -> list[Row]:
    """The rows with what comparisons.json says of their difference to the backbone, over the very seeds they have."""
    known: dict[tuple[Any, ...], dict[str, Interval]] = {}
    for one in comparisons:
        values = [one.get(key) for key in ("checkpoint", "difference", "low", "high")]
        numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
        if len(numbers) == len(values):  # else there is no interval: a metric may be undefined in some resamples
            point, *bounds = numbers
            place = (str(one.get("variant") or ""), round(point, 6), str(one.get("member")))
            key = (*place, str(one.get("threshold_from") or ""), frozenset(one.get("seeds", ())))
            known.setdefault(key, {})[str(one.get("metric"))] = Interval(*bounds)
    return [
        replace(
            row,
            intervals=known.get(
                (row.variant, row.checkpoint or 0.0, row.member, row.threshold_from, frozenset(row.seeds)), {}
            ),
        )
        for row in rows
    ]


def chosen_parts(metrics: Sequence[Plain]) -> list[str]:
    """What ensembles that were chosen on the tuning set turned out to be, checkpoint by checkpoint.

    metrics: score rows; `parts` of an ensemble's row names its members. The greedy ones have a table of their own.
    """
    found: dict[str, dict[float, dict[str, None]]] = {}  # member -> checkpoint -> parts, in order
    for row in metrics:
        if row.get("parts") and row.get("member") not in (row["parts"], GREEDY):
            points = found.setdefault(str(row.get("member")), {})
            points.setdefault(row.get("checkpoint", 0.0), {})[str(row["parts"])] = None
    return [
        f"{member}, chosen on the tuning set: "
        + "; ".join(f"at epoch {point:g} {' or '.join(parts)}" for point, parts in sorted(points.items()))
        + "."
        for member, points in found.items()
    ]


def row_notes(metrics: Sequence[Plain]) -> list[str]:
    """What rows say about their own scores, and at which checkpoints and seeds: that one always says the same."""
    found: dict[tuple[str, str], dict[str, None]] = {}  # member, note -> places, in order
    for row in metrics:
        if row.get("note"):
            known = [f"{word} {row[key]:g}" for key, word in (("checkpoint", "epoch"), ("seed", "seed")) if key in row]
            found.setdefault((str(row.get("member")), str(row["note"])), {})[", ".join(known)] = None
    return [f"{member} ({'; '.join(places)}): {note}." for (member, note), places in found.items()]


def _with_variants(study: Study, directory: Path, names: Sequence[str]) -> Study:
    """The study with those within it: from directories of their own, and where these have no scores, from its files."""
    tables = {str(table.get("name")): table for table in study.recipe.get("variants", [])}
    places = study.facts.get("variants") or {}
    common = {key: value for key, value in study.recipe.items() if key != "variants"}
    missing, variants, claimed = list(study.missing), {}, []
    for name in names:
        own = directory / str(places.get(name, name))
        inside = own.is_dir() and own.resolve().parent == directory.resolve()  # a name is not a way out
        files = read_files(own) if inside else Files()
        rows = with_intervals(summarise(files.scores), files.comparisons) or [
            replace(row, variant="") for row in study.rows if row.variant == name
        ]
        scores = files.scores or [row for row in study.scores if row.get("variant") == name]
        recipe = files.recipe or toml.merged(common, tables.get(name, {}))
        paper = for_variant(study.paper, name, recipe)
        claimed += paper
        variants[name] = Study(
            title=name,
            scores=scores,
            rows=rows,
            recipe=recipe,
            facts=files.facts,
            paper=paper,
            chosen=chosen_parts(scores),
            notes=row_notes(scores),
            analysis=files.analysis,
            ensemble=files.ensemble,
            greedy=files.greedy,
        )
        if rows:
            wanting = [*files.missing, *unscored(rows, recipe, files.facts.get("dropped", []))]
            missing += [f"{name}: {sentence}" for sentence in wanting]
    if absent := [name for name, variant in variants.items() if not variant.rows]:
        missing.append(f"Not scored yet: {counted('variant', absent)}.")
    left = [of_another_run(entry) for entry in study.paper if entry not in claimed]
    everything = [{**row, "variant": name} for name, one in variants.items() for row in one.scores]
    rows = [replace(row, variant=name) for name, one in variants.items() for row in one.rows]
    return replace(study, scores=everything, rows=rows, variants=variants, missing=missing, paper=left)


def _says_synthetic(label: Any) -> bool:
    return bool(label.get("synthetic")) if isinstance(label, Mapping) else "synthetic" in str(label).lower()
