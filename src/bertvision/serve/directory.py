"""The directory of a reader: where it is found, which files it may hold, and its checked configuration."""

from pathlib import Path
from typing import Literal

from bertvision.backbone.loading import fetch_folder
from bertvision.errors import UserError
from bertvision.files import read_json
from bertvision.serve.config import ReaderConfig

CONFIG, ENCODER, HEADS, CARD = "config.json", "encoder.safetensors", "heads.safetensors", "README.md"
GRAPH, TOKENIZER = "model.onnx", "tokenizer.json"  # of an exported one
FILES = (CONFIG, ENCODER, HEADS, GRAPH, TOKENIZER, CARD)  # all that a reader may consist of, exported or not
PACKAGED = Path(__file__).parent / "readers"  # readers that come with the package, by name
Storage = Literal["fp32", "fp16"]


def find_reader(name: str) -> Path:
    """The directory of a reader: a local one, one that comes with the package, or one fetched from the hub.

    A directory that has only the name of a packaged reader, and no reader in it, is not meant.
    """
    path = Path(name).expanduser()
    packaged = Path(name).name == name and (PACKAGED / name / CONFIG).is_file()
    if path.is_dir() and not (packaged and not (path / CONFIG).is_file()):
        return path
    if packaged:
        return PACKAGED / name
    if path.exists():
        raise UserError(f"{name}: is a file; name the directory of a reader")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        fetched = fetch_folder(name, FILES)
        if fetched is not None:
            return fetched
    raise UserError(f"{name}: no such reader, neither a directory nor on the hub; `bertvision study RECIPE` makes one")


def is_exported(directory: Path) -> bool:
    """Whether a reader's directory holds an ONNX graph and nothing that torch could run."""
    return (directory / GRAPH).is_file() and not (directory / HEADS).is_file()


def read_config(directory: Path) -> ReaderConfig:
    """The checked config.json of a reader."""
    if not (directory / CONFIG).is_file():
        raise UserError(f"{directory}: not a reader (no {CONFIG}); `bertvision study RECIPE` leaves one in RUN/reader")
    return ReaderConfig.from_json(read_json(directory / CONFIG, "reader's configuration"), str(directory / CONFIG))
