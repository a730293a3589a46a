"""Exact parameter counts of any encoder, tuning plan and head, without weights."""

from collections.abc import Mapping
from typing import Any

import torch

from bertvision.backbone.plan import Plan, Tuning, known_plan, known_shape
from bertvision.heads import build_head


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
    layers, size, plan = encoder_counts(backbone, tuning)
    with torch.random.fork_rng(devices=[]):  # counting leaves no trace in the random numbers
        readout = build_head({"kind": "last"}, layers=layers, width=size, task=task, outputs=outputs).parameter_count()
        head = 0
        if head_spec is not None:
            head = build_head(head_spec, layers=layers, width=size, task=task, outputs=outputs).parameter_count()
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
    if (shape := known_shape(backbone)) and not tuning.lora:
        return shape["blocks"] + 1, shape["width"], known_plan(shape, tuning)
    from bertvision.backbone.anatomy import layer_count, width
    from bertvision.backbone.shapes import empty_model
    from bertvision.backbone.tuning import apply

    model = empty_model(backbone)
    return layer_count(model), width(model), apply(model, tuning)
