"""What batching can gain at most: the time of a window in a batch against that of a window alone.

python bench/batching.py [--reader pocket] [--quick] [--json]

Encoder and heads of a reader, with no queue, no HTTP and no tokenizer, in one process and in turns, windows of one
length at a time and none padded. As far as these two are what a server spends its time on, one that batches cannot gain
more. Beside the ratio of times stands that of processor time, which other processes disturb less.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from bertvision.data.batches import Batch
from bertvision.serve.reader import BATCH_TOKENS, Reader

LENGTHS = (32, 64, 100, 128, 200, 384)
ROUNDS = 5


class Cost(NamedTuple):
    """Seconds by the clock, and seconds that all cores together were at work."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", default="pocket")
    parser.add_argument("--quick", action="store_true", help="one round of short windows: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    given = parser.parse_args()
    lengths, rounds = ((32,), 1) if given.quick else (LENGTHS, ROUNDS)
    reader = Reader.from_pretrained(given.reader)
    found = [ceiling(reader, length, rounds) for length in lengths]
    if given.json:
        print(json.dumps({"threads": torch.get_num_threads(), "ceilings": found}))
        return
    for one in found:
        print(
            f"windows of {one['length']} tokens: {one['ratio']:.2f} at most (processor time {one['cpu_ratio']:.2f}); "
            f"{one['alone_ms']:.1f} ms alone, {one['batched_ms']:.1f} each of {one['windows']}; "
            f"{torch.get_num_threads()} threads"
        )


def ceiling(reader: Reader, length: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a window alone and in a batch as large as a reader makes them; the median of their ratios."""
    windows = max(1, BATCH_TOKENS // length)
    name = reader.tasks[0]
    one, many = (filled(count, length) for count in (1, windows))
    ways = (lambda: reader.engine.logits(one, [name]), lambda: reader.engine.logits(many, [name]))
    for way in ways:
        way()
    # As many windows either way, so that both take about as long.
    taken = [(cost(ways[0], windows), cost(ways[1], 1)) for _ in range(rounds)]
    return {
        "length": length,
        "windows": windows,
        "alone_ms": 1000 * median(alone.wall for alone, _ in taken) / windows,
        "batched_ms": 1000 * median(batched.wall for _, batched in taken) / windows,
        "ratio": median(alone.wall / batched.wall for alone, batched in taken),
        "cpu_ratio": median(alone.cpu / batched.cpu for alone, batched in taken),
    }


def filled(windows: int, length: int) -> Batch:
    """Windows of any words, all of one length."""
    ids = torch.full((windows, length), 1)
    mask, targets = torch.ones(windows, length, dtype=torch.bool), torch.zeros(windows, 2, dtype=torch.long)
    return Batch(np.arange(windows), ids, torch.zeros_like(ids), mask, targets)


def cost(work: Callable[[], object], times: int) -> Cost:
    """What some calls take."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


if __name__ == "__main__":
    main()
