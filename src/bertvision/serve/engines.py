"""The directory of a reader -> what runs it: torch, or ONNX for one that was exported."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertvision.errors import UserError, nearest
from bertvision.serve.config import ReaderConfig
from bertvision.serve.directory import CONFIG, is_exported
from bertvision.serve.engine import Engine, TorchEngine
from bertvision.serve.onnx_engine import OnnxEngine

Loaded = tuple[ReaderConfig, Engine, dict[str, Any]]


def load_engine(place: Path, config: ReaderConfig, name: str, backbone: str | None) -> Loaded:
    """The configuration as it now holds, the engine, what was noted with the heads; see `Reader.from_pretrained`."""
    if name == "auto":
        name = "onnx" if is_exported(place) else "torch"
    if name not in ENGINES:
        raise UserError(f"engine: there is none called {name!r}; {nearest(name, [*ENGINES, 'auto'])}")
    config, engine, about = ENGINES[name](place, config, backbone)
    for task, one in config.tasks.items():
        if (length := one.windows.max_length) > engine.longest:
            raise UserError(
                f"{place / CONFIG}: tasks.{task}.windows.max_length: {length} tokens are more than the "
                f"{engine.longest} its encoder takes; copy or build the reader again"
            )
    return config, engine, about


def _torch(place: Path, config: ReaderConfig, backbone: str | None) -> Loaded:
    from bertvision.serve.weights import lasting, load_backbone, load_heads  # these need transformers

    if is_exported(place):
        raise UserError(f'{place}: is an exported reader; run it with engine="onnx", or load the one it was made from')
    encoder = load_backbone(place, config, backbone)
    heads, about = load_heads(place, config, encoder)
    if backbone is not None:  # to be found there again by whoever loads what is saved
        config = dataclasses.replace(config, backbone=lasting(backbone))
    return config, TorchEngine(encoder, heads, config.tasks), about


def _onnx(place: Path, config: ReaderConfig, backbone: str | None) -> Loaded:
    if backbone is not None:
        raise UserError('backbone: an exported reader carries its own; leave it out, or use engine="torch"')
    return config, OnnxEngine(place, config), {}


ENGINES: dict[str, Callable[[Path, ReaderConfig, str | None], Loaded]] = {"torch": _torch, "onnx": _onnx}
