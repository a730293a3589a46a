"""The registry of heads: a name in a recipe -> a class. A head maps States to logits and nothing more."""

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, get_args, get_origin

from torch import Tensor, nn

from bertvision.backbone.states import States
from bertvision.errors import UserError, nearest

TASKS = ("spans", "labels", "score")
REGISTRY: dict[str, type["Head"]] = {}


class Head(nn.Module):
    """Base of all heads. A subclass declares its options as keyword-only arguments after (layers, width, outputs).

    layers, width: L and H of the states it will read. outputs: logits per token (spans: 2) or per example.
    reads: "all" layers or the "last" one; a source need not deliver more than the heads together read.
    tasks: the tasks the head can do; `column`: True if for labels and scores it needs the [CLS] column only.
    """

    kind: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = TASKS
    reads: Literal["all", "last"] = "all"
    column: bool = True

    def forward(self, states: States) -> Tensor:
        """States -> (batch, token, 2) for spans, (batch, outputs) for labels and scores."""
        raise TypeError(f"{type(self).__name__} must define forward(states)")

    def parameter_count(self) -> int:
        """Number of parameters, all of them trainable."""
        return sum(parameter.numel() for parameter in self.parameters())


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
    """The options of a head kind: its keyword-only arguments with type and default."""
    signature = inspect.signature(REGISTRY[kind].__init__, eval_str=True)
    return {p.name: p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "task"}


def check_spec(spec: Mapping[str, Any], where: str = "head") -> None:
    """Raises UserError, naming `where`, unless `spec` is {"kind": ..., option: value, ...} with known, well-typed options."""
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise UserError(f"{where}: a head needs a kind; there is: {', '.join(sorted(REGISTRY))}")
    kind = spec["kind"]
    if kind not in REGISTRY:
        raise UserError(f"{where}.kind: no head is called {kind!r}; {nearest(str(kind), REGISTRY)}")
    known = options(kind)
    for name, value in spec.items():
        if name == "kind":
            continue
        if name not in known:
            hint = nearest(name, known) if known else "it has no options"
            raise UserError(f"{where}.{name}: {kind!r} has no such option; {hint}")
        if not _fits(value, known[name].annotation):
            wanted = typing.get_type_hints(REGISTRY[kind].__init__).get(name, known[name].annotation)
            raise UserError(f"{where}.{name}: {value!r} is not {_type_name(wanted)}")


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
    outputs = {"spans": 2, "score": 1}.get(task) or outputs or 2
    given = {name: value for name, value in spec.items() if name != "kind"}
    return cls(layers, width, outputs, task=task, **given)


def head_name(spec: Mapping[str, Any]) -> str:
    """A short readable name for a spec: `compress size=386 skip`, `pool`."""
    words = [str(spec["kind"])]
    for name, value in spec.items():
        if name != "kind" and value is not False:
            words.append(name if value is True else f"{name}={value}")
        elif value is False and options(spec["kind"])[name].default is True:
            words.append(f"{name}=false")
    return " ".join(words)


def _fits(value: object, annotation: Any) -> bool:
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(repr, get_args(annotation)))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}.get(annotation, str(annotation))
