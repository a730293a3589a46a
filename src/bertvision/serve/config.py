"""config.json of a reader: its backbone, and for every task the ensemble, threshold, decoding and windows."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from bertvision import __version__
from bertvision.errors import UserError
from bertvision.evaluate.calibration import Calibration
from bertvision.evaluate.ensemble import BACKBONE, Ensemble
from bertvision.schema import STRICT, Count, Number, Positive, validate

# In format 1 members of an ensemble were display names of heads; format 2 had no calibration, format 3 no exits,
# format 4 no pairs that are encoded apart and no labels of words.
FORMAT = 4
NEWEST = 5  # written where pairs are encoded apart, or words get labels
# Task -> method of a reader, route of the API.
VERBS = {"spans": "answer", "labels": "classify", "score": "similarity", "tokens": "entities"}
BYTES, SPECIAL = 4, 3  # about as many UTF-8 bytes to a token; tokens around a pair of texts


@dataclass(frozen=True, slots=True)
class Decoding:
    """How spans are read off the logits; see tasks/spans.py."""

    __pydantic_config__ = STRICT
    rule: Literal["joint", "independent"] = "joint"
    nbest: Positive = 20
    answer_tokens: Positive = 30


@dataclass(frozen=True, slots=True)
class Cutting:
    """How texts are cut to the encoder's length. too_long: cut into overlapping "windows", or "trim" to one.

    pairs: whether both texts of a pair are encoded together, in one window, or "apart", each as if it were alone.
    """

    __pydantic_config__ = STRICT
    max_length: Positive = 384
    overlap: Count = 128
    too_long: Literal["windows", "trim"] = "windows"
    pairs: Literal["together", "apart"] = "together"

    def __post_init__(self) -> None:
        if self.overlap >= self.max_length:
            raise UserError(f"{self.max_length} tokens of which {self.overlap} overlap leave no room for a text")

    def estimate(self, *texts: str) -> int:
        """About how many tokens a text, or a pair of texts, costs in all of its windows; without tokenizing."""
        *before, last = (len(text.encode("utf-8", "replace")) // BYTES + 1 for text in texts)
        fixed = min(sum(before) + SPECIAL, self.max_length)
        if self.too_long == "trim":
            return min(self.max_length, fixed + last)
        windows = math.ceil(last / max(1, self.max_length - fixed - self.overlap))
        return last + windows * fixed + (windows - 1) * self.overlap


@dataclass(frozen=True, slots=True)
class Exit:
    """A read-out below the last. head: its name. depth: of so many blocks. scale, shift: see serve/exits.py."""

    __pydantic_config__ = STRICT
    head: str
    depth: Positive
    scale: Number
    shift: Number


@dataclass(frozen=True, slots=True)
class ExitRule:
    """A window leaves where its prediction has the probability `sure`, or agree * sure if the read-out before says the
    same. loss: what it may lose on the tune set; score, blocks: the main metric there, and blocks per token."""

    __pydantic_config__ = STRICT
    loss: Number
    sure: Number
    agree: Number
    score: Number
    blocks: Number


@dataclass(frozen=True, slots=True)
class Exits:
    """Exits from the lowest up, and the rules to choose from. score, blocks: without leaving early."""

    __pydantic_config__ = STRICT
    heads: tuple[Exit, ...]
    rules: tuple[ExitRule, ...]
    score: Number
    blocks: Positive


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """One task of a reader. labels: of classes or of words, in order. scale: lowest and highest score.

    threshold: the answer is "no answer" where the null score exceeds the best span's score by more than this.
    calibration: how probable "no answer" is; None where that is not known, as in readers of format 2.
    """

    __pydantic_config__ = STRICT
    task: Literal["spans", "labels", "score", "tokens"]
    ensemble: Ensemble
    threshold: Number = 0.0
    decoding: Decoding = field(default_factory=Decoding)
    windows: Cutting = field(default_factory=Cutting)
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] = (-1.0, 1.0)
    calibration: Calibration | None = None
    exits: Exits | None = None

    def assuming(self, answerable: float) -> "TaskConfig":
        """For texts that hold the answer to this share of the questions: threshold and calibration move."""
        if self.calibration is None:
            raise UserError(
                "answerable: this reader does not know how probable its answers are; build it again with `bertvision "
                "reader`, or give a no-answer threshold"
            )
        moved = self.calibration.assuming(answerable)
        return replace(self, threshold=self.calibration.move(self.threshold, moved), calibration=moved)

    @property
    def verb(self) -> str:
        """The method of a reader that does this task: answer, classify, similarity or entities."""
        return VERBS[self.task]

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the ensemble's heads, in order."""
        return tuple(member.name for member in self.ensemble.members)

    @property
    def all_heads(self) -> tuple[str, ...]:
        """The same, and the names of the heads of its exits."""
        return tuple(dict.fromkeys([*self.heads, *(exit.head for exit in (self.exits.heads if self.exits else ()))]))


@dataclass(frozen=True, slots=True)
class _Encoder:
    __pydantic_config__ = STRICT
    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _File:
    """The outermost keys of config.json."""

    __pydantic_config__ = STRICT
    format: int
    version: str
    backbone: _Encoder
    tuning: dict[str, Any]
    tasks: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReaderConfig:
    """backbone, fingerprint: the untuned encoder. tuning: how it was tuned, empty if it was not."""

    backbone: str
    fingerprint: str
    tuning: dict[str, Any]
    tasks: dict[str, TaskConfig]
    version: str = __version__

    def to_json(self) -> dict[str, Any]:
        is_new = any(task.windows.pairs == "apart" or task.verb == "entities" for task in self.tasks.values())
        return {
            "format": NEWEST if is_new else FORMAT,
            "version": self.version,
            "backbone": {"name": self.backbone, "fingerprint": self.fingerprint},
            "tuning": self.tuning,
            "tasks": {name: _table(task) for name, task in self.tasks.items()},
        }

    @classmethod
    def from_json(cls, table: Any, where: str) -> "ReaderConfig":
        """Reads the result of `to_json`, in this format or an older one; errors begin with `where`."""
        if not isinstance(table, dict) or "format" not in table or not isinstance(table.get("tasks"), dict):
            raise UserError(f"{where}: not the configuration of a reader; `bertvision study RECIPE` leaves one")
        if table["format"] not in range(1, NEWEST + 1):
            made = table.get("version", "a newer version")
            raise UserError(
                f"{where}: format {table['format']} (made by bertvision {made}), this version reads {NEWEST}; upgrade"
            )
        if not table["tasks"]:
            raise UserError(f"{where}: tasks: there is none; copy or build the reader again")
        try:
            file = validate(_File, table, where)
            tasks = {
                name: validate(
                    TaskConfig, _upgraded(name, task) if file.format == 1 else task, f"{where}: tasks.{name}"
                )
                for name, task in file.tasks.items()
            }
        except UserError as error:
            raise UserError(f"{error}; copy or build the reader again") from None
        return cls(file.backbone.name, file.backbone.fingerprint, file.tuning, tasks, file.version)


def _table(task: TaskConfig) -> dict[str, Any]:
    """A task as it is written: as in format 4 where that says all."""
    table = asdict(task) | {"ensemble": task.ensemble.to_json()}
    if task.windows.pairs == "together":
        del table["windows"]["pairs"]
    return table


def _upgraded(name: str, task: Any) -> Any:
    """A task of format 1: members were display names of heads, and its kind could be left to its name."""
    if not isinstance(task, dict) or not isinstance(ensemble := task.get("ensemble"), dict):
        return task
    heads = ["" if member == BACKBONE else member for member in ensemble.get("members", ())]
    members = [{"head": head, "seed": 0, "epoch": 0.0} for head in heads]
    rest = {key: value for key, value in task.items() if key != "heads"}
    return {"task": name} | rest | {"ensemble": ensemble | {"members": members}}
