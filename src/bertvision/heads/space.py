"""The search space of a head: the possible values of every option and of every key of its training."""

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from bertvision.errors import UserError, nearest
from bertvision.heads.head import Impossible, Odd, Option, Places, Share, check_spec, options
from bertvision.recipe import HeadEntry
from bertvision.schema import Number, validate

TRAINING = {
    key: hint for key, hint in typing.get_type_hints(HeadEntry, include_extras=True).items() if key != "name"
}  # what can be varied in any head beside its options
TABLE = ("key", "values", "low", "high", "log")
SIZES = 16, 512  # of which an option takes what is not out of all proportion to its default:
TIMES = 4  # a fourth of it to four times it
KERNELS = 1, 3, 5, 7
RATES = 1e-4, 1e-2
MOST_DROPOUT = 0.5


@dataclass(frozen=True, slots=True)
class Choices:
    """One of several values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        return any(type(value) is type(possible) and value == possible for possible in self.values)


@dataclass(frozen=True, slots=True)
class Range:
    """A number from low to high, both included; log: evenly over powers; whole: only whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def holds(self, value: Any) -> bool:
        return not isinstance(value, bool | str) and self.low <= value <= self.high

    def widened(self, values: Sequence[Any]) -> "Range":
        """The same, but as wide as these values ask for."""
        fitting = [value for value in values if value > 0 or not self.log]
        return Range(min([self.low, *fitting]), max([self.high, *fitting]), self.log, self.whole)


Space = dict[str, Choices | Range]


def head_space(kind: str, tables: Sequence[Mapping[str, Any]], in_recipe: Mapping[str, Sequence[Any]]) -> Space:
    """The search space of a kind of head: key -> its values.

    tables: the recipe's `search`; where there are none, the learning rate and every option. in_recipe: values that
    heads of this kind have in the recipe, by key: a range that is not the user's own is wide enough for them.
    """
    if tables:
        own_tables = [table for table in tables if table["key"] in TRAINING or table["key"] in options(kind)]
        return {table["key"]: _from_table(kind, table) for table in own_tables}
    defaults = {"learning_rate": Range(*RATES, log=True)} | {
        name: _default_values(option) for name, option in options(kind).items()
    }
    return {
        key: values.widened(in_recipe.get(key, ())) if isinstance(values, Range) else values
        for key, values in defaults.items()
        if values is not None
    }


def fitting_options(
    base: Mapping[str, Any], drawn: Mapping[str, Any], build: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Those of the options drawn for a head that go together: one that `build` refuses stays as it is in `base`.

    If what it refuses was not drawn, the last of those drawn gives way.
    """
    kept = dict(drawn)
    while True:
        try:
            build({**base, **kept})
            return kept
        except Impossible as refused:
            if not kept:
                raise
            kept.pop(refused.option if refused.option in kept else [*kept][-1])


def check_search(tables: Sequence[Mapping[str, Any]], kinds: Sequence[str], where: str) -> None:
    """UserError, naming search.N, unless these tables can be searched with heads of these kinds."""
    seen: set[str] = set()
    for number, table in enumerate(tables):
        entry = f"{where}: search.{number}"
        for name in table:
            if name not in TABLE:
                raise UserError(f"{entry}.{name}: unknown key; {nearest(str(name), TABLE)}")
        key = table.get("key")
        if not isinstance(key, str):
            raise UserError(f"{entry}.key: name what is to be varied, for example learning_rate")
        having = [kind for kind in kinds if key in TRAINING or key in options(kind)]
        if not having:
            offered = {name for kind in kinds for name in options(kind)} | set(TRAINING)
            raise UserError(f"{entry}.key: no head of this recipe has {key!r}; {nearest(key, offered)}")
        if key in seen:
            raise UserError(f"{entry}.key: {key!r} is there twice; join them")
        seen.add(key)
        if ("values" in table) == ("low" in table or "high" in table):
            raise UserError(f"{entry}: give {key} either values, or low and high")
        if "values" in table:
            _check_values(table, having, entry)
        else:
            _check_range(table, having, entry)


def _check_values(table: Mapping[str, Any], kinds: Sequence[str], where: str) -> None:
    values = table["values"]
    if not isinstance(values, list | tuple) or not values:
        raise UserError(f"{where}.values: a list of at least one value")
    if any(value in values[:index] for index, value in enumerate(values)):
        raise UserError(f"{where}.values: give each once")
    if "log" in table:
        raise UserError(f"{where}.log: is for low and high, not for values")
    for value in values:
        _check_value(table["key"], value, kinds, f"{where}.values")


def _check_range(table: Mapping[str, Any], kinds: Sequence[str], where: str) -> None:
    key = table["key"]
    for kind in kinds:
        option = options(kind).get(key)
        if option is not None and (option.type not in (int, float) or option.hint == Odd):
            raise UserError(f"{where}.key: {key!r} has no low and high; give it values")
    for end in ("low", "high"):
        if end not in table:
            raise UserError(f"{where}.{end}: is missing")
        validate(Number, table[end], f"{where}.{end}")
        _check_value(key, table[end], kinds, f"{where}.{end}")
    if table["low"] >= table["high"]:
        raise UserError(f"{where}.low: {table['low']!r} must be less than high, {table['high']!r}")
    if validate(bool, table.get("log", False), f"{where}.log") and table["low"] <= 0:
        raise UserError(f"{where}.low: must be more than 0 with log = true")


def _check_value(key: str, value: Any, kinds: Sequence[str], where: str) -> None:
    if key in TRAINING:
        validate(TRAINING[key], value, where)
        return
    for kind in kinds:
        check_spec({"kind": kind, key: value}, where)


def _from_table(kind: str, table: Mapping[str, Any]) -> Choices | Range:
    """As a table of the recipe says."""
    key = table["key"]
    number = float if key in TRAINING else options(kind)[key].type
    if "values" in table:
        return Choices(tuple(float(value) if number is float else value for value in table["values"]))
    return Range(table["low"], table["high"], table.get("log", False), whole=number is int)


def _default_values(option: Option) -> Choices | Range | None:
    """The values worth trying, from how a head declares the option; None if it cannot be known from that."""
    if get_origin(option.type) is Literal:
        return Choices(get_args(option.type))
    if option.type is bool:
        return Choices((False, True))
    if option.hint == Odd:
        return Choices(KERNELS)
    if option.hint == Share:
        return Range(0.0, MOST_DROPOUT)
    if option.type is not int or option.hint == Places:  # places follow from the length of the texts
        return None
    low, high = min(SIZES[0], max(1, option.default // TIMES)), min(SIZES[1], option.default * TIMES)
    return Range(low, high, log=True, whole=True).widened([option.default])
