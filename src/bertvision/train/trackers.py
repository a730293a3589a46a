"""Curves of a run, for TensorBoard or Trackio; only where they are asked for."""

import contextlib
import io
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError

POINT_SECONDS = 0.5  # at most one point of a curve per this time: it costs a fraction of a millisecond


class Scalars:
    """TensorBoard event files under `directory`, one folder per stage of a run; or what another writer makes of them.

    A stage that resumes after a kill continues its curves: points past the step it resumes from are removed.
    """

    def __init__(self, directory: Path, writer: Callable[..., Any] | None = None) -> None:
        """writer: called with a folder and `purge_step`, as TensorBoard's."""
        made: Any = writer
        if made is None:
            try:
                from torch.utils.tensorboard import SummaryWriter as made
            except ImportError:
                raise UserError(
                    'TensorBoard is not installed; `pip install "bertvision[tensorboard]"`, or leave out --tensorboard'
                ) from None
        self.directory, self._make = directory, made
        self._writer: Any = None  # of the current stage
        self._stage, self._written = "", 0.0

    def learning(self, stage: str, status: Mapping[str, Any], rate: float, last: bool) -> None:
        """A step of a stage: status has `step`, and by learner `loss` and `learning_rate`; rate: tokens per second."""
        now = time.monotonic()
        if "step" not in status or (stage == self._stage and now - self._written < POINT_SECONDS and not last):
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


class TrackioWriter:
    """Writes one stage of a run, as TensorBoard's writer does: a Trackio run in the project of the study.

    Points of a stage that resumes after a kill stay beside those it writes again: Trackio cannot remove any.
    """

    def __init__(self, folder: str, purge_step: int) -> None:
        self._trackio, path = need_trackio(), Path(folder)
        project = path.parents[1].resolve().name  # folder: RUN/trackio/STAGE, which is not made
        quiet: dict[str, Any] = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            self._trackio.init(project=project, name=path.name, resume="allow", **quiet)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self._trackio.log({tag: float(value)}, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


def need_trackio() -> Any:
    """The module; UserError if it is not installed."""
    try:
        import trackio
    except ImportError:
        way_out = '`pip install "bertvision[trackio]"`, or leave out --trackio'
        raise UserError(f"Trackio is not installed; {way_out}") from None
    return trackio
