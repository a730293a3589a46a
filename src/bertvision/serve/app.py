"""The HTTP interface: which routes there are, and how they say what went wrong."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from bertvision import __version__
from bertvision.serve.docs import docs_page
from bertvision.serve.guard import refuse
from bertvision.serve.messages import PROBLEMS, Health
from bertvision.serve.refusal import Refusal, invalid
from bertvision.serve.routes import add_answer, add_classify, add_similarity
from bertvision.serve.service import Service

log = logging.getLogger("bertvision.serve")


def build_app(service: Service) -> FastAPI:
    """The API of a reader. Only what the reader can do has a route."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="bertvision",
        version=__version__,
        description=f'The reader {service.reader.name}. Every error is JSON: {{"detail": one line}}.',
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    for task, add in (("spans", add_answer), ("labels", add_classify), ("score", add_similarity)):
        if service.tasks(task):
            add(app, service)
    _add_status(app, service)
    _add_errors(app)
    return app


def _add_status(app: FastAPI, service: Service) -> None:
    protected: dict[int | str, Any] = {401: PROBLEMS[401]}

    @app.get("/health")
    async def health() -> Health:
        """Says that the server is up. Needs no token."""
        return Health(status="ok", reader=service.reader.name, tasks=list(service.reader.config.tasks))

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **protected},
    )
    async def metrics() -> Response:
        """Counters for Prometheus: requests, times, sizes of batches, the queue, memory."""
        text, kind = service.metrics.text()
        return Response(text, media_type=kind)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> str:
        return docs_page(app.openapi())


def _add_errors(app: FastAPI) -> None:
    """Whatever goes wrong is one line of JSON."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return refuse(refusal)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        if errors and errors[0]["type"] == "json_invalid":
            reason, place = errors[0]["ctx"]["error"], errors[0]["loc"][-1]
            return refuse(Refusal(400, f"the body is not JSON: {reason} (character {place})"))
        return refuse(invalid(errors))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        detail = "the body is not JSON" if error.status_code == 400 else str(error.detail)
        return refuse(Refusal(error.status_code, detail, *(error.headers or {}).items()))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        log.error("%s: %s", request.url.path, error)  # Starlette raises it again, for the server's log
        return refuse(Refusal(500, "the server failed on this request; its log says more"))
