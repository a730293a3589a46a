"""Many requests, one model: questions wait in a bounded queue, and one thread answers them in batches of tokens."""

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
    """What `run` raises when it finds that nobody waits for its results any more."""


class Stopped(Exception):
    """The batcher takes nothing new: it is finishing what it has accepted."""


@dataclass(frozen=True)
class Batch:
    """What is known of one pass of the model once it is over."""

    questions: int
    tokens: int
    seconds: float


@dataclass(eq=False)
class _Order:
    """One call of `submit`: its results come in piece by piece, possibly from several batches."""

    kind: Hashable
    results: list[Any]
    missing: int
    done: Future[list[Any]] = field(default_factory=Future)

    def settle(self, error: Exception | None = None) -> None:
        """Hands over all results, or the first error. Whoever has stopped waiting is not bothered."""
        if not self.done.done() and self.done.set_running_or_notify_cancel():
            if error is None:
                self.done.set_result(self.results)
            else:
                self.done.set_exception(error)


@dataclass(eq=False)
class _Item:
    """One question of an order."""

    order: _Order
    index: int
    work: Any
    tokens: int = 0  # 0 = not counted yet


class Batcher:
    """A bounded queue in front of one worker thread.

    run(kind, works, wanted) answers a list of works of one kind, in order; it is only ever called from the worker
    thread. wanted() says whether anyone still waits; where nobody does, run may raise Abandoned.
    count(kind, work) is the work's cost in tokens. observe(batch) is told of every pass.

    There is no waiting for company: the worker takes what is there when it becomes free, so that a lone request is
    as quick as without batching, and under load the queue fills while the model is busy.
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
        """Questions in the queue, without those the model is at work on."""
        return len(self._waiting)

    async def submit(self, kind: Hashable, works: Sequence[Any]) -> list[Any]:
        """The results of `works`, in order. Raises QueueFull or Stopped at once, else whatever `run` raised.

        A caller that is cancelled takes back what has not begun.
        """
        order = _Order(kind, [None] * len(works), len(works))
        if not works:
            return []
        with self._changed:
            if self._stopping:
                raise Stopped
            if len(self._waiting) + len(works) > self._room:
                raise QueueFull(self._retry_after())
            self._waiting.extend(_Item(order, index, work) for index, work in enumerate(works))
            self._changed.notify()
        try:
            return await asyncio.wrap_future(order.done)
        finally:
            if order.missing:
                self._withdraw(order)

    def close(self) -> None:
        """Takes nothing new, finishes what was accepted, ends the thread. Blocks until then; may be called again."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _retry_after(self) -> int:
        return max(1, math.ceil(self._seconds_per_question * len(self._waiting)))

    def _withdraw(self, order: _Order) -> None:
        with self._changed:
            self._waiting = deque(item for item in self._waiting if item.order is not order)

    def _work(self) -> None:
        while batch := self._take():
            self._answer(batch)

    def _take(self) -> list[_Item]:
        """The next batch: the oldest question and those after it of the same kind that fit in. Empty: all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            kind = self._waiting[0].order.kind if self._waiting else None
            alike = [item for item in self._waiting if item.order.kind == kind]
        batch = self._fitting(alike)  # counts tokens: not something to hold the lock for
        with self._changed:
            taken = set(map(id, batch))
            self._waiting = deque(item for item in self._waiting if id(item) not in taken)
        return batch

    def _fitting(self, items: list[_Item]) -> list[_Item]:
        batch: list[_Item] = []
        tokens = 0
        for item in items:
            item.tokens = item.tokens or self._tokens(item)
            tokens += item.tokens
            if batch and tokens > self._batch_tokens:
                break
            batch.append(item)
        return batch

    def _tokens(self, item: _Item) -> int:
        try:
            return max(1, self._count(item.order.kind, item.work))
        except Exception:  # what cannot be counted is left to `run`, alone, which will say what is wrong with it
            return self._batch_tokens + 1

    def _answer(self, batch: list[_Item]) -> None:
        batch = [item for item in batch if not item.order.done.done()]
        if not batch:
            return
        started = time.perf_counter()
        try:
            results = self._run(batch[0].order.kind, [item.work for item in batch], lambda: _is_wanted(batch))
            answered = list(zip(batch, results, strict=True))
        except Abandoned:
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].order.settle(error)
            else:  # one by one, so that only the sender of what is wrong hears of it
                for item in batch:
                    self._answer([item])
            return
        seconds = time.perf_counter() - started
        self._note(Batch(len(batch), sum(item.tokens for item in batch), seconds))
        for item, result in answered:
            item.order.results[item.index] = result
            item.order.missing -= 1
            if not item.order.missing:
                item.order.settle()

    def _note(self, batch: Batch) -> None:
        pace = batch.seconds / batch.questions
        known = self._seconds_per_question
        self._seconds_per_question = pace if not known else known + SMOOTHING * (pace - known)
        self._observe(batch)


def _is_wanted(batch: Sequence[_Item]) -> bool:
    return any(not item.order.done.done() for item in batch)
