"""Two ways to do the same work, side by side: alternating runs, the median of their ratios, one line each.

Every bench is a script, `python bench/NAME.py [--json] [--quick]`, and a function `measure(windows, rounds)`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.data.sources import load_articles
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe
from bertvision.tasks import Dataset, Spans

ROUNDS = 5
QUICK_WINDOWS = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """One ratio. name: its key in results.json. wanted: what it must reach, or stay below where `at_most` is set."""

    name: str
    ratio: float
    wanted: float
    says: str
    at_most: bool = False

    @property
    def reached(self) -> bool:
        return self.ratio <= self.wanted if self.at_most else self.ratio >= self.wanted

    @property
    def line(self) -> str:
        bound = f"at {'most' if self.at_most else 'least'} {self.wanted:g}"
        return f"{self.name}: {self.ratio:.2f}, wanted {bound}: {'reached' if self.reached else 'MISSED'}; {self.says}"


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one run takes."""
    began = clock()
    work()
    return clock() - began


class Race:
    """Alternating runs of several ways to do the same work; the first is ours.

    Ratios are taken within each round: a machine that is busy for a minute slows all alike. clock: `time.process_time`
    counts the processor time of all threads of this process alone, for machines that are never idle.
    """

    def __init__(
        self, *ways: Callable[[], object], rounds: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self.rounds = [self._round(ways, backwards=number % 2 == 1) for number in range(rounds)]

    def _round(self, ways: Sequence[Callable[[], object]], backwards: bool) -> list[float]:
        """Seconds of each way; every other round runs them in reverse, lest one always follows the other."""
        order = sorted(range(len(ways)), reverse=backwards)
        taken = {place: seconds(ways[place], self.clock) for place in order}
        return [taken[place] for place in range(len(ways))]

    def seconds(self, way: int) -> float:
        """The median of one way."""
        return median(each[way] for each in self.rounds)

    def ratio(self, way: int = 1) -> float:
        """How many times longer another way takes than ours: the median."""
        return median(each[way] / each[0] for each in self.rounds)


def squad(questions: int, backbone: Backbone, name: str = "squad2/train.json") -> Dataset:
    """Real questions, drawn at random but always the same, cut into windows of at most 384 tokens."""
    path = data_folder() / name
    if not path.is_file():
        raise UserError(f"{path}: no such file; set BERTVISION_DATA to a folder that holds {name}, a SQuAD 2.0 file")
    return Spans().from_articles(name, load_articles(str(path)), backbone.tokenizer, DataRecipe(limit=questions), 1)


def data_folder() -> Path:
    return Path(os.environ.get("BERTVISION_DATA", Path(__file__).parents[2] / "shared" / "data"))


def main(measure: Callable[[int, int], list[Finding]], windows: int) -> None:
    """Runs a bench on about this many windows and prints what it found."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON: ratios, and the lines that say what they mean")
    parser.add_argument("--quick", action="store_true", help="one round on a few windows: does it run at all?")
    given = parser.parse_args()
    try:
        found = measure(QUICK_WINDOWS, 1) if given.quick else measure(windows, ROUNDS)
    except UserError as error:
        sys.exit(str(error))
    lines = [f"{each.line}; {torch.get_num_threads()} threads" for each in found]
    if given.json:
        print(json.dumps({"ratios": {each.name: round(each.ratio, 3) for each in found}, "lines": lines}))
    else:
        print(*lines, sep="\n")
