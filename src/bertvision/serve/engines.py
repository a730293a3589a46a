"""Engines: batch -> logits of a reader's tasks, from one pass of the encoder; in torch, or in ONNX if exported."""

import dataclasses
import importlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data.batches import Batch
from bertvision.errors import UserError, nearest
from bertvision.files import read_json
from bertvision.registry import TASKS
from bertvision.serve.config import ReaderConfig, TaskConfig
from bertvision.serve.reader_dir import (
    CONFIG,
    GRAPH,
    TOKENIZER,
    Heads,
    config_digest,
    is_exported,
    lasting,
    load_backbone,
    load_heads,
    stored_digest,
)

if TYPE_CHECKING:  # imports transformers, which an exported reader does not need
    from bertvision.backbone.backbone import Backbone
    from bertvision.backbone.states import States

NOTES = "bertvision"  # the metadata entry of a graph that says how batches must look, as JSON
Loaded = tuple[ReaderConfig, "Engine", dict[str, Any]]


class Engine(Protocol):
    """Runs a reader's encoder and heads; may be called by several threads at once.

    pad: the id that fills padding; longest: most tokens in a window.
    """

    tokenizer: Tokenizer
    pad: int
    longest: int

    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        """{task's name: logits of its ensemble}, (B, S, 2) for spans, else (B, outputs); for the tasks in `names`."""
        ...


class TorchEngine:
    """Encoder and heads in torch. heads: {task's name: {head's name: head}}; tasks: their configurations."""

    def __init__(self, backbone: "Backbone", heads: Heads, tasks: dict[str, TaskConfig]) -> None:
        from bertvision.backbone.cpu_kernels import packed

        self.backbone, self.tasks = backbone.eval(), dict(tasks)
        self._frozen = packed(backbone)
        self.heads: Heads = {name: {key: head.eval() for key, head in own.items()} for name, own in heads.items()}
        self.tokenizer, self.pad, self.longest = backbone.tokenizer, backbone.pad, backbone.longest
        self._lock = threading.Lock()  # one pass at a time: each uses all cores

    def states(self, batch: Batch, names: Sequence[str]) -> "States":
        """The states that the heads of these tasks read, without gradients."""
        wanted = [head for name in names for head in self.heads[name].values()]
        reads: Literal["all", "last"] = "last" if all(head.reads == "last" for head in wanted) else "all"
        with self._lock, torch.no_grad():
            return self._frozen(batch, reads)

    @torch.no_grad()
    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        states = self.states(batch, names)
        return {
            name: blend(self.tasks[name], [head.logits(states) for head in self.heads[name].values()], batch)
            for name in names
        }


def blend(config: TaskConfig, members: Sequence[Tensor], batch: Batch) -> Tensor:
    """The logits of an ensemble from those of its members, in its order.

    A single member's stay as they are, unless the rule of decoding compares probabilities.
    """
    task = TASKS[config.task]()
    if len(members) == 1 and not task.decodes_probabilities(config.decoding.rule):
        return members[0].float()
    ensemble = dataclasses.replace(config.ensemble, how=task.joined_by(config.ensemble.how))
    return ensemble.blend([task.log_probabilities(logits, batch.mask) for logits in members])


class OnnxEngine:
    """The engine of a directory that `bertvision export` wrote: model.onnx and tokenizer.json."""

    def __init__(self, directory: Path, config: ReaderConfig) -> None:
        self.tasks = config.tasks
        if not (directory / GRAPH).is_file():
            raise UserError(f"{directory}: has no {GRAPH}; `bertvision export READER --out DIR` writes one")
        self._session = _session(directory / GRAPH)
        try:
            notes = json.loads(self._session.get_modelmeta().custom_metadata_map[NOTES])
            self.pad, self.longest = int(notes["pad"]), int(notes["longest"])
            made_from = notes["config"], notes["weights"]
            self.tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        except Exception as error:  # the tokenizer's reader raises plain Exceptions
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{directory}: damaged, or not an exported reader ({reason}); export it again") from None
        outputs = {output.name for output in self._session.get_outputs()}
        wanted = {output_name(name, key) for name, task in self.tasks.items() for key in task.heads}
        if lacking := sorted(wanted - outputs):
            raise UserError(f"{directory / GRAPH}: does not compute {lacking[0]}; export the reader again")
        here = config_digest(read_json(directory / CONFIG)), stored_digest(directory, config) or made_from[1]
        if here != made_from:
            raise UserError(f"{directory / GRAPH}: was made from another reader than the one here; export this one")
        self._inputs = [given.name for given in self._session.get_inputs()]
        self._lock = threading.Lock()  # one pass at a time: each uses all cores

    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        members = [(name, key) for name in names for key in self.tasks[name].heads]
        given = {"ids": batch.ids, "types": batch.types, "mask": batch.mask}
        feed = {name: given[name].numpy() for name in self._inputs}  # not all encoders read types
        with self._lock:
            arrays = self._session.run([output_name(*member) for member in members], feed)
        found = {member: torch.from_numpy(array) for member, array in zip(members, arrays)}
        return {
            name: blend(self.tasks[name], [found[name, key] for key in self.tasks[name].heads], batch) for name in names
        }


def need(module: str) -> ModuleType:
    """An optional module that only ONNX needs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f'ONNX needs {module}; pip install "bertvision[onnx]"') from None


def output_name(task: str, head: str) -> str:
    """The name of a head's logits in the graph."""
    return f"{task}/{head}"


def _session(path: Path) -> Any:
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # its own count includes cores this process may not use
    options.log_severity_level = 3  # errors only
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exception types share no base but this
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: onnxruntime cannot load it ({reason}); export the reader again") from None


def load_engine(place: Path, config: ReaderConfig, name: str, backbone: str | None) -> Loaded:
    """The configuration, the engine, and what was noted with the heads; see `Reader.from_pretrained`."""
    exported = is_exported(place)
    name = ("onnx" if exported else "torch") if name == "auto" else name
    if name not in (names := ["torch", "onnx", "auto"]):
        raise UserError(f"engine: there is none called {name!r}; {nearest(name, names)}")
    if name == "torch" and exported:
        raise UserError(f'{place}: is an exported reader; run it with engine="onnx", or load the one it was made from')
    if name == "onnx" and backbone is not None:
        raise UserError('backbone: an exported reader carries its own; leave it out, or use engine="torch"')
    about: dict[str, Any] = {}
    if name == "onnx":
        engine: Engine = OnnxEngine(place, config)
    else:
        encoder = load_backbone(place, config, backbone)
        heads, about = load_heads(place, config, encoder)
        engine = TorchEngine(encoder, heads, config.tasks)
        if backbone is not None:
            config = dataclasses.replace(config, backbone=lasting(backbone))  # for a copy that is saved
    for task, one in config.tasks.items():
        if (length := one.windows.max_length) > engine.longest:
            raise UserError(
                f"{place / CONFIG}: tasks.{task}.windows.max_length: {length} tokens are more than the "
                f"{engine.longest} its encoder takes; copy or build the reader again"
            )
    return config, engine, about
