"""The server one writes without us: FastAPI around a plain transformers loop, one request at a time.

python bench/plain_server.py [--backbone marco]

POST /answer takes {"question", "context"} and gives {"answer"}. Windows are padded to 384 tokens, see reader.PlainLoop;
there are no limits. Its answers mean nothing, for its read-out is untrained; they take as long as good ones.
"""

import argparse
import asyncio
import socket
import threading

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bertvision.backbone.backbone import Backbone
from bertvision.heads import build_head
from reader import PlainLoop


class Question(BaseModel):
    question: str
    context: str


def plain_app(loop: PlainLoop) -> FastAPI:
    """The loop behind a route. FastAPI runs the function in a thread; the lock lets one at a time to the model."""
    app, turn = FastAPI(), threading.Lock()

    @app.post("/answer")
    def answer(asked: Question) -> dict[str, str]:
        with turn:
            return {"answer": loop.answers([(asked.question, asked.context)])[0]}

    return app


def plain_loop(name: str) -> PlainLoop:
    """An encoder and a linear map."""
    backbone = Backbone.load(name)
    head = build_head({"kind": "last"}, layers=backbone.layers, width=backbone.width, task="spans")
    return PlainLoop(name, head, backbone.longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="marco")
    app = plain_app(plain_loop(parser.parse_args().backbone))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main()
