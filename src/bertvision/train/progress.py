"""Progress of a run: its stages and the time they still need, a live view or plain lines, log.jsonl."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bertvision.recipe import has_heads
from bertvision.train.run_dir import RunDir

if TYPE_CHECKING:
    from bertvision.train.trackers import Scalars

LOG_SECONDS = 2.0  # at most one line in log.jsonl per this time,
LOG_LINES = 50  # but no fewer than this many per stage, for its curve of losses
LINE_SECONDS = 30.0  # and one printed line where there is no terminal

Kind = Literal["tuning", "heads", "scoring"]

# Relative tokens per second, until a kind of work has been measured: tuning goes forward and back through the
# encoder, heads train on its forward pass, scoring is that pass alone.
SPEED: dict[Kind, float] = {"tuning": 1.0, "heads": 2.5, "scoring": 3.0}


@dataclass(slots=True)
class Stage:
    """A stage of a run: its name, the kind of work, and how many tokens go through it."""

    name: str
    kind: Kind
    tokens: int
    done: bool = False


class Stages:
    """The stages of a run in their order. A run may have parts, such as variants, whose stages have equal names.

    Stages that are not planned may run as well, and are not counted.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[Stage]] = {}
        self.current: Stage | None = None
        self.part = ""  # of the current stage
        self.current_tokens = 0  # tokens of the current stage that are done
        self.current_spent = 0, 0.0  # tokens and seconds of the current stage since it began or resumed
        self.spent: dict[Kind, tuple[int, float]] = {}  # tokens and seconds, the kind measured last is last

    def plan(self, stages: Iterable[Stage], part: str = "") -> None:
        """Sets the stages of a part, in place of those it had."""
        self.parts[part] = [replace(stage) for stage in stages]

    def begin(self, name: str, part: str, tokens: int, done: int) -> None:
        """A stage begins, or resumes after `done` of its tokens."""
        self.current = next((stage for stage in self.parts.get(part, ()) if stage.name == name), None)
        self.part, self.current_tokens, self.current_spent = part, done, (0, 0.0)
        if self.current is not None:
            self.current.tokens, self.current.done = tokens, False

    def advance(self, tokens: int, seconds: float) -> None:
        """The current stage did `tokens` more in `seconds`."""
        if self.current is None:
            return
        self.current_tokens += tokens
        self.current_spent = self.current_spent[0] + tokens, self.current_spent[1] + seconds
        before = self.spent.pop(self.current.kind, (0, 0.0))
        self.spent[self.current.kind] = before[0] + tokens, before[1] + seconds

    def end(self) -> None:
        """The current stage is done, however many tokens were planned."""
        if self.current is not None:
            self.current.done = True
        self.current = None

    @property
    def all(self) -> list[Stage]:
        return [stage for stages in self.parts.values() for stage in stages]

    @property
    def seconds_left(self) -> float | None:
        """Seconds that all stages still need; None before anything was measured. The current one at its own speed."""
        if not any(seconds > 0 and tokens for tokens, seconds in self.spent.values()):
            return None
        left = sum(stage.tokens / self.rate(stage.kind) for stage in self.all if not stage.done)
        if self.current is None:
            return left
        current, (tokens, seconds) = self.current, self.current_spent
        rate = tokens / seconds if tokens and seconds > 0 else self.rate(current.kind)
        return left - current.tokens / self.rate(current.kind) + max(0, current.tokens - self.current_tokens) / rate

    def outlook(self) -> str:
        """`2 of 9 · next: heads on epoch 0.3, seed 1 · about 6 min left in all`; empty where nothing is planned."""
        done, count = sum(stage.done for stage in self.all), len(self.all)
        if not count:
            return ""
        words = [f"{done + 1} of {count}" if self.current else f"{done} of {count} done"]
        waiting = [(part, stage) for part, stages in self.parts.items() for stage in stages if not stage.done]
        following = next(((part, stage) for part, stage in waiting if stage is not self.current), None)
        if following is not None:
            part, stage = following
            words.append(f"next: {f'{part}: ' if self.current and part != self.part else ''}{stage.name}")
        if (left := self.seconds_left) is not None:
            words.append(f"about {duration(left)} left in all")
        return " · ".join(words)

    def rate(self, kind: Kind) -> float:
        """Tokens per second: as measured, or in proportion to what was measured last."""
        rates = {each: tokens / seconds for each, (tokens, seconds) in self.spent.items() if tokens and seconds > 0}
        if kind in rates:
            return rates[kind]
        last = [*rates][-1]
        return rates[last] * SPEED[kind] / SPEED[last]

    def __rich__(self) -> Text:
        return Text(self.outlook(), style="dim")


def duration(seconds: float) -> str:
    """`40 s`, `6 min`, `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tuning_stage(seed: int) -> str:
    return f"tuning, seed {seed}"


def heads_stage(epoch: float, seed: int) -> str:
    return f"heads on epoch {epoch:g}, seed {seed}"


def scoring_stage(epoch: float, split: str, seed: int) -> str:
    return f"scoring epoch {epoch:g} on {split}, seed {seed}"


def scored_splits(also: str) -> tuple[str, ...]:
    """The sets that every member predicts; also: the second that is reported, if there is one."""
    return ("tune", "test", *(["also"] if also else []))


def planned_stages(run: RunDir, tokens: Mapping[str, int]) -> list[Stage]:
    """Everything that `Study.run` does, in its order."""
    recipe, scored, stages = run.recipe(), run.scored(), []
    for seed in recipe.seeds:
        size = round(recipe.finetune.epochs * tokens["train"])
        stages.append(Stage(tuning_stage(seed), "tuning", size, run.is_tuned(seed)))
        for epoch in run.epochs:
            if has_heads(recipe, epoch) and recipe.bank.after.epochs:
                trained = run.bank(seed, epoch).exists()
                size = round(recipe.bank.after.epochs * tokens["train"])
                if recipe.bank.solve:  # one pass without gradients
                    size = tokens["train"]
                kind: Kind = "scoring" if recipe.bank.solve else "heads"
                stages.append(Stage(heads_stage(epoch, seed), kind, size, trained))
            for split in scored_splits(recipe.data.also):
                size = tokens.get(split, tokens["test"])  # the sizes may be those of another variant
                stages.append(Stage(scoring_stage(epoch, split, seed), "scoring", size, (seed, epoch) in scored))
    return stages


class StageProgress:
    """A piece of work that is under way, measured in tokens."""

    def __init__(self, journal: "Journal", name: str, total: int, done: int, bar: Progress | None) -> None:
        self.journal, self.name, self.total, self.done, self.bar = journal, name, total, done, bar
        self.began, self.first = time.monotonic(), done
        self.logged = self.printed = self.advanced = self.began
        self.task = bar.add_task(name, total=total, completed=done, rate="", loss="") if bar else None

    @property
    def rate(self) -> float:
        """Tokens per second since this stage began or resumed."""
        return (self.done - self.first) / max(1e-9, time.monotonic() - self.began)

    def advance(self, tokens: int, status: Mapping[str, Any] | None = None) -> None:
        """Reports `tokens` more tokens done; status goes into the log, and its losses onto the bar."""
        before = self.done * LOG_LINES // max(1, self.total)
        self.done += tokens
        now, status = time.monotonic(), status or {}
        finished = self.done >= self.total
        self.journal.stages.advance(tokens, now - self.advanced)
        self.advanced = now
        if self.journal.scalars is not None and status:
            self.journal.scalars.learning(self.name, status, self.rate, finished)
        share = self.done / max(1, self.total)
        if now - self.logged >= LOG_SECONDS or finished or self.done * LOG_LINES // max(1, self.total) > before:
            self.logged = now
            self.journal.log(self.name, share=round(share, 4), tokens_per_second=round(self.rate), **status)
        losses = status.get("loss")
        loss = f"loss {min(losses.values()):.3f}" if losses else ""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, rate=f"{self.rate:,.0f} tokens/s", loss=loss)
        elif now - self.printed >= LINE_SECONDS or finished:
            self.printed = now
            left = (self.total - self.done) / max(1e-9, self.rate)
            line = f"{self.name}: {share:4.0%}  {self.rate:,.0f} tokens/s  {duration(left):>6} left  {loss}".rstrip()
            outlook = self.journal.stages.outlook()
            self.journal.say(f"{line}  ({outlook})" if outlook else line)


class Journal:
    """Writes to the terminal (stderr) and to log.jsonl of a run; without a path, only to the terminal.

    stages: what the run has to do, if that is planned; part: which part of it this journal is of. scalars: where
    TensorBoard curves go, if they are wanted.
    """

    def __init__(self, path: Path | None = None, *, quiet: bool = False) -> None:
        self.path, self.quiet = path, quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True, emoji=False)
        self.stages, self.part = Stages(), ""
        self.scalars: Scalars | None = None

    @contextmanager
    def stage(self, name: str, total: int, done: int = 0) -> Iterator[StageProgress]:
        """A stage of `total` tokens, of which `done` were done earlier."""
        self.stages.begin(name, self.part, total, done)
        with self.view() as bar:
            yield StageProgress(self, name, total, done, bar)
        self.stages.end()
        if self.scalars is not None:
            self.scalars.close()

    @contextmanager
    def view(self) -> Iterator[Progress | None]:
        """On a terminal the bar of a stage and, while it runs, the outlook of the whole run under it."""
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
        with Live(Group(bar, self.stages), console=self.console, refresh_per_second=4) as live:
            try:
                yield bar
            finally:
                live.update(bar)

    def say(self, text: str) -> None:
        """One line on the terminal."""
        self.console.print(text, markup=False)

    def note(self, text: str) -> None:
        """One line on the terminal and one in the log."""
        self.say(text)
        self.log("note", text=text)

    def log(self, event: str, **values: object) -> None:
        """One line of JSON. After a line cut off by a kill, the next one begins on a new line."""
        if self.path is None:
            return
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **values}
        line = json.dumps(entry, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            file.seek(0, 2)
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    line = "\n" + line
            file.write((line + "\n").encode())
