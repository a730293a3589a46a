"""ASGI middleware: allowed hosts and origins, token, body size limit, security headers, cancellation."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertvision.serve.server import Hosts, Limits

OPEN = "/health"  # needs no token: for monitoring
CHUNK = 1 << 18  # bytes that a connection gives at once, which may hold a whole head and a part of its body
DRAIN = 16  # a body up to so many times over the limit is read to its end, so that the client gets to read the refusal
CLIENT_LEFT = 499
ADDRESS, HEAD = 2_000, 65_536  # most characters of path and query; most bytes of all headers
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
log = logging.getLogger("bertvision.serve")


class Refusal(Exception):
    """A request is not answered. detail: one line on what is wrong and what to do."""

    def __init__(self, status: int, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.status, self.headers = status, headers
        # A lone surrogate, which JSON can spell but UTF-8 cannot, may be quoted in the detail.
        self.detail = " ".join(detail.encode("utf-8", "backslashreplace").decode("utf-8").split())

    def response(self) -> Response:
        """{"detail": one line}"""
        response = JSONResponse({"detail": self.detail}, self.status)
        for name, value in self.headers:
            response.headers.append(name, value)
        return response


class Checks:
    """Checks host, origin, token, size and encoding of every request; cancels it if the client disconnects.

    Every failure is one line of JSON; every response gets the security headers.
    """

    def __init__(self, app: ASGIApp, *, limits: Limits, hosts: Hosts, token: str = "") -> None:
        self.app, self.limits, self.hosts, self.token = app, limits, hosts, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = False

        async def send_with_headers(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            headers = Headers(scope=scope)
            _check_head(scope, headers)
            self._check_host(headers, scope["method"])
            self._check_token(headers, scope["path"])
            body = await self._body(headers, receive)
            work = self.app(scope, _replay(body, receive), send_with_headers)
            await _unless_disconnected(work, receive, lambda: began)
            return
        except Refusal as refusal:
            response = refusal.response()
        except Exception:
            if began:
                raise
            log.exception("%s", scope["path"])
            response = Refusal(500, "the server failed on this request; its log says more").response()
        await response(scope, receive, send_with_headers)

    def _check_host(self, headers: Headers, method: str) -> None:
        """A web page whose name was made to resolve to this machine sends its own name as Host and Origin."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.hosts.allow(host):
            raise Refusal(403, f"host {host[:100]!r} is not allowed; start the server with --allow-host NAME")
        if origin is not None and method not in ("GET", "HEAD") and not self.hosts.allow_origin(origin, host):
            raise Refusal(403, f"origin {origin[:100]!r} is not allowed; start the server with --allow-host NAME")

    def _check_token(self, headers: Headers, path: str) -> None:
        if not self.token or path == OPEN:
            return
        if not hmac.compare_digest(self.token, given_token(headers.get("authorization", ""))):
            # Basic is for browsers, which ask for it themselves: any user name, the token as password.
            basic = ("www-authenticate", 'Basic realm="bertvision: the token as password", charset="UTF-8"')
            bearer = ("www-authenticate", "Bearer")
            raise Refusal(401, "a token is needed: send the header `Authorization: Bearer TOKEN`", basic, bearer)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, in UTF-8 and within the limit. A longer one is read but not kept."""
        limit = self.limits.body
        declared = headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else 0
        body, more = bytearray(), size <= DRAIN * limit
        received = 0 if more else size
        try:
            async with asyncio.timeout(self.limits.timeout):
                while more and received <= DRAIN * limit:
                    message = await receive()
                    part = message.get("body", b"")
                    received += len(part)
                    if received <= limit:
                        body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self.limits.timeout:g} s") from None
        if received > limit:
            raise Refusal(413, f"the body is longer than {limit} bytes, the limit of this server")
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(400, f"the body is not UTF-8 (byte {error.start}); convert it to UTF-8 first") from None
        return bytes(body)


def _check_head(scope: Scope, headers: Headers) -> None:
    """Refuses long or odd addresses, large heads and upgrades, whatever parser has let them through."""
    address = scope.get("raw_path", scope["path"].encode("utf-8", "replace")) + scope.get("query_string", b"")
    if len(address) > ADDRESS:
        raise Refusal(414, f"the address is longer than {ADDRESS} characters")
    if not scope["path"].isprintable():
        raise Refusal(400, "the address holds characters that no address of this server has")
    if sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD:
        raise Refusal(431, f"the headers are longer than {HEAD} bytes")
    if "upgrade" in headers:
        raise Refusal(400, "this server supports HTTP/1.1 only; send the request without `Upgrade`")


def given_token(authorization: str) -> bytes:
    """The token in an Authorization header: `Bearer TOKEN`, or `Basic` with any name and the token as password."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")  # as headers are decoded: the bytes that were sent
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    return b""


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives `body`, which has been read already, and then whatever follows."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


async def _unless_disconnected(work: Awaitable[None], receive: Receive, began: Callable[[], bool]) -> None:
    """Runs `work`; cancels it if the client disconnects before the response begins."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not began():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            raise Refusal(CLIENT_LEFT, "the client has disconnected")
        await task
    finally:
        left.cancel()
        task.cancel()


def head_timeout(seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, closing connections whose request head is not complete after so many seconds."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    base: Any = H11Protocol  # whatever else is installed: httptools has no limit for the number of headers

    class HeadTimeout(base):  # type: ignore[misc]
        deadline: asyncio.TimerHandle | None = None  # as long as a head is awaited
        received = 0  # bytes since then

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            self.received = self.received + len(data) if self.deadline is not None else 0
            if self.received > HEAD + CHUNK:  # so much, and the head is not complete
                self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")
                self.transport.close()
                return
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.end_deadline()  # the head is complete; bodies and answers have limits of their own
            elif self.deadline is None:
                self.deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self.end_deadline()
            super().connection_lost(exc)

        def end_deadline(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return HeadTimeout
