"""Shapes of well-known encoders, without weights and without a network: for counting and planning."""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from bertvision.errors import UserError, nearest, one_line

_DATA = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
SHAPES: dict[str, dict[str, Any]] = _DATA["shapes"]
ALIASES: dict[str, str] = _DATA["aliases"]  # short names, and well-known tunings of an encoder in SHAPES


def configuration(name_or_directory: str | Path) -> PreTrainedConfig:
    """The Hugging Face configuration of a local directory, or of a known name with or without its organisation."""
    name = str(name_or_directory).rpartition("/")[2].lower()
    name = ALIASES.get(name, name)
    directory = Path(name_or_directory)
    if directory.is_dir() and (name not in SHAPES or (directory / "config.json").is_file()):
        return _from_directory(directory)
    if name not in SHAPES:
        hint = nearest(name, {*SHAPES, *ALIASES})
        raise UserError(
            f"{name_or_directory}: neither a directory with config.json nor an encoder of known shape; {hint}"
        )
    return AutoConfig.for_model(**SHAPES[name])


def empty_model(name_or_directory: str | Path) -> PreTrainedModel:
    """The encoder without its weights: every tensor is on the meta device and takes no memory."""
    config = configuration(name_or_directory)
    with torch.device("meta"):
        try:
            return AutoModel.from_config(config)
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(
                f"{name_or_directory}: transformers cannot build this configuration: {one_line(error)}"
            ) from None


def _from_directory(directory: Path) -> PreTrainedConfig:
    file = directory / "config.json"
    if not file.is_file():
        raise UserError(f"{directory}: there is no config.json in it; name the directory of a Hugging Face encoder")
    try:
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise UserError(f"{file}: not the configuration of a Hugging Face encoder: {one_line(error)}") from None
