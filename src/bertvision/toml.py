"""TOML files: read, overlaid with settings, written back."""

import dataclasses
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bertvision.errors import UserError

HERE = Path(__file__).parent
PACKAGED = (HERE / "recipes", HERE.parents[1] / "recipes")  # of an installed package, and of the source tree


def read(path: Path) -> dict[str, Any]:
    """The table in a recipe's file; `recipes/NAME.toml` is one of the package where there is no such file."""
    try:
        return tomllib.loads(_resolve(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; see recipes/ for examples") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a recipe in TOML") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits
        raise UserError(f"{path}: not a TOML file: {error}") from None


def _resolve(path: Path) -> Path:
    """The path; for a missing `recipes/NAME.toml`, that of the package's recipe of this name, if it has one."""
    if not path.exists() and path.parent == Path("recipes"):
        candidates = [directory / path.name for directory in PACKAGED]
        return next((candidate for candidate in candidates if candidate.is_file()), path)
    return path


def lay_over(table: dict[str, Any], setting: str) -> None:
    """Changes one value of `table` in place. setting: `a.b=value` or `a.0.b=value`; a bare word is a string."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {setting}: write it as key=value, for example finetune.epochs=0.5")
    *parents, last = (name.strip() for name in key.split("."))
    node: Any = table
    for name in parents:
        node = _child(node, name, setting)
    node[_index(node, last, setting) if isinstance(node, list) else last] = _value(text)


def merged(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with `over` laid over it: tables key by key, anything else takes the place of what was there."""
    result = dict(table)
    for key, value in over.items():
        both_tables = isinstance(value, Mapping) and isinstance(table.get(key), Mapping)
        result[key] = merged(table[key], value) if both_tables else value
    return result


def differing_keys(first: Any, second: Any, but: Collection[str] = ()) -> list[str]:
    """The keys, such as finetune.epochs, in which two dataclasses differ. but: tables and keys that do not count."""
    keys, other = [], dataclasses.asdict(second)
    for key, value in dataclasses.asdict(first).items():
        if key in but or value == other[key]:
            continue
        if isinstance(value, dict):
            keys += [f"{key}.{name}" for name in value if value[name] != other[key][name]]
        else:
            keys.append(key)
    return [key for key in keys if key not in but]


def _value(text: str) -> Any:
    """A value written as in TOML; a text that is none stands for itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break must not add a second key


def _child(node: Any, name: str, setting: str) -> Any:
    """The table or list called `name` in a table or list; a missing table is made."""
    child = node[_index(node, name, setting)] if isinstance(node, list) else node.setdefault(name, {})
    if not isinstance(child, dict | list):
        raise UserError(f"--set {setting}: {name!r} is not a table; set it as a whole")
    return child


def _index(entries: list, name: str, setting: str) -> int:
    """The number of an entry, from text."""
    if not name.isdecimal() or len(name) > 9 or int(name) >= len(entries):
        raise UserError(
            f"--set {setting[:100]}: {name[:20]!r} is not the number of an entry; there are {len(entries)}, from 0 on"
        )
    return int(name)


def write(values: Any) -> str:
    """A dataclass as TOML, defaults included, that reads back to an equal one."""
    plain, tables, arrays = [], [], []
    for key, value in dataclasses.asdict(values).items():
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *_lines(value)]
        elif isinstance(value, tuple) and value and isinstance(value[0], dict):
            for entry in value:
                arrays += ["", f"[[{key}]]", *_lines(entry)]
        else:
            plain += _lines({key: value})
    return "\n".join([*plain, *tables, *arrays]) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {literal(value)}" for name, value in table.items()]


def literal(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)
