"""The door of the server: who may come in, with how much luggage, and to which rooms. Plain ASGI, before parsing."""

import asyncio
import base64
import binascii
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertvision.serve.limits import Limits
from bertvision.serve.metrics import Metrics
from bertvision.serve.refusal import Refusal

OPEN = "/health"  # needs no token: whoever watches over servers asks here
DRAIN = 16  # a body is read to its end up to so many times the limit, so that its sender gets to read the refusal
HEADERS = {
    # The browser itself sees to it that the pages load nothing from elsewhere.
    "content-security-policy": "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'; base-uri 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Guard:
    """Checks path, method, token, size and encoding of every request, and counts it.

    routes: {path: its methods} of the API; page: (beginnings of) paths of the web page, e.g. "/assets/"; one that ends
    in a slash covers what is below it. Everything else does not exist.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        metrics: Metrics,
        token: str,
        routes: Mapping[str, set[str]],
        page: tuple[str, ...],
    ) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self._token = token.encode()
        self._routes = routes
        self._pages = {path for path in page if path == "/" or not path.endswith("/")}
        self._folders = tuple(path for path in page if path not in self._pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499  # 499: the client left before there was an answer

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check_path(scope)
            self._check_token(scope)
            body = await self._body(scope, receive)
            if scope["path"] in self._routes:
                await attended(self.app(scope, replay(body, receive), noting), receive, lambda: status == 499)
            else:  # what streams to the page watches over its client itself
                await self.app(scope, replay(body, receive), noting)
        except Refusal as refusal:
            await refuse(refusal)(scope, receive, noting)
        finally:
            route = scope["path"] if scope["path"] in self._routes else "page"
            self.metrics.request(route, status, time.perf_counter() - started)

    def _check_path(self, scope: Scope) -> None:
        path, method = scope["path"], scope["method"]
        if path in self._routes:
            methods = self._routes[path]
            if method not in methods:
                allowed = ", ".join(sorted(methods))
                raise Refusal(405, f"{path} takes {allowed}, not {method}", ("allow", allowed))
        elif path not in self._pages and not path.startswith(self._folders):
            raise Refusal(404, f"there is nothing at this path; there is: {', '.join(sorted(self._routes))}")

    def _check_token(self, scope: Scope) -> None:
        if not self._token or scope["path"] == OPEN:
            return
        if not hmac.compare_digest(self._token, given_token(Headers(scope=scope).get("authorization", ""))):
            # Basic, for browsers: they ask for it themselves. Any user name, the token as password.
            basic = ("www-authenticate", 'Basic realm="bertvision: the token as password", charset="UTF-8"')
            bearer = ("www-authenticate", "Bearer")
            raise Refusal(401, "a token is needed: send the header `Authorization: Bearer TOKEN`", basic, bearer)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, in UTF-8 and within the limit. What is too long is read but not kept."""
        limit = self.limits.body
        declared = Headers(scope=scope).get("content-length", "")
        size = int(declared) if declared.isdecimal() else 0
        parts: list[bytes] = []
        more = size <= DRAIN * limit
        received = 0 if more else size
        try:
            async with asyncio.timeout(self.limits.timeout):
                while more and received <= DRAIN * limit:
                    message = await receive()
                    part = message.get("body", b"")
                    received += len(part)
                    if received <= limit:
                        parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self.limits.timeout:g} s") from None
        if received > limit:
            raise Refusal(413, f"the body is longer than {limit} bytes, the most this server takes")
        body = b"".join(parts)
        try:
            body.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refusal(400, f"the body is not UTF-8 (byte {error.start}); convert it to UTF-8 first") from None
        return body


def given_token(authorization: str) -> bytes:
    """The token in an Authorization header: `Bearer TOKEN`, or `Basic` with any name and the token as password."""
    scheme, _, value = authorization.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value.encode("latin-1")  # as headers are decoded, so that these are the bytes that were sent
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out `body`, which has been read already, and then whatever else comes."""
    fresh = True

    async def again() -> Message:
        nonlocal fresh
        if fresh:
            fresh = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


async def attended(work: Awaitable[None], receive: Receive, unanswered: Callable[[], bool]) -> None:
    """Does the work of a request whose body has been read, and gives it up if the client leaves before an answer."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and unanswered():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        leaving.cancel()
        task.cancel()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def refuse(refusal: Refusal) -> Any:
    """The refusal as a response: {"detail": one line}."""
    response = JSONResponse({"detail": refusal.detail}, refusal.status)
    for name, value in refusal.headers:
        response.headers.append(name, value)
    return response
