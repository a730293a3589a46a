"""Encoder and heads of a reader, from its directory and into it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertvision.backbone import packages
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.checkpoint import load_tuned, save_tuned
from bertvision.backbone.tuning import Tuning
from bertvision.errors import UserError
from bertvision.files import fitting, load_tensors, replacing, save_tensors, write_json, write_text
from bertvision.heads import Head, build_head
from bertvision.serve.config import ReaderConfig
from bertvision.serve.directory import CARD, CONFIG, ENCODER, GRAPH, HEADS, TOKENIZER, Storage


def load_backbone(directory: Path, config: ReaderConfig, name: str | None = None) -> Backbone:
    """The encoder of a reader with its tuning laid over. name: where the untuned one is now, if it has moved."""
    try:
        backbone = Backbone.load(name or config.backbone)
    except UserError as error:
        raise UserError(f"{directory}: its backbone is missing: {error}; or give --backbone PATH") from None
    if (found := backbone.fingerprint) != config.fingerprint:
        damaged = backbone.name == config.backbone and backbone.name in packages.ALIASES  # names that never change
        way_out = (
            f"delete {packages.directory_of(backbone.name)} to have it fetched again"
            if damaged
            else f"get that one ({config.backbone}), or make the reader again"
        )
        raise UserError(
            f"{directory}: the backbone {backbone.name} has other weights (fingerprint {found[:12]}…) than the "
            f"one this reader was made with ({config.fingerprint[:12]}…); {way_out}"
        )
    if config.tuning:
        plan = load_tuned(backbone.model, directory / ENCODER)
        if asdict(plan.tuning) != config.tuning:
            raise UserError(
                f"{directory / CONFIG}: tuning: is not the plan that {ENCODER} was tuned by; "
                "copy or build the reader again"
            )
    return backbone.eval()


def lasting(backbone: str) -> str:
    """A backbone's name that means the same from any directory."""
    path = Path(backbone).expanduser()
    is_directory = backbone not in packages.ALIASES and (path / "config.json").is_file()
    return str(path.resolve()) if is_directory else backbone


def head_tensors(heads: Mapping[str, Mapping[str, Head]]) -> dict[str, Tensor]:
    """The tensors of all heads under the names they have in their file."""
    return {
        f"{name}/{key}/{parameter}": tensor
        for name, own in heads.items()
        for key, head in own.items()
        for parameter, tensor in head.state_dict().items()
    }


def load_heads(
    directory: Path, config: ReaderConfig, backbone: Backbone
) -> tuple[dict[str, dict[str, Head]], dict[str, Any]]:
    """{task's name: {head's name: head}}, in eval mode, and what was noted with them (see `write_reader`)."""
    path = directory / HEADS
    tensors, about = load_tensors(path, "file of heads")
    found: dict[str, dict[str, Head]] = {}
    with fitting(path, "file of heads"):
        for name, task in config.tasks.items():
            entries, outputs = about[name]["entries"], about[name]["outputs"]
            found[name] = {}
            for key in task.heads:
                head = build_head(
                    entries[key], layers=backbone.layers, width=backbone.width, task=task.task, outputs=outputs
                )
                head.load_state_dict(_under(f"{name}/{key}/", tensors))
                found[name][key] = head.eval()
    return found, about


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def write_reader(
    directory: Path,
    config: ReaderConfig,
    backbone: Backbone,
    heads: Mapping[str, Mapping[str, Head]],
    about: Mapping[str, Any],
    card: str,
    storage: Storage = "fp32",
) -> None:
    """Writes a reader; config.json goes first and comes last, so that what is half written is no reader.

    about: {task's name: {"entries": {head's name: its recipe table}, "outputs": n}}. storage: fp16 halves the files;
    the reader computes in fp32 all the same.
    """
    if storage not in ("fp32", "fp16"):
        raise UserError(f"storage: {storage!r} is neither fp32 nor fp16")
    for name in (CONFIG, GRAPH, TOKENIZER):  # a graph of what was here before would answer for it
        (directory / name).unlink(missing_ok=True)
    tensors = {name: _stored(tensor, storage) for name, tensor in head_tensors(heads).items()}
    save_tensors(directory / HEADS, tensors, about)
    if config.tuning:
        _write_encoder(directory / ENCODER, backbone, Tuning(**config.tuning), storage)
    else:
        (directory / ENCODER).unlink(missing_ok=True)
    write_text(directory / CARD, card)
    write_json(directory / CONFIG, config.to_json())


def _write_encoder(path: Path, backbone: Backbone, tuning: Tuning, storage: Storage) -> None:
    with replacing(path) as scratch:
        save_tuned(backbone.model, tuning, scratch)
        if storage == "fp16":
            with safe_open(scratch, framework="pt") as file:
                header = file.metadata()
                tensors = {key: _stored(file.get_tensor(key), storage) for key in file.keys()}  # noqa: SIM118
            save_file(tensors, scratch, metadata=header)


def _stored(tensor: Tensor, storage: Storage) -> Tensor:
    if storage == "fp32" or not tensor.is_floating_point():
        return tensor
    half = tensor.detach().half()
    if not torch.isfinite(half).all():
        raise UserError("storage: a weight is too large for fp16; save as fp32")
    return half
