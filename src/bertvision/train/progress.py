"""What a person sees while it runs: a progress bar on a terminal, plain lines elsewhere, and log.jsonl for machines."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LOG_SECONDS = 2.0  # at most one line in log.jsonl per this time
LINE_SECONDS = 30.0  # and one printed line where there is no terminal


class Stage:
    """A piece of work that is under way, measured in tokens."""

    def __init__(self, journal: "Journal", name: str, total: int, done: int, bar: Progress | None) -> None:
        self.journal, self.name, self.total, self.done, self.bar = journal, name, total, done, bar
        self.began, self.first = time.monotonic(), done
        self.logged = self.printed = self.began
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
            share, left = self.done / max(1, self.total), (self.total - self.done) / max(1e-9, self.rate)
            self.journal.say(
                f"{self.name}: {share:4.0%}  {self.rate:,.0f} tokens/s  {left:4.0f} s left  {loss}".rstrip()
            )


class Journal:
    """Talks to the person (stderr) and to log.jsonl of a run; without a path, only to the person."""

    def __init__(self, path: Path | None = None, *, quiet: bool = False) -> None:
        self.path, self.quiet = path, quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True, emoji=False)

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[Stage]:
        """A stage of `total` tokens, of which `done` were done earlier."""
        if self.quiet or not self.console.is_terminal:
            yield Stage(self, name, total, done, None)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        with Progress(*columns, console=self.console) as bar:
            yield Stage(self, name, total, done, bar)

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
