"""TOML <-> frozen dataclasses: read, overlaid with settings, checked against the declared types, written back."""

import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from bertvision.errors import UserError, nearest

T = TypeVar("T")
LARGEST = 2**63 - 1  # the whole numbers that arrays and TOML itself can hold
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}


@dataclass(frozen=True, slots=True)
class Between:
    """A bound on a number, for Annotated fields: low <= value <= high."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        return f"at least {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"


def read(path: Path) -> dict[str, Any]:
    """The table in a recipe's file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe; see recipes/ for examples") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a recipe in TOML") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number of thousands of digits
        raise UserError(f"{path}: not a TOML file: {error}") from None


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


def _value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break must not smuggle in a second key


def _child(node: Any, name: str, setting: str) -> Any:
    child = node[_index(node, name, setting)] if isinstance(node, list) else node.setdefault(name, {})
    if not isinstance(child, dict | list):
        raise UserError(f"--set {setting}: {name!r} is not a table; set it as a whole")
    return child


def _index(entries: list, name: str, setting: str) -> int:
    if not name.isdecimal() or int(name) >= len(entries):
        raise UserError(f"--set {setting}: {name!r} is not the number of an entry; there are {len(entries)}, from 0 on")
    return int(name)


def build(cls: type[T], table: Any, where: str) -> T:
    """A dataclass from nested plain values, every key and value checked; errors begin with `where`."""
    return _build(cls, table, where, "", cls)


def _build(cls: Any, table: Any, where: str, prefix: str, root: type) -> Any:
    if not isinstance(table, Mapping):
        raise UserError(f"{where}: {prefix.rstrip('.')}: {_shown(table)} is not a table")
    hints = typing.get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"{where}: {prefix}{_key(key)}: unknown key; {_right_key(key, hints, root)}")
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(hints[key], value, where, f"{prefix}{key}.", root)
        else:
            values[key] = convert(value, hints[key], f"{where}: {prefix}{key}")
    return cls(**values)


def _right_key(wrong: str, here: Mapping[str, Any], root: type) -> str:
    """Where the key belongs if it is only in the wrong table, else the one here that it resembles."""
    elsewhere = [path for path in keys(root) if path.rpartition(".")[2] == wrong]
    return f"did you mean {' or '.join(map(repr, elsewhere))}?" if elsewhere else nearest(wrong, here)


def keys(cls: Any, prefix: str = "") -> Iterator[str]:
    """All keys of a dataclass and of those in it: `task`, `data.train`, ..."""
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from keys(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint` asks for (a whole number where a float is wanted, a list as a tuple), or UserError."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value, bounds = convert(value, args[0], where), args[1]
        if not bounds.low <= value <= bounds.high:
            raise UserError(f"{where}: {_shown(value)} must be {bounds}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"{where}: {_shown(value)} is not a list")
        return tuple(convert(item, args[0], f"{where}.{index}") for index, item in enumerate(value))
    if origin in (types.UnionType, typing.Union):
        return _convert_any(value, hint, where)
    if origin is Literal:
        if isinstance(value, str) and value in args:
            return value
        guess = f"; {nearest(value, args)}" if isinstance(value, str) else ""
        raise UserError(f"{where}: {_shown(value)} is not {type_name(hint)}{guess}")
    if isinstance(value, bool) is not (hint is bool) or not isinstance(value, (int, float) if hint is float else hint):
        raise UserError(f"{where}: {_shown(value)} is not {type_name(hint)}")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise UserError(f"{where}: {_shown(value)} is not a number that can be worked with")
    return float(value) if hint is float else value


def _convert_any(value: Any, hint: Any, where: str) -> Any:
    for option in get_args(hint):
        try:
            return convert(value, option, where)
        except UserError:
            continue
    raise UserError(f"{where}: {_shown(value)} is not {type_name(hint)}")


def type_name(hint: Any) -> str:
    """How a type is called in an error and in the documentation."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{type_name(args[0])} ({args[1]})"
    if origin is tuple:
        return f"a list, each {type_name(args[0])}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(option) for option in args)
    if origin is Literal:
        return repr(args[0]) if len(args) == 1 else "one of " + ", ".join(map(repr, args))
    return TYPE_NAMES.get(hint, str(hint))


def write(values: Any) -> str:
    """A dataclass as TOML, defaults included, that `build` makes an equal one from."""
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


def _shown(value: Any) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
