"""Sources as recipes name them, and the download of official files over real HTTP."""

import functools
import hashlib
import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.sample import make
from bertvision.data.sources import (
    OFFICIAL_FILES,
    OFFICIAL_URL,
    SAMPLE_SEED,
    fetch_official,
    group_rows,
    is_synthetic,
    load_articles,
)
from bertvision.data.squad import check_articles, records, write_articles
from bertvision.errors import UserError


@pytest.mark.parametrize(
    ("source", "questions"),
    [
        ("sample:train", 3000),
        ("sample:tune", 400),
        ("sample:test", 800),
        ("sample:train:7", 7),
        ("sample:test:31:7", 31),
    ],
)
def test_sample_sizes(source: str, questions: int) -> None:
    assert len(records(load_articles(source))) == questions
    assert is_synthetic(source)


def test_sample_seeds() -> None:
    assert load_articles("sample:train:50") == make("train", 50, SAMPLE_SEED)
    assert load_articles("sample:train:50:8") == make("train", 50, 8) != make("train", 50, SAMPLE_SEED)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sample", "no split ''; there is: test, train, tune"),
        ("sample:trian", "did you mean 'train'"),
        ("sample:train:many", "must be sample:train, sample:train:QUESTIONS or"),
        ("sample:train:-5", "must be sample:train"),
        ("sample:train:5:1:2", "must be sample:train"),
        ("sample:train:", "must be sample:train"),
        ("sample:train:0", "must be 1 or more"),
        ("squad_v3", "did you mean 'squad_v2'"),
        ("squad_v2:test", "squad_v2 has no split 'test'; there is: train, validation"),
        ("", "there is"),
        ("no/such/file", "no such file"),
        ("missing.json", "missing.json: no such file"),
        ("sample:train:6+missing.json", "missing.json: no such file"),
        ("sample:train:6+", "no data are called ''"),
    ],
)
def test_wrong_sources_are_named(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_articles(source)
    assert "\n" not in str(caught.value)


def test_files_and_several_sources(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_articles(one, make("train", 40, 1))
    write_articles(two, make("tune", 30, 1))
    assert load_articles(str(one)) == make("train", 40, 1)
    assert not is_synthetic(str(one))
    joined = load_articles(f"{one}+{two}+sample:test:20")
    assert joined == make("train", 40, 1) + make("tune", 30, 1) + make("test", 20, SAMPLE_SEED)
    assert is_synthetic(f"{one}+sample:test:20")
    with pytest.raises(UserError, match=r"'sample-train-1-0-0-0' is in .*one\.json and again in sample:train:6"):
        load_articles(f"{one}+sample:train:6")


def test_a_plus_sign_may_be_part_of_a_file_name_and_the_list_may_be_long(tmp_path: Path) -> None:
    odd = tmp_path / "dev+more.json"
    write_articles(odd, make("tune", 5, 1))
    assert load_articles(str(odd)) == make("tune", 5, 1)
    many = "+".join(f"sample:train:1:{seed}" for seed in range(400))
    assert len(load_articles(many)) == 400


ROWS = [
    {
        "id": str(number),
        "title": title,
        "context": context,
        "question": "Who?",
        "answers": {"text": [word] if word else [], "answer_start": [context.index(word)] if word else []},
    }
    for number, (title, context, word) in enumerate(
        [("A", "Ada came.", "Ada"), ("B", "Bo went.", "Bo"), ("A", "Ada came.", ""), ("A", "Al sang.", "Al")]
    )
]


def test_flat_rows_become_articles() -> None:
    articles = group_rows(ROWS)
    check_articles(articles, "rows")
    assert [(article["title"], len(article["paragraphs"])) for article in articles] == [("A", 2), ("B", 1)]
    found = {record.id: record for record in records(articles)}
    assert list(found) == ["0", "2", "3", "1"]
    assert found["0"].answers == ("Ada",)
    assert not found["2"].has_answer
    assert found["0"].context is found["2"].context


def test_the_hub_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # import raises, as if it were not installed
    with pytest.raises(
        UserError, match=r"squad_v2: needs `datasets`; pip install 'bertvision\[hub\]', or give the path"
    ):
        load_articles("squad_v2")


CONTENT = json.dumps({"data": make("tune", 300, 1)}).encode()
FILES = {"small.json": (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and counts the requests."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(URL, folder that is served there)"""
    folder = tmp_path / "site"
    folder.mkdir()
    Handler.requests = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", folder
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_file_is_fetched_once(site: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = site
    (folder / "small.json").write_bytes(CONTENT)
    seen: list[tuple[int, int]] = []
    target = tmp_path / "deep" / "down"
    path = fetch_official("small.json", target, base_url=url, files=FILES, progress=lambda *n: seen.append(n))
    assert path == target / "small.json"
    assert load_articles(str(path)) == make("tune", 300, 1)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert list(target.iterdir()) == [path]
    assert fetch_official("small.json", target, base_url=url, files=FILES) == path
    assert Handler.requests == 1


def test_a_file_that_is_there_but_wrong_is_replaced(site: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = site
    (folder / "small.json").write_bytes(CONTENT)
    (tmp_path / "small.json").write_bytes(CONTENT[:-1] + b" ")
    path = fetch_official("small.json", tmp_path, base_url=url.rstrip("/"), files=FILES)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("wrong", [CONTENT[:-1] + b" ", CONTENT[:99], CONTENT + b"\n", b""])
def test_what_is_not_the_official_file_is_not_kept(site: tuple[str, Path], tmp_path: Path, wrong: bytes) -> None:
    url, folder = site
    (folder / "small.json").write_bytes(wrong)
    target = tmp_path / "target"
    with pytest.raises(UserError, match=r"not the official file .* nothing was kept"):
        fetch_official("small.json", target, base_url=url, files=FILES)
    assert list(target.iterdir()) == []


def test_a_server_that_sends_without_end_is_cut_off(site: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = site
    (folder / "small.json").write_bytes(b"x" * 40_000_000)
    seen: list[int] = []
    with pytest.raises(UserError, match="not the official file"):
        fetch_official("small.json", tmp_path, base_url=url, files=FILES, progress=lambda got, _: seen.append(got))
    assert seen[-1] < 3_000_000


def test_offline_missing_and_unwritable(site: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = site
    with pytest.raises(UserError, match="404 File not found"):
        fetch_official("small.json", tmp_path, base_url=url, files=FILES)
    with pytest.raises(UserError, match=r"cannot be reached \(.*refused"):
        fetch_official("small.json", tmp_path, base_url="http://127.0.0.1:9/", files=FILES)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        fetch_official("small.json", tmp_path / "file", base_url=url, files=FILES)
    assert not list(tmp_path.glob("*small*"))


def test_the_official_files() -> None:
    assert OFFICIAL_URL.startswith("https://")
    assert all(size > 4_000_000 and len(digest) == 64 for size, digest in OFFICIAL_FILES.values())
    with pytest.raises(UserError, match=r"did you mean 'dev-v2\.0\.json'"):
        fetch_official("dev-v2.json", Path())


def test_parts_of_a_source_share_no_article_and_miss_none():
    whole = load_articles("sample:tune:60")
    halves = [load_articles(f"sample:tune:60#{number}/2") for number in (1, 2)]
    assert halves[0] == whole[::2] and halves[1] == whole[1::2]
    assert load_articles("sample:tune:60#1/1") == whole


@pytest.mark.parametrize("part", ["", "0/2", "3/2", "1", "a/b", "1/0"])
def test_an_impossible_part_is_refused(part):
    with pytest.raises(UserError, match="such as #1/2"):
        load_articles(f"sample:tune:60#{part}")


def test_a_source_that_counts_double_has_every_question_twice_under_two_ids():
    once, twice = load_articles("sample:tune:60"), load_articles("sample:tune:60*2")
    assert twice[: len(once)] == once and len(twice) == 2 * len(once)
    texts, ids = ([[qa[key] for qa in questions(part)] for part in (once, twice)] for key in ("question", "id"))
    assert texts[1] == 2 * texts[0]
    assert len(set(ids[1])) == 2 * len(ids[0]) and ids[1][len(ids[0]) :] == [f"{id_}*2" for id_ in ids[0]]
    assert load_articles("sample:tune:60#1/2*1") == once[::2]


@pytest.mark.parametrize("times", ["", "0", "-1", "two"])
def test_an_impossible_number_of_times_is_refused(times):
    with pytest.raises(UserError, match=r"such as \*2"):
        load_articles(f"sample:tune:60*{times}")


def questions(articles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
