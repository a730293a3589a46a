"""What a person sees while it runs: a live view on a terminal, plain lines elsewhere, and log.jsonl for machines."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bertvision.train.agenda import Agenda, duration
from bertvision.train.scalars import Scalars

LOG_SECONDS = 2.0  # at most one line in log.jsonl per this time
LINE_SECONDS = 30.0  # and one printed line where there is no terminal


class Stage:
    """A piece of work that is under way, measured in tokens."""

    def __init__(self, journal: "Journal", name: str, total: int, done: int, bar: Progress | None) -> None:
        self.journal, self.name, self.total, self.done, self.bar = journal, name, total, done, bar
        self.began, self.first = time.monotonic(), done
        self.logged = self.printed = self.advanced = self.began
        self.task = bar.add_task(name, total=total, completed=done, rate="", loss="") if bar else None

    @property
    def rate(self) -> float:
        """Tokens per second since this stage began or went on."""
        return (self.done - self.first) / max(1e-9, time.monotonic() - self.began)

    def advance(self, tokens: int, status: dict[str, object] | None = None) -> None:
        """Reports `tokens` more tokens done; status goes into the log, and its losses onto the bar."""
        self.done += tokens
        now = time.monotonic()
        finished = self.done >= self.total
        self.journal.agenda.advance(tokens, now - self.advanced)
        self.advanced = now
        if self.journal.scalars is not None and status:
            self.journal.scalars.learning(self.name, status, self.rate, finished)
        if now - self.logged >= LOG_SECONDS or finished:
            self.logged = now
            self.journal.log(
                self.name,
                share=round(self.done / max(1, self.total), 4),
                tokens_per_second=round(self.rate),
                **(status or {}),
            )
        losses = (status or {}).get("loss") or {}
        loss = f"loss {min(losses.values()):.3f}" if isinstance(losses, dict) and losses else ""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=f"{self.rate:,.0f} tokens/s", loss=loss)
        elif now - self.printed >= LINE_SECONDS or finished:
            self.printed = now
            self.journal.say(self._line(loss))

    def _line(self, loss: str) -> str:
        """How it stands, and how the whole run does, in one line."""
        share, left = self.done / max(1, self.total), (self.total - self.done) / max(1e-9, self.rate)
        here = f"{self.name}: {share:4.0%}  {self.rate:,.0f} tokens/s  {duration(left):>6} left  {loss}".rstrip()
        outlook = self.journal.agenda.outlook()
        return f"{here}  ({outlook})" if outlook else here


class Journal:
    """Talks to the person (stderr) and to log.jsonl of a run; without a path, only to the person.

    agenda: what the run has to do, if it has said so; part: which part of it this journal is of. scalars: where curves
    go, if they are wanted.
    """

    def __init__(self, path: Path | None = None, *, quiet: bool = False) -> None:
        self.path, self.quiet = path, quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True, emoji=False)
        self.agenda, self.part = Agenda(), ""
        self.scalars: Scalars | None = None

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """A stage of `total` tokens, of which `done` were done earlier."""
        self.agenda.begin(name, self.part, total, done)
        with self._view() as bar:
            yield Stage(self, name, total, done, bar)
        self.agenda.end()
        if self.scalars is not None:
            self.scalars.close()

    @contextmanager
    def _view(self) -> Iterator[Progress | None]:
        """On a terminal the bar of a stage, and under it, as long as it runs, how the whole run stands."""
        if self.quiet or not self.console.is_terminal:
            yield None
            return
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
        )
        with Live(Group(bar, Outlook(self.agenda)), console=self.console, refresh_per_second=4) as live:
            try:
                yield bar
            finally:
                live.update(bar)

    def say(self, text: str) -> None:
        """One line for the person."""
        self.console.print(text, markup=False)

    def note(self, text: str) -> None:
        """Something worth knowing later: one line for the person and one in the log."""
        self.say(text)
        self.log("note", text=text)

    def log(self, event: str, **values: object) -> None:
        """One line of JSON. A line torn by a kill stays alone: the next one begins on a new line."""
        if self.path is None:
            return
        line = json.dumps(
            {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **values}, ensure_ascii=False
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            file.seek(0, 2)
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    line = "\n" + line
            file.write((line + "\n").encode())


class Outlook:
    """How a whole run stands, asked anew whenever it is drawn."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda

    def __rich__(self) -> Text:
        return Text(self.agenda.outlook(), style="dim")
