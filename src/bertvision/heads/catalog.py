"""The catalogue of heads with formulas, options and sizes; parameter counts of encoders, tuning plans and heads."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from bertvision.backbone.plan import Plan, Tuning, known_plan, known_shape
from bertvision.errors import TooLarge, one_line
from bertvision.heads.head import LIMITS, Option, head_size, options
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
        parameters = head_size({"kind": kind}, layers=layers, width=width, task=task, outputs=outputs)
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


def parameter_table(
    backbone: str,
    tuning: Tuning | None = None,
    head_spec: Mapping[str, Any] | None = None,
    task: str = "spans",
    outputs: int | None = None,
) -> dict[str, Any]:
    """Parameters of an encoder under a tuning plan, with a head on top.

    backbone: a name of known shape or a local directory. tuning: None = everything trains. head_spec: None = no head.
    `total` is backbone + added (adapters, LoRA) + head; `trainable` is what of it trains, the head always does.
    `head_percent` compares the head, as the papers do, with the encoder and its own read-out (`backbone_with_readout`).
    """
    if head_spec is not None and head_spec.get("pooled"):
        tuning = replace(tuning or Tuning(), pooler=True)
    layers, size, plan = encoder_counts(backbone, tuning)
    specs = [{"kind": "last"}, *([] if head_spec is None else [head_spec])]
    shape: dict[str, Any] = {"layers": layers, "width": size, "task": task, "outputs": outputs}
    readout, head = [*(head_size(spec, **shape) for spec in specs), 0][:2]
    total, trainable = plan.base + plan.added + head, plan.trainable + head
    return {
        "backbone": backbone,
        "layers": layers,
        "width": size,
        "backbone_total": plan.base,
        "backbone_with_readout": plan.base + readout,
        "added": plan.added,
        "head": head,
        "head_percent": 100 * head / (plan.base + readout),
        "total": total,
        "trainable": trainable,
        "percent_trainable": 100 * trainable / total,
    }


def encoder_counts(backbone: str, tuning: Tuning | None = None) -> tuple[int, int, Plan]:
    """Layers, width and plan of an encoder: from known numbers, else by building it without weights."""
    tuning = tuning or Tuning()
    if (shape := known_shape(backbone)) and not (tuning.lora or tuning.pooler or tuning.biases or tuning.depth):
        return shape["blocks"] + 1, shape["width"], known_plan(shape, tuning)
    from bertvision.backbone.anatomy import layer_count, width
    from bertvision.backbone.loading import empty_model
    from bertvision.backbone.tuning import apply

    model = empty_model(backbone)
    try:
        return layer_count(model), width(model), apply(model, tuning)
    except RuntimeError as error:
        raise TooLarge("adapters or lora", one_line(error, 100)) from None
