"""A server under load: many clients at once, some of which leave, send slowly or read slowly; then SIGTERM."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import Awaitable
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from bertvision.serve.reader import Reader
from readers import tiny_reader
from runs import Command
from torture.outcomes import Tally

CLIENTS, EACH = 24, 8  # requests of one client
LAST = 24  # requests that are under way when the signal comes
WORDS = ["the", "world", "what", "is", "a", "question", "answer", "of", "in", "and"]
PART = "request under load"
Body = dict[str, Any]


@cache
def served(place: Path) -> tuple[Path, list[Body], list[str]]:
    """A reader, questions to it, and its own answers."""
    reader = Reader.from_pretrained(tiny_reader().save_pretrained(place / "reader"))
    bodies = [
        {"question": f"what is {WORDS[n % 9]}", "context": " ".join(WORDS[n % 7 :] * (1 + 12 * (n % 5)))}
        for n in range(40)
    ]
    return place / "reader", bodies, [reader(**body)["answer"] for body in bodies]


def attack(tally: Tally, place: Path, seed: int) -> None:
    """A server of its own, from its start to its end."""
    reader, _, _ = served(place)
    command = Command("serve", reader, "--port", 0, "--no-page", cwd=place)
    url = _address(command)
    asyncio.run(_load(tally, place, url, random.Random(f"load {seed}"), command.process.pid))
    done = command.wait()
    clean = done.code == 0 and not done.err
    tally.add(PART, "server's end", "same" if clean else "traceback", f"seed {seed}: {done.code} {done.err[-500:]}")


def _address(command: Command) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end and command.running:
        found = re.search(r"http://\S+", command.streams[0].read_text()) if command.streams[0].exists() else None
        if found:
            return found.group()
        time.sleep(0.05)
    raise AssertionError(command.wait())


async def _load(tally: Tally, place: Path, url: str, chance: random.Random, server: int | None) -> None:
    _, bodies, answers = served(place)
    limits = httpx.Limits(max_connections=2 * CLIENTS)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:

        async def asked(number: int) -> tuple[int, str]:
            reply = await client.post(f"{url}/answer", json=bodies[number])
            return reply.status_code, reply.text

        async def one() -> None:
            for _ in range(EACH):
                number = chance.randrange(len(bodies))
                how = chance.choice(["plain"] * 5 + ["cancelled", "cancelled", "slow sender", "slow reader"])
                if how == "plain":
                    await _judge(tally, how, asked(number), answers[number])
                elif how == "cancelled":
                    await _cancelled(tally, asked(number), chance.uniform(0, 0.2))
                else:
                    pause = 0.02 if how == "slow sender" else 0.0
                    await _judge(tally, how, _raw(url, bodies[number], pause, how == "slow reader"), answers[number])

        await asyncio.gather(*(one() for _ in range(CLIENTS)))
        last = [chance.randrange(len(bodies)) for _ in range(LAST)]
        under_way = [
            asyncio.create_task(_judge(tally, "during SIGTERM", asked(number), answers[number])) for number in last
        ]
        await _accepted(client, url, under_way)
        if server:
            os.kill(server, signal.SIGTERM)
        await asyncio.gather(*under_way)


async def _accepted(client: httpx.AsyncClient, url: str, tasks: list["asyncio.Task[None]"]) -> None:
    """Waits until the server has begun with all requests."""
    while not all(task.done() for task in tasks):
        text = (await client.get(f"{url}/metrics")).text
        waiting = re.search(r"^bertvision_waiting_questions (\S+)", text, re.MULTILINE)
        if waiting and float(waiting[1]) + 1 >= sum(not task.done() for task in tasks):
            return


async def _judge(tally: Tally, how: str, work: Awaitable[tuple[int, str]], right: str) -> None:
    """Counts a request by what came of it."""
    try:
        status, text = await work
    except httpx.ConnectError:
        tally.add(PART, how, "refused")
        return
    except (httpx.HTTPError, OSError, asyncio.IncompleteReadError) as error:
        tally.add(PART, how, "lost", repr(error))
        return
    if status == 200:
        found = json.loads(text)["answers"][0]["candidates"][0]["answer"]
        tally.add(PART, how, "same" if found == right else "silent", f"{found!r} instead of {right!r}")
    else:
        tally.add(PART, how, "refused" if 400 <= status < 500 or status == 503 else "traceback", f"{status} {text}")


async def _cancelled(tally: Tally, work: Awaitable[tuple[int, str]], seconds: float) -> None:
    """A client that leaves before it is answered."""
    try:
        await asyncio.wait_for(work, seconds)
    except TimeoutError:
        tally.add(PART, "cancelled", "accepted")
    except httpx.HTTPError as error:
        tally.add(PART, "cancelled", "lost", repr(error))
    else:
        tally.add(PART, "cancelled", "same")


async def _raw(url: str, body: Body, pause: float, slowly: bool) -> tuple[int, str]:
    """A request sent, or read, piece by piece."""
    host, _, port = url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    head = f"POST /answer HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    whole = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
    try:
        step = max(1, len(whole) // 20)
        for start in range(0, len(whole), step if pause else len(whole)):
            writer.write(whole[start : start + (step if pause else len(whole))])
            await writer.drain()
            await asyncio.sleep(pause)
        found = b""
        while piece := await reader.read(64 if slowly else 1 << 16):
            found += piece
            await asyncio.sleep(0.005 if slowly else 0)
    finally:
        writer.close()
    head_, _, text = found.partition(b"\r\n\r\n")
    return int(head_[9:12]), text.decode()
