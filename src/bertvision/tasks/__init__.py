"""Tasks: what is asked of the logits. Targets, loss, how logits reduce to predictions, thresholds and metrics."""

from bertvision.tasks.labels import Labels
from bertvision.tasks.protocol import Collector, Dataset, Task
from bertvision.tasks.score import Score
from bertvision.tasks.spans import Spans

TASKS: dict[str, type[Task]] = {"spans": Spans, "labels": Labels, "score": Score}

__all__ = ["TASKS", "Collector", "Dataset", "Labels", "Score", "Spans", "Task"]
