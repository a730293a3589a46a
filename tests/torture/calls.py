"""Hostile requests: bytes and bodies changed at random, and what schemathesis draws from the schema."""

import json
import logging
import random
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from bertvision.serve.server import Limits
from serve.servers import LastWordReader, serving
from torture.damage import broken, change
from torture.inputs import VALUES, WAYS
from torture.outcomes import Tally

BODIES: dict[str, Any] = {
    "/answer": {"question": ["Where is Rome?", "Who?"], "context": "Rome is in Italy.", "top_k": 2, "layers": True},
    "/classify": {"text": ["good!", "bad"], "pair": ["a", "b"], "task": "labels"},
    "/entities": {"text": ["Ada is in Rome.", "nothing"], "task": "tokens"},
    "/similarity": {"a": ["one"], "b": ["two"], "task": "score"},
}
PATIENCE = 0.2  # seconds
DRAWN = 250  # requests that schemathesis draws at once
LIMITS = Limits(question=50, context=100, questions=3)


class Caught(logging.Handler):
    """Tracebacks in the log of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def watched() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the tracebacks that it logs."""
    caught, root = Caught(), logging.getLogger()
    root.addHandler(caught)
    try:
        with serving(LastWordReader(), LIMITS, page=True) as url:
            yield url, caught.found
    finally:
        root.removeHandler(caught)


def attack(tally: Tally, place: object, number: int) -> None:
    """A server and some hundreds of requests to it."""
    with watched() as (url, logged):
        for one in range(2 * DRAWN):
            _send(tally, url, random.Random(f"requests {number} {one}"), logged)
        _draw(tally, url, number, logged)


def _send(tally: Tally, url: str, chance: random.Random, logged: list[str]) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    sent = _request(f"{host}:{port}", chance)
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        found = b""
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
            if not select.select([connection], [], [], PATIENCE)[0]:  # it waits for more
                connection.shutdown(socket.SHUT_WR)
            found = connection.recv(65536)
    _count(tally, "changed at random", int(found[9:12]) if found[9:12].isdigit() else 400, logged, repr(sent))


def _request(host: str, chance: random.Random) -> bytes:
    """A request to one of the routes, changed in its bytes, its body or its head."""
    route = chance.choice([*BODIES, "/health", "/metrics", "/docs", "/", "/openapi.json", "/static/page.js"])
    table = json.loads(json.dumps(BODIES.get(route, {})))
    way = chance.choice(["body", "body", "head", *WAYS])
    if way == "body" and table:
        change(table, chance, remove_key=chance.random() < 0.3)
    body = json.dumps(table).encode() if route in BODIES else b""
    lines = [f"{'POST' if body else 'GET'} {route} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines.append(f"Content-Length: {len(body)}")
    if way == "head":
        odd = chance.choice([*VALUES, "chunked", "gzip", "websocket", "100-continue", "text/plain"])
        name = chance.choice(["Host", "Content-Length", "Transfer-Encoding", "Content-Encoding", "Expect", "Upgrade"])
        lines.insert(chance.randrange(1, len(lines)), f"{name}: {odd}")
    whole = "\r\n".join([*lines, "Connection: close", "", ""]).encode(errors="replace") + body
    return broken(whole, way, chance) if way in WAYS else whole


def _draw(tally: Tally, url: str, number: int, logged: list[str]) -> None:
    """Requests from the schema, fitting and unfitting."""
    api = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for path in BODIES:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(number)
            @settings(
                max_examples=DRAWN // 6,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.generate],
                deadline=None,
            )
            @given(case=api[path]["POST"].as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                _count(tally, "drawn from the schema", case.call().status_code, logged, repr(case.body))

            ask()


def _count(tally: Tally, target: str, status: int, logged: list[str], about: str) -> None:
    outcome = "accepted" if status < 400 else "refused" if status < 500 and not logged else "traceback"
    tally.add("request", target, outcome, f"{status} {about[:300]} {logged[-1:]}")
    logged.clear()
