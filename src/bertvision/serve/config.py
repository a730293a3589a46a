"""config.json of a reader: which backbone it stands on, and for every task its heads, ensemble, threshold, decoding."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from bertvision import __version__
from bertvision.errors import UserError, nearest
from bertvision.evaluate.ensemble import HOWS, How
from bertvision.tasks.decode import RULES

FORMAT = 1
KINDS = ("spans", "labels", "score")
TOO_LONG = ("windows", "trim")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How spans are read off the logits; see evaluate/decode.py."""

    rule: str = "joint"
    nbest: int = 20
    answer_tokens: int = 30

    def __post_init__(self) -> None:
        _check_choice("rule", self.rule, RULES)
        for key, value in (("nbest", self.nbest), ("answer_tokens", self.answer_tokens)):
            if value < 1:
                raise UserError(f"{key}: {value} is below 1")


@dataclass(frozen=True, slots=True)
class Cutting:
    """How texts are cut to the encoder's length. too_long: cut into overlapping "windows", or "trim" to one."""

    max_length: int = 384
    overlap: int = 128
    too_long: str = "windows"

    def __post_init__(self) -> None:
        _check_choice("too_long", self.too_long, TOO_LONG)
        if not 0 <= self.overlap < self.max_length:
            raise UserError(f"max_length: {self.max_length} tokens that share {self.overlap} leave no room for a text")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The heads that decide together, their weights, and how their probabilities are joined: max, mean or product."""

    how: How
    members: tuple[str, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, members: Sequence[str], how: How = "max", weights: Sequence[float] = ()) -> "Ensemble":
        """With equal weights unless they are given. UserError unless the heads can decide together like this."""
        weights = tuple(weights) or (1.0 / max(1, len(members)),) * len(members)
        if not members or how not in HOWS or len(weights) != len(members) or min(weights) <= 0:
            raise UserError(f"ensemble: {how} of {list(members)} with weights {list(weights)} is impossible")
        return cls(how, tuple(members), weights)


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """One thing a reader can do. task: spans, labels or score; labels: the names of the classes, in order; scale: the
    range of the scores, lowest and highest.

    threshold: "no answer" is said where the null score exceeds the best span's by more than this.
    """

    task: str
    heads: tuple[str, ...]
    ensemble: Ensemble
    threshold: float = 0.0
    decoding: Decoding = field(default_factory=Decoding)
    windows: Cutting = field(default_factory=Cutting)
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _check_choice("task", self.task, KINDS)
        for member in self.ensemble.members:
            if member not in self.heads:
                raise UserError(f"ensemble.members: {member!r} is not among its heads")
        if not math.isfinite(self.threshold):
            raise UserError(f"threshold: {self.threshold} is no finite number")


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """backbone, fingerprint: the untuned encoder. tuning: the plan it was tuned by, empty if it was not."""

    backbone: str
    fingerprint: str
    tuning: dict[str, Any]
    tasks: dict[str, TaskConfig]
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": self.version,
            "backbone": {"name": self.backbone, "fingerprint": self.fingerprint},
            "tuning": self.tuning,
            "tasks": {name: asdict(one) for name, one in self.tasks.items()},
        }

    @classmethod
    def from_json(cls, table: Any, where: str) -> "ReaderConfig":
        """What `to_json` gave, checked; errors begin with `where`."""
        if not isinstance(table, dict) or "format" not in table or not isinstance(table.get("tasks"), dict):
            raise UserError(f"{where}: not the configuration of a reader; `bertvision study RECIPE` leaves one")
        if not isinstance(table["format"], int) or table["format"] > FORMAT:
            made = table.get("version", "a newer version")
            raise UserError(
                f"{where}: format {table['format']} (made by bertvision {made}), this version reads {FORMAT}; upgrade"
            )
        try:
            _check_keys(table, ("format", "version", "backbone", "tuning", "tasks"))
            with _within("backbone"):
                _check_keys(table["backbone"], ("name", "fingerprint"))
            backbone, fingerprint = str(table["backbone"]["name"]), str(table["backbone"]["fingerprint"])
            tasks = {str(name): _task(name, one) for name, one in table["tasks"].items()}
            if not tasks:
                raise UserError("tasks: there is none")
            return cls(backbone, fingerprint, dict(table["tuning"] or {}), tasks, str(table["version"]))
        except UserError as error:
            raise UserError(f"{where}: {error}; copy or build the reader again") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{where}: damaged ({type(error).__name__} {error}); copy or build the reader again"
            ) from None


def _task(name: str, table: Mapping[str, Any]) -> TaskConfig:
    with _within(f"tasks.{name}"):
        _check_keys(table, (one.name for one in fields(TaskConfig)))
        with _within("ensemble"):
            _check_keys(table["ensemble"], (one.name for one in fields(Ensemble)))
        joined = table["ensemble"]
        low, high = map(float, table.get("scale", (-1, 1)))
        return TaskConfig(
            str(table.get("task", name)),
            tuple(map(str, table["heads"])),
            Ensemble.of([*map(str, joined["members"])], joined["how"], [*map(float, joined.get("weights", ()))]),
            float(table.get("threshold", 0.0)),
            _plain(Decoding, "decoding", table.get("decoding", {})),
            _plain(Cutting, "windows", table["windows"]),
            tuple(map(str, table.get("labels", ()))),
            (low, high),
        )


def _plain(cls: type, key: str, table: Mapping[str, Any]) -> Any:
    """An instance of a dataclass of plain values; a value of another type than its default's is a TypeError."""
    with _within(key):
        _check_keys(table, (one.name for one in fields(cls)))
        given = {one.name: table.get(one.name, one.default) for one in fields(cls)}
        for one in fields(cls):
            if type(given[one.name]) is not type(one.default):
                raise TypeError(f"{one.name} = {given[one.name]!r}")
        return cls(**given)


def _check_keys(table: Mapping[str, Any], known: Iterable[str]) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise UserError(f"{key}: there is no such key; {nearest(key, known)}")


def _check_choice(key: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise UserError(f"{key}: {value!r} is none of {', '.join(choices)}")


@contextmanager
def _within(key: str) -> Iterator[None]:
    """What is wrong inside is said to be under `key`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{key}.{error}") from None
