"""bertvision: fine-tuned quality for a fraction of the fine-tuning."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Imported on first use, so that `bertvision --help` does not wait for torch.
_PUBLIC = {
    "Backbone": "bertvision.backbone.backbone",
    "HeadBank": "bertvision.train.bank",
    "Reader": "bertvision.serve.reader",
    "States": "bertvision.backbone.states",
    "build_head": "bertvision.heads",
    "fit": "bertvision.auto.fit",
    "load_recipe": "bertvision.recipe",
}
__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bertvision' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
