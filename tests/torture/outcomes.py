"""How an attack ended: counted by part and target, printed as one table."""

import io
import json
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.cli import main
from bertvision.errors import UserError

GOOD = ("same", "refused", "named", "accepted")
BAD = ("traceback", "silent", "lost")
MEANING = {
    "same": "the result of an undisturbed run, bit for bit",
    "refused": "one line that names the cause; exit code 2, or a 4xx",
    "named": "left out of the report, which says so",
    "accepted": "valid input, an edit whose author removed the digest, a deleted file, or a client that left",
    "traceback": "an error that nobody expected",
    "silent": "another result, without a word",
    "lost": "a question that was accepted and never answered",
}


class Tally:
    """Counts of outcomes by (part, target), kept in a file so that a later run adds to them.

    turns: attacks of each part, which may count for several. failures: what was done and what came of it, for every
    outcome in BAD.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.counts, self.failures = path, Counter[tuple[str, str, str]](), list[str]()
        self.turns = Counter[str]()
        if path is not None and path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self.counts.update({tuple(key.split("|")): count for key, count in kept["counts"].items()})
            self.failures = kept["failures"]
            self.turns.update(kept["turns"])

    def add(self, part: str, target: str, outcome: str, about: str = "") -> None:
        self.counts[part, target, outcome] += 1
        if outcome in BAD:
            self.failures.append(f"{part}, {target}: {outcome}: {about}")
            print(self.failures[-1], file=sys.stderr, flush=True)

    def done(self, part: str) -> int:
        """How many attacks of a part there have been."""
        return sum(count for (one, _, _), count in self.counts.items() if one == part)

    def save(self) -> None:
        if self.path is not None:
            counts = {"|".join(key): count for key, count in self.counts.items()}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = {"counts": counts, "turns": self.turns, "failures": self.failures}
            self.path.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    def table(self) -> str:
        """One row per part and target, in Markdown."""
        lines = [f"| attack | on | {' | '.join(GOOD + BAD)} |", "| --- | --- |" + " ---: |" * len(GOOD + BAD)]
        for part, target in dict.fromkeys((part, target) for part, target, _ in sorted(self.counts)):
            cells = [self.counts[part, target, outcome] for outcome in GOOD + BAD]
            lines.append(f"| {part} | {target} | {' | '.join(f'{cell:,}' if cell else '–' for cell in cells)} |")
        sums = [sum(count for (*_, one), count in self.counts.items() if one == outcome) for outcome in GOOD + BAD]
        return "\n".join([*lines, f"| **all** | | {' | '.join(f'**{total:,}**' for total in sums)} |"])


@dataclass(frozen=True)
class Ended:
    """How a command ended. error: the traceback, if it was one."""

    code: int
    out: str
    err: str
    error: str = ""

    @property
    def is_refusal(self) -> bool:
        """Exit code 2, and an error of one line after whatever notes came before it."""
        return self.code == 2 and self.err.rstrip("\n").rpartition("\n")[2].startswith("bertvision: ")


def command(*words: object) -> Ended:
    """`bertvision WORDS` within this process, through the function that the command line calls."""
    out, err, before, code = io.StringIO(), io.StringIO(), sys.argv, 0
    sys.argv = ["bertvision", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException as error:  # a panic of a Rust library is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return Ended(1, out.getvalue(), err.getvalue(), last_lines(error))
    finally:
        sys.argv = before
    return Ended(code, out.getvalue(), err.getvalue())


def last_lines(error: BaseException) -> str:
    """The end of a traceback on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{Path(one.filename).name}:{one.lineno}" for one in frames[-4:])
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]} ({places})"


@contextmanager
def refusing(tally: Tally, part: str, target: str, given: Any) -> Iterator[None]:
    """Counts what the block makes of an input: accepted, refused in one line, or a traceback."""
    try:
        yield
    except UserError as error:
        outcome = "refused" if str(error).strip() and "\n" not in str(error).strip() else "traceback"
        tally.add(part, target, outcome, f"{given!r:.300}: {error}")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        tally.add(part, target, "traceback", f"{given!r:.300}: {last_lines(error)}")
    else:
        tally.add(part, target, "accepted")
