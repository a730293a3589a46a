"""A bounded queue in front of one worker thread, which answers questions in batches of tokens."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

SMOOTHING = 0.1  # weight of the newest batch in the running mean of seconds per question


class QueueFull(Exception):
    """No room for this request now; `retry_after` is the seconds until there should be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class Abandoned(Exception):
    """Raised by `run` when all of its results were cancelled."""


class Stopped(Exception):
    """The batcher takes nothing new: it is finishing what it has accepted."""


@dataclass(frozen=True)
class Batch:
    """One finished pass of the model."""

    questions: int
    tokens: int
    seconds: float


@dataclass(eq=False)
class _Item:
    """One question in the queue. result: cancelled if the client has left."""

    kind: Hashable
    work: Any
    tokens: int
    result: Future[Any] = field(default_factory=Future)


class Batcher:
    """A bounded queue in front of one worker thread.

    run(kind, works, wanted) answers a list of works of one kind, in order, in the worker thread. wanted() says whether
    any of the results is still wanted; if not, run may raise Abandoned. count(kind, work) is the work's cost in tokens.
    observe(batch) is called after every pass.

    The worker never waits for further questions: it takes those in the queue as soon as it is free. A single request is
    as fast as without batching; under load the queue fills while the model is busy.
    """

    def __init__(
        self,
        run: Callable[[Any, list[Any], Callable[[], bool]], Sequence[Any]],
        count: Callable[[Any, Any], int],
        *,
        batch_tokens: int,
        queue: int,
        observe: Callable[[Batch], None] = lambda batch: None,
    ) -> None:
        self._run, self._count, self._observe = run, count, observe
        self._batch_tokens, self._room = batch_tokens, queue
        self._waiting: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._seconds_per_question = 0.0
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Questions in the queue, without those in the model."""
        return len(self._waiting)

    async def submit(self, kind: Hashable, works: Sequence[Any]) -> list[Any]:
        """The results of `works`, in order. Raises QueueFull or Stopped at once, else whatever `run` raised.

        If the caller is cancelled, or a work fails, those that have not begun leave the queue.
        """
        items = [_Item(kind, work, self._count(kind, work)) for work in works]
        with self._changed:
            if self._stopping:
                raise Stopped
            if len(self._waiting) + len(items) > self._room:
                raise QueueFull(max(1, math.ceil(self._seconds_per_question * len(self._waiting))))
            self._waiting.extend(items)
            self._changed.notify()
        try:
            return await asyncio.gather(*(asyncio.wrap_future(item.result) for item in items))
        except BaseException:
            for item in items:
                item.result.cancel()
            with self._changed:
                self._waiting = deque(item for item in self._waiting if not item.result.cancelled())
            raise

    def close(self) -> None:
        """Takes nothing new, finishes what was accepted, ends the thread. Blocks until then; may be called again."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._take():
            self._answer(batch)

    def _take(self) -> list[_Item]:
        """The next batch: the oldest question and those of the same kind that fit in. Empty: closed and all done."""
        batch: list[_Item] = []
        tokens = 0
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            for item in self._waiting:
                if batch and item.kind != batch[0].kind:
                    continue
                tokens += item.tokens
                if batch and tokens > self._batch_tokens:
                    break
                batch.append(item)
            taken = set(map(id, batch))
            self._waiting = deque(item for item in self._waiting if id(item) not in taken)
        return batch

    def _answer(self, batch: list[_Item]) -> None:
        batch = [item for item in batch if not item.result.cancelled()]
        if not batch:
            return
        started = time.perf_counter()
        try:
            works = [item.work for item in batch]
            results = self._run(batch[0].kind, works, lambda: not all(item.result.cancelled() for item in batch))
            answered = list(zip(batch, results, strict=True))
        except Abandoned:
            return
        except Exception as error:
            if len(batch) > 1:  # one by one, so that only the request with the faulty work fails
                for item in batch:
                    self._answer([item])
            elif batch[0].result.set_running_or_notify_cancel():
                batch[0].result.set_exception(error)
            return
        seconds = time.perf_counter() - started
        pace, mean = seconds / len(batch), self._seconds_per_question
        self._seconds_per_question = mean + SMOOTHING * (pace - mean) if mean else pace
        self._observe(Batch(len(batch), sum(item.tokens for item in batch), seconds))
        for item, result in answered:
            if item.result.set_running_or_notify_cancel():
                item.result.set_result(result)
