"""A real server for tests: uvicorn in a thread, on a free port of this machine, in front of a small exact reader.

with serving(reader) as url: httpx.get(f"{url}/health")
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.serve.config import ReaderConfig, TaskConfig
from bertvision.serve.server import Hosts, Limits, address, bind, build_server


class LastWordReader:
    """Finds the last word of the question in the context; counts how it was asked. Three layers, all fixed.

    gate: while it is cleared, answers wait, so that a test can fill the queue.
    """

    def __init__(self, kinds: Sequence[str] = ("spans", "labels", "score", "tokens")) -> None:
        tasks = {kind: TaskConfig(kind, Ensemble.of(Member("h", 1, 1.0)), labels=("no", "yes")) for kind in kinds}
        self.name, self.config = "last-word", ReaderConfig("none", "", {}, tasks)
        self.batches: list[int] = []
        self.finished = 0  # questions
        self.threads: set[str] = set()
        self.expected: set[float | None] = set()  # shares of answerable questions
        self.gate = threading.Event()
        self.gate.set()

    def answers(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        top_k: int,
        answerable: float | None = None,
        layers: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[dict[str, Any]]]:
        self.batches.append(len(pairs))
        self.threads.add(threading.current_thread().name)
        self.expected.add(answerable)
        self.options = options
        assert self.gate.wait(60)
        found = []
        for number, pair in enumerate(pairs, start=1):
            found.append(self._candidates(*pair, top_k, layers))
            progress(number, len(pairs))
        self.finished += len(found)
        return found

    def _candidates(self, question: str, context: str, top_k: int, layers: bool) -> list[dict[str, Any]]:
        word = question.split()[-1].rstrip("?") if question.strip() else ""
        if word == "refuse":
            raise UserError("question: this one is refused")
        if word == "crash":
            raise RuntimeError("a fault of the reader")
        spans, start = [], context.find(word) if word else -1
        while start >= 0 and len(spans) < top_k:
            spans.append((start, start + len(word)))
            start = context.find(word, start + 1)
        none = 0.25 if spans else 0.75
        found = [
            {"answer": context[a:b], "score": (1 - none) / 2**n, "start": a, "end": b, "no_answer_score": none}
            for n, (a, b) in enumerate(spans)
        ] or [{"answer": "", "score": none, "start": 0, "end": 0, "no_answer_score": none}]
        return [one | {"layers": [0.2, 0.3, 0.5]} for one in found] if layers else found

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, task: str | None = None) -> Any:
        firsts = [text.strip().endswith("!") for text in texts]
        labels = firsts if pairs is None else [text in other for text, other in zip(texts, pairs, strict=True)]
        return [
            {"label": "yes" if yes else "no", "score": 0.75, "scores": {"no": 0.75 - yes / 2, "yes": 0.25 + yes / 2}}
            for yes in labels
        ]

    def entities(self, texts: Sequence[str], *, task: str | None = None) -> Any:
        return [
            [
                {"label": "WORD", "text": match[0], "start": match.start(), "end": match.end(), "score": 0.75}
                for match in re.finditer(r"[A-Z]\w*", text)
            ]
            for text in texts
        ]

    def similarity(self, a: Sequence[str], b: Sequence[str], *, task: str | None = None) -> Any:
        return [float(len(set(one) & set(other))) for one, other in zip(a, b, strict=True)]


@contextmanager
def serving(
    reader: Any, limits: Limits | None = None, token: str = "", page: bool = False, hosts: Sequence[str] = ()
) -> Iterator[str]:
    """The URL of a running server; afterwards it is stopped as by a signal. hosts: as --allow-host."""
    with bind("127.0.0.1", 0) as listener:
        found: list[Any] = []
        ready = threading.Event()

        async def run() -> None:
            server = build_server(reader, limits or Limits(), Hosts.of(listener, given=hosts), token, page)
            found.append(server)
            serving.server = server  # type: ignore[attr-defined]  # the newest, for tests that look inside
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started and not task.done():
                await asyncio.sleep(0.01)
            ready.set()
            await task

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        assert ready.wait(60)
        try:
            yield address(listener)
        finally:
            found[0].should_exit = True
            thread.join(60)
            assert not thread.is_alive()
