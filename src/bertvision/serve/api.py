"""The HTTP API of a reader: requests and responses, routes, errors, metrics, static pages."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator import metrics as http_metrics
from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from bertvision import __version__
from bertvision.errors import UserError, nearest
from bertvision.serve.batcher import Abandoned, Batch, Batcher, QueueFull, Stopped
from bertvision.serve.messages import (
    PROBLEMS,
    Answers,
    Entities,
    Extracted,
    Health,
    Labels,
    OneOrMany,
    Open,
    Scores,
    Strict,
)
from bertvision.serve.middleware import Refusal
from bertvision.serve.server import Limits

if TYPE_CHECKING:
    from bertvision.serve.reader import Reader

STATIC = Path(__file__).parent / "static"
EXAMPLE: Any = {"question": "Where does Ada live?", "context": "Ada Byron lives in London.", "top_k": 2}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
QUESTIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


class Service:
    """A reader behind a queue. registry: what it counts, for Prometheus."""

    def __init__(self, reader: "Reader", limits: Limits) -> None:
        self.reader, self.limits, self.registry = reader, limits, CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, open files
        PlatformCollector(registry=self.registry)
        about = Gauge("bertvision_info", "What is served.", ["version", "reader"], registry=self.registry)
        about.labels(__version__, reader.name).set(1)
        self._histograms = {
            name: Histogram(f"bertvision_batch_{name}", text, buckets=buckets, registry=self.registry)
            for name, text, buckets in (
                ("seconds", "Time of one pass of the model.", SECONDS),
                ("questions", "Questions in one pass.", QUESTIONS),
                ("tokens", "Tokens in one pass, estimated.", TOKENS),
            )
        }
        self.batcher = Batcher(
            self._run, self._count, batch_tokens=limits.batch_tokens, queue=limits.queue, observe=self._observe
        )
        waiting = Gauge("bertvision_waiting_questions", "Questions in the queue.", registry=self.registry)
        waiting.set_function(lambda: self.batcher.waiting)

    async def ask(self, kind: tuple[Any, ...], works: Sequence[tuple[str, ...]]) -> list[Any]:
        """The results of works of one kind: (verb, number of texts, task, options). Raises only Refusal."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await self.batcher.submit(kind, works)
        except TimeoutError:
            raise Refusal(504, f"not answered within {self.limits.timeout:g} s; ask less at once") from None
        except QueueFull as full:
            raise Refusal(503, str(full), ("retry-after", str(full.retry_after))) from None
        except Stopped:
            raise Refusal(503, "the server is stopping", ("retry-after", "5")) from None
        except UserError as error:
            raise Refusal(422, str(error)) from None

    def names(self, verb: str) -> list[str]:
        """The names of the reader's tasks that answer to a verb."""
        return [name for name, task in self.reader.config.tasks.items() if task.verb == verb]

    def _run(self, kind: tuple[Any, ...], works: list[Any], wanted: Callable[[], bool]) -> Sequence[Any]:
        """In the worker thread: one call of the reader for many works of one kind."""

        def between_passes(done: int, total: int) -> None:
            if not wanted():
                raise Abandoned

        verb, _, task, options = kind
        if verb == "answer":
            return self.reader.answers(works, **dict(options), progress=between_passes)
        reader = self.reader
        calls: dict[str, Callable[..., Any]] = {
            "classify": reader.classify,
            "similarity": reader.similarity,
            "entities": reader.entities,
        }
        return calls[verb](*map(list, zip(*works)), task=task)

    def _count(self, kind: tuple[Any, ...], work: tuple[str, ...]) -> int:
        return self.reader.config.tasks[kind[2]].windows.estimate(*work)

    def _observe(self, batch: Batch) -> None:
        for name, histogram in self._histograms.items():
            histogram.observe(getattr(batch, name))


def build_app(
    reader: "Reader", limits: Limits, page: bool = True, checks: tuple[Any, Mapping[str, Any]] | None = None
) -> FastAPI:
    """The API of a reader: only what the reader can do has a route. checks: middleware and its options."""
    service = Service(reader, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.close)

    app = FastAPI(
        title="bertvision",
        version=__version__,
        description=f'The reader {reader.name}. Every error is JSON: {{"detail": one line}}.',
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    routes = [
        *(("answer", _add_answer), ("answer", _add_question_answering)),
        *(("classify", _add_classify), ("similarity", _add_similarity), ("entities", _add_entities)),
    ]
    for verb, add in routes:
        if names := service.names(verb):
            add(app, service, names)
    _add_status(app, service)
    _add_pages(app, page)
    _add_errors(app)
    if checks:
        app.add_middleware(checks[0], **checks[1])
    # Added last, so that it is the outermost and counts refusals too.
    Instrumentator(should_group_status_codes=False, registry=service.registry).add(
        http_metrics.default(latency_lowr_buckets=SECONDS, registry=service.registry)
    ).instrument(app)
    return app


def _add_answer(app: FastAPI, service: Service, names: Any) -> None:
    limits = service.limits

    class AnswerRequest(Strict):
        model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
        question: Annotated[list[str], OneOrMany(limits.question, limits.questions)] = Field(
            description="One question, or several about the same context."
        )
        context: str = Field(
            min_length=1, max_length=limits.context, pattern=r"\S", description="The text that may hold the answer."
        )
        top_k: int = Field(1, ge=1, le=limits.top_k, description="Most candidates for one question.")
        no_answer_threshold: float | None = Field(
            None, ge=0, le=1, description='Say "no answer" above this probability; the reader\'s own rule if not given.'
        )
        answerable: float | None = Field(
            None, gt=0, lt=1, description="Share of questions expected to have an answer; the reader's if not given."
        )
        layers: bool = Field(False, description="Add the contribution of each layer of the encoder.")

    @app.post("/answer", responses=PROBLEMS, response_model_exclude_none=True)
    async def answer(request: AnswerRequest) -> Answers:
        """Finds the answers to questions in a context, or says that there is none."""
        options = request.model_dump(include={"top_k", "no_answer_threshold", "answerable", "layers"})
        works = [(question, request.context) for question in request.question]
        ranked = await service.ask(("answer", 2, names[0], tuple(options.items())), works)
        pairs = zip(request.question, ranked, strict=True)
        answers = [{"question": question, "candidates": candidates} for question, candidates in pairs]
        return Answers.model_validate({"answers": answers})


def _add_question_answering(app: FastAPI, service: Service, names: Any) -> None:
    """Request and response as an inference endpoint of the Hugging Face hub has them for `question-answering`."""
    limits = service.limits

    class Inputs(Open):
        question: str = Field(min_length=1, max_length=limits.question, pattern=r"\S")
        context: str = Field(min_length=1, max_length=limits.context, pattern=r"\S")

    class Parameters(Open):
        top_k: int | None = Field(None, ge=1, le=limits.top_k, description="Most answers; above 1 a list is returned.")
        max_answer_len: int | None = Field(None, ge=1, le=limits.context, description="Most tokens of an answer.")
        handle_impossible_answer: bool | None = Field(None, description='Allow "no answer", which is "".')
        align_to_words: bool | None = Field(None, description="Extend answers to whole words; true if not given.")
        doc_stride: int | None = Field(None, description="Has no effect: windows are cut as in training.")
        max_seq_len: int | None = Field(None, description="Has no effect: windows are cut as in training.")
        max_question_len: int | None = Field(None, description="Has no effect: questions are cut as in training.")

    class QuestionAnsweringRequest(Open):
        inputs: Inputs
        parameters: Parameters | None = None

    @app.post("/question-answering", responses=PROBLEMS)
    async def question_answering(request: QuestionAnsweringRequest) -> Extracted | list[Extracted]:
        """Finds an answer as the hub's inference endpoints do: `InferenceClient.question_answering` may call it."""
        given = request.parameters or Parameters.model_validate({})
        pair = (request.inputs.question, request.inputs.context)
        options = {"top_k": given.top_k or 1, "handle_impossible_answer": bool(given.handle_impossible_answer)}
        options |= {"align_to_words": given.align_to_words is not False}
        options |= {} if given.max_answer_len is None else {"max_answer_len": given.max_answer_len}
        (candidates,) = await service.ask(("answer", 2, names[0], tuple(options.items())), [pair])
        answers = [Extracted.model_validate(candidate) for candidate in candidates]
        return answers if options["top_k"] > 1 else answers[0]


def _add_classify(app: FastAPI, service: Service, names: Any) -> None:
    texts = OneOrMany(service.limits.context, service.limits.questions)

    class ClassifyRequest(Strict):
        text: Annotated[list[str], texts] = Field(description="One text, or several.")
        pair: Annotated[list[str], texts] | None = Field(None, description="The second text of each, for pairs.")
        task: str = Field(names[0], description="Which of the reader's tasks.", json_schema_extra={"enum": names})

    @app.post("/classify", responses=PROBLEMS)
    async def classify(request: ClassifyRequest) -> Labels:
        """Finds the label of texts, or of pairs of texts."""
        given = {"text": request.text} | ({} if request.pair is None else {"pair": request.pair})
        return Labels(
            labels=await service.ask(("classify", len(given), request.task, ()), _zipped(given, request, names))
        )


def _add_similarity(app: FastAPI, service: Service, names: Any) -> None:
    texts = OneOrMany(service.limits.context, service.limits.questions)

    class SimilarityRequest(Strict):
        a: Annotated[list[str], texts] = Field(description="One text, or several.")
        b: Annotated[list[str], texts] = Field(description="What each is compared with.")
        task: str = Field(names[0], description="Which of the reader's tasks.", json_schema_extra={"enum": names})

    @app.post("/similarity", responses=PROBLEMS)
    async def similarity(request: SimilarityRequest) -> Scores:
        """Scores how alike the texts of each pair are."""
        works = _zipped({"a": request.a, "b": request.b}, request, names)
        return Scores(scores=await service.ask(("similarity", 2, request.task, ()), works))


def _add_entities(app: FastAPI, service: Service, names: Any) -> None:
    texts = OneOrMany(service.limits.context, service.limits.questions)

    class EntitiesRequest(Strict):
        text: Annotated[list[str], texts] = Field(description="One text, or several.")
        task: str = Field(names[0], description="Which of the reader's tasks.", json_schema_extra={"enum": names})

    @app.post("/entities", responses=PROBLEMS)
    async def entities(request: EntitiesRequest) -> Entities:
        """Finds the entities of texts."""
        works = _zipped({"text": request.text}, request, names)
        return Entities(entities=await service.ask(("entities", 1, request.task, ()), works))


def _zipped(given: dict[str, list[str]], request: Any, names: Sequence[str]) -> list[tuple[str, ...]]:
    """The texts of each example; refuses lists of different lengths, and a task that the reader does not have."""
    if request.task not in names:
        raise Refusal(422, f"task: there is no {request.task!r}; {nearest(request.task, names)}")
    first, last = next(iter(given)), next(reversed(given))
    if len(given[first]) != len(given[last]):
        raise Refusal(422, f"{last}: has {len(given[last])} texts, {first} has {len(given[first])}; give equally many")
    return list(zip(*given.values()))


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Health:
        """Says that the server is up. Needs no token."""
        return Health(status="ok", reader=service.reader.name, tasks=list(service.reader.config.tasks))

    replies: dict[int | str, Any] = {status: PROBLEMS[status] for status in (401, 403)}
    replies[200] = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/metrics", response_class=Response, responses=replies)
    async def metrics() -> Response:
        """Counters for Prometheus: requests, times, sizes of batches, the queue, memory."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, page: bool) -> None:
    """/docs, and the page at / if it is wanted: static files that call the API."""
    app.mount("/static", StaticFiles(directory=STATIC))
    files = {"/docs": "docs.html"} | ({"/": "page.html"} if page else {})
    for path, name in files.items():
        app.add_route(path, partial(_show, STATIC / name), include_in_schema=False)


async def _show(file: Path, request: Request) -> Response:
    return FileResponse(file)


def _add_errors(app: FastAPI) -> None:
    """Every error is one line of JSON."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return refusal.response()

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        if errors and errors[0]["type"] == "json_invalid":
            reason, character = errors[0]["ctx"]["error"], errors[0]["loc"][-1]
            return Refusal(400, f"the body is not JSON: {reason} (character {character})").response()
        lines: dict[str, str] = {}  # every wrong field once
        for entry in errors:
            where = ".".join(str(part) for part in entry["loc"] if part != "body") or "body"
            lines.setdefault(where, _reason(entry))
        return Refusal(422, "; ".join(f"{where[:100]}: {reason}" for where, reason in lines.items())).response()

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        details = {
            400: "the body is not JSON",
            404: f"there is nothing at this path; there is: {', '.join(sorted(app.openapi()['paths']))}",
            405: f"{request.url.path} does not take {request.method}",
        }
        detail = details.get(error.status_code, str(error.detail))
        return Refusal(error.status_code, detail, *(error.headers or {}).items()).response()


def _reason(error: Mapping[str, Any]) -> str:
    reasons = {
        "missing": "is missing; send a JSON object, with content-type application/json",
        "model_attributes_type": "is not a JSON object; send one, with content-type application/json",
        "extra_forbidden": "there is no such field; see /docs",
        "string_pattern_mismatch": "is blank",
        "string_too_short": "is blank",
        "string_unicode": "holds half a surrogate pair, which is not a character",
    }
    return reasons.get(error["type"], str(error["msg"]).removeprefix("Input ").removeprefix("Value error, "))
