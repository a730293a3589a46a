"""Curves of a run in Trackio, in place of TensorBoard's event files."""

import contextlib
import io
from pathlib import Path
from typing import Any

from bertvision.errors import UserError


class TrackioWriter:
    """Writes one stage of a run, as TensorBoard's writer does: a Trackio run in the project of the study.

    Points of a stage that resumes after a kill stay beside those it writes again: Trackio cannot remove any.
    """

    def __init__(self, folder: str, purge_step: int) -> None:
        self._trackio, place = need_trackio(), Path(folder)
        project = place.parents[1].resolve().name  # folder: RUN/trackio/STAGE, which is not made
        quiet: dict[str, Any] = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            self._trackio.init(project=project, name=place.name, resume="allow", **quiet)

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
