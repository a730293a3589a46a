"""A reader's directory: where it is found, its files and their digests, loading and writing encoder and heads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertvision.errors import UserError
from bertvision.files import (
    file_digest,
    fitting,
    holding,
    load_tensors,
    load_whole,
    read_json,
    save_tensors,
    write_json,
    write_tensors,
    write_text,
)
from bertvision.serve.config import ReaderConfig

if TYPE_CHECKING:  # slow to import, and an exported reader runs without them
    from torch import Tensor

    from bertvision.backbone.backbone import Backbone
    from bertvision.heads import Head
    from bertvision.runtime import Runtime

CONFIG, ENCODER, HEADS, CARD = "config.json", "encoder.safetensors", "heads.safetensors", "README.md"
GRAPH, TOKENIZER, DIGESTS = "model.onnx", "tokenizer.json", "digests.json"  # of an exported reader
FILES = (CONFIG, ENCODER, HEADS, GRAPH, TOKENIZER, DIGESTS, CARD)  # all files of a reader, exported or not
PACKAGED = Path(__file__).parent / "readers"  # readers that come with the package, by name
WAY_OUT = "copy or build the reader again"
Storage = Literal["fp32", "fp16"]
Heads = dict[str, dict[str, "Head"]]  # {task's name: {head's name: head}}


def find_reader(name: str) -> Path:
    """The directory of a reader: a local one, one of the package, or one fetched from the hub.

    A local directory without a reader in it does not hide a packaged reader of the same name.
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
        from bertvision.backbone.loading import fetch_folder

        if fetched := fetch_folder(name, FILES):
            return fetched
    raise UserError(f"{name}: no such reader, neither a directory nor on the hub; `bertvision study RECIPE` makes one")


def is_exported(directory: Path) -> bool:
    """Whether a reader's directory holds an ONNX graph and no weights for torch."""
    return (directory / GRAPH).is_file() and not (directory / HEADS).is_file()


def read_config(directory: Path) -> ReaderConfig:
    """The checked config.json of a reader."""
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: not a reader (no {CONFIG}); `bertvision study RECIPE` leaves one in RUN/reader")
    return ReaderConfig.from_json(read_json(path, "reader's configuration", WAY_OUT), str(path))


def read_card(directory: Path) -> str:
    """The README.md of a reader, empty if there is none."""
    path = directory / CARD
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def load_backbone(directory: Path, config: ReaderConfig, name: str | None, runtime: "Runtime") -> "Backbone":
    """The encoder of a reader with its tuning applied. name: where the untuned one is now, if it has moved."""
    from bertvision.backbone.backbone import Backbone
    from bertvision.backbone.checkpoint import load_tuned
    from bertvision.backbone.loading import PACKAGED
    from bertvision.backbone.plan import Tuning

    try:
        backbone = Backbone.load(name or config.backbone, runtime)
    except UserError as error:
        raise UserError(f"{directory}: its backbone is missing: {error}; or give --backbone PATH") from None
    if (fingerprint := backbone.fingerprint) != config.fingerprint:
        way_out = f"get that one ({config.backbone}), or make the reader again"
        if backbone.name == config.backbone and backbone.name in PACKAGED:  # their weights never change
            from bertvision.backbone.packages import directory_of

            way_out = f"delete {directory_of(backbone.name)} to have it fetched again, or build the reader again"
            way_out += " if it was made by an older version"
        raise UserError(
            f"{directory}: the backbone {backbone.name} has other weights (fingerprint {fingerprint[:12]}…) than the "
            f"one this reader was made with ({config.fingerprint[:12]}…); {way_out}"
        )
    if config.tuning:
        plan = load_tuned(backbone.model, directory / ENCODER)
        backbone.compressed = plan.compressed
        if asdict(plan.tuning) != asdict(Tuning()) | config.tuning:
            raise UserError(f"{directory / CONFIG}: tuning: is not the plan that {ENCODER} was tuned by; {WAY_OUT}")
    return backbone.eval()


def absolute_name(backbone: str) -> str:
    """A backbone's name that means the same from any directory."""
    from bertvision.backbone.loading import PACKAGED

    path = Path(backbone).expanduser()
    is_directory = backbone not in PACKAGED and (path / "config.json").is_file()
    return str(path.resolve()) if is_directory else backbone


def head_tensors(heads: Mapping[str, Mapping[str, "Head"]]) -> dict[str, "Tensor"]:
    """The tensors of all heads under the names they have in their file."""
    return {
        f"{name}/{key}/{parameter}": tensor
        for name, of_task in heads.items()
        for key, head in of_task.items()
        for parameter, tensor in head.state_dict().items()
    }


def load_heads(directory: Path, config: ReaderConfig, backbone: "Backbone") -> tuple[Heads, dict[str, Any]]:
    """The heads in eval mode, and what was noted with them (see `write_reader`)."""
    from bertvision.heads import SPECS, build_head, saved_spec

    path = directory / HEADS
    tensors, about = load_tensors(path, "file of heads", WAY_OUT, finite=True)
    heads: Heads = {}
    with fitting(path, "file of heads", WAY_OUT):
        for name, task in config.tasks.items():
            shape = {"layers": backbone.layers, "width": backbone.width, "outputs": about[name]["outputs"]}
            heads[name] = {}
            for key in task.all_heads:
                about[name]["entries"][key] = saved_spec(about[name]["entries"][key], about[name])
                head = build_head(about[name]["entries"][key], task=task.task, **shape)
                prefix = f"{name}/{key}/"
                head.load_state_dict(
                    {full.removeprefix(prefix): tensor for full, tensor in tensors.items() if full.startswith(prefix)}
                )
                heads[name][key] = head.eval()
            about[name]["specs"] = SPECS
    return heads, about


def write_reader(
    directory: Path,
    config: ReaderConfig,
    backbone: "Backbone",
    heads: Mapping[str, Mapping[str, "Head"]],
    about: Mapping[str, Any],
    card: str,
    storage: Storage = "fp32",
) -> None:
    """Writes a reader. config.json is removed first and written last: a half-written directory is not a reader.

    about: {task's name: {"entries": {head's name: its recipe table}, "outputs": n, "specs": SPECS}}. storage: fp16
    halves the files, but for a compressed encoder, which is written as it is; the reader computes in fp32 all the same.
    """
    if storage not in ("fp32", "fp16"):
        raise UserError(f"storage: {storage!r} is neither fp32 nor fp16")
    with holding(directory):
        for name in (CONFIG, GRAPH, TOKENIZER, DIGESTS, ENCODER):  # nothing of an earlier reader may stay
            (directory / name).unlink(missing_ok=True)
        save_tensors(directory / HEADS, _stored(head_tensors(heads), storage), about)
        if config.tuning:
            cut = 0 if backbone.compressed else getattr(backbone.model, "cut_to", 0)  # its difference is to a whole one
            config = replace(config, tuning=config.tuning | {"depth": cut}) if cut else config
            _write_encoder(directory / ENCODER, backbone, config.tuning, storage)
        write_text(directory / CARD, card)
        write_json(directory / CONFIG, config.to_json(), durable=True)


def _write_encoder(path: Path, backbone: "Backbone", tuning: Mapping[str, Any], storage: Storage) -> None:
    from bertvision.backbone.checkpoint import tuned_tensors
    from bertvision.backbone.tuning import Tuning

    if backbone.compressed:
        write_tensors(path, *backbone.compressed)
        return
    tensors, header = tuned_tensors(backbone.model, Tuning(**tuning))
    write_tensors(path, _stored(tensors, storage), header)


def _stored(tensors: Mapping[str, "Tensor"], storage: Storage) -> dict[str, "Tensor"]:
    if storage == "fp32":
        return dict(tensors)
    half = {key: tensor.detach().half() if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    if not all(tensor.isfinite().all() for tensor in half.values()):
        raise UserError("storage: a weight is too large for fp16; save as fp32")
    return half


def write_digests(directory: Path) -> None:
    """Notes the digests of the files of an exported reader that have no place for one."""
    write_json(directory / DIGESTS, {name: file_digest(directory / name) for name in (GRAPH, TOKENIZER)}, durable=True)


def check_digests(directory: Path) -> None:
    """UserError if the files of an exported reader are not what was noted; one of version 0.1 has no notes."""
    path = directory / DIGESTS
    noted = read_json(path, "file of digests", "export the reader again") if path.is_file() else {}
    for name, wanted in noted.items() if isinstance(noted, dict) else ():
        if name in (GRAPH, TOKENIZER) and file_digest(directory / name) != wanted:
            raise UserError(f"{directory / name}: its digest does not match; copy or export the reader again")


def encoder_tensors(backbone: "Backbone", config: ReaderConfig) -> Mapping[str, "Tensor"]:
    """The tensors of a reader's tuned encoder as its file has them; none if it is not tuned."""
    from bertvision.backbone.checkpoint import trained_state

    if not config.tuning:
        return {}
    return backbone.compressed[0] if backbone.compressed else trained_state(backbone.model)


def config_digest(table: Mapping[str, Any]) -> str:
    """Of config.json, as it is in the file: it ties an exported graph to its reader."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def weights_digest(heads: Mapping[str, "Tensor"], encoder: Mapping[str, "Tensor"]) -> str:
    """Of heads and tuned weights in half precision: a reader may be stored in either."""
    digest = hashlib.sha256()
    for part, tensors in (("heads", heads), ("encoder", encoder)):
        for name, tensor in sorted(tensors.items()):
            values = tensor.detach().half() if tensor.is_floating_point() else tensor.detach()
            digest.update(f"{part} {name} {tuple(values.shape)}".encode())
            digest.update(values.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def stored_digest(directory: Path, config: ReaderConfig) -> str:
    """`weights_digest` of the files in a directory; empty where there are none, as beside most exported graphs."""
    if not (directory / HEADS).is_file():
        return ""
    encoder = load_whole(directory / ENCODER, "tuned encoder")[0] if config.tuning else {}
    return weights_digest(load_whole(directory / HEADS, "file of heads")[0], encoder)
