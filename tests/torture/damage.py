"""Damaged files: every kind of file, in many ways, read by every command that reads it.

What is damaged: a finished run, runs that were killed half way, a store, readers, an exported reader, an encoder.
"""

import json
import os
import random
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bertvision.files import remove
from bertvision.train.run_dir import RunDir
from finished import finished_run
from runs import encoder
from torture.children import without_pages
from torture.kills import SCENES, half_done, whole, words_of
from torture.outcomes import Ended, Tally, command
from torture.same import difference, plain

# Nothing is built on these; .lock is Optuna's own.
OUTPUTS = ("report.html", "report.md", "figures", "log.jsonl", "README.md", "tensorboard", "optuna.jsonl.lock")
APPENDED = ("optuna.jsonl", "log.jsonl")  # written in place: a copy must not be a second name of the same file
ASK = ("ask", "who was the king", "--context", "the old king was born", "--json", "--reader")
RUN = "{place}/run"
FINISHED = {
    "report": ("report", RUN, "--json"),
    "evaluate": ("evaluate", RUN, "--json"),
    "ensemble": ("ensemble", RUN, "--json"),
    "analyze": ("analyze", RUN, "--json"),
    "reader": ("reader", RUN, "--out", "{place}/copy", "--json"),
    "study": ("study", "{place}/study.toml", "--out", RUN, "--json"),
}
HALF = {  # scene -> the file after which it was killed
    "stored": "heads-0.5.snapshot.safetensors",
    "lower stored": "finetune.snapshot.safetensors",
    "along": "finetune.snapshot.safetensors",
    "search": "search/trials.json",
}


@dataclass(frozen=True)
class Target:
    """What is damaged. whole: its directory; verbs: the commands that read it; scene: which run it is half of."""

    whole: Path
    verbs: dict[str, tuple[str, ...]]
    scene: str = ""


@cache
def targets(place: Path) -> dict[str, Target]:
    """Sound directories, by name."""
    base = place / "finished"
    run = Path(shutil.copytree(finished_run(), base / "run"))
    shutil.copy(run / "recipe.toml", base / "study.toml")
    for verb in ("study", "ensemble"):
        done = quick(*words_of(FINISHED[verb], base))
        assert done.code == 0, done.err
    exported = place / "exported"
    done = command("export", run / "reader", "--out", exported / "reader")
    assert done.code == 0, done.err
    shutil.copytree(encoder(), place / "encoder" / "encoder")
    shutil.copytree(run / "reader", place / "encoder" / "reader")
    own = {"ask": (*ASK, "{place}/reader", "--backbone", "{place}/encoder")}
    halves = {
        f"half of {name}": Target(half_done(name, until, place), {"study": SCENES[name].words}, name)
        for name, until in HALF.items()
    }
    return {
        "run": Target(base, FINISHED),
        "reader": Target(place / "encoder", {"ask": (*ASK, "{place}/reader")}),
        "exported": Target(exported, {"ask": (*ASK, "{place}/reader")}),
        "encoder": Target(place / "encoder", own),
        "tapped": Target(whole("tap", place)[0], {"tap": SCENES["tap"].words}, "tap"),
        **halves,
    }


def quick(*words: object) -> Ended:
    """A command that draws no pages."""
    with without_pages():
        return command(*words)


def copy_of(source: Path, place: Path) -> Path:
    """A copy whose files are links: the program replaces files and never changes them in place."""
    remove(place)
    return Path(
        shutil.copytree(
            source,
            place,
            copy_function=lambda one, other: (
                shutil.copy2(one, other) if Path(one).name in APPENDED else os.link(one, other)
            ),
        )
    )


@cache
def expected(target: str, verb: str, place: Path) -> Any:
    """What a command says of the undamaged directory."""
    sound = targets(place)[target]
    path = copy_of(sound.whole, place / "sound")
    done = quick(*words_of(sound.verbs[verb], path))
    assert done.code == 0, done.err
    return said(done, path)


def said(done: Ended, path: Path) -> Any:
    """The output of a command without times and places."""
    text = done.out.replace(str(path), "PLACE")
    try:
        return plain(json.loads(text))
    except ValueError:
        return text


@cache
def files_of(target: str, place: Path) -> dict[str, list[Path]]:
    """The files that can be damaged, by kind."""
    root, found = targets(place)[target].whole, dict[str, list[Path]]()
    for path in sorted(one.relative_to(root) for one in root.rglob("*") if one.is_file()):
        other = target in ("encoder", "reader") and path.parts[0] != target
        if not other and path.name != "study.toml" and not {path.name, *path.parts[1:2]} & {*OUTPUTS}:
            found.setdefault(kind_of(path), []).append(path)
    return found


def kind_of(path: Path) -> str:
    """The kind of a file, as in the table: `predictions.json`, `snapshot.safetensors`, `reader/config.json`."""
    if "predictions" in path.parts:
        return "logits.safetensors" if path.suffix == ".safetensors" else "predictions.json"
    if path.parent.name in ("reader", "encoder"):
        return f"{path.parent.name}/{path.name}"
    if path.suffix == ".bin" or path.name == "manifest.json":
        return f"store/{'shard' if path.suffix == '.bin' else 'manifest'}"
    if ".snapshot." in path.name:
        return "snapshot.safetensors"
    return f"{path.stem.partition('-')[0]}{path.suffix}"


def damage(path: Path, chance: random.Random) -> str:
    """Damages a file; says how."""
    content = path.read_bytes()
    path.unlink()  # it is a link
    ways = ["bit", "bit", "bits", "cut", "empty", "directory", "gone", "noise", "twice"]
    way = chance.choice(ways + ["value", "key", "edited value", "edited key"] * (path.suffix == ".json"))
    if way == "directory":
        path.mkdir()
    elif way.endswith(("value", "key")):
        table = json.loads(content)
        where = change(table, chance, remove_key=way.endswith("key"))
        text = json.dumps(table, ensure_ascii=False) + "\n"
        last = content.decode().rstrip("\n").rpartition("\n")[2]
        path.write_text(text if way.startswith("edited") else f"{text}{last}\n", encoding="utf-8")
        return f"{way} {where}"
    elif way != "gone":
        path.write_bytes(broken(content, way, chance))
    return way


def broken(content: bytes, way: str, chance: random.Random) -> bytes:
    changed = bytearray(content)
    if way in ("bit", "bits", "noise") and changed:
        for _ in range({"bit": 1, "bits": 8, "noise": 64}[way]):
            place = chance.randrange(len(changed))
            changed[place] ^= 1 << chance.randrange(8) if way != "noise" else chance.randrange(1, 256)
    elif way == "cut":
        del changed[chance.randrange(len(changed) or 1) :]
    elif way == "twice":
        changed += content
    else:
        changed.clear()
    return bytes(changed)


def change(table: Any, chance: random.Random, remove_key: bool) -> str:
    """Replaces or removes one value somewhere in nested plain values; its place."""
    where = ""
    while True:
        keys = list(table) if isinstance(table, dict) else list(range(len(table)))
        if not keys:
            return where
        key = chance.choice(keys)
        where += f".{key}"
        inner = table[key]
        if not (isinstance(inner, dict | list) and inner and chance.random() < 0.7):
            break
        table = inner
    if remove_key:
        del table[key]
    else:
        table[key] = chance.choice([None, True, -1, 10**400, 0.5, "", "x\0", [], {}, [1, "a"], {"a": [None]}, "../x"])
    return where


def attack(tally: Tally, place: Path, seed: int) -> None:
    """One damaged file, read by one command."""
    chance, names = random.Random(f"damage {seed}"), list(targets(place))
    name = chance.choice(names[:1] * 5 + names[1:])
    target, kinds = targets(place)[name], files_of(name, place)
    kind, verb = chance.choice(sorted(kinds)), chance.choice(sorted(target.verbs))
    wanted, path = expected(name, verb, place), chance.choice(kinds[kind])
    copy = copy_of(target.whole, place / "damaged")
    how = damage(copy / path, chance)
    left = (copy / path).read_bytes() if (copy / path).is_file() else None
    done = quick(*words_of(target.verbs[verb], copy))
    found = outcome(done, said(done, copy) == wanted, copy, path, how)
    if found == "same" and target.scene:
        now = (copy / path).read_bytes() if (copy / path).is_file() else None
        unread = now == left  # nothing has needed it, and whatever will need it refuses it
        differs = difference(copy, whole(target.scene, place)[0], but=str(path) if unread else "")
        if differs and how != "gone" and not how.startswith("edited"):
            found, done = "silent", Ended(0, differs, "")
        elif differs:
            found = "accepted"
    shown = done.error or done.err[-300:] or done.out[:100]
    tally.add("damaged file", kind, found, f"seed {seed}: {how} in {name}: {path}, `{verb}`: {shown}")


def outcome(done: Ended, same: bool, copy: Path, path: Path, how: str) -> str:
    if done.error:
        return "traceback"
    if done.code:
        return "refused" if done.is_refusal else "traceback"
    if same:
        return "same"
    if how.startswith("edited") or how == "gone":
        return "accepted"
    problems = RunDir(copy / "run").contents().problems if (copy / "run").is_dir() else []
    return "named" if any(path.name in problem for problem in problems) else "silent"
