"""`bertvision mcp`: a real client asks over stdin and stdout; nothing outside the named folders can be read."""

import asyncio
import json
import os
import sys

import pytest

from bertvision.errors import UserError
from bertvision.serve.tool_server import MOST_BYTES, Folders
from readers import tiny_reader

pytest.importorskip("mcp")


@pytest.fixture
def places(tmp_path):
    """A folder that may be read, and a secret beside it."""
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "king.txt").write_text("the first king of the old city was born in the north")
    (folder / "deep" / "river.md").write_text("the great river of the north")
    (folder / "deep" / "program.py").write_text("print()")
    (folder / ".hidden.txt").write_text("hidden")
    (tmp_path / "secret.txt").write_text("the secret word")
    (tmp_path / "notes-of-others").mkdir()
    (tmp_path / "notes-of-others" / "secret.txt").write_text("the secret word")
    return folder


def test_a_client_asks_and_is_refused(places, tmp_path):
    from mcp import Client, StdioServerParameters

    reader = tiny_reader().save_pretrained(tmp_path / "reader")
    words = ["-m", "bertvision", "mcp", str(places), "--reader", str(reader)]
    kept = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "BERTVISION_CACHE")}

    async def talk():
        async with Client(StdioServerParameters(command=sys.executable, args=words, env=kept)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            files = await client.call_tool("list_files", {})
            good = await client.call_tool("ask", {"question": "who was the king", "files": ["king.txt"], "top_k": 2})
            bad = await client.call_tool("ask", {"question": "who", "files": ["../secret.txt"]})
            return tools, files, good, bad

    tools, files, good, bad = asyncio.run(talk())
    assert tools == ["ask", "list_files"]
    assert files.structured_content["result"] == [str(places / "deep" / "river.md"), str(places / "king.txt")]
    answers = good.structured_content["result"]
    assert json.loads(json.dumps(answers)) == answers and 1 <= len(answers) <= 2
    for one in answers:
        assert one["answer"] in (places / "king.txt").read_text() and 0 <= one["score"] <= 1
    assert bad.is_error and "not a file below the folders" in bad.content[0].text


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.txt", "deep/../../secret.txt", "{outside}/secret.txt", "../notes-of-others/secret.txt"),
        *("link.txt", "away/secret.txt", "loop", "a\0b", "missing.txt", "deep", "", "/etc/passwd", "x" * 5000),
    ],
)
def test_what_is_outside_is_refused_as_if_it_were_not_there(places, tmp_path, name):
    (places / "link.txt").symlink_to(tmp_path / "secret.txt")
    (places / "away").symlink_to(tmp_path)
    (places / "loop").symlink_to(places / "loop")
    wanted = name.format(outside=tmp_path)
    with pytest.raises(UserError, match="not a file below the folders"):
        Folders([places]).find(wanted)
    assert not any("secret" in file or "link" in file or "loop" in file for file in Folders([places]).files())


def test_files_within_are_found(places):
    (places / "inner.txt").symlink_to(places / "king.txt")
    folders = Folders([places])
    assert {folders.find(name).name for name in ("king.txt", str(places / "king.txt"), "inner.txt")} == {"king.txt"}
    assert folders.find("deep/river.md") == folders.find("deep/../deep/river.md")
    assert [document.text for document in folders.read(["king.txt"])] == [(places / "king.txt").read_text()]
    with (places / "large.txt").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UserError, match="larger than 20 MiB"):
        folders.find("large.txt")
    with pytest.raises(UserError, match="no such folder"):
        Folders([places / "missing"])
