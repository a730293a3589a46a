"""The plain files of a run, read so that what is damaged in one of them costs no more than itself."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.files import read_json

Plain = Mapping[str, Any]
NUMBER = (int, float)
# A shape is a type or several, [shape] for a list of such, {key: shape} for a table whose other keys hold anything.
ROW = {"seed": int, "checkpoint": NUMBER, "member": str, "role": str, "parts": str, "variant": str}
COMPARISON = {"member": str, "variant": str, "seeds": [int], **dict.fromkeys(("checkpoint", "low", "high"), NUMBER)}
RECIPE = {
    "seeds": [int],
    "backbone": {"name": str},
    "data": {},
    "finetune": {"epochs": NUMBER, "checkpoints": [NUMBER]},
    "bank": {"fractions": [NUMBER]},
    "heads": [{}],
    "paper": [{}],
    "variants": [{}],
}
FACTS = {"peak": {"memory_gib": NUMBER}, "constant": {"says": str}, "dropped": [{}], "variants": {}, "paper": [{}]}
GREEDY = {"ensembles": [{"members": [{"member": str, "weight": NUMBER}], "test": [ROW]}], "comparisons": [COMPARISON]}
NAMED = 3  # places that a sentence names
NOTHING = object()


@dataclass(frozen=True)
class Files:
    """What a directory holds of a run. there: whether it is one. missing: a sentence on each thing left out.

    scores: rows of metrics.json, or of the seeds' own files where that tells nothing, then those of the ensembles in
    greedy.json, which also adds to the comparisons.
    """

    there: bool = False
    scores: Sequence[Plain] = ()
    comparisons: Sequence[Plain] = ()
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    facts: Plain = field(default_factory=dict)
    analysis: Plain = field(default_factory=dict)
    ensemble: Plain = field(default_factory=dict)
    greedy: Sequence[Plain] = ()
    missing: Sequence[str] = ()


def read_files(directory: Path) -> Files:
    """The files of a run, as far as they are there and sound."""
    missing: list[str] = []
    text, recipe = _recipe(directory / "recipe.toml", missing)
    facts = _read(directory / "study.json", FACTS, missing)
    metrics = _read(directory / "metrics.json", [ROW], missing)
    there = text is not None or any((directory / name).is_file() for name in ("metrics.json", "study.json"))
    if text is None and there:
        missing.insert(0, "recipe.toml is missing: what was asked for is unknown.")
    if there and not (directory / "study.json").is_file():
        missing.append("study.json is missing: versions, machine and command are unknown.")
    scores = [row for row in metrics or [] if "member" in row]
    if not scores and (scores := _of_seeds(directory, recipe.get("seeds"), missing)):
        missing.append("metrics.json has no scores: they are those of seed-N/scores-E.json.")
    chosen = _read(directory / "greedy.json", GREEDY, missing) or {}
    cells = {(row.get("seed"), row.get("checkpoint")) for row in scores}
    later = [row for one in chosen.get("ensembles", []) for row in one.get("test", []) if "member" in row]
    others = _read(directory / "comparisons.json", {"comparisons": [COMPARISON]}, missing) or {}
    compared = [*others.get("comparisons", []), *chosen.get("comparisons", [])]
    return Files(
        there=there or bool(scores),
        scores=[*scores, *(row for row in later if (row.get("seed"), row.get("checkpoint")) in cells)],
        comparisons=compared,
        recipe=recipe,
        recipe_text=text or "",
        facts=facts or {},
        analysis=_read(directory / "analysis.json", {}, missing) or {},
        ensemble=_read(directory / "ensemble.json", {}, missing) or {},
        greedy=chosen.get("ensembles", []),
        missing=missing,
    )


def sound(value: Any, shape: Any, where: str, lost: list[str]) -> Any:
    """`value` without the parts that are not of the shape; the places of these are added to `lost`.

    NOTHING if nothing is left of it. A null is as good as not there.
    """
    if value is None:
        return NOTHING
    if isinstance(shape, list) and isinstance(value, list):
        parts = [sound(part, shape[0], f"{where}[{number}]", lost) for number, part in enumerate(value)]
        return [part for part in parts if part is not NOTHING]
    if isinstance(shape, dict) and isinstance(value, dict):
        found = {
            key: sound(part, shape[key], f"{where}.{key}".lstrip("."), lost) if key in shape else part
            for key, part in value.items()
        }
        return {key: part for key, part in found.items() if part is not NOTHING}
    if not isinstance(shape, list | dict) and isinstance(value, shape):
        return value
    lost.append(where)
    return NOTHING


def _sound(name: str, value: Any, shape: Any, missing: list[str]) -> Any:
    """The sound part of what a file holds, or None; missing gets a sentence on the rest."""
    lost: list[str] = []
    found = sound(value, shape, "", lost)
    if found is NOTHING:
        kind = "list" if isinstance(shape, list) else "table"
        missing.append(f"{name} is left out: it holds no {kind}.")
        return None
    if lost:
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        missing.append(
            f"{name} is left out where it does not hold what belongs there: {', '.join(lost[:NAMED])}{more}."
        )
    return found


def _read(path: Path, shape: Any, missing: list[str]) -> Any:
    """The sound part of a JSON file that may not be there."""
    if not path.is_file():
        return None
    try:
        value = read_json(path)
    except UserError as error:
        missing.append(f"{path.name} is left out: {str(error).removeprefix(f'{path}: ')}.")
        return None
    return _sound(path.name, value, shape, missing)


def _recipe(path: Path, missing: list[str]) -> tuple[str | None, Plain]:
    """The text of a recipe, None where there is none, and the sound part of it."""
    if not path.is_file():
        return None, {}
    try:
        text = path.read_text(encoding="utf-8")
        return text, _sound(path.name, tomllib.loads(text), RECIPE, missing)
    except UnicodeDecodeError as error:
        missing.append(f"recipe.toml is not UTF-8 text ({error}): what was asked for is unknown.")
        return "", {}
    except tomllib.TOMLDecodeError as error:
        missing.append(f"recipe.toml is not TOML ({error}): what was asked for is unknown.")
        return text, {}


def _of_seeds(directory: Path, seeds: Sequence[int] | None, missing: list[str]) -> list[Plain]:
    """The rows of all cells that have scores. seeds: those that count, all if unknown."""
    found = []
    for path in sorted(directory.glob("seed-*/scores-*.json")):
        rows = [row for row in _read(path, [ROW], missing) or [] if "member" in row]
        found += [row for row in rows if seeds is None or row.get("seed") in seeds]
    return found
