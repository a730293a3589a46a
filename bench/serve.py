"""Throughput of `bertvision serve` under 32 clients at once, batching against one request at a time; losses; memory.

python bench/serve.py [--reader runs/NAME/reader] [--minutes 5] [--quick] [--json]

Two real servers, one that batches and one that does not, are asked in turns by the same clients; the figure is the
median of the rounds' ratios. A request counts as lost unless it is answered with what a lone client was answered.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bertvision.data.source import load_articles
from bertvision.data.squad import records

ROUNDS = 5
CALM = 5.0  # seconds of a turn of the server that does not batch
WANTED, GROWTH = 3.0, 1.10  # least ratio; most memory at the end, as a multiple of that after the first round
Body = dict[str, str]


@dataclass
class Turn:
    """What the clients saw in one turn."""

    seconds: float = 0.0
    answered: int = 0
    lost: int = 0
    times: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", help="a reader's directory; the newest of runs/*/reader if not given")
    parser.add_argument("--data", default="sample:test:200", help="where the questions come from")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the server that batches is under load")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    given = parser.parse_args()
    bodies = [{"question": one.question, "context": one.context} for one in records(load_articles(given.data))]
    seconds, rounds = (3.0, 1) if given.quick else (60 * given.minutes / ROUNDS, ROUNDS)
    reader = given.reader or newest_reader()
    with server(reader) as batching, server(reader, "--batch-tokens", "1") as alone:
        found = asyncio.run(measure(batching, alone, bodies, given.clients, seconds, rounds))
    if given.json:
        print(json.dumps(found))
    else:
        print(line(found))
    sys.exit(0 if found["lost"] == 0 else 1)


def newest_reader() -> str:
    found = sorted(Path("runs").glob("*/reader"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("there is no runs/*/reader; name one with --reader, or make one with `make demo`")
    return str(found[-1])


@contextmanager
def server(reader: str, *options: str) -> Iterator[str]:
    """A server in a process of its own; its address."""
    words = [sys.executable, "-m", "bertvision", "serve", reader, "--port", "0", "--no-page", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        address = re.search(r"http://\S+", process.stdout.readline())
        if not address:
            sys.exit(f"the server of {reader} did not start")
        yield address.group()
    finally:
        process.terminate()
        process.wait()
        if process.stdout:
            process.stdout.close()


async def measure(
    batching: str, alone: str, bodies: Sequence[Body], clients: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Asks both servers in turns. The first answers, one at a time, are what all later ones are held against."""
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        expected = [(await client.post(f"{alone}/answer", json=body)).json()["answers"] for body in bodies]
        turns: list[tuple[Turn, Turn]] = []
        memory: list[float] = []
        for _ in range(rounds):
            calm = await load(client, alone, bodies, expected, clients, min(CALM, seconds))
            turns.append((await load(client, batching, bodies, expected, clients, seconds), calm))
            memory.append(await resident(client, batching))
        questions_per_pass = await mean_batch(client, batching)
    busy = [turn for turn, _ in turns]
    return {
        "batching_ratio": statistics.median(rate(on) / rate(off) for on, off in turns),
        "per_second_batching": statistics.median(rate(on) for on, _ in turns),
        "per_second_alone": statistics.median(rate(off) for _, off in turns),
        "questions_per_pass": questions_per_pass,
        "median_ms": 1000 * statistics.median(time for turn in busy for time in turn.times),
        "answered": sum(turn.answered for pair in turns for turn in pair),
        "lost": sum(turn.lost for pair in turns for turn in pair),
        "clients": clients,
        "minutes": sum(turn.seconds for turn in busy) / 60,
        "memory_mib": memory,
        "memory_ratio": memory[-1] / memory[0],
    }


async def load(
    client: httpx.AsyncClient, url: str, bodies: Sequence[Body], expected: Sequence[Any], clients: int, seconds: float
) -> Turn:
    """Every client asks again as soon as it is answered, until the time is over; what is under way is waited for."""
    turn, began = Turn(), time.perf_counter()

    async def one(first: int) -> None:
        number = first
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            reply = await client.post(f"{url}/answer", json=bodies[number])
            turn.times.append(time.perf_counter() - sent)
            right = reply.status_code == 200 and same(reply.json()["answers"], expected[number])
            turn.answered, turn.lost = turn.answered + right, turn.lost + (not right)
            number = (number + 1) % len(bodies)

    await asyncio.gather(*(one(place * len(bodies) // clients) for place in range(clients)))
    turn.seconds = time.perf_counter() - began
    return turn


def same(found: Any, expected: Any) -> bool:
    """The same span of the same text; probabilities may differ in the last digits, for batches add in another order."""
    pairs = zip(found[0]["candidates"], expected[0]["candidates"], strict=True)
    return all(
        (one["start"], one["end"]) == (other["start"], other["end"]) and abs(one["score"] - other["score"]) < 1e-3
        for one, other in pairs
    )


def rate(turn: Turn) -> float:
    return turn.answered / turn.seconds


async def resident(client: httpx.AsyncClient, url: str) -> float:
    """Memory of the server's process, in MiB."""
    return await metric(client, url, "process_resident_memory_bytes") / 2**20


async def mean_batch(client: httpx.AsyncClient, url: str) -> float:
    total = await metric(client, url, "bertvision_batch_questions_sum")
    return total / await metric(client, url, "bertvision_batch_questions_count")


async def metric(client: httpx.AsyncClient, url: str, name: str) -> float:
    text = (await client.get(f"{url}/metrics")).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


def line(found: dict[str, Any]) -> str:
    reached = found["batching_ratio"] >= WANTED and found["lost"] == 0 and found["memory_ratio"] <= GROWTH
    return (
        f"serve: {found['batching_ratio']:.2f} times the throughput of one request at a time "
        f"(at least {WANTED:g} wanted), {found['per_second_batching']:.0f} against "
        f"{found['per_second_alone']:.0f} answers a second under "
        f"{found['clients']} clients, {found['questions_per_pass']:.1f} questions a pass; "
        f"{found['answered']} answered, {found['lost']} lost; memory {found['memory_mib'][0]:.0f} -> "
        f"{found['memory_mib'][-1]:.0f} MiB over {found['minutes']:.1f} minutes: {'reached' if reached else 'MISSED'}"
    )


if __name__ == "__main__":
    main()
