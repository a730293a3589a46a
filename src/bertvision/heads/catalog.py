"""The catalogue of heads: what can be named in a recipe, with formulas, options and sizes."""

import inspect
from typing import Any, Literal, get_args, get_origin

import torch

from bertvision.errors import UserError, nearest
from bertvision.heads.registry import REGISTRY, TASKS, build_head, limits, options, type_name


def catalog(layers: int, width: int, task: str, outputs: int | None = None) -> list[dict[str, Any]]:
    """One entry per kind of head, in alphabetical order.

    Keys: kind; summary, the first paragraph of its description (the formula); description, all of it; tasks; reads;
    options, a list of {name, type, default, values, limit}, values None unless they are a choice, limit None unless
    there is one; parameters, its size at the defaults for this shape and task, None if the head cannot do the task.
    """
    if task not in TASKS:
        raise UserError(f"task: no task is called {task!r}; {nearest(task, TASKS)}")
    return [_entry(kind, layers, width, task, outputs) for kind in sorted(REGISTRY)]


def _entry(kind: str, layers: int, width: int, task: str, outputs: int | None) -> dict[str, Any]:
    head = REGISTRY[kind]
    description = inspect.getdoc(head) or ""
    parameters = None
    if task in head.tasks:
        with torch.device("meta"):  # shapes without numbers: a count costs neither time nor memory
            built = build_head({"kind": kind}, layers=layers, width=width, task=task, outputs=outputs)
        parameters = built.parameter_count()
    return {
        "kind": kind,
        "summary": " ".join(description.split("\n\n")[0].split()),
        "description": description,
        "tasks": list(head.tasks),
        "reads": head.reads,
        "options": [_option(kind, name) for name in options(kind)],
        "parameters": parameters,
    }


def _option(kind: str, name: str) -> dict[str, Any]:
    given, limit = options(kind)[name], limits(kind).get(name)
    choice = get_origin(given.annotation) is Literal
    return {
        "name": name,
        "type": type_name(given.annotation),
        "default": given.default,
        "values": list(get_args(given.annotation)) if choice else None,
        "limit": limit.says if limit else None,
    }
