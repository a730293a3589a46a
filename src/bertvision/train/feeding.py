"""Where a bank gets its states from while it trains: live, or from a store, whichever is asked for or is quicker."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.data.windows import Windows
from bertvision.files import read_json, write_json
from bertvision.recipe import BankRecipe
from bertvision.states.forecast import forecast
from bertvision.states.layout import Dtype, Positions, Reads
from bertvision.states.source import Source, live, stored
from bertvision.states.store import Store
from bertvision.states.write import write_store
from bertvision.train.progress import Journal

Choice = Literal["live", "stored"]


class Feeding:
    """Sources of states for training. What they need on disk lies in `directory`, until `clear`.

    reads, positions: what the heads read of the states. identity: what the training depends on; a choice that was made
    for the same is kept, so that training goes on after a kill with the same numbers. seconds: spent writing stores.
    """

    def __init__(
        self,
        backbone: Backbone,
        recipe: BankRecipe,
        *,
        reads: Reads,
        positions: Positions,
        directory: Path,
        identity: str,
        journal: Journal,
    ) -> None:
        self.backbone, self.recipe, self.reads, self.positions = backbone, recipe, reads, positions
        self.directory, self.identity, self.journal = directory, identity, journal
        self.choice: Choice = "live"
        self.seconds = 0.0

    def choose(self, windows: Windows, heads: Sequence[nn.Module]) -> None:
        """Decides on live or stored, and says why."""
        if self.recipe.states != "auto":
            self.choice, why = self.recipe.states, "as the recipe says"
        elif self.recipe.epochs <= 1:
            self.choice, why = "live", "every state is read only once"
        else:
            self.choice, why = self._kept() or self._forecast(windows, heads)
        self.journal.note(f"states: {self.choice}, {why}")

    def source(self, windows: Windows, name: str) -> Source:
        """batch -> States of these windows; a store of them is written first if that was chosen."""
        if self.choice == "live":
            return live(self.backbone, self.reads, self.positions)
        began = time.perf_counter()
        store = store_states(
            self.directory / name,
            self.backbone,
            windows,
            dtype=self.recipe.dtype,
            reads=self.reads,
            positions=self.positions,
            journal=self.journal,
            stage=f"storing states of {name}",
        )
        self.seconds += time.perf_counter() - began
        return stored(store, self.reads, self.positions)

    def clear(self) -> None:
        """Removes the stores; call it once the results are safely written."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _kept(self) -> tuple[Choice, str] | None:
        if not self._note.is_file():
            return None
        found: dict[str, Any] = read_json(self._note, "note of where states come from")
        return (found["states"], "as it began") if found.get("identity") == self.identity else None

    def _forecast(self, windows: Windows, heads: Sequence[nn.Module]) -> tuple[Choice, str]:
        found = forecast(
            self.backbone,
            windows,
            heads,
            self.recipe.epochs,
            directory=self.directory,
            reads=self.reads,
            positions=self.positions,
            dtype=self.recipe.dtype,
            batch_size=self.recipe.batch_size,
            batch_tokens=self.recipe.batch_tokens,
        )
        for line in found.lines()[:-1]:  # the last is the choice itself
            self.journal.say(line)
        choice, why = found.choose()
        write_json(self._note, {"identity": self.identity, "states": choice, "why": why})
        return choice, f"for {why}"

    @property
    def _note(self) -> Path:
        return self.directory / "choice.json"


def store_states(
    directory: Path,
    backbone: Backbone,
    windows: Windows,
    *,
    dtype: Dtype,
    reads: Reads,
    positions: Positions,
    journal: Journal,
    stage: str,
) -> Store:
    """`write_store`, with a progress bar."""
    with journal.stage(stage, int(windows.lengths.sum())) as progress:
        return write_store(
            directory,
            backbone,
            windows,
            dtype=dtype,
            reads=reads,
            positions=positions,
            advance=progress.advance,
        )
