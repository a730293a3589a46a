"""Readers made of a tiny random encoder and random heads, without training.

from readers import tiny_reader
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.tuning import Tuning, apply
from bertvision.evaluate.calibration import Calibration
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.heads import SPECS, build_head
from bertvision.serve.config import Cutting, Decoding, ReaderConfig, TaskConfig
from bertvision.serve.engines import TorchEngine
from bertvision.serve.reader import Reader
from devices import RUNTIME
from runs import encoder

LABELS = ("good", "bad", "neither")
WORD_LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def tiny_reader(
    task: str = "spans",
    heads: Sequence[dict[str, Any]] = ({"kind": "pool"},),
    *,
    family: str = "bert",
    how: Any = "max",
    tuning: Tuning | None = None,
    seed: int = 0,
    too_long: str = "",
    rule: str = "joint",
    threshold: float = 0.0,
    max_length: int = 48,
    calibration: Calibration | None = None,
) -> Reader:
    """A reader with one task. tuning: the encoder is tuned by it, that is, everything that trains is shaken."""
    backbone = Backbone.load(encoder(family))  # shaken where every device shakes it alike
    fingerprint = backbone.fingerprint
    torch.manual_seed(seed)
    if tuning:
        apply(backbone.model, tuning, seed)
        with torch.no_grad():
            for parameter in backbone.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn_like(parameter))
    outputs = {"spans": 2, "labels": len(LABELS), "score": 1, "tokens": len(WORD_LABELS)}[task]
    shape = {"layers": backbone.layers, "width": backbone.width, "task": task, "outputs": outputs}
    built = {f"{spec['kind']} {number}": build_head(spec, **shape) for number, spec in enumerate(heads)}
    with torch.no_grad():
        for head in built.values():
            for parameter in head.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    entries = {name: dict(spec) for name, spec in zip(built, heads)}
    config = TaskConfig(
        task,
        Ensemble(tuple(Member(name, 1, 1.0) for name in built), (), how),
        threshold,
        Decoding(rule=rule, answer_tokens=8),
        Cutting(max_length, 8, too_long or ("windows" if task in ("spans", "tokens") else "trim")),
        {"labels": LABELS, "tokens": WORD_LABELS}.get(task, ()),
        (0.0, 5.0) if task == "score" else (-1.0, 1.0),
        calibration,
    )
    backbone = Backbone(backbone.model, backbone.tokenizer, backbone.name, RUNTIME).eval()
    tasks = {task: config}
    reader = ReaderConfig(encoder(family), fingerprint, asdict(tuning) if tuning else {}, tasks)
    about = {task: {"entries": entries, "outputs": outputs, "specs": SPECS}}
    return Reader(
        reader, TorchEngine(backbone, {task: built}, tasks), about=about, card="# A tiny reader\n", name="tiny"
    )
