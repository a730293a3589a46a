"""What ties an exported graph to its reader: digests of the configuration and the weights it was made from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from bertvision.errors import UserError
from bertvision.files import load_whole
from bertvision.serve.config import ReaderConfig
from bertvision.serve.directory import ENCODER, GRAPH, HEADS


def config_digest(config: ReaderConfig) -> str:
    return hashlib.sha256(json.dumps(config.to_json(), sort_keys=True).encode()).hexdigest()


def weights_digest(heads: Mapping[str, Tensor], encoder: Mapping[str, Tensor]) -> str:
    """Of the heads and of what was tuned of the encoder, in half precision: a reader may be stored in either."""
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
    encoder = load_whole(directory / ENCODER, "tuned encoder") if config.tuning else {}
    return weights_digest(load_whole(directory / HEADS, "file of heads"), encoder)


def check_seal(directory: Path, config: ReaderConfig, notes: Mapping[str, str]) -> None:
    """UserError unless the graph in a directory was made from the reader that is there. notes: those of the graph."""
    if notes["config"] != config_digest(config) or stored_digest(directory, config) not in ("", notes["weights"]):
        raise UserError(f"{directory / GRAPH}: was made from another reader than the one here; export this one again")
