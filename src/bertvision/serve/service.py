"""A reader behind a queue: what the API and the page both ask, with the same limits."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bertvision.errors import UserError
from bertvision.serve.batching import Abandoned, Batcher, QueueFull, Stopped
from bertvision.serve.config import ReaderConfig
from bertvision.serve.limits import Limits
from bertvision.serve.metrics import Metrics
from bertvision.serve.refusal import Refusal

CHARACTERS, SPECIAL = 4, 3  # about as many characters to a token, and tokens around every pair


class Answering(Protocol):
    """What the server needs of a reader; serve/reader.py has it."""

    name: str
    config: ReaderConfig

    def tokens(self, pairs: Sequence[tuple[str, str]]) -> list[int]: ...
    def answers(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int,
        no_answer_threshold: float | None,
        layers: bool,
        progress: Callable[[int, int], None],
    ) -> list[list[dict[str, Any]]]: ...
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, task: str | None = None) -> Any: ...
    def similarity(self, a: Sequence[str], b: Sequence[str], *, task: str | None = None) -> Any: ...


class Service:
    """Puts requests into the queue and refuses what cannot be answered. Every coroutine raises only Refusal."""

    def __init__(self, reader: Answering, limits: Limits, metrics: Metrics) -> None:
        self.reader, self.limits, self.metrics = reader, limits, metrics
        self.batcher = Batcher(
            self._run, self._count, batch_tokens=limits.batch_tokens, queue=limits.queue, observe=metrics.batch
        )
        metrics.watch_queue(lambda: self.batcher.waiting)

    async def answer(
        self, questions: Sequence[str], context: str, top_k: int, no_answer_threshold: float | None, layers: bool
    ) -> list[list[dict[str, Any]]]:
        """One list of candidates for each question, the best first."""
        kind = ("answer", top_k, no_answer_threshold, layers)
        return await self._ask(kind, [(question, context) for question in questions])

    async def classify(self, texts: Sequence[str], pairs: Sequence[str] | None, task: str) -> list[dict[str, Any]]:
        """One label with its probability for each text, or pair of texts."""
        works = [(text, "") for text in texts] if pairs is None else list(zip(texts, pairs, strict=True))
        return await self._ask(("classify", task, pairs is not None), works)

    async def similarity(self, a: Sequence[str], b: Sequence[str], task: str) -> list[float]:
        """One score for each pair of texts."""
        return await self._ask(("similarity", task), list(zip(a, b, strict=True)))

    def tasks(self, kind: str) -> list[str]:
        """The names of the reader's tasks of a kind: spans, labels or score."""
        return [name for name, one in self.reader.config.tasks.items() if one.task == kind]

    async def close(self) -> None:
        """Finishes what was accepted; nothing new is."""
        await asyncio.to_thread(self.batcher.close)

    async def _ask(self, kind: tuple[Any, ...], works: list[tuple[str, str]]) -> list[Any]:
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

    def _run(self, kind: tuple[Any, ...], works: list[tuple[str, str]], wanted: Callable[[], bool]) -> Sequence[Any]:
        """In the worker thread: one call of the reader for many questions of one kind."""

        def between_passes(done: int, total: int) -> None:
            if not wanted():
                raise Abandoned

        firsts, seconds = [first for first, _ in works], [second for _, second in works]
        match kind:
            case ("answer", top_k, threshold, layers):
                options = {"top_k": top_k, "no_answer_threshold": threshold, "layers": layers}
                return self.reader.answers(works, **options, progress=between_passes)
            case ("classify", task, paired):
                return self.reader.classify(firsts, seconds if paired else None, task=task)
            case (_, task):
                return self.reader.similarity(firsts, seconds, task=task)
        raise AssertionError(kind)

    def _count(self, kind: tuple[Any, ...], work: tuple[str, str]) -> int:
        """Tokens of one work. Of texts, which are cut to one window each, an estimate is near enough."""
        if kind[0] == "answer":
            return self.reader.tokens([work])[0]
        longest = self.reader.config.tasks[kind[1]].windows.max_length
        return min(longest, SPECIAL + sum(map(len, work)) // CHARACTERS)
