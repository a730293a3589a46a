"""Kills: every stage of every feed, before any file operation or after any time; then the run goes on to its end.

What it leaves is compared with an undisturbed run, bit for bit.
"""

import random
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bertvision.files import SCRATCH, remove
from runs import tiny_recipe
from torture.children import Fate, Life, run
from torture.outcomes import Tally
from torture.same import difference

MOST = 8  # kills of one run
RUN = ("--out", "{place}/run", "--json")
STUDY = ("study", "{place}/study.toml", *RUN)
STORED = {"epochs": 2, "states": "stored", "patience": 3, "fractions": [1.0, 0.4]}
LOWER = {"epochs": 1, "train_layers": 1, "norms": "trained", "lower": "stored"}


@dataclass(frozen=True)
class Scene:
    """A command that is killed. tables: of its recipe. before: what ran undisturbed in the same place."""

    words: tuple[str, ...] = STUDY
    tables: dict[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    pages: bool = False


SCENES = {
    "after": Scene(tables={"bank": {"states": "live"}}),  # `auto` chooses by the speed of the machine and its room
    "along": Scene(tables={"bank": {"feed": "along"}}),
    "stored": Scene(tables={"bank": STORED}),
    "lower stored": Scene(tables={"finetune": LOWER, "bank": {"states": "stored"}}),
    "search": Scene(
        ("search", "{place}/study.toml", "--trials", "4", "--round", "2", *RUN), {"bank": {"states": "live"}}
    ),
    "tap": Scene(("tap", "{place}/study.toml", *RUN)),
    "reader": Scene(("reader", "{place}/run", "--out", "{place}/copy", "--json"), before=STUDY),
    "variants": Scene(
        tables={"bank": {"states": "live"}, "variants": [{"name": "a"}, {"name": "b", "finetune": {"train_layers": 1}}]}
    ),
    "report": Scene(pages=True, tables={"bank": {"states": "live"}, "heads": [{"kind": "pool"}]}),
}
ORDER = ["after", "along", "stored", "lower stored", "search", "tap"] * 3 + ["reader", "variants", "reader", "report"]


def words_of(template: tuple[str, ...], place: Path) -> tuple[str, ...]:
    return tuple(word.format(place=place) for word in template)


@cache
def begun(name: str, place: Path) -> Path:
    """What stands before a scene: a recipe and, where it needs one, a finished run."""
    scene, path = SCENES[name], place / f"begun-{name}"
    path.mkdir(parents=True)
    tiny_recipe(path / "study.toml", snapshot_seconds=0, **scene.tables)
    if scene.before:
        _finish(scene.before, path, scene.pages)
    return path


@cache
def whole(name: str, place: Path) -> tuple[Path, Life]:
    """An undisturbed run of a scene, and how it went."""
    path = _fresh(name, place, f"whole-{name}")
    return path, _finish(SCENES[name].words, path, SCENES[name].pages)


def _fresh(name: str, place: Path, where: str) -> Path:
    remove(place / where)
    return Path(shutil.copytree(begun(name, place), place / where))


def _finish(words: tuple[str, ...], path: Path, pages: bool) -> Life:
    life = run(words_of(words, path), Fate(path), pages=pages)
    assert life.ended.code == 0, life.ended
    return life


def stage_of(path: str) -> str:
    """The stage that an operation belongs to, by its path."""
    known = {
        ".states": "storing states",
        "run/states/": "storing states",
        "/search/": "trials",
        "finetune": "tuning",
        "checkpoint-": "tuning",
        "/heads-": "heads",
        "predictions": "scoring",
        "/scores-": "scoring",
        "/sets-": "scoring",
        "reader": "reader",
        "copy": "reader",
        "figures": "report",
        "report": "report",
    }
    return next((stage for part, stage in known.items() if part in path), "notes and tables")


def attack(tally: Tally, place: Path, seed: int) -> None:
    """A run that is killed up to eight times and then goes on to its end."""
    chance = random.Random(f"kills {seed}")
    name = ORDER[seed % len(ORDER)]
    scene, (right, calm) = SCENES[name], whole(name, place)
    path = _fresh(name, place, "killed")
    stages, wanted, bad = list[str](), chance.randint(1, MOST), ""
    left = 1.0  # of the file operations of an undisturbed run, roughly
    while len(stages) < wanted:
        life = run(words_of(scene.words, path), _fate(path, calm, left, chance), pages=scene.pages)
        if not life.killed:
            bad = life.ended.error or life.ended.err if life.ended.code else ""
            break
        stages.append(stage_of(life.operations[-1] if life.operations else ""))
        left = max(0.1, left - len(life.operations) / len(calm.operations))
    if not bad:
        last = run(words_of(scene.words, path), Fate(path), pages=scene.pages)
        bad = last.ended.error or last.ended.err if last.ended.code else ""
    outcome = "traceback" if bad else "silent" if (bad := difference(path, right) or _litter(path)) else "same"
    for stage in stages:
        tally.add("kill", f"{name}: {stage}", outcome, f"seed {seed}, {stages}: {bad}")


@cache
def half_done(name: str, until: str, place: Path) -> Path:
    """A run of a scene that was killed once a file whose path ends in `until` had been written."""
    _, calm = whole(name, place)
    path, written = _fresh(name, place, f"half-{name}-{until}"), calm.operations.index
    renamed = next(one for one in calm.operations if one.endswith(until) and "/." not in one)
    assert run(words_of(SCENES[name].words, path), Fate(path, operation=written(renamed) + 2)).killed
    assert list(path.rglob(f"*{until}")), until
    return path


def _fate(path: Path, calm: Life, left: float, chance: random.Random) -> Fate:
    """Three in four before a file operation, one at any time."""
    if chance.random() < 3 / 4:
        return Fate(path, operation=chance.randint(1, max(1, int(left * len(calm.operations)))))
    return Fate(path, seconds=chance.uniform(0.01, left * calm.seconds))


def _litter(path: Path) -> str:
    found = [str(one.relative_to(path)) for one in path.rglob("*") if SCRATCH.fullmatch(one.name)]
    return f"left behind: {found}" if found else ""
