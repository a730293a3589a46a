"""Tasks: what is asked of the logits. Targets, loss, how logits reduce to predictions, thresholds and metrics."""

from bertvision.registry import TASKS
from bertvision.tasks.base import Collector, Dataset, Task
from bertvision.tasks.labels import Labels
from bertvision.tasks.scores import Score
from bertvision.tasks.spans import Spans
from bertvision.tasks.tokens import Tokens

__all__ = ["TASKS", "Collector", "Dataset", "Labels", "Score", "Spans", "Task", "Tokens"]
