"""The process: where it listens, what it says when it cannot, and how it stops."""

import contextlib
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Timer

import httpx
import pytest

from bertvision.errors import UserError
from bertvision.serve.server import Hosts, Limits, address, bind
from readers import tiny_reader
from runs import Command, bertvision
from serve.servers import LastWordReader, serving


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a reader in it, reader/."""
    directory = tmp_path_factory.mktemp("serve")
    tiny_reader().save_pretrained(directory / "reader")
    return directory


def running(*args, cwd) -> tuple[Command, str]:
    """`bertvision serve` and its address, once it has said it."""
    command = Command("serve", *args, "--port", 0, "--no-page", cwd=cwd)
    end = time.monotonic() + 60
    while time.monotonic() < end and command.running:
        found = re.search(r"http://\S+", command.streams[0].read_text()) if command.streams[0].exists() else None
        if found:
            return command, found.group()
        time.sleep(0.05)
    raise AssertionError(command.wait())


def waiting(client: httpx.Client, url: str) -> float:
    """Questions in the queue."""
    found = re.search(r"^bertvision_waiting_questions (\S+)", client.get(f"{url}/metrics").text, re.MULTILINE)
    return float(found.group(1)) if found else 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_when_what_was_accepted_is_answered(place, sent):
    command, url = running("reader", cwd=place)
    body = {"question": "what is the world", "context": "the world is a question " * 300}
    with ThreadPoolExecutor(8) as clients, httpx.Client(timeout=60) as client:
        replies = [clients.submit(client.post, f"{url}/answer", json=body) for _ in range(8)]
        while "/answer" not in client.get(f"{url}/metrics").text and not any(reply.done() for reply in replies):
            time.sleep(0.01)
        os.kill(command.process.pid, sent)
        assert {reply.result().status_code for reply in replies} <= {200, 503}
        assert any(reply.result().status_code == 200 for reply in replies)
    done = command.wait()
    assert done.code == 0 and done.err == "", done.err
    assert done.out.count("\n") == 1 and url in done.out


def test_a_second_signal_stops_it_at_once_without_a_traceback(place):
    command, url = running("reader", cwd=place)
    body = {"question": ["what is the world"] * 64, "context": "the world is a question " * 400}
    with ThreadPoolExecutor(3) as clients, httpx.Client(timeout=60) as client:
        asked = [clients.submit(client.post, f"{url}/answer", json=body) for _ in range(3)]
        while not waiting(client, url) and not all(one.done() for one in asked):
            time.sleep(0.01)
        os.kill(command.process.pid, signal.SIGTERM)
        time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):  # a machine so fast that all is answered
            os.kill(command.process.pid, signal.SIGTERM)
    done = command.wait()
    assert done.code in (0, 128 + signal.SIGTERM) and done.err == ""


def test_the_token_is_read_from_a_file_and_warned_about_on_the_command_line(place):
    (place / "token").write_text("s3cret\n")
    for args in (["--token-file", "token"], ["--token", "s3cret"]):
        command, url = running("reader", *args, cwd=place)
        codes = [
            httpx.get(f"{url}/metrics", headers=one).status_code for one in ({}, {"Authorization": "Bearer s3cret"})
        ]
        os.kill(command.process.pid, signal.SIGTERM)
        done = command.wait()
        assert codes == [401, 200] and done.code == 0
        warning = "bertvision: --token: other users of this machine can read it in the list of processes; "
        assert done.err == (f"{warning}use --token-file or BERTVISION_TOKEN\n" if "--token" in args else "")


@pytest.mark.parametrize(
    "content, more, says",
    [(None, [], "token: no such file"), (" \n", [], "token: holds no token"), ("a", ["--token", "b"], "give one of")],
)
def test_a_token_file_that_cannot_be_used(content, more, says, tmp_path):
    if content is not None:
        (tmp_path / "token").write_text(content)
    done = bertvision("serve", "reader", "--token-file", "token", *more, cwd=tmp_path)
    assert done.code == 2 and says in done.err and done.out == ""


def test_stopping_answers_what_waits_in_the_queue():
    reader = LastWordReader()
    reader.gate.clear()
    with ThreadPoolExecutor(6) as clients, httpx.Client(timeout=60) as client:
        with serving(reader) as url:
            body = {"question": "Where is Rome?", "context": "Rome"}
            replies = [clients.submit(client.post, f"{url}/answer", json=body) for _ in range(6)]
            while not reader.batches or sum(reader.batches) + waiting(client, url) < 6:
                time.sleep(0.01)
            Timer(0.5, reader.gate.set).start()
        assert [reply.result().status_code for reply in replies] == [200] * 6


def test_a_head_that_never_ends_is_not_waited_for():
    whole, half = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /answer HTTP/1.1\r\nHost: a\r\n"
    with serving(LastWordReader(), Limits(timeout=1.5, connections=4)) as url, ExitStack() as stack:
        where = (url.removeprefix("http://").split(":")[0], int(url.rpartition(":")[2]))
        idle = [stack.enter_context(socket.create_connection(where, timeout=60)) for _ in range(3)]
        idle[1].sendall(half)
        idle[2].sendall(whole)
        assert b"200 OK" in idle[2].recv(1000)
        idle[2].sendall(half)
        assert httpx.get(f"{url}/health").status_code == 503  # no room for one more
        for one in idle:
            while one.recv(1000):  # until the server closes it
                pass
        assert httpx.get(f"{url}/health").status_code == 200


def test_who_has_left_is_not_worked_for():
    reader = LastWordReader()
    reader.gate.clear()
    with serving(reader) as url:
        body = {"question": ["Where is Rome?"] * 8, "context": "Rome"}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/answer", json=body, timeout=0.5)
        assert reader.batches == [8]
        end = time.monotonic() + 20
        with httpx.Client() as client:
            while 'status="499"' not in client.get(f"{url}/metrics").text and time.monotonic() < end:
                time.sleep(0.05)
        reader.gate.set()
        assert httpx.post(f"{url}/answer", json=body, timeout=60).status_code == 200
    assert reader.finished == 8


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["reader", "--host", "no.such.host.invalid"], "--host no.such.host.invalid: no such host"),
        (["reader", "--host", "192.0.2.1"], "192.0.2.1:8000 is not an address of this machine"),
        (["reader", "--port", "70000"], "--port 70000: ports go from 0"),
        (["reader", "--queue", "3"], "limit queue: 3 questions can wait but one request may ask 64"),
        (["reader", "--timeout", "inf"], "limit timeout: must be above 0 and finite, not inf"),
        (["nowhere", "--port", "0"], "nowhere: no such reader"),
        (["reader", "--port", "TAKEN"], "127.0.0.1:TAKEN is in use by another program; choose another --port"),
    ],
)
def test_what_cannot_be_served_is_one_line(place, args, says):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        args, says = [one.replace("TAKEN", port) for one in args], says.replace("TAKEN", port)
        done = bertvision("serve", *args, cwd=place)  # an error before it serves, or the test would not end
    assert done.code == 2 and done.out == ""
    assert done.err.startswith(f"bertvision: {says}") and done.err.count("\n") == 1


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY every answer waits 40 ms for an acknowledgement."""
    with serving(LastWordReader()) as url, httpx.Client() as client:
        client.get(f"{url}/health")
        (connection,) = serving.server.server_state.connections  # type: ignore[attr-defined]
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_names_and_addresses():
    with bind("0.0.0.0", 0) as everywhere:
        hosts = Hosts.of(everywhere, "0.0.0.0")
    assert all(map(hosts.allow, ("10.1.2.3:80", "[fe80::1]:80", "localhost", socket.gethostname())))
    assert not any(map(hosts.allow, ("evil.example", "", "10.1.2.3.evil.example")))
    with bind("localhost", 0) as local:
        assert re.fullmatch(r"http://(127\.0\.0\.1|\[::1\]):\d+", address(local))
    with pytest.raises(UserError, match="no such host"):
        bind("a" * 100, 0)
