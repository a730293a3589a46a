"""The contents of a run, read leniently for a report: what is damaged is left out and named."""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision import toml
from bertvision.errors import UserError
from bertvision.evaluate.score import Score
from bertvision.files import read_json, read_with_digest

if TYPE_CHECKING:
    from bertvision.train.run_dir import RunDir

Plain = Mapping[str, Any]
NUMBER = (int, float)
# A shape is a type or several, [shape] for a list of such, {key: shape} for a table whose other keys hold anything.
COMPARISON = {"member": str, "variant": str, "seeds": [int], **dict.fromkeys(("checkpoint", "low", "high"), NUMBER)}
RECIPE = {
    "seeds": [int],
    "backbone": {"name": str},
    "data": {},
    "finetune": {"epochs": NUMBER, "checkpoints": [NUMBER]},
    "bank": {"fractions": [NUMBER], "at": [NUMBER]},
    "heads": [{}],
    "paper": [{}],
    "variants": [{}],
}
FACTS = {"peak": {"memory_gib": NUMBER}, "constant": {"says": str}, "dropped": [{}], "variants": {}, "paper": [{}]}
Losses = dict[str, list[tuple[float, float]]]
NAMED = 3  # places that a sentence names
NOTHING = object()


@dataclass(frozen=True)
class Contents:
    """A run, finished or not. is_run: whether the directory is one.

    scores: rows of metrics.json (of the seeds' own files where that has none), then the greedy ensembles'. comparisons:
    differences to the backbone, the greedy ensembles' included; equal_cost: to the backbone of equal cost; between: of
    a run with variants, to the first. recipe: parsed but not checked. ensemble: rows of ensemble.json. losses: of each
    stage of training in log.jsonl. variants: the runs within it. problems: one sentence for each thing that is damaged
    or missing.
    """

    path: Path
    is_run: bool = False
    scores: list[Score] = field(default_factory=list)
    comparisons: list[Plain] = field(default_factory=list)
    equal_cost: list[Plain] = field(default_factory=list)
    recipe: Plain = field(default_factory=dict)
    recipe_text: str = ""
    facts: Plain = field(default_factory=dict)
    analysis: Plain = field(default_factory=dict)
    ensemble: list[Score] = field(default_factory=list)
    losses: dict[str, Losses] = field(default_factory=dict)
    variants: dict[str, "Contents"] = field(default_factory=dict)
    between: list[Plain] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def greedy(self) -> list[Score]:
        return [row for row in self.scores if row.ensemble.chosen == "greedy"]


def read_contents(run: "RunDir") -> Contents:
    """The files of a run, as far as they are there and sound."""
    problems: list[str] = []
    recipe_text, recipe = _read_recipe(run.recipe_file, problems)
    facts = _read_json(run.facts_file, FACTS, problems) or {}
    is_run = recipe_text is not None or run.metrics_file.is_file() or run.facts_file.is_file()
    if recipe_text is None and is_run:
        problems.insert(0, "recipe.toml is missing: what was asked for is unknown.")
    if is_run and not run.facts_file.is_file():
        problems.append("study.json is missing: versions, machine and command are unknown.")
    scores = _rows(run.metrics_file, problems)
    if not scores:
        seed_rows = [row for file in run.scores_files() for row in _rows(file, problems)]
        scores = [row for row in seed_rows if row.seed in recipe.get("seeds", [row.seed])]
        if scores:
            problems.append("metrics.json has no scores: they are those of seed-N/scores-E.json.")
    cells = {row.cell for row in scores}
    scores += [row for row in _rows(run.greedy_file, problems, _greedy_rows) if row.cell in cells]
    shape = {key: [COMPARISON] for key in ("comparisons", "equal_cost", "variants")}
    comparison_files = [_read_json(path, shape, problems) or {} for path in (run.comparisons_file, run.greedy_file)]
    contents = Contents(
        run.path,
        is_run or bool(scores),
        scores,
        [entry for table in comparison_files for entry in table.get("comparisons", [])],
        [entry for table in comparison_files for entry in table.get("equal_cost", [])],
        recipe,
        recipe_text or "",
        facts,
        _read_json(run.analysis_file, {}, problems) or {},
        _rows(run.ensemble_file, problems, lambda seed_rows: seed_rows.get("test", [])),
        read_losses(run.log_file),
        {},
        list(comparison_files[0].get("variants", [])),
        list(dict.fromkeys(problems)),
    )
    return replace(contents, variants=_variants(contents, type(run)))


def read_losses(path: Path) -> dict[str, Losses]:
    """Stage of training -> learner -> (share of the stage, loss of a batch), from log.jsonl; {} if there is none.

    After a kill a stage goes on from its last snapshot: what came after that counts no more.
    """
    stages: dict[str, Losses] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
            share, losses = float(entry["share"]), {str(key): float(value) for key, value in entry["loss"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # another event, or a line cut off by a kill
        stage = stages.setdefault(str(entry.get("event")), {})
        for name, loss in losses.items():
            stage[name] = [point for point in stage.get(name, []) if point[0] < share] + [(share, loss)]
    return stages


def _variants(whole: Contents, run: "type[RunDir]") -> dict[str, Contents]:
    """The runs of variants: from directories of their own, or where these have no scores, from the common files."""
    tables = {str(table.get("name")): table for table in whole.recipe.get("variants", [])}
    directories = whole.facts.get("variants", {})
    names = dict.fromkeys([*tables, *directories, *(row.variant for row in whole.scores if row.variant)])
    common = {key: value for key, value in whole.recipe.items() if key != "variants"}
    variants = {}
    for name in names:
        directory = whole.path / str(directories.get(name, name))
        is_inside = (
            directory.is_dir() and directory.resolve().parent == whole.path.resolve()
        )  # a name may not lead elsewhere
        contents = read_contents(run(directory)) if is_inside else Contents(directory)
        rows = contents.scores or [replace(row, variant="") for row in whole.scores if row.variant == name]
        comparisons = contents.comparisons or [entry for entry in whole.comparisons if entry.get("variant") == name]
        equal_cost = contents.equal_cost or [entry for entry in whole.equal_cost if entry.get("variant") == name]
        recipe = contents.recipe or toml.merged(common, tables.get(name, {}))
        variants[name] = replace(contents, scores=rows, comparisons=comparisons, equal_cost=equal_cost, recipe=recipe)
    return variants


def _greedy_rows(greedy: Any) -> list[Any]:
    return [row for ensemble in greedy.get("ensembles", []) for row in ensemble.get("test", [])]


def _rows(path: Path, problems: list[str], pick: Callable[[Any], Any] = lambda sound: sound) -> list[Score]:
    """The sound score rows of a file, as `pick` finds them in its JSON."""
    if (value := _load(path, problems)) is NOTHING:
        return []
    try:
        rows = pick(value)
    except (AttributeError, TypeError):
        rows = None
    if not isinstance(rows, list):
        problems.append(f"{path.name} is left out: it holds no list of score rows.")
        return []
    sound, lost = [], []
    for number, row in enumerate(rows):
        try:
            sound.append(Score.from_json(row, f"[{number}]"))
        except UserError as error:
            lost.append(str(error))
    if lost:
        problems.append(f"{path.name} is left out where rows are damaged: {_first_places(lost)}.")
    return sound


def _first_places(lost: list[str]) -> str:
    more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    return ", ".join(lost[:NAMED]) + more


def _sound_part(value: Any, shape: Any, where: str, lost: list[str]) -> Any:
    """`value` without the parts that are not of the shape, whose places are added to `lost`. NOTHING if nothing is
    left. A null counts as absent."""
    if value is None:
        return NOTHING
    if isinstance(shape, list) and isinstance(value, list):
        parts = [_sound_part(part, shape[0], f"{where}[{number}]", lost) for number, part in enumerate(value)]
        return [part for part in parts if part is not NOTHING]
    if isinstance(shape, dict) and isinstance(value, dict):
        sound_parts = {
            key: _sound_part(part, shape[key], f"{where}.{key}".lstrip("."), lost) if key in shape else part
            for key, part in value.items()
        }
        return {key: part for key, part in sound_parts.items() if part is not NOTHING}
    if not isinstance(shape, list | dict) and isinstance(value, shape):
        return value
    lost.append(where)
    return NOTHING


def _checked(name: str, value: Any, shape: Any, problems: list[str]) -> Any:
    """The sound part of the contents of a file, or None."""
    lost: list[str] = []
    sound = _sound_part(value, shape, "", lost)
    if sound is NOTHING:
        problems.append(f"{name} is left out: it holds no table.")
        return None
    if lost:
        problems.append(f"{name} is left out where it does not hold what belongs there: {_first_places(lost)}.")
    return sound


def _read_json(path: Path, shape: Any, problems: list[str]) -> Any:
    """The sound part of a JSON file; None if there is none."""
    value = _load(path, problems)
    return None if value is NOTHING else _checked(path.name, value, shape, problems)


def _load(path: Path, problems: list[str]) -> Any:
    """The contents of a JSON file; NOTHING if it is missing or damaged."""
    if not path.exists():
        return NOTHING
    try:
        return read_json(path)
    except UserError as error:
        problems.append(f"{path.name} is left out: {str(error).removeprefix(f'{path}: ')}.")
        return NOTHING


def _read_recipe(path: Path, problems: list[str]) -> tuple[str | None, Plain]:
    """The text of a recipe, None where there is none, and the sound part of it."""
    if not path.is_file():
        return None, {}
    try:
        text = read_with_digest(path, "recipe", "restore it")
    except UserError as error:
        problems.append(f"{str(error).removeprefix(f'{path.parent}/')}: what was asked for is unknown.")
        return "", {}
    try:
        return text, _checked(path.name, tomllib.loads(text), RECIPE, problems)
    except (ValueError, RecursionError) as error:
        problems.append(f"recipe.toml is not TOML ({error}): what was asked for is unknown.")
        return text, {}
