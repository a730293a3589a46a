"""The benches of the server: all three servers answer the same clients, and what batching can gain is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from readers import tiny_reader

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tiny_reader().save_pretrained(tmp_path_factory.mktemp("bench") / "reader")


def test_three_servers_in_turns_and_two_ratios(place):
    words = ["serve.py", "--reader", str(place), "--data", "sample:test:6", "--clients", "3", "--quick", "--json"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=BENCH, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lost"] == 0 and found["answered"] > 0
    assert found["batching_ratio"] == found["per_second_batching"] / found["per_second_alone"]
    assert found["plain_ratio"] == found["per_second_batching"] / found["per_second_plain"]
    assert 0 < found["clients_share"] <= 1
    assert 0 < found["health_p50_ms"] <= found["health_p99_ms"]
    assert found["answer_ratio"] == found["answer_p50_ms"] / found["reader_p50_ms"]


def test_what_batching_can_gain_at_most(bench, place):
    from bertvision import Reader

    found = bench("batching").ceiling(Reader.from_pretrained(place), 16, rounds=1)
    assert found["windows"] == 64 and found["ratio"] > 0 and found["cpu_ratio"] > 0
