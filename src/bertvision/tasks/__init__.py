"""Tasks: what is asked of the logits. Targets, loss, how logits reduce to predictions, thresholds and metrics."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertvision.registry import TASKS
    from bertvision.tasks.base import Collector, Dataset, Task
    from bertvision.tasks.labels import Labels
    from bertvision.tasks.scores import Score
    from bertvision.tasks.spans import Spans
    from bertvision.tasks.tokens import Tokens

# Imported on first use: a reader that decodes spans needs no other task.
_PUBLIC = {
    "TASKS": "bertvision.registry",
    **dict.fromkeys(("Collector", "Dataset", "Task"), "bertvision.tasks.base"),
    "Labels": "bertvision.tasks.labels",
    "Score": "bertvision.tasks.scores",
    "Spans": "bertvision.tasks.spans",
    "Tokens": "bertvision.tasks.tokens",
}
__all__ = ["TASKS", "Collector", "Dataset", "Labels", "Score", "Spans", "Task", "Tokens"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bertvision.tasks' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
