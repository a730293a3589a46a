"""The base class of heads, their options, and `build_head`. A head maps States to logits and knows no task."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
from annotated_types import Interval
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from torch import Tensor, nn
from torch.nn.functional import pad

from bertvision.backbone.states import POOLED, Reads, States, numbered
from bertvision.errors import TooLarge, UserError, nearest, one_line
from bertvision.recipe import HeadEntry, Recipe, head_spec
from bertvision.registry import HEADS, TASKS
from bertvision.schema import LARGEST, validate

Reduce = Literal["none", "first", "mean", "sum", "compare"]
LARGEST_SHAPE = 1_000_000  # layers, or width


def _odd(value: int) -> int:
    if value < 1 or value % 2 == 0:
        raise PydanticCustomError("odd", LIMITS[Odd])  # type: ignore[arg-type]
    return value


# Types of options with limits. They are checked when a recipe is read, before any head is built.
Count = Annotated[int, Interval(ge=1, le=LARGEST)]
Places = Annotated[int, Interval(ge=0, le=LARGEST)]
Odd = Annotated[int, AfterValidator(_odd)]
Share = Annotated[float, Interval(ge=0, lt=1)]
LIMITS: dict[Any, str] = {
    Count: "at least 1",
    Places: "at least 0",
    Odd: "an odd number, at least 1",
    Share: "at least 0 and below 1",
}
TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True)
class Option:
    """An option of a head kind. hint: its declared type. type: int, float, bool, str or a Literal."""

    hint: Any
    default: Any

    @property
    def type(self) -> Any:
        return get_args(self.hint)[0] if get_origin(self.hint) is Annotated else self.hint

    @property
    def type_name(self) -> str:
        """The type in words: `a whole number`, `one of 'learned', 'mean'`."""
        return TYPES.get(self.type) or "one of " + ", ".join(map(repr, get_args(self.type)))


# Keyword arguments of a head that are no options: the task decides them.
GIVEN = ("positions", "bias")
# May be given to any head, beside its options. reduce: to those of a task with one prediction per window.
COMMON: dict[str, Any] = {"reduce": Literal["first", "mean", "sum", "compare"], "depth": Count}


class Head(nn.Module):
    """Base of all heads: States -> one row of logits per position.

    A subclass has __init__(layers, width, outputs, *, options ...): L and H of the states it will read, logits per
    position, and its options as keyword-only arguments. It may also have the keyword arguments `positions`, "all" for
    neighbouring tokens or "cls" for [CLS] alone, and `bias`, False where positions compete with each other, so that a
    bias would shift all of them alike.

    reads: "all" layers, the "last" one, or the numbers of some; `states.layers` then holds these and no others, and
    `states.layer(number)` one of them. POOLED is the encoder's own pooler. A source need not deliver more than the
    heads together read.
    needs_tokens: whether the head makes no sense on [CLS] alone.
    reduce: how its rows become one prediction per window: not at all, [CLS] alone, mean or sum over real tokens, or one
    row that compares both texts of a pair that is encoded apart, see States.compared.
    above: layers of the encoder that it was built without, because of its `depth`.
    """

    kind: ClassVar[str]
    needs_tokens: ClassVar[bool] = False
    reads: Reads = "all"
    reduce: Reduce | None = None  # set by `build_head` unless the head did
    above: int = 0

    @classmethod
    def as_in_0_1(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A spec that version 0.1 saved, in today's words: where the default of an option has changed, it is named."""
        return dict(spec)

    @property
    def positions(self) -> Literal["all", "cls"]:
        """The positions it reads: all tokens, or [CLS] alone."""
        return "cls" if self.reduce == "first" else "all"

    def forward(self, states: States) -> Tensor:
        """States -> (batch, position, outputs)."""
        raise TypeError(f"{type(self).__name__} must define forward(states)")

    def logits(self, states: States) -> Tensor:
        """Logits as a task takes them: (batch, position, outputs), or (batch, outputs) where they are reduced.

        States may hold all tokens or, if that is all the head reads, only [CLS].
        """
        states = states.only(self.reads)
        if self.positions == "cls":
            return self(states.cls())[:, 0]
        if self.reduce == "compare":
            return self(states.compared())[:, 0]
        rows = self(states)
        if self.reduce not in ("mean", "sum"):
            return rows
        real = states.mask.unsqueeze(-1)  # (B, S, 1)
        total = rows.masked_fill(~real, 0).sum(dim=1)  # (B, outputs)
        return total / real.sum(dim=1) if self.reduce == "mean" else total

    def parameter_count(self) -> int:
        """How many numbers training sets: all parameters, and the means and variances that a batch norm keeps."""
        return sum(tensor.numel() for tensor in self.state_dict().values() if tensor.is_floating_point())

    def layer_weights(self) -> Tensor | None:
        """How much the head takes from each layer: (L,), sum 1, none below 0. None if it learned no such weights."""
        return None

    def encoder_weights(self) -> Tensor | None:
        """The same for all layers of the encoder, those above its `depth` too, which are 0."""
        own = self.layer_weights()
        return None if own is None else pad(own, (0, self.above))


def register(kind: str) -> Callable[[type[Head]], type[Head]]:
    """Class decorator: makes a head available in recipes under `kind`."""

    def add(cls: type[Head]) -> type[Head]:
        HEADS.register(kind)(cls)
        cls.kind = kind
        return cls

    return add


def options(kind: str) -> dict[str, Option]:
    """The options of a head kind: its keyword-only arguments, but for those that the task decides."""
    declared = inspect.signature(HEADS[kind].__init__, eval_str=True).parameters.values()
    keywords = [one for one in declared if one.kind is one.KEYWORD_ONLY and one.name not in GIVEN]
    return {one.name: Option(one.annotation, one.default) for one in keywords}


def check_spec(spec: Mapping[str, Any], where: str = "head") -> None:
    """Raises UserError, naming `where`, unless `spec` is {"kind": ..., option: value, ...}, all known and possible."""
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise UserError(f"{where}: a head needs a kind; there is: {', '.join(sorted(HEADS))}")
    kind = spec["kind"]
    HEADS.named(kind, f"{where}.kind")
    known = options(kind)
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in known and name not in COMMON:
            hint = nearest(str(name), known) if known else "it has no options"
            raise UserError(f"{where}.{name}: {kind!r} has no such option; {hint}")
        validate(known[name].hint if name in known else COMMON[name], value, f"{where}.{name}")


def check_heads(recipe: Recipe, where: str) -> None:
    """UserError, opened by `where`, unless every head of a recipe is possible there."""
    hints = get_type_hints(HeadEntry, include_extras=True)
    for index, entry in enumerate(recipe.heads):
        check_spec(head_spec(entry), f"{where}: heads.{index}")
        for key in entry.keys() & hints.keys():
            validate(hints[key], entry[key], f"{where}: heads.{index}.{key}")
    check_spec({"kind": joint} if isinstance(joint := recipe.finetune.head, str) else joint, f"{where}: finetune.head")
    _check_pairs(recipe, where)
    if recipe.search:
        from bertvision.heads.space import check_search

        check_search(recipe.search, sorted({str(entry["kind"]) for entry in recipe.heads}), where)


def _check_pairs(recipe: Recipe, where: str) -> None:
    """UserError, opened by `where`, where pairs encoded apart do not fit the task, the tuning or a head."""
    apart = recipe.data.pairs == "apart"
    if apart and recipe.task in ("spans", "tokens"):
        raise UserError(f"{where}: data.pairs: is for labels and scores of pairs of texts; leave it out")
    if apart and recipe.finetune.lower == "stored":
        raise UserError(f'{where}: data.pairs: "apart" needs finetune.lower = "live"')
    entries = {f"heads.{number}": entry for number, entry in enumerate(recipe.heads)}
    for key, entry in {"finetune.head": recipe.finetune.head, **entries}.items():
        if (head_spec(entry).get("reduce") == "compare") is not apart:
            both = 'data.pairs = "apart" and reduce = "compare"'
            raise UserError(f"{where}: {key}: {both} go together, for every head; give both or neither")


class Impossible(UserError):
    """An option that cannot go with the task, the width or another option; raised by a head."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"head.{option}: {why}")
        self.option = option


def build_head(spec: Mapping[str, Any], *, layers: int, width: int, task: str, outputs: int | None = None) -> Head:
    """A head from its recipe entry.

    outputs: logits per position, where the task does not fix them (spans: 2, score: 1); 2 by default.
    """
    check_spec(spec)
    serves = TASKS.named(task, "task")
    if layers < 1 or width < 1:
        raise UserError(f"head: layers ({layers}) and width ({width}) must be positive")
    cls = HEADS[spec["kind"]]
    reduce: Reduce = spec.get("reduce", serves.reduce)
    if serves.reduce == "none" and reduce != "none":
        raise Impossible("reduce", f"the task {task!r} takes the logits of every token; leave it out")
    single = reduce in ("first", "compare")  # row that the head reads
    if cls.needs_tokens and single:
        why = "cannot compare texts" if reduce == "compare" else f"cannot read [CLS] alone, as the task {task!r} does"
        hint = "take another kind" if reduce == "compare" else 'give reduce = "mean"'
        raise UserError(f"head {spec['kind']!r} {why}; {hint}")
    outputs = serves.outputs if isinstance(serves.outputs, int) else 2 if outputs is None else outputs
    if outputs < 1:
        raise UserError(f"head: outputs must be at least 1, not {outputs}")
    given = {"positions": "cls" if single else "all", "bias": not serves.positions_compete}
    wanted = inspect.signature(cls.__init__).parameters
    arguments = {name: value for name, value in given.items() if name in wanted}
    arguments |= {name: value for name, value in spec.items() if name != "kind" and name not in COMMON}
    depth = spec.get("depth", layers - 1)
    if depth >= layers:
        raise Impossible("depth", f"{depth} is too much: the encoder has {layers - 1} blocks")
    head = cls(depth + 1, 4 * width + 1 if reduce == "compare" else width, outputs, **arguments)
    if reduce == "compare" and head.reduce:
        raise Impossible("reduce", f"this {spec['kind']!r} reads every token, which a pair encoded apart does not have")
    head.reduce, head.above = head.reduce or reduce, layers - 1 - depth
    if head.above:
        head.reads = numbered(head.reads, depth + 1)
        if POOLED in head.reads:
            raise Impossible("depth", "the pooler is above the last block; leave out depth or pooled")
    return head


SPECS = 2  # noted beside saved specs; version 0.1 noted nothing


def head_size(
    spec: Mapping[str, Any], *, layers: int, width: int, task: str, outputs: int | None = None, key: str = "head"
) -> int:
    """Parameters of a head that is not built; TooLarge, naming `key`, if none could be."""
    if max(layers, width) > LARGEST_SHAPE:
        raise TooLarge(key, f"{layers:,} layers of width {width:,}")
    try:
        with torch.device("meta"):  # shapes without numbers: a count costs neither time nor memory
            return build_head(spec, layers=layers, width=width, task=task, outputs=outputs).parameter_count()
    except (RuntimeError, OverflowError, MemoryError) as error:
        raise TooLarge(key, one_line(error, 100)) from None


def saved_spec(spec: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from a file, meaning what it meant when it was saved. about: what was noted with it."""
    old = about.get("specs") != SPECS and spec["kind"] in HEADS
    return HEADS[spec["kind"]].as_in_0_1(spec) if old else dict(spec)


def head_name(spec: Mapping[str, Any]) -> str:
    """A short readable name for a spec: `compress size=386 skip`, `pool`."""
    words = [str(spec["kind"])]
    for name, value in spec.items():
        if name != "kind" and value is not False:
            words.append(name if value is True else f"{name}={value}")
        elif value is False and options(spec["kind"])[name].default is True:
            words.append(f"{name}=false")
    return " ".join(words)


# Floats made per slice, 8 MB. Half and double are as good; a whole batch at once is up to 1.4 times slower.
CACHE = 2**21


def eager_on_cpu(tensor: Tensor) -> bool:
    """Whether a CPU is about to work on `tensor`, rather than a GPU, or a graph being captured for export."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def in_slices(function: Callable[..., Tensor], floats: int, *inputs: Tensor) -> Tensor:
    """function(*inputs), a few examples at a time where that is faster, on a CPU.

    inputs: tensors with the batch in front, as `function` takes them. Its result has the batch in front too.
    floats: how many numbers `function` holds per example while it works.
    """
    examples = max(1, CACHE // floats)
    if not eager_on_cpu(inputs[0]) or inputs[0].shape[0] <= examples:
        return function(*inputs)
    return torch.cat([function(*part) for part in zip(*(tensor.split(examples) for tensor in inputs), strict=True)])
