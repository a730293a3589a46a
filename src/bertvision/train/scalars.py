"""Curves for TensorBoard: event files with the loss and the learning rate of every learner, speed, and scores."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError

PAUSE = 0.5  # seconds between two points of a curve: a point costs a fraction of a millisecond


class Scalars:
    """Event files under `directory`, one folder per stage of a run; `tensorboard --logdir` shows them.

    A stage that goes on after a kill goes on in its curves: points past the step it went back to are taken back.
    """

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                'TensorBoard is not installed; `pip install "bertvision[tensorboard]"`, or leave out --tensorboard'
            ) from None
        self.directory, self._make = directory, SummaryWriter
        self._writer: Any = None  # of the stage under way
        self._stage, self._written = "", 0.0

    def learning(self, stage: str, status: Mapping[str, Any], rate: float, last: bool) -> None:
        """A step of a stage: status has `step`, and by learner `loss` and `learning_rate`; rate: tokens per second."""
        now = time.monotonic()
        if "step" not in status or (stage == self._stage and now - self._written < PAUSE and not last):
            return
        self._written = now
        curves = {f"{what}/{name}": v for what in ("loss", "learning_rate") for name, v in status[what].items()}
        self._add(stage, status["step"], curves | {"tokens per second": rate})

    def scores(self, seed: int, epoch: float, rows: Iterable[Mapping[str, Any]], metrics: Sequence[str]) -> None:
        """The scores of a checkpoint, at the thresholds chosen on tune; steps are hundredths of an epoch."""
        main = [row for row in rows if row["threshold_from"] != "zero"]
        values = {f"{metric}/{row['member']}": row[metric] for metric in metrics for row in main}
        self._add(f"scores, seed {seed}", round(100 * epoch), values)
        self.close()

    def close(self) -> None:
        """Ends the curves of a stage; what was added is on the disk then."""
        if self._writer is not None:
            self._writer.close()
        self._stage, self._writer = "", None

    def _add(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        if stage != self._stage:
            self.close()
            folder = self.directory / re.sub(r"[^\w.]+", "-", stage)
            self._stage, self._writer = stage, self._make(str(folder), purge_step=step)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
