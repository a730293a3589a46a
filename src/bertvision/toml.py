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
        return tomllib.loads(_found(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; see recipes/ for examples") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a recipe in TOML") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits
        raise UserError(f"{path}: not a TOML file: {error}") from None


def _found(path: Path) -> Path:
    if not path.exists() and path.parent == Path("recipes"):
        return next((one for place in PACKAGED if (one := place / path.name).is_file()), path)
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
    both = {key: (table.get(key), value) for key, value in over.items()}
    laid = {
        key: merged(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new
        for key, (old, new) in both.items()
    }
    return {**table, **laid}


def differing_keys(one: Any, other: Any, but: Collection[str] = ()) -> list[str]:
    """The keys, such as finetune.epochs, in which two dataclasses differ. but: tables and keys that do not count."""
    keys, (a, b) = [], map(dataclasses.asdict, (one, other))
    for key in a:
        if key not in but and a[key] != b[key]:
            table = isinstance(a[key], dict)
            keys += [f"{key}.{sub}" for sub in a[key] if a[key][sub] != b[key][sub]] if table else [key]
    return [key for key in keys if key not in but]


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break must not add a second key


def _child(node: Any, name: str, setting: str) -> Any:
    child = node[_index(node, name, setting)] if isinstance(node, list) else node.setdefault(name, {})
    if not isinstance(child, dict | list):
        raise UserError(f"--set {setting}: {name!r} is not a table; set it as a whole")
    return child


def _index(entries: list, name: str, setting: str) -> int:
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
