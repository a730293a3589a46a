"""The registry of heads: a name in a recipe -> a class. A head maps States to logits and nothing more."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from torch import Tensor, nn

from bertvision.backbone.states import Reads, States
from bertvision.errors import UserError, nearest

TASKS = ("spans", "labels", "score")
REGISTRY: dict[str, type["Head"]] = {}


@dataclass(frozen=True)
class Limit:
    """What an option's value must satisfy beyond its type; `says` completes "must be ..."."""

    holds: Callable[[Any], bool]
    says: str


# The types options are declared with: checked when a recipe is read, long before a head is built.
Count = Annotated[int, Limit(lambda value: value >= 1, "at least 1")]
Odd = Annotated[int, Limit(lambda value: value >= 1 and value % 2 == 1, "an odd number, at least 1")]
Share = Annotated[float, Limit(lambda value: 0 <= value < 1, "at least 0 and below 1")]


class Head(nn.Module):
    """Base of all heads. A subclass declares its options as keyword-only arguments after (layers, width, outputs).

    layers, width: L and H of the states it will read. outputs: logits per token (spans: 2) or per example.
    reads: "all" layers, the "last" one, or the numbers of some, to be asked for by `states.layer(number)`; a source
    need not deliver more than the heads together read.
    tasks: the tasks the head can do; `column`: True if for labels and scores it needs the [CLS] column only.
    """

    kind: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = TASKS
    reads: Reads = "all"
    column: bool = True
    task: str

    @property
    def reads_cls(self) -> bool:
        """Whether it needs the states of [CLS] alone."""
        return self.task != "spans" and self.column

    def forward(self, states: States) -> Tensor:
        """States -> (batch, token, 2) for spans, (batch, outputs) for labels and scores."""
        raise TypeError(f"{type(self).__name__} must define forward(states)")

    def parameter_count(self) -> int:
        """Number of parameters, all of them trainable."""
        return sum(parameter.numel() for parameter in self.parameters())

    def layer_weights(self) -> Tensor | None:
        """How much the head takes from each layer: (L,), sum 1, none below 0. None if it learned no such weights."""
        return None

    def looks_at(self, states: States) -> Tensor:
        """All tokens for spans, (B, L, S, H); for labels and scores the [CLS] column, (B, L, 1, H)."""
        return states.layers if self.task == "spans" else states.layers[:, :, :1]

    def per_task(self, logits: Tensor) -> Tensor:
        """Logits of the tokens looked at, (B, S, outputs): all of them for spans, else those of [CLS], (B, outputs)."""
        return logits if self.task == "spans" else logits[:, 0]


def register(kind: str) -> Callable[[type[Head]], type[Head]]:
    """Class decorator: makes a head available in recipes under `kind`."""

    def add(cls: type[Head]) -> type[Head]:
        if kind in REGISTRY:
            raise ValueError(f"two heads are called {kind!r}")
        cls.kind = kind
        REGISTRY[kind] = cls
        return cls

    return add


def options(kind: str) -> dict[str, inspect.Parameter]:
    """The options of a head kind: its keyword-only arguments with plain type (int, bool, Literal ...) and default."""
    return {name: given.replace(annotation=_bare(given.annotation)) for name, given in _declared(kind).items()}


def limits(kind: str) -> dict[str, Limit]:
    """The limits of a head kind's options, for those that have one."""
    declared = {name: get_args(given.annotation)[1:] for name, given in _declared(kind).items() if _limited(given)}
    return {name: limit for name, (limit,) in declared.items()}


def check_spec(spec: Mapping[str, Any], where: str = "head") -> None:
    """Raises UserError, naming `where`, unless `spec` is {"kind": ..., option: value, ...}, all known and possible."""
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise UserError(f"{where}: a head needs a kind; there is: {', '.join(sorted(REGISTRY))}")
    kind = spec["kind"]
    if not isinstance(kind, str) or kind not in REGISTRY:
        raise UserError(f"{where}.kind: no head is called {kind!r}; {nearest(str(kind), REGISTRY)}")
    known, bounds = options(kind), limits(kind)
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in known:
            hint = nearest(str(name), known) if known else "it has no options"
            raise UserError(f"{where}.{name}: {kind!r} has no such option; {hint}")
        if not _fits(value, known[name].annotation):
            raise UserError(f"{where}.{name}: {value!r} is not {type_name(known[name].annotation)}")
        if name in bounds and not bounds[name].holds(value):
            raise UserError(f"{where}.{name}: must be {bounds[name].says}, not {value!r}")


class Impossible(UserError):
    """An option that cannot go with the task, the width or another option."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"head.{option}: {why}")
        self.option = option


def impossible(option: str, why: str) -> Impossible:
    """The error for an option that cannot go with the task, the width or another option; to be raised by a head."""
    return Impossible(option, why)


def build_head(spec: Mapping[str, Any], *, layers: int, width: int, task: str, outputs: int | None = None) -> Head:
    """A head from its recipe entry.

    outputs: number of classes for labels; spans always have 2 (start, end) and score 1.
    """
    check_spec(spec)
    if task not in TASKS:
        raise UserError(f"task: no task is called {task!r}; {nearest(task, TASKS)}")
    if layers < 1 or width < 1:
        raise UserError(f"head: layers ({layers}) and width ({width}) must be positive")
    cls = REGISTRY[spec["kind"]]
    if task not in cls.tasks:
        raise UserError(f"head {spec['kind']!r} cannot do task {task!r}; it does: {', '.join(cls.tasks)}")
    outputs = {"spans": 2, "score": 1}.get(task, 2 if outputs is None else outputs)
    if outputs < 1:
        raise UserError(f"head: outputs must be at least 1, not {outputs}")
    given = {name: value for name, value in spec.items() if name != "kind"}
    head = cls(layers, width, outputs, task=task, **given)
    head.task = task  # whether or not its class keeps it
    return head


def head_name(spec: Mapping[str, Any]) -> str:
    """A short readable name for a spec: `compress size=386 skip`, `pool`."""
    words = [str(spec["kind"])]
    for name, value in spec.items():
        if name != "kind" and value is not False:
            words.append(name if value is True else f"{name}={value}")
        elif value is False and options(spec["kind"])[name].default is True:
            words.append(f"{name}=false")
    return " ".join(words)


def type_name(annotation: Any) -> str:
    """An option's type in words: `a whole number`, `one of 'learned', 'mean'`."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, get_args(annotation)))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return words.get(annotation, str(annotation))


def _declared(kind: str) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(REGISTRY[kind].__init__, eval_str=True)
    return {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "task"}


def _limited(given: inspect.Parameter) -> bool:
    return get_origin(given.annotation) is Annotated


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _fits(value: object, annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return isinstance(value, str) and value in get_args(annotation)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)
