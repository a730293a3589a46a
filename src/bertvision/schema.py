"""Checks plain values (TOML, JSON) against declared types: pydantic, strict, with errors that name the key."""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, get_type_hints

from annotated_types import Interval
from pydantic import ConfigDict, TypeAdapter, ValidationError

from bertvision.errors import UserError, nearest

STRICT = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)  # a dataclass's __pydantic_config__
LARGEST = 2**63 - 1  # the whole numbers that arrays and TOML can hold

Positive = Annotated[int, Interval(ge=1, le=LARGEST)]
Count = Annotated[int, Interval(ge=0, le=LARGEST)]
NonNegative = Annotated[float, Interval(ge=0, le=LARGEST)]
Number = Annotated[float, Interval(ge=-LARGEST, le=LARGEST)]
Share = Annotated[float, Interval(ge=0, le=1)]

# pydantic's kind of error -> what completes "must be ..."
WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a table",
    "dataclass_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "finite_number": "a finite number",
    "literal_error": "{expected}",  # 'linear', 'cosine' or 'constant'
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
}
UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
MISSING = ("missing", "missing_argument")


def validate(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type `hint`, a list as a tuple where one is declared; else UserError beginning with `where`."""
    try:
        return adapter(hint).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        raise UserError(_message(hint, value, where, error.errors(include_url=False))) from None


def refuse_nul(value: Any, where: str, key: str = "") -> None:
    """UserError if a text in nested plain values holds a NUL character, which no path may."""
    if isinstance(value, Mapping | list | tuple):
        for name, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            refuse_nul(part, where, f"{key}.{name}".lstrip("."))
    elif isinstance(value, str) and "\0" in value:
        raise UserError(f"{where}: {key}: holds a NUL character, which no path may; remove it")


@functools.cache
def adapter(hint: Any) -> TypeAdapter:
    """pydantic's validator of a type, built once."""
    return TypeAdapter(hint)


def keys(cls: Any, prefix: str = "") -> Iterator[str]:
    """All keys of a dataclass and of those in it: `task`, `data.train`, ..."""
    for name, hint in get_type_hints(cls).items():
        if is_dataclass(hint):
            yield from keys(hint, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def shown(value: Any) -> str:
    """A value as it may stand in a one-line message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _message(declared: Any, whole: Any, where: str, errors: list[Any]) -> str:
    """One line about the first key that is wrong; the alternatives of a union are joined by "or".

    declared: the type; whole: the value that does not fit it.
    """
    first, (path, value) = errors[0], _walk(whole, errors[0]["loc"])
    key = where + ("." if ": " in where else ": ") + ".".join(map(_quoted, path)) if path else where
    if first["type"] in MISSING:
        return f"{key}.{first['loc'][-1]}: missing"
    if first["type"] in UNKNOWN:
        return f"{key}: unknown key; {_right_key(declared, path)}"
    if first["type"] == "value_error":  # a check of the type's own
        return f"{key}: {first['ctx']['error']}"
    alternatives = [error for error in errors if _walk(whole, error["loc"])[0] == path]
    allowed = [WORDS.get(error["type"], error["msg"]).format_map(error.get("ctx", {})) for error in alternatives]
    choices = re.findall("'(.*?)'", " ".join(allowed)) if isinstance(value, str) else []
    hint = nearest(value, choices) if choices else ""
    suggestion = f"; {hint}" if hint.startswith("did you mean") else ""
    return f"{key}: must be {' or '.join(allowed)}, not {shown(value)}{suggestion}"


def _walk(value: Any, loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any]:
    """The part of pydantic's path that exists in `value`, and what is there; the rest names types of a union."""
    for depth, step in enumerate(loc):
        inside = isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
        if not (step in value if isinstance(value, Mapping) else inside):
            return loc[:depth], value
        value = value[step]
    return loc, value


def _right_key(hint: Any, path: tuple[str | int, ...]) -> str:
    """Where an unknown key belongs if it is only in the wrong table, else the key of this table that it resembles."""
    *parents, wrong = map(str, path)
    known = list(keys(hint)) if is_dataclass(hint) else []
    same_name = [key for key in known if key.rpartition(".")[2] == wrong]
    if same_name:
        return f"did you mean {' or '.join(map(repr, same_name))}?"
    prefix = "".join(f"{name}." for name in parents)
    return nearest(wrong, {key.removeprefix(prefix).partition(".")[0] for key in known if key.startswith(prefix)})


def _quoted(step: str | int) -> str:
    text = str(step)
    return text if re.fullmatch(r"[\w-]+", text, re.ASCII) else json.dumps(text, ensure_ascii=False)
