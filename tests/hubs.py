"""A hub of this machine, with one repository in it.

from hubs import Hub
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0" * 40


class Hub:
    """Serves the files of a directory as the repository `name`, until it is closed."""

    def __init__(self, name: str, directory: Path) -> None:
        handler = type("Handler", (_Handler,), {"name": name, "directory": directory})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self, cache: Path) -> dict[str, str]:
        """Environment variables of a process that is to use it, and to keep what it fetches in `cache`."""
        return {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """As much of a hub as a client needs: the list of a model's files, and the files."""

    name: str
    directory: Path

    def do_GET(self) -> None:
        file = self.path.split("?")[0].rsplit("/", 1)[-1]
        if self.path.startswith(f"/api/models/{self.name}/tree/"):
            entries = [
                {"type": "file", "path": p.name, "size": p.stat().st_size, "oid": "0"} for p in self.directory.iterdir()
            ]
            self.answer(json.dumps(entries).encode())
        elif self.path.startswith(f"/api/models/{self.name}/"):
            files = [{"rfilename": path.name} for path in self.directory.iterdir()]
            self.answer(json.dumps({"id": self.name, "sha": COMMIT, "siblings": files}).encode())
        elif self.path.startswith(f"/{self.name}/resolve/") and (self.directory / file).is_file():
            self.answer((self.directory / file).read_bytes())
        elif self.path == "/":
            self.answer(b"")
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content):x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass
