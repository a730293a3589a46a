"""The process: binds the socket, loads the reader, serves until told to stop, and finishes what it accepted."""

import asyncio
import errno
import importlib.util
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from bertvision.errors import UserError
from bertvision.serve.limits import Limits
from bertvision.serve.service import Answering

EXTRA = 'pip install "bertvision[serve]"'


def serve(
    load: Callable[[], Answering], *, host: str, port: int, limits: Limits, token: str = "", page: bool = True
) -> None:
    """Serves the reader that `load` gives until SIGINT or SIGTERM. The address is tried before the reader is loaded.

    token: what clients must know, "" for nothing. page: whether / is a page to try it.
    """
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"serve needs {package}, which is not installed; {EXTRA}")
    with bind(host, port) as listener:
        if not token and not _is_local(listener):
            print("bertvision: anyone who can reach this machine can ask; set --token to change that", file=sys.stderr)
        reader = load()
        build = partial(build_server, reader, limits, token, page)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        asyncio.run(_serve(build, reader.name, listener))


def load_reader(name: str, *, engine: str = "auto", backbone: str | None = None) -> Answering:
    """The reader in a directory, of the package, or of the hub; see `Reader.from_pretrained`."""
    from bertvision.serve.reader import Reader

    return Reader.from_pretrained(name, engine=engine, backbone=backbone)


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address that does not listen yet; UserError if the address cannot be had."""
    where = f"{host}:{port}"
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port}: ports go from 0 (any that is free) to 65535")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (socket.gaierror, UnicodeError):
        raise UserError(f"--host {host}: no such host; 127.0.0.1 is this machine alone, 0.0.0.0 all it has") from None
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: "is taken by another program; choose another --port, 0 for any that is free",
            errno.EACCES: "is not allowed for this user; choose a --port above 1023",
            errno.EADDRNOTAVAIL: "is not an address of this machine; 127.0.0.1 is itself alone, 0.0.0.0 all it has",
        }
        raise UserError(f"{where} {reasons.get(error.errno or 0, f'cannot be used ({error.strerror})')}") from None
    return listener


def address(listener: socket.socket) -> str:
    """The URL at which a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_local(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


async def _serve(build: Callable[[], Any], name: str, listener: socket.socket) -> None:
    server = build()
    ready = asyncio.create_task(_announce(server, name, listener))
    await server.serve(sockets=[listener])
    await ready


async def _announce(server: Any, name: str, listener: socket.socket) -> None:
    while not server.started and not server.should_exit:
        await asyncio.sleep(0.01)
    if server.started:
        print(f"{name}: {address(listener)} (API: {address(listener)}/docs); Ctrl-C stops", flush=True)


def build_server(reader: Answering, limits: Limits, token: str = "", page: bool = True) -> Any:
    """A server for `reader`, to be run with `await server.serve(sockets=[...])`. Must be called in that event loop."""
    import uvicorn

    from bertvision.serve.app import build_app
    from bertvision.serve.guard import Guard
    from bertvision.serve.metrics import Metrics
    from bertvision.serve.page import mount_page
    from bertvision.serve.patience import patient
    from bertvision.serve.service import Service

    metrics = Metrics(reader.name)
    app = build_app(Service(reader, limits, metrics))
    routes = {route.path: set(route.methods) for route in app.routes}  # type: ignore[attr-defined]
    mounted = mount_page(app, limits, page)
    guarded = Guard(app, limits=limits, metrics=metrics, token=token, routes=routes, page=mounted.paths)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """The first signal asks to stop when all that was accepted is answered; a second one does not wait."""
            self.force_exit = self.should_exit
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            mounted.close()  # open pages hold on to their connections
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            guarded,
            http=patient(limits.timeout),
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=int(limits.timeout) + 1,
        )
    )
