"""A reader behind Ray Serve: replicas on any node, concurrent questions in batches of at most so many tokens.

pip install bertvision "ray[serve]"
python examples/ray_serve.py pocket --replicas 2
curl -d '{"question": "Who wrote it?", "context": "Ada Lovelace wrote it in 1843."}' http://127.0.0.1:8000/

`bertvision serve` is one process with limits, a page and metrics of its own; this is for those who run Ray anyway.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

TOKENS = 4096  # the most of a batch, and so of the memory it takes


@dataclass(frozen=True)
class Question:
    """A question on a text, and how many tokens it costs."""

    pair: tuple[str, str]
    tokens: int


def tokens_of(questions: list[Question]) -> int:
    """Ray's measure of a batch: its tokens, not its questions."""
    return sum(question.tokens for question in questions)


@serve.deployment(max_ongoing_requests=TOKENS)  # Ray warns if a batch could be larger than this
class Answers:
    """One replica. tokens: of a batch; a question with more is read alone."""

    def __init__(self, reader: str = "pocket", tokens: int = TOKENS, threads: int = 1) -> None:
        import torch

        from bertvision import Reader

        torch.set_num_threads(threads)
        self.reader, self.tokens = Reader.from_pretrained(reader), tokens
        self.batched.set_max_batch_size(tokens)  # type: ignore[attr-defined]

    async def __call__(self, request: Request) -> JSONResponse:
        from bertvision.errors import UserError

        try:
            body = await request.json()
            pair = (body["question"], body["context"])
            question = Question(pair, self.reader.tokens([pair])[0])
        except (UserError, ValueError, KeyError, TypeError) as error:
            return JSONResponse({"detail": f"give JSON with question and context, as text: {error}"}, 400)
        if question.tokens > self.tokens:  # which Ray would refuse
            return JSONResponse((await self._answer([question]))[0])
        return JSONResponse(await self.batched(question))

    @serve.batch(max_batch_size=TOKENS, batch_wait_timeout_s=0.01, batch_size_fn=tokens_of)
    async def batched(self, questions: list[Question]) -> list[dict[str, Any]]:
        return await self._answer(questions)

    async def _answer(self, questions: list[Question]) -> list[dict[str, Any]]:
        """Answers of one call of the reader, in a thread, so that others can queue meanwhile."""
        found = await asyncio.to_thread(self.reader.answers, [question.pair for question in questions])
        batch = {"questions": len(questions), "tokens": tokens_of(questions)}
        return [{**ranked[0], "batch": batch} for ranked in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", nargs="?", default="pocket", help="a reader's name or directory")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a batch")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--address", default="local", help="of the cluster to join; else one is started here")
    given = parser.parse_args()
    ray.init(given.address)  # without it, Serve joins any cluster it finds on this machine
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})  # 0.0.0.0: whoever can reach this machine
    serve.run(Answers.options(num_replicas=given.replicas).bind(given.reader, given.tokens))
    print("ready", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
