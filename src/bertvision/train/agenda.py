"""What a run has still to do, and how long that will take, from what was measured so far."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["tuning", "heads", "scoring"]

# Tokens per second in proportion, until a kind of work has been measured: tuning goes forward and back through the
# encoder, heads learn on its forward pass, scoring is that pass alone.
SPEED: dict[Kind, float] = {"tuning": 1.0, "heads": 2.5, "scoring": 3.0}


@dataclass(frozen=True, slots=True)
class Planned:
    """A stage of a run: what it is called while it runs, what kind of work it is, how many tokens go through it."""

    name: str
    kind: Kind
    tokens: int
    done: bool = False


def tuning(seed: int) -> str:
    return f"tuning, seed {seed}"


def heads(epoch: float, seed: int) -> str:
    return f"heads on epoch {epoch:g}, seed {seed}"


def scoring(epoch: float, split: str, seed: int) -> str:
    return f"scoring epoch {epoch:g} on {split}, seed {seed}"


def scored_splits(also: str) -> tuple[str, ...]:
    """The sets that every member predicts; also: the second that is reported, if there is one."""
    return ("tune", "test", *(["also"] if also else []))


class Agenda:
    """The stages of a run in their order. A run may have parts, such as variants, whose stages have equal names.

    Told what is going on, it knows what is left. What is not on it may go on as well, and is not counted.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[Planned]] = {}
        self.current: tuple[str, int] | None = None  # part, place in it
        self.seen = 0  # tokens of the current stage that are done
        self.own = 0, 0.0  # tokens and seconds of the current stage since it began or went on
        self.spent: dict[Kind, tuple[int, float]] = {}  # tokens and seconds, the last measured kind last

    def plan(self, stages: Sequence[Planned], part: str = "") -> None:
        """Sets the stages of a part, in place of those it had."""
        self.parts[part] = list(stages)

    def begin(self, name: str, part: str, tokens: int, done: int) -> None:
        """A stage begins, or goes on after `done` of its tokens."""
        places = [place for place, stage in enumerate(self.parts.get(part, ())) if stage.name == name]
        self.current, self.seen, self.own = (part, places[0]) if places else None, done, (0, 0.0)
        if places:
            self._change(tokens=tokens, done=False)

    def advance(self, tokens: int, seconds: float) -> None:
        """The current stage did `tokens` more in `seconds`."""
        if self.current is None:
            return
        self.seen += tokens
        self.own = self.own[0] + tokens, self.own[1] + seconds
        kind = self._now().kind
        before = self.spent.pop(kind, (0, 0.0))
        self.spent[kind] = before[0] + tokens, before[1] + seconds

    def end(self) -> None:
        """The current stage is done, whatever it had planned."""
        if self.current is not None:
            self._change(done=True)
        self.current = None

    @property
    def stages(self) -> list[Planned]:
        return [stage for stages in self.parts.values() for stage in stages]

    @property
    def seconds_left(self) -> float | None:
        """Of all stages; None before anything was measured. The current one goes on at its own speed."""
        if not any(seconds > 0 and tokens for tokens, seconds in self.spent.values()):
            return None
        left = sum(stage.tokens / self._rate(stage.kind) for stage in self.stages if not stage.done)
        if self.current is None:
            return left
        now, (tokens, seconds) = self._now(), self.own
        rate = tokens / seconds if tokens and seconds > 0 else self._rate(now.kind)
        return left - now.tokens / self._rate(now.kind) + max(0, now.tokens - self.seen) / rate

    def outlook(self) -> str:
        """`2 of 9 · next: heads on epoch 0.3, seed 1 · about 6 min left in all`; empty where nothing is planned."""
        stages = self.stages
        if not stages:
            return ""
        done = sum(stage.done for stage in stages)
        words = [f"{done + 1} of {len(stages)}" if self.current else f"{done} of {len(stages)} done"]
        if following := self._following():
            words.append(f"next: {following}")
        left = self.seconds_left
        if left is not None:
            words.append(f"about {duration(left)} left in all")
        return " · ".join(words)

    def _following(self) -> str:
        """The first stage that is neither done nor under way."""
        for part, stages in self.parts.items():
            for place, stage in enumerate(stages):
                if not stage.done and (part, place) != self.current:
                    return f"{part}: {stage.name}" if part and self.current and part != self.current[0] else stage.name
        return ""

    def _rate(self, kind: Kind) -> float:
        """Tokens per second: as measured, or in proportion to what was measured last."""
        measured = {one: tokens / seconds for one, (tokens, seconds) in self.spent.items() if tokens and seconds > 0}
        if kind in measured:
            return measured[kind]
        last = [*measured][-1]
        return measured[last] * SPEED[kind] / SPEED[last]

    def _now(self) -> Planned:
        assert self.current is not None
        part, place = self.current
        return self.parts[part][place]

    def _change(self, **values: Any) -> None:
        assert self.current is not None
        part, place = self.current
        self.parts[part][place] = replace(self.parts[part][place], **values)


def duration(seconds: float) -> str:
    """`40 s`, `6 min`, `2.5 h`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
