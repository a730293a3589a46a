"""Where a bank gets its states from while it trains: live, or from a store, whichever is asked for or is quicker."""

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads
from bertvision.data.windows import Windows
from bertvision.files import NoRoom, fitting, read_json, remove, write_json
from bertvision.recipe import BankRecipe
from bertvision.states.forecast import forecast
from bertvision.states.layout import Dtype, Positions, Selection
from bertvision.states.store import Source, Store, live, stored, write_store
from bertvision.train.progress import Journal
from bertvision.train.tapped import find_store

Choice = Literal["live", "stored"]


class Feeding:
    """Sources of states for training. What they need on disk lies in `directory`.

    reads, positions: what the heads read of the states. identity: what the training depends on; a choice that was made
    for the same is kept, so that training goes on after a kill with the same numbers. tapped: where `bertvision tap`
    leaves its stores: one that fits is read, and stays. Sources are made once, however many banks ask for them.
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
        tapped: Path | None = None,
    ) -> None:
        self.backbone, self.recipe, self.reads, self.positions = backbone, recipe, reads, positions
        self.directory, self.identity, self.journal, self.tapped = directory, identity, journal, tapped
        self.choice: Choice = "live"
        self._no_room: list[str] = []  # sets that the disk had no room for
        self._sources: dict[str, Source] = {}
        self._found: dict[str, Store | None] = {}  # in `tapped`
        self._seconds = 0.0

    def choose(
        self, windows: Windows, heads: Sequence[nn.Module], looked_at: Windows | None = None, looks: int = 0
    ) -> None:
        """Decides on live or stored, and says why. looked_at: a tuning set that is read `looks` times meanwhile."""
        if self.recipe.states != "auto":
            self.choice, why = self.recipe.states, "as the recipe says"
        elif self._kept():
            why = "as it began"
        else:
            if self._find(windows, "train") is not None:
                self.choice, why = "stored", "for there is a store that fits"
            elif self.recipe.epochs <= 1 and looks <= 1:
                self.choice, why = "live", "every state is read only once"
            else:
                self.choice, why = self._forecast(windows, heads, looked_at, looks)
            self._keep()
        self.journal.note(f"states: {self.choice}, {why}")

    def source(self, windows: Windows, name: str) -> Source:
        """batch -> States of these windows; a store of them is written first if that was chosen and there is none.

        Where the choice was not the recipe's, a disk without room makes the source live.
        """
        if name not in self._sources:
            began = time.perf_counter()
            store = None
            if self.choice == "stored" and name not in self._no_room:
                store = self._find(windows, name) or self._write(windows, name)
            self._sources[name] = self._live if store is None else stored(store, self.reads, self.positions)
            self._seconds += time.perf_counter() - began
        return self._sources[name]

    def charge(self) -> float:
        """The seconds that stores took since this was last asked: whoever needed one first pays for it, once."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @cached_property
    def _live(self) -> Source:
        """One for all sets: it holds the encoder's weights a second time."""
        return live(self.backbone, self.reads, self.positions)

    def _find(self, windows: Windows, name: str) -> Store | None:
        """A store in `tapped` that fits."""
        if name in self._found or self.tapped is None:
            return self._found.get(name)
        store, others = find_store(
            self.tapped, self.backbone, windows, dtype=self.recipe.dtype, reads=self.reads, positions=self.positions
        )
        if store is not None:
            self.journal.note(f"states of {name}: read from {store.directory.name}")
        elif others:
            self.journal.note(f"states of {name}: no store fits; " + "; ".join(others))
        self._found[name] = store
        return store

    def _write(self, windows: Windows, name: str) -> Store | None:
        place = self.directory / name
        try:
            return store_states(
                place,
                self.backbone,
                windows,
                dtype=self.recipe.dtype,
                reads=self.reads,
                positions=self.positions,
                journal=self.journal,
                stage=f"storing states of {name}",
            )
        except NoRoom as error:
            if self.recipe.states != "auto":
                raise
            remove(place)
            self._no_room.append(name)
            self._keep()
            self.journal.note(f"states of {name}: live after all; {error}")
            return None

    def _kept(self) -> bool:
        """Whether a choice was made for the same training; it is then taken over."""
        if not self._note.is_file():
            return False
        what = "note of where states come from"
        found = read_json(self._note, what)
        with fitting(self._note, what):
            if found["identity"] != self.identity:
                return False
            if found["states"] not in ("live", "stored"):
                raise TypeError(f"states are {found['states']!r}")
            self.choice, self._no_room = found["states"], list(found.get("no_room", []))
        return True

    def _keep(self) -> None:
        write_json(self._note, {"identity": self.identity, "states": self.choice, "no_room": self._no_room})

    def _forecast(
        self, windows: Windows, heads: Sequence[nn.Module], looked_at: Windows | None, looks: int
    ) -> tuple[Choice, str]:
        found = forecast(
            self.backbone,
            windows,
            heads,
            self.recipe,
            directory=self.directory,
            selection=Selection(self.recipe.dtype, self.reads, self.positions),
            looked_at=looked_at,
            looks=looks,
        )
        for line in found.lines()[:-1]:  # the last is the choice itself
            self.journal.say(line)
        choice, why = found.choose()
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
            Selection(dtype, reads, positions),
            advance=progress.advance,
        )
