"""The API as a client meets it: a real server, real requests."""

import contextlib
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bertvision.serve.server import Limits
from readers import tiny_reader
from serve.servers import LastWordReader, serving

CONTEXT = "Ada met Bob in Rome. Rome is old."
JSON = {"content-type": "application/json"}
CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))


@pytest.fixture(scope="module")
def url():
    with serving(LastWordReader()) as found:
        yield found


def detail(reply: httpx.Response) -> str:
    """The one line of a refusal."""
    assert reply.headers["content-type"] == "application/json"
    assert list(reply.json()) == ["detail"] and "\n" not in reply.json()["detail"]
    return reply.json()["detail"]


def ask(url: str, question="Where is Rome?", **more) -> httpx.Response:
    return CLIENT.post(f"{url}/answer", json={"question": question, "context": CONTEXT} | more)


def test_an_answer_says_where_it_stands(url):
    reply = ask(url, top_k=5, layers=True)
    assert reply.status_code == 200
    (answered,) = reply.json()["answers"]
    assert answered["question"] == "Where is Rome?"
    assert [CONTEXT[one["start"] : one["end"]] for one in answered["candidates"]] == ["Rome", "Rome"]
    assert answered["candidates"][0]["layers"] == [0.2, 0.3, 0.5]
    assert "layers" not in ask(url).json()["answers"][0]["candidates"][0]
    answers = ask(url, ["Who is Ada?", "Who is Zoe?"]).json()["answers"]
    assert [one["candidates"][0]["answer"] for one in answers] == ["Ada", ""]
    assert answers[1]["candidates"][0]["no_answer_score"] == 0.75


def test_the_hub_s_client_is_answered_as_by_an_inference_endpoint():
    from huggingface_hub import InferenceClient

    reader = LastWordReader()
    with serving(reader) as url:
        client = InferenceClient(model=f"{url}/question-answering")
        one = client.question_answering(question="Where is Rome?", context=CONTEXT)
        assert (one.answer, one.start, one.end, one.score) == ("Rome", 15, 19, 0.75)
        assert reader.options == {"handle_impossible_answer": False, "align_to_words": True}  # the endpoint's defaults
        given = {"top_k": 2, "max_answer_len": 5, "handle_impossible_answer": True, "doc_stride": 64}
        two = client.question_answering(question="Where is Rome?", context=CONTEXT, align_to_words=False, **given)
        assert [found.start for found in two] == [15, 21]
        assert reader.options == {"handle_impossible_answer": True, "align_to_words": False, "max_answer_len": 5}
        body = {"inputs": {"question": "Who is Ada?", "context": CONTEXT}, "options": {"use_cache": False}}
        reply = CLIENT.post(f"{url}/question-answering", json=body).json()
        assert reply == {"answer": "Ada", "score": 0.75, "start": 0, "end": 3}
        blank = CLIENT.post(f"{url}/question-answering", json={"inputs": {"question": " ", "context": CONTEXT}})
        assert blank.status_code == 422 and detail(blank) == "inputs.question: is blank"


def test_labels_and_scores(url):
    labels = CLIENT.post(f"{url}/classify", json={"text": ["Yes!", "no"]}).json()["labels"]
    assert [one["label"] for one in labels] == ["yes", "no"]
    pairs = {"text": ["a", "b"], "pair": ["abc", "xyz"]}
    assert [one["label"] for one in CLIENT.post(f"{url}/classify", json=pairs).json()["labels"]] == ["yes", "no"]
    assert CLIENT.post(f"{url}/similarity", json={"a": "abc", "b": "bcd"}).json() == {"scores": [2.0]}
    entity = {"label": "WORD", "text": "Ada", "start": 0, "end": 3, "score": 0.75}
    assert CLIENT.post(f"{url}/entities", json={"text": ["Ada is in", "a"]}).json() == {"entities": [[entity], []]}
    uneven = CLIENT.post(f"{url}/similarity", json={"a": ["abc", "x"], "b": "bcd"})
    assert uneven.status_code == 422 and detail(uneven).startswith("b: has 1 texts, a has 2")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"question": "Wh\xe4t?", "context": "a"}', 400, "not UTF-8 (byte 16)"),
        ("{}".encode("utf-16"), 400, "not UTF-8 (byte 0)"),
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"9" * 5_000, 400, "not JSON"),
        (b"", 422, "is missing"),
        (b"[]", 422, "not a JSON object"),
        (b"{}", 422, "question: is missing"),
        (b'{"question": 5, "context": "a"}', 422, "question: should be a text or a list of texts"),
        (b'{"question": [], "context": "a"}', 422, "question: "),
        (b'{"question": " ", "context": "a"}', 422, "question.0: is blank"),
        (b'{"question": "who", "context": ""}', 422, "context: is blank"),
        (b'{"question": "\\ud800", "context": "a"}', 422, "question.0: holds half a surrogate pair"),
        (b'{"question": "a", "context": "a", "\\udfff": 1}', 422, "body: holds half a surrogate pair"),
        (b'{"question": "a", "context": "a", "topk": 1}', 422, "topk: there is no such field"),
        (b'{"question": "a", "context": "a", "top_k": 0}', 422, "top_k: "),
        (b'{"question": "a", "context": "a", "no_answer_threshold": NaN}', 422, "no_answer_threshold: "),
        (b'{"question": "a", "context": "a", "answerable": 1.0}', 422, "answerable: "),
        (b'{"question": "refuse", "context": "a"}', 422, "question: this one is refused"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(url, body, status, says):
    reply = CLIENT.post(f"{url}/answer", content=body, headers=JSON)
    assert reply.status_code == status
    assert says in detail(reply)


def test_limits_are_said_and_kept():
    limits = Limits(body=2_000, questions=2, question=10, context=50, top_k=3)
    with serving(LastWordReader(), limits) as url:
        for wrong, where in [
            ({"question": ["a"] * 3}, "question: "),
            ({"question": "a" * 11}, "question.0: "),
            ({"context": "a" * 51}, "context: "),
            ({"top_k": 4}, "top_k: "),
        ]:
            reply = CLIENT.post(f"{url}/answer", json={"question": "a", "context": "a"} | wrong)
            assert reply.status_code == 422
            assert detail(reply).startswith(where) and any(digit in detail(reply) for digit in "0123")
        for content in (b" " * 2_001, (b" " * 100 for _ in range(30)), b" " * 10_000_000):
            reply = CLIENT.post(f"{url}/answer", content=content, headers=JSON)
            assert reply.status_code == 413 and "2000 bytes" in detail(reply)
        assert CLIENT.post(f"{url}/answer", json={"question": "é" * 10, "context": "a"}).status_code == 200


def test_unknown_paths_and_methods(url):
    assert CLIENT.get(f"{url}/answer").status_code == 405
    assert CLIENT.get(f"{url}/answer").headers["allow"] == "POST"
    for path in ("/nowhere", "/static/none.js", "/static/../api.py", "/static/%2e%2e/api.py", "/"):
        assert CLIENT.get(f"{url}{path}").status_code == 404, path
        assert "/answer" in detail(CLIENT.get(f"{url}{path}"))


def test_a_fault_of_the_reader_is_a_500_without_its_story(url, caplog):
    reply = ask(url, "crash")
    assert reply.status_code == 500 and "fault of the reader" not in detail(reply)
    assert "fault of the reader" in caplog.text
    assert ask(url).status_code == 200


def test_only_what_the_reader_can_do_has_a_route():
    with serving(LastWordReader(["labels"])) as url:
        assert CLIENT.get(f"{url}/health").json()["tasks"] == ["labels"]
        assert ask(url).status_code == 404
        paths = CLIENT.get(f"{url}/openapi.json").json()["paths"]
        assert set(paths) == {"/classify", "/health", "/metrics"}
        assert {"503", "504", "413", "422"} <= set(paths["/classify"]["post"]["responses"])


def test_a_full_queue_is_a_503_that_says_when_to_return():
    reader = LastWordReader()
    reader.gate.clear()
    with serving(reader, Limits(questions=1, queue=2)) as url, ThreadPoolExecutor(12) as clients:
        replies = [clients.submit(ask, url)]
        while not reader.batches:
            time.sleep(0.01)
        replies += [clients.submit(ask, url) for _ in range(11)]
        while sum(reply.done() for reply in replies) < 9:  # one at work, two waiting
            time.sleep(0.01)
        assert CLIENT.get(f"{url}/health", timeout=2).status_code == 200  # the event loop is not held up
        reader.gate.set()
        found = [reply.result() for reply in replies]
    refused = [reply for reply in found if reply.status_code == 503]
    assert len(refused) == 9 and sum(reply.status_code == 200 for reply in found) == 3
    assert all(int(reply.headers["retry-after"]) >= 1 and "queue is full" in detail(reply) for reply in refused)


def test_what_takes_too_long_is_a_504_and_leaves_nothing_behind():
    reader = LastWordReader()
    reader.gate.clear()
    with serving(reader, Limits(timeout=0.2)) as url:
        reply = ask(url, ["Where is Rome?"] * 20)
        assert reply.status_code == 504 and "0.2 s" in detail(reply)
        reader.gate.set()
        assert ask(url).status_code == 200


def test_a_body_that_never_ends_is_a_408():
    def slowly():
        yield b'{"question": '
        time.sleep(1)
        yield b'"a"}'

    with serving(LastWordReader(), Limits(timeout=0.2)) as url:
        assert CLIENT.post(f"{url}/answer", content=slowly(), headers=JSON).status_code == 408


def test_the_token_is_asked_for_everywhere_but_at_health():
    with serving(LastWordReader(), token="s3cret é") as url:
        assert CLIENT.get(f"{url}/health").status_code == 200
        for method, path in [("POST", "/answer"), ("GET", "/"), ("GET", "/docs"), ("GET", "/metrics")]:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic !!"}):
                reply = CLIENT.request(method, f"{url}{path}", headers=headers)
                assert reply.status_code == 401 and "token" in detail(reply)
                assert "Bearer" in reply.headers["www-authenticate"]
        body = {"question": "Where is Rome?", "context": CONTEXT}
        header = {"authorization": "Bearer s3cret é".encode()}
        assert CLIENT.post(f"{url}/answer", json=body, headers=header).status_code == 200
        assert CLIENT.get(f"{url}/docs", auth=("anyone", "s3cret é")).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "", "localhost.evil.example", "[::1", "10.0.0.1"]
)
def test_another_host_name_is_refused(url, host):
    """DNS rebinding: a page of evil.example whose name now resolves to this machine."""
    for method, path in (("GET", "/health"), ("GET", "/"), ("POST", "/answer")):
        reply = CLIENT.request(method, f"{url}{path}", headers={"host": host})
        assert reply.status_code == 403 and "--allow-host" in detail(reply)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://evil.example:443"])
def test_another_origin_may_not_ask(url, origin):
    body = {"question": "Where is Rome?", "context": CONTEXT}
    reply = CLIENT.post(f"{url}/answer", json=body, headers={"origin": origin})
    assert reply.status_code == 403 and "origin" in detail(reply)


def test_the_servers_own_names_are_allowed_and_others_can_be():
    body = {"question": "Where is Rome?", "context": CONTEXT}
    with serving(LastWordReader(), hosts=["Reader.example"]) as url:
        port = url.rpartition(":")[2]
        for host, origin in [
            (f"127.0.0.1:{port}", url),
            (f"localhost:{port}", f"http://localhost:{port}"),
            ("reader.example", "https://reader.example"),
            (f"127.0.0.1:{port}", "https://reader.example"),
        ]:
            headers = {"host": host, "origin": origin}
            assert CLIENT.post(f"{url}/answer", json=body, headers=headers).status_code == 200, headers


def test_metrics_count_what_happened():
    with serving(LastWordReader()) as url:
        ask(url, ["Where is Rome?", "Who is Ada?"])
        CLIENT.post(f"{url}/answer", content=b"{")
        CLIENT.get(f"{url}/made-up")
        text = CLIENT.get(f"{url}/metrics").text
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["http_requests_total", "/answer", "200", "POST"] == 1
    assert found["http_requests_total", "/answer", "422", "POST"] == 1
    assert found["http_requests_total", "404", "GET", "none"] == 1
    assert found["http_request_duration_seconds_count", "/answer", "POST"] == 2
    assert found["bertvision_batch_questions_sum",] == 2
    assert found["bertvision_waiting_questions",] == 0
    assert "made-up" not in text and "process_resident_memory_bytes" in text


def test_32_clients_at_once_get_what_one_gets():
    reader = tiny_reader()
    words = ["the", "world", "what", "is", "a", "question", "answer", "of", "in", "and"]
    asked = [
        {"question": f"what is {words[n % 9]}", "context": " ".join(words[n % 7 :] * (1 + n % 5)), "top_k": 3}
        for n in range(48)
    ]
    with serving(reader) as url, ThreadPoolExecutor(32) as clients:
        alone = [CLIENT.post(f"{url}/answer", json=body).json() for body in asked]
        together = list(clients.map(lambda body: CLIENT.post(f"{url}/answer", json=body).json(), asked))
        batches = CLIENT.get(f"{url}/metrics").text
    for one, other in zip(alone, together, strict=True):
        for left, right in zip(one["answers"][0]["candidates"], other["answers"][0]["candidates"], strict=True):
            assert left["answer"] == right["answer"] and left["start"] == right["start"]
            assert left["score"] == pytest.approx(right["score"], abs=1e-4)
    passes = next(line for line in batches.splitlines() if line.startswith("bertvision_batch_questions_count"))
    assert float(passes.split()[1]) < 48 + 30  # many of the second 48 went together


def test_one_thread_does_all_the_models_work():
    reader, before = LastWordReader(), set(threading.enumerate())
    with serving(reader) as url, ThreadPoolExecutor(8) as clients:
        assert all(reply.status_code == 200 for reply in clients.map(lambda _: ask(url), range(40)))
    assert reader.threads == {"model"} and sum(reader.batches) == 40
    assert set(threading.enumerate()) <= before


@pytest.mark.device
def test_a_real_reader_with_all_that_can_be_asked():
    with serving(tiny_reader()) as url:
        body = {"question": ["what is the world", "?"], "context": "a " * 500, "top_k": 3, "layers": True}
        reply = CLIENT.post(f"{url}/answer", json=body | {"no_answer_threshold": 1.0})
    assert reply.status_code == 200, json.dumps(reply.json())
    for answered in reply.json()["answers"]:
        for one in answered["candidates"]:
            assert body["context"][one["start"] : one["end"]] == one["answer"]
            assert sum(one["layers"]) == pytest.approx(1, abs=1e-4)


def raw(url: str, sent: bytes) -> bytes:
    """What the server answers to bytes on a connection of their own, up to the end of the first line."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent.replace(b"HOST", f"Host: {host}:{port}".encode()))
        with contextlib.suppress(ConnectionResetError):
            return connection.recv(4096).partition(b"\r\n")[0]
    return b""


UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: YQ==\r\nSec-WebSocket-Version: 13\r\n"
ODD = {
    "upgrade": b"GET / HTTP/1.1\r\nHOST\r\n" + UPGRADE + b"\r\n",
    "upgrade of a route": b"GET /answer HTTP/1.1\r\nHOST\r\n" + UPGRADE + b"\r\n",
    "h2c": b"GET /health HTTP/1.1\r\nHOST\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    "long path": b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHOST\r\n\r\n",
    "long query": b"GET /health?" + b"a" * 20_000 + b" HTTP/1.1\r\nHOST\r\n\r\n",
    "NUL in a path": b"GET /static/%00 HTTP/1.1\r\nHOST\r\n\r\n",
    "odd bytes in a path": b"GET /%ff%fe/%2e%2e/x HTTP/1.1\r\nHOST\r\n\r\n",
    "long header": b"GET /health HTTP/1.1\r\nHOST\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHOST\r\n" + b"X: a\r\n" * 30_000 + b"\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHOST\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHOST\r\n\r\n",
    "trace": b"TRACE / HTTP/1.1\r\nHOST\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHOST\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "noise": bytes(range(256)) * 4 + b"\r\n\r\n",
}


def test_odd_calls_are_a_4xx_and_leave_no_traceback(caplog):
    with serving(LastWordReader(), page=True) as url:
        found = {name: raw(url, sent) for name, sent in ODD.items()}
        assert CLIENT.get(f"{url}/health").status_code == 200
    assert {name: line for name, line in found.items() if not re.match(rb"HTTP/1.1 4\d\d ", line)} == {}
    assert not [record for record in caplog.records if record.exc_info]


def test_nothing_streams():
    """No route keeps a connection open: there is no queue of events that nobody reads."""
    with serving(LastWordReader(), page=True) as url:
        found = httpx.get(f"{url}/openapi.json").text + httpx.get(f"{url}/").text
        assert "event-stream" not in found and "EventSource" not in found and "WebSocket" not in found
        for path in ("/", "/docs", "/health", "/metrics"):
            assert "content-length" in httpx.get(f"{url}{path}").headers
