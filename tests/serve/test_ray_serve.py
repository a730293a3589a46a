"""The example of a reader behind Ray Serve, run as its first lines say."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from clusters import ENV
from readers import tiny_reader

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"
HAS_SERVE = all(importlib.util.find_spec(name) for name in ("ray", "grpc_reflection", "aiohttp"))
pytestmark = [pytest.mark.ray, pytest.mark.skipif(not HAS_SERVE, reason="needs Ray Serve: pip install 'ray[serve]'")]
TOKENS = 60


def test_answers_are_the_readers_and_no_batch_is_above_its_tokens(tmp_path):
    reader = tiny_reader()
    place = reader.save_pretrained(tmp_path / "reader")
    pairs = [("what is the world", "the world is a " + "small " * count + "place") for count in (1, 3, 9, 20, 90)] * 3
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(EXAMPLE), str(place), "--port", str(port), "--tokens", str(TOKENS)]
    server = subprocess.Popen(words, env=os.environ | ENV, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert any(line.strip() == "ready" for line in server.stdout)
        url = f"http://127.0.0.1:{port}/"

        def ask(pair: tuple[str, str]) -> dict:
            return httpx.post(url, json=dict(zip(("question", "context"), pair)), timeout=120).json()

        with ThreadPoolExecutor(len(pairs)) as clients:
            found = list(clients.map(ask, pairs))
        wrong = httpx.post(url, content=b"{", timeout=60)
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)  # reads the rest, and closes
    batches = [answer.pop("batch") for answer in found]
    for pair, answer in zip(pairs, found):
        alone = reader(*pair)
        assert answer["answer"] == alone["answer"] and answer["score"] == pytest.approx(alone["score"], abs=1e-5)
    assert max(batch["questions"] for batch in batches) > 1, "some were read together"
    assert all(batch["tokens"] <= TOKENS or batch["questions"] == 1 for batch in batches)
    assert wrong.status_code == 400 and "give JSON" in wrong.json()["detail"]
