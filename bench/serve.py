"""Throughput of `bertvision serve` under 32 clients at once; answers lost; memory; latency of one client.

python bench/serve.py [--reader runs/NAME/reader] [--minutes 5] [--quick] [--json]

Three real servers are asked in turns by the same clients: ours, ours with batching switched off, and a plain one around
transformers (plain_server.py) on the same encoder. Two figures come of it, each the median of the rounds' ratios and
neither to be taken for the other: what batching gains, and what the whole gains over the plain server. A request counts
as lost unless ours answers it with what a lone client was answered, and the plain one, which is not tuned, at all.
Latency is that of one client with one connection, question by question in turns with the same Reader in this process.
"""

import argparse
import asyncio
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bertvision import Reader
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.serve.reader_dir import find_reader, read_config

ROUNDS = 5
CALM = 10.0  # seconds of a turn of the servers that do not batch
WANTED, GROWTH = 3.0, 1.10  # least ratio; most memory at the end, as a multiple of that after the first round
HEALTH_MS, SLOWER = 2.0, 1.15  # most milliseconds of /health; most of /answer, as a multiple of the Reader itself
PLAIN = Path(__file__).parent / "plain_server.py"
Body = dict[str, str]
Right = Callable[[int, Any], bool]  # whether this is a right answer to the question of this number


@dataclass
class Turn:
    """What the clients saw in one turn."""

    seconds: float = 0.0
    cpu: float = 0.0  # seconds that the clients themselves were at work
    answered: int = 0
    lost: int = 0
    times: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reader", help="a reader's directory; the newest of runs/*/reader if not given")
    parser.add_argument("--data", default="sample:test:200", help="where the questions come from")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the server that batches is under load")
    parser.add_argument("--latency", action="store_true", help="one client alone, nothing else")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it run at all?")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    given = parser.parse_args()
    bodies = [{"question": one.question, "context": one.context} for one in records(load_articles(given.data))]
    seconds, rounds = (3.0, 1) if given.quick else (60 * given.minutes / ROUNDS, ROUNDS)
    reader = given.reader or newest_reader()
    ours = [sys.executable, "-m", "bertvision", "serve", reader, "--port", "0", "--no-page"]
    plain = [sys.executable, str(PLAIN), "--backbone", read_config(find_reader(reader)).backbone]
    with server(ours) as batching:
        found = latency(batching, Reader.from_pretrained(reader), bodies * (1 if given.quick else 3))
        if not given.latency:
            with server([*ours, "--batch-tokens", "1"]) as alone, server(plain) as other:
                found |= asyncio.run(measure((batching, alone, other), bodies, given.clients, seconds, rounds))
    if given.json:
        print(json.dumps(found))
    else:
        print(*lines(found), sep="\n")
    sys.exit(1 if found.get("lost") else 0)


def newest_reader() -> str:
    found = sorted(Path("runs").glob("*/reader"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit("there is no runs/*/reader; name one with --reader, or make one with `make demo`")
    return str(found[-1])


@contextmanager
def server(words: Sequence[str]) -> Iterator[str]:
    """A server in a process of its own; its address, which is the first thing it prints."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        address = re.search(r"http://\S+", process.stdout.readline())
        if not address:
            sys.exit(f"the server did not start: {' '.join(words)}")
        yield address.group()
    finally:
        process.terminate()
        process.wait()
        if process.stdout:
            process.stdout.close()


def latency(url: str, reader: Reader, bodies: Sequence[Body]) -> dict[str, Any]:
    """Milliseconds of /health, of /answer and of the Reader itself, in turns; one connection, kept alive."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))

    def call(method: str, path: str, body: Body | None = None) -> None:
        content = json.dumps(body).encode() if body else None
        connection.request(method, path, content, {"content-type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()

    works: dict[str, Callable[[Body], object]] = {
        "health": lambda body: call("GET", "/health"),
        "answer": lambda body: call("POST", "/answer", body),
        "reader": lambda body: reader(**body),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number, body in enumerate([*bodies[:5], *bodies]):
        for name, work in works.items():
            began = time.perf_counter()
            work(body)
            if number >= 5:  # the first ones warm it up
                times[name].append(1000 * (time.perf_counter() - began))
    connection.close()
    found = {f"{name}_p{q}_ms": float(np.percentile(own, q)) for name, own in times.items() for q in (50, 99)}
    return found | {"answer_ratio": found["answer_p50_ms"] / found["reader_p50_ms"]}


async def measure(
    servers: tuple[str, str, str], bodies: Sequence[Body], clients: int, seconds: float, rounds: int
) -> dict[str, Any]:
    """Asks all in turns: with batching, without, plain. Ours are held against the first answers, one at a time."""
    batching, alone, plain = servers
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        expected = [(await client.post(f"{alone}/answer", json=body)).json()["answers"] for body in bodies]

        def right(number: int, reply: Any) -> bool:
            return same(reply["answers"], expected[number])

        def any_string(number: int, reply: Any) -> bool:
            return isinstance(reply["answer"], str)

        turns: list[tuple[Turn, Turn, Turn]] = []
        memory: list[float] = []
        for _ in range(rounds):
            without = await load(client, alone, bodies, right, clients, min(CALM, seconds))
            other = await load(client, plain, bodies, any_string, clients, min(CALM, seconds))
            turns.append((await load(client, batching, bodies, right, clients, seconds), without, other))
            memory.append(await resident(client, batching))
        questions_per_pass = await mean_batch(client, batching)
    return summary(turns) | {
        "questions_per_pass": questions_per_pass,
        "clients": clients,
        "memory_mib": memory,
        "memory_ratio": memory[-1] / memory[0],
    }


def summary(turns: Sequence[tuple[Turn, Turn, Turn]]) -> dict[str, Any]:
    """What the rounds came to; each is a turn with batching, one without and one of the plain server."""
    busy = [turn for turn, _, _ in turns]
    every = [turn for round_ in turns for turn in round_]
    return {
        "batching_ratio": statistics.median(rate(on) / rate(off) for on, off, _ in turns),
        "plain_ratio": statistics.median(rate(on) / rate(plain) for on, _, plain in turns),
        "per_second_batching": statistics.median(rate(on) for on in busy),
        "per_second_alone": statistics.median(rate(off) for _, off, _ in turns),
        "per_second_plain": statistics.median(rate(plain) for _, _, plain in turns),
        "median_ms": 1000 * statistics.median(time for turn in busy for time in turn.times),
        "answered": sum(turn.answered for turn in every),
        "lost": sum(turn.lost for turn in every),
        "minutes": sum(turn.seconds for turn in busy) / 60,
        "clients_share": sum(turn.cpu for turn in busy) / sum(turn.seconds for turn in busy),
    }


async def load(
    client: httpx.AsyncClient, url: str, bodies: Sequence[Body], right: Right, clients: int, seconds: float
) -> Turn:
    """Every client asks again as soon as it is answered, until the time is over; what is under way is waited for."""
    turn, began, at_work = Turn(), time.perf_counter(), time.process_time()

    async def one(first: int) -> None:
        number = first
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            reply = await client.post(f"{url}/answer", json=bodies[number])
            turn.times.append(time.perf_counter() - sent)
            good = reply.status_code == 200 and right(number, reply.json())
            turn.answered, turn.lost = turn.answered + good, turn.lost + (not good)
            number = (number + 1) % len(bodies)

    await asyncio.gather(*(one(place * len(bodies) // clients) for place in range(clients)))
    turn.seconds, turn.cpu = time.perf_counter() - began, time.process_time() - at_work
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


def lines(found: dict[str, Any]) -> list[str]:
    ratio, health = found["answer_ratio"], found["health_p50_ms"]
    quick = [
        f"serve, /health: p50 {health:.2f} ms, p99 {found['health_p99_ms']:.2f} ms (p50 below {HEALTH_MS:g} wanted): "
        f"{'reached' if health < HEALTH_MS else 'MISSED'}",
        f"serve, /answer: p50 {found['answer_p50_ms']:.2f} ms, p99 {found['answer_p99_ms']:.2f} ms, p50 {ratio:.2f} "
        f"times that of the Reader itself, {found['reader_p50_ms']:.2f} ms (at most {SLOWER:g} wanted): "
        f"{'reached' if ratio <= SLOWER else 'MISSED'}",
    ]
    return quick + (_load_lines(found) if "lost" in found else [])


def _load_lines(found: dict[str, Any]) -> list[str]:
    batching, memory = found["batching_ratio"], found["memory_ratio"]
    return [
        f"serve, batching: {batching:.2f} times the throughput of one request at a time (at least {WANTED:g} wanted): "
        f"{'reached' if batching >= WANTED else 'MISSED'}; {found['per_second_batching']:.1f} against "
        f"{found['per_second_alone']:.1f} answers a second under {found['clients']} clients, "
        f"{found['questions_per_pass']:.1f} questions a pass, {found['median_ms']:.0f} ms each; "
        f"the clients took {found['clients_share']:.2f} of a core",
        f"serve, plain: {found['plain_ratio']:.2f} times the throughput of a plain server around transformers, "
        f"{found['per_second_batching']:.1f} against {found['per_second_plain']:.1f} answers a second",
        f"serve, lost: {found['lost']} of {found['lost'] + found['answered']}: "
        f"{'MISSED' if found['lost'] else 'reached'}",
        f"serve, memory: {' -> '.join(f'{mib:.0f}' for mib in found['memory_mib'])} MiB, {memory:.2f} times over "
        f"{found['minutes']:.1f} minutes (at most {GROWTH:g} wanted): {'reached' if memory <= GROWTH else 'MISSED'}",
    ]


if __name__ == "__main__":
    main()
