"""The server process: limits, listening socket, allowed host names, uvicorn, shutdown."""

import asyncio
import errno
import importlib.util
import ipaddress
import logging
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bertvision.errors import UserError
from bertvision.files import read_text

if TYPE_CHECKING:
    from bertvision.serve.reader import Reader

PACKAGES = ("fastapi", "uvicorn", "prometheus_fastapi_instrumentator")


@dataclass(frozen=True)
class Limits:
    """Limits on one request and on all of them together; the schema in /openapi.json and the page follow them."""

    body: int = 1 << 20
    """Bytes of a request's body."""
    questions: int = 64
    """Questions (or texts, or pairs) in one request."""
    question: int = 1_000
    """Characters of one question."""
    context: int = 100_000
    """Characters of a context, or of a text to classify."""
    top_k: int = 20
    """Candidates for one question."""
    queue: int = 256
    """Waiting questions, of all requests together."""
    batch_tokens: int = 4_096
    """Tokens of one pass of the model, estimated; a longer question runs alone. 1 switches batching off."""
    timeout: float = 30.0
    """Seconds to answer a request, and to receive its head or its body."""
    connections: int = 1_000
    """Open connections; further ones are refused."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise UserError(f"limit {field.name}: must be above 0 and finite, not {getattr(self, field.name)}")
        if self.queue < self.questions:
            raise UserError(
                f"limit queue: {self.queue} questions can wait but one request may ask {self.questions}; "
                "raise --queue or lower --max-questions"
            )


@dataclass(frozen=True)
class Hosts:
    """Host names that requests may be sent to: protection against DNS rebinding.

    any_address: any IP address is fine too, for a server that listens on all addresses of the machine.
    given: names from --allow-host, which are also allowed as Origin.
    """

    names: frozenset[str]
    any_address: bool = False
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, listener: socket.socket, host: str = "", given: Sequence[str] = ()) -> "Hosts":
        """The names of a bound socket: its address, the `host` it was bound by, this machine's name, and `given`."""
        address = ipaddress.ip_address(listener.getsockname()[0])
        names = {str(address), "localhost", host.lower()} - {""}
        if not address.is_loopback:
            names.add(socket.gethostname().lower())
        return cls(frozenset(names), address.is_unspecified, frozenset(name.lower() for name in given))

    def allow(self, host: str) -> bool:
        """Whether the Host header of a request is one of these. Ports do not matter."""
        name = _hostname(host)
        return name in self.names | self.given or (self.any_address and _is_address(name))

    def allow_origin(self, origin: str, host: str) -> bool:
        """Whether the Origin header of a request is the server itself, or one of `given`."""
        netloc = origin.partition("://")[2]
        return netloc == host or _hostname(netloc) in self.given


def _hostname(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def token_from(file: Path | None, token: str = "") -> str:
    """The token in a file, without white space around it; `token` if there is no file. Both are refused."""
    if file is None:
        return token
    if token:
        raise UserError("--token-file: give one of --token-file, BERTVISION_TOKEN and --token")
    token = read_text(file).strip()
    if not token:
        raise UserError(f"{file}: holds no token; write one into it")
    return token


def serve(
    load: "Callable[[], Reader]",
    *,
    host: str,
    port: int,
    limits: Limits,
    token: str = "",
    page: bool = True,
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serves the reader that `load` returns until SIGINT or SIGTERM. The address is bound before the reader is loaded.

    token: clients must send it, "" for none. page: serve the web page at /. allow_hosts: further host names.
    """
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise UserError(f'serve needs {package}, which is not installed; pip install "bertvision[serve]"')
    with bind(host, port) as listener:
        if not token and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            print("bertvision: open to everyone who can reach this machine; --token-file changes that", file=sys.stderr)
        reader = load()
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        hosts = Hosts.of(listener, host, allow_hosts)
        asyncio.run(_serve(lambda: build_server(reader, limits, hosts, token, page), reader.name, listener))


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet; UserError if the address cannot be used."""
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: ports go from 0 (any free one) to 65535")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host}: no such host; 127.0.0.1 is this machine alone, 0.0.0.0 all networks") from None
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only where the protocol is TCP
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: "is in use by another program; choose another --port, 0 for any free one",
            errno.EACCES: "is not allowed for this user; choose a --port above 1023",
            errno.EADDRNOTAVAIL: "is not an address of this machine; 127.0.0.1 is itself alone, 0.0.0.0 all networks",
        }
        reason = reasons.get(error.errno or 0, f"cannot be used ({error.strerror})")
        raise UserError(f"{host}:{port} {reason}") from None
    return listener


def address(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(build: Callable[[], Any], name: str, listener: socket.socket) -> None:
    server = build()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        print(f"{name}: {address(listener)} (API: {address(listener)}/docs); Ctrl-C stops", flush=True)
    await task


def build_server(reader: "Reader", limits: Limits, hosts: Hosts, token: str = "", page: bool = True) -> Any:
    """A uvicorn server, to be run with `await server.serve(sockets=[...])`. Must be called in that event loop."""
    import uvicorn

    from bertvision.serve.api import build_app
    from bertvision.serve.middleware import Checks, head_timeout

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """The first signal stops the server once accepted requests are answered, a second one at once."""
            if self.should_exit:
                os._exit(128 + sig)  # the model may be in the middle of a pass, which nothing can interrupt cleanly
            self.should_exit = True

    checks = {"limits": limits, "hosts": hosts, "token": token}
    return Server(
        uvicorn.Config(
            build_app(reader, limits, page, checks=(Checks, checks)),
            http=head_timeout(limits.timeout),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=int(limits.timeout) + 1,
        )
    )
