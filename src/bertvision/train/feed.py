"""Where a training gets its states from: a live backbone or a store, as the recipe says or whichever is quicker."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.flops import added, encoder_work
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.files import NoRoom, fitting, read_json, remove, write_json
from bertvision.recipe import BankRecipe
from bertvision.states.layout import NAME, Selection, fingerprints
from bertvision.states.store import Source, Store, live, stored
from bertvision.train.loop import Feed, Job
from bertvision.train.progress import Journal

if TYPE_CHECKING:
    from bertvision.states.write import Elsewhere

Choice = Literal["live", "stored"]


class Feeds:
    """Makes the feeds of a bank that trains on a frozen backbone: live ones, or from a store.

    job: the training; a choice that was made for its identity is kept, so that it resumes with the same numbers.
    tapped: where `bertvision tap` leaves its stores: one that fits is read, and stays.
    rounds: how many trainings share these feeds; a store is then written once.
    """

    def __init__(
        self,
        backbone: Backbone,
        recipe: BankRecipe,
        selection: Selection,
        job: Job,
        *,
        tapped: Path | None = None,
        rounds: int = 1,
    ) -> None:
        self.backbone, self.recipe, self.selection, self.rounds = backbone, recipe, selection, rounds
        self.directory, self.identity, self.journal, self.tapped = job.states, job.identity, job.journal, tapped
        self.choice: Choice | None = None
        self._no_room: list[str] = []  # sets that did not fit on the disk
        self._sources: dict[str, Source] = {}
        self._tapped_stores: dict[str, Store | None] = {}  # in `tapped`

    def choose(
        self, windows: Windows, heads: Sequence[nn.Module], looked_at: Windows | None = None, looks: int = 0
    ) -> None:
        """Chooses live or stored, unless that is done, and says why. looked_at: a tune set that each training reads
        `looks` times."""
        if self.choice is None:
            if self.backbone.runtime.is_main:
                self._choose(windows, heads, looked_at, looks * self.rounds)
            self.choice = self.backbone.runtime.tell(self.choice)

    def _choose(self, windows: Windows, heads: Sequence[nn.Module], looked_at: Windows | None, looks: int) -> None:
        if self.recipe.states != "auto":
            self.choice, why = self.recipe.states, "as the recipe says"
        elif self._read_choice():
            why = "as it began"
        else:
            if self._find_tapped(windows, "train") is not None:
                self.choice, why = "stored", "for there is a store that fits"
            elif self.recipe.epochs * self.rounds <= 1 and looks <= 1:
                self.choice, why = "live", "every state is read only once"
            else:
                self.choice, why = self._forecast(windows, heads, looked_at, looks)
            self._write_choice()
        self.journal.note(f"states: {self.choice}, {why}")

    def feed(self, windows: Windows, name: str) -> Feed:
        """A feed of these windows; a store of them is written first if that was chosen and there is none, and its
        seconds are counted once. Where the choice was not the recipe's, a full disk makes the feed live."""
        runtime = self.backbone.runtime
        began = runtime.clock()
        if name not in self._sources:
            store = self._open_or_write(windows, name) if self.choice == "stored" else None
            reads, positions = self.selection.reads, self.selection.positions
            self._sources[name] = self._live_source if store is None else stored(store, reads, positions, runtime)
        source, seconds = self._sources[name], runtime.clock() - began
        work = encoder_work(self.backbone.model, self.selection.reads).forward
        if source is self._live_source:
            return Feed(windows, source, self.backbone.pad, seconds=seconds, work=work)
        return Feed(windows, source, self.backbone.pad, seconds=seconds, flops=added(0, work, windows.lengths))

    def _open_or_write(self, windows: Windows, name: str) -> Store | None:
        """The store that the main process finds, or one that all processes write; None if there is no room for it."""
        runtime = self.backbone.runtime
        if runtime.tell(name in self._no_room):
            return None
        store = self._find_tapped(windows, name) if runtime.is_main else None
        if directory := runtime.tell(str(store.directory) if store else ""):
            return store or Store.open(Path(directory), self.backbone, windows)
        return self._write(windows, name)

    @cached_property
    def _live_source(self) -> Source:
        """One for all sets: it holds the encoder's weights a second time."""
        return live(self.backbone, self.selection.reads, self.selection.positions)

    def _find_tapped(self, windows: Windows, name: str) -> Store | None:
        """The smallest complete store in `tapped` that holds all that is read of these windows, in the same format."""
        if name in self._tapped_stores or self.tapped is None:
            return self._tapped_stores.get(name)
        manifests, fitting_stores, reasons = sorted(self.tapped.glob(f"*/{NAME}")), [], []
        made_from = fingerprints(self.backbone, windows) if manifests else None  # reads all weights: do it once
        for manifest in manifests:
            try:
                store = Store.open(manifest.parent, self.backbone, windows, made_from)
                held, wanted = store.manifest.selection, self.selection
                if held.dtype != wanted.dtype or not store.offers(wanted.reads, wanted.positions):
                    raise UserError(f"{store.directory}: holds {held}")
                store.verify()
                fitting_stores.append(store)
            except UserError as error:
                reasons.append(str(error).removeprefix(f"{self.tapped}{os.sep}"))
        smallest = min(fitting_stores, key=lambda store: store.bytes, default=None)
        if smallest is not None:
            self.journal.note(f"states of {name}: read from {smallest.directory.name}")
        elif reasons:
            self.journal.note(f"states of {name}: no store fits; " + "; ".join(reasons))
        self._tapped_stores[name] = smallest
        return smallest

    def _write(self, windows: Windows, name: str) -> Store | None:
        directory = self.directory / name
        try:
            return write_states(
                directory, self.backbone, windows, self.selection, self.journal, f"storing states of {name}"
            )
        except NoRoom as error:
            if self.recipe.states != "auto":
                raise
            self._no_room.append(name)
            if self.backbone.runtime.is_main:
                remove(directory)
                self._write_choice()
            self.journal.note(f"states of {name}: live after all; {error}")
            return None

    def _read_choice(self) -> bool:
        """Takes over a choice that was made for the same training, if there is one."""
        if not self._choice_file.is_file():
            return False
        what = "note of where states come from"
        note = read_json(self._choice_file, what)
        with fitting(self._choice_file, what):
            if note["identity"] != self.identity:
                return False
            if note["states"] not in ("live", "stored"):
                raise TypeError(f"states are {note['states']!r}")
            self.choice, self._no_room = note["states"], list(note.get("no_room", []))
        return True

    def _write_choice(self) -> None:
        write_json(self._choice_file, {"identity": self.identity, "states": self.choice, "no_room": self._no_room})

    def _forecast(
        self, windows: Windows, heads: Sequence[nn.Module], looked_at: Windows | None, looks: int
    ) -> tuple[Choice, str]:
        from bertvision.states.forecast import forecast

        costs = forecast(
            self.backbone,
            windows,
            heads,
            replace(self.recipe, epochs=self.recipe.epochs * self.rounds),
            directory=self.directory,
            selection=self.selection,
            looked_at=looked_at,
            looks=looks,
        )
        for line in costs.lines()[:-1]:  # the last is the choice itself
            self.journal.say(line)
        choice, why = costs.choose()
        return choice, f"for {why}"

    @property
    def _choice_file(self) -> Path:
        return self.directory / "choice.json"


def write_states(
    directory: Path,
    backbone: Backbone,
    windows: Windows,
    selection: Selection,
    journal: Journal,
    stage: str,
    elsewhere: "Elsewhere | None" = None,
) -> Store:
    """`write_store`, with a progress bar; in all processes."""
    from bertvision.states.write import write_store

    with journal.stage(stage, int(windows.lengths.sum())) as progress:
        return write_store(directory, backbone, windows, selection, advance=progress.advance, elsewhere=elsewhere)
