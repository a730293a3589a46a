"""The catalogue of heads: what can be named in a recipe, with formulas, options and sizes."""

import inspect
from typing import Any, Literal, get_args, get_origin

import torch

from bertvision.heads.base import LIMITS, Option, build_head, options
from bertvision.registry import HEADS, TASKS


def catalog(layers: int, width: int, task: str, outputs: int | None = None) -> list[dict[str, Any]]:
    """One entry per kind of head, in alphabetical order.

    Keys: kind; summary, the first paragraph of its description (the formula); description, all of it; tasks; reads;
    options, a list of {name, type, default, values, limit}, values None unless they are a choice, limit None unless
    there is one; parameters, its size at the defaults for this shape and task, None if the head cannot do the task.
    """
    TASKS.named(task, "task")
    return [_entry(kind, layers, width, task, outputs) for kind in sorted(HEADS)]


def _entry(kind: str, layers: int, width: int, task: str, outputs: int | None) -> dict[str, Any]:
    head = HEADS[kind]
    description = inspect.getdoc(head) or ""
    parameters = None
    tasks = [name for name in TASKS if not (head.needs_tokens and TASKS[name].reduce == "first")]
    if task in tasks:
        with torch.device("meta"):  # shapes without numbers: a count costs neither time nor memory
            built = build_head({"kind": kind}, layers=layers, width=width, task=task, outputs=outputs)
        parameters = built.parameter_count()
    return {
        "kind": kind,
        "summary": " ".join(description.split("\n\n")[0].split()),
        "description": description,
        "tasks": tasks,
        "reads": head.reads,
        "options": [_option(name, option) for name, option in options(kind).items()],
        "parameters": parameters,
    }


def _option(name: str, option: Option) -> dict[str, Any]:
    choice = get_origin(option.type) is Literal
    return {
        "name": name,
        "type": option.type_name,
        "default": option.default,
        "values": list(get_args(option.type)) if choice else None,
        "limit": LIMITS.get(option.hint),
    }
