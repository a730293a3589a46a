"""`bertvision mcp`: questions on files as a tool of the Model Context Protocol, over stdin and stdout.

Only files below the folders that were named at the start are read. A path is judged once all its links are followed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.serve.ask import Query, answer, assumed
from bertvision.serve.documents import Document, read_document

if TYPE_CHECKING:
    from bertvision.serve.reader import Reader

SUFFIXES = (".txt", ".md", ".html", ".htm", ".pdf")
MOST_FILES = 200  # read for one question
MOST_BYTES = 20 << 20  # of one file
MOST_ANSWERS = 50
ABOUT = (
    "Answers questions from text files with an extractive reader: every answer is a passage of a file, with its place "
    "and probability, or there is none."
)


class Folders:
    """The folders whose files may be read."""

    def __init__(self, folders: Sequence[Path]) -> None:
        if not folders:
            raise UserError("name at least one folder whose files may be read")
        for folder in folders:
            if not folder.is_dir():
                raise UserError(f"{folder}: no such folder")
        self.roots = [folder.resolve() for folder in folders]

    def find(self, name: str) -> Path:
        """The file called `name`, absolute or from one of the folders; UserError unless it is below one of them."""
        try:
            paths = [(root / name).resolve() for root in self.roots]  # an absolute name replaces the root
            below = [path for path in paths if self._holds(path) and path.is_file()]
        except (OSError, ValueError, RuntimeError):  # a loop of links, a zero byte, too long a name
            below = []
        if not below:  # the same words for what exists elsewhere and for what does not: nothing is told about it
            raise UserError(f"{name}: not a file below the folders that may be read; list_files names them")
        if below[0].stat().st_size > MOST_BYTES:
            raise UserError(f"{name}: larger than {MOST_BYTES >> 20} MiB; give a part of it")
        return below[0]

    def files(self) -> list[str]:
        """The files that can be read, sorted; hidden ones are left out."""
        files = []
        for root in self.roots:
            for path in sorted(root.rglob("*")):
                hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
                if path.suffix.lower() in SUFFIXES and not hidden and path.is_file() and self._holds(path.resolve()):
                    files.append(str(path))
        return files

    def read(self, names: Sequence[str]) -> list[Document]:
        """The named files, or all of them if none is named."""
        wanted = list(dict.fromkeys(names)) or self.files()
        if not wanted:
            raise UserError(f"there is no file with one of the endings {', '.join(SUFFIXES)} in the folders")
        if len(wanted) > MOST_FILES:
            raise UserError(f"{len(wanted)} files are more than the {MOST_FILES} of one question; name some of them")
        return [read_document(str(self.find(name))) for name in wanted]

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)


def ask_files(
    reader: "Reader", folders: Folders, question: str, names: Sequence[str], top_k: int
) -> list[dict[str, Any]]:
    """The best answers over some files; one with answer "" where there is none."""
    if not question.strip():
        raise UserError("question: is empty; ask something")
    if not 1 <= top_k <= MOST_ANSWERS:
        raise UserError(f"top_k: must be from 1 to {MOST_ANSWERS}, not {top_k}")
    query = Query(question, folders.read(names))
    share = assumed(reader, [query], None)
    return next(answer(reader if share is None else reader.assuming(share), [query], top_k=top_k))[1]


def build_tools(load: Callable[[], "Reader"], folders: Folders) -> Any:
    """The server. load: called when the first question comes."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UserError('`bertvision mcp` needs the package mcp; pip install "bertvision[mcp]"') from None
    from bertvision import __version__

    server = MCPServer("bertvision", instructions=ABOUT, version=__version__)
    loaded: list[Reader] = []

    @server.tool()
    def ask(question: str, files: list[str] | None = None, top_k: int = 1) -> list[dict[str, Any]]:
        """Answer a question from text files (.txt, .md, .html, .pdf).

        files: paths, absolute or from the served folders; all files if none is given. top_k: how many answers. Each
        answer has "answer" (a passage, "" where there is none), "score", "no_answer_score", "file", and "line" or
        "page".
        """
        try:
            if not loaded:
                loaded.append(load())
            return ask_files(loaded[0], folders, question, files or [], top_k)
        except UserError as error:
            raise ToolError(str(error)) from None

    @server.tool()
    def list_files() -> list[str]:
        """The paths of all files that can be asked about."""
        return folders.files()

    return server
