"""`make torture`: all parts one after the other, until each has its number or the time is over."""

import argparse
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # children are forked

import torch

from torture import calls, damage, disks, inputs, kills, load
from torture.outcomes import BAD, MEANING, Tally

Attack = Callable[[Tally, Path, int], None]
MEMORY = Path("/dev/shm")  # files there cost no time to sync
# name on the command line -> (name in the table, one attack, how many of these, share of the time)
PARTS: dict[str, tuple[str, Attack, int, float]] = {
    "kills": ("kill", kills.attack, 300, 4),
    "disks": ("full disk", disks.attack, 180, 2),
    "damage": ("damaged file", damage.attack, 1500, 4),
    "load": (load.PART, load.attack, 2000, 2),
    "calls": ("request", calls.attack, 10_000, 1),
    "inputs": ("input", inputs.attack, 100_000, 3),
}


SAVED = 10.0  # seconds between two savings of the counts
# attacks of each part that the tests of the project make
SLICE = {"kills": 6, "disks": 2, "damage": 50, "load": 1, "calls": 1, "inputs": 3000}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="stop after this time")
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts only; repeatable")
    parser.add_argument("--slice", action="store_true", help="a few of each, as in `make test`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="add to the counts in this file, and continue from them")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tally, end = Tally(given.keep), time.monotonic() + 60 * given.minutes
    chosen = {key: PARTS[key] for key in given.only or PARTS}
    for number, (key, (name, part, count, share)) in enumerate(chosen.items()):
        left = (end - time.monotonic()) * share / sum(other[3] for other in list(chosen.values())[number:])
        if given.slice:
            assault(tally, name, part, count, given.seed, end, SLICE[key])
        else:
            assault(tally, name, part, count, given.seed, time.monotonic() + left)
    print(tally.table())
    print("\n".join(f"{outcome}: {meaning}" for outcome, meaning in MEANING.items()))
    print("\n".join(tally.failures))
    return int(any(outcome in BAD for *_, outcome in tally.counts))


def assault(
    tally: Tally, name: str, part: Attack, count: int, seed: int, until: float, turns: float = math.inf
) -> None:
    """Attacks of one part until there are `count`, or so many turns, or the time is over."""
    with TemporaryDirectory(prefix="torture-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        number, saved = tally.turns[name], time.monotonic()
        while tally.done(name) < count and number < turns and time.monotonic() < until:
            part(tally, Path(place), 1_000_000 * seed + number)
            tally.turns[name] = number = number + 1
            if time.monotonic() - saved > SAVED:
                tally.save()
                saved = time.monotonic()
    tally.save()


if __name__ == "__main__":
    raise SystemExit(main())
