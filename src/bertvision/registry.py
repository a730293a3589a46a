"""Registries of heads, tasks and data sources: built in, from installed packages, or from a Python file of the user's.

A package offers its own by entry points of the groups `bertvision.heads`, `bertvision.tasks` and `bertvision.sources`;
they are imported when they are first used. A file is run only when the user names it (`--code FILE`).
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from bertvision.errors import UserError, nearest

T = TypeVar("T", bound=Callable[..., Any])


class Registry(MutableMapping[str, Any]):
    """Name in a recipe -> class or function. builtin: {name: "module:attribute"}, imported when first used."""

    def __init__(self, what: str, builtin: Mapping[str, str] | None = None) -> None:
        self.what, self.group, self.builtin = what, f"bertvision.{what}s", dict(builtin or {})
        self.added: dict[str, Any] = {}

    @cached_property
    def points(self) -> dict[str, EntryPoint]:
        """Importable objects by name; built-in ones take precedence over those of packages."""
        builtin = {name: EntryPoint(name, target, self.group) for name, target in self.builtin.items()}
        return {point.name: point for point in entry_points(group=self.group)} | builtin

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: makes a class or a function available under `name`."""

        def add(thing: T) -> T:
            existing = self.points.get(name)  # its own, where a module registers what is declared below
            if name in self.added or (existing and existing.value != f"{thing.__module__}:{thing.__qualname__}"):
                raise ValueError(f"two {self.what}s are called {name!r}")
            self.added[name] = thing
            return thing

        return add

    def named(self, name: object, key: str) -> Any:
        """The object registered as `name`; a UserError that begins with `key` if there is none."""
        if not isinstance(name, str) or name not in self:
            hint = f"{nearest(str(name), self)}; one of your own needs --code FILE"
            raise UserError(f"{key}: no {self.what} is called {name!r}; {hint}")
        return self[name]

    def __getitem__(self, name: str) -> Any:
        if name not in self.added:
            point = self.points[name]
            try:
                self.added[name] = point.load()
            except Exception as error:
                if name in self.builtin:
                    raise
                raise UserError(f"{self.what} {name!r}: {point.value} cannot be imported: {error}") from error
        return self.added[name]

    def __setitem__(self, name: str, thing: Any) -> None:
        self.added[name] = thing

    def __delitem__(self, name: str) -> None:
        del self.added[name]

    def __contains__(self, name: object) -> bool:
        return name in self.added or name in self.points

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.points, *self.added]))

    def __len__(self) -> int:
        return len(list(iter(self)))


HEADS = Registry(
    "head",
    {
        "last": "bertvision.heads.pool:Last",
        "pool": "bertvision.heads.pool:Pool",
        "probe": "bertvision.heads.pool:Probe",
        "compress": "bertvision.heads.compress:Compress",
        "conv": "bertvision.heads.conv:Conv",
        "attend": "bertvision.heads.attend:Attend",
        "cacnn": "bertvision.heads.cacnn:ContextCNN",
    },
)
TASKS = Registry(
    "task",
    {
        "spans": "bertvision.tasks.spans:Spans",
        "labels": "bertvision.tasks.labels:Labels",
        "score": "bertvision.tasks.scores:Score",
        "tokens": "bertvision.tasks.tokens:Tokens",
    },
)
SOURCES = Registry("source")


def load_code(path: str | Path) -> None:
    """Runs a Python file that registers heads, tasks or data sources. Only what the user names is ever run."""
    path = Path(path).resolve()
    name = f"bertvision_code_{path.stem}"
    if getattr(sys.modules.get(name), "__file__", "") == str(path):
        return
    spec = importlib.util.spec_from_file_location(name, path) if path.suffix == ".py" and path.is_file() else None
    if spec is None or spec.loader is None:
        raise UserError(f"--code {path}: there is no such Python file (.py)")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"--code {path}: {type(error).__name__}: {error}") from error
