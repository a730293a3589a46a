"""Runs a reader that `bertvision export` has written: onnxruntime in place of torch, the same logits."""

import importlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from bertvision.data.batches import Batch
from bertvision.errors import UserError
from bertvision.serve.config import ReaderConfig
from bertvision.serve.directory import GRAPH, TOKENIZER
from bertvision.serve.engine import blend
from bertvision.serve.seal import check_seal

NOTES = "bertvision"  # the entry of the graph's metadata that holds what a batch must be like, as JSON


class OnnxEngine:
    """The engine in a directory with model.onnx and tokenizer.json; see `engine.Engine`."""

    def __init__(self, directory: Path, config: ReaderConfig) -> None:
        self.tasks = config.tasks
        if not (directory / GRAPH).is_file():
            raise UserError(f"{directory}: has no {GRAPH}; `bertvision export READER --out DIR` writes one")
        session = _session(directory / GRAPH)
        try:
            notes = json.loads(session.get_modelmeta().custom_metadata_map[NOTES])
            self.pad, self.longest = int(notes["pad"]), int(notes["longest"])
            seal = {"config": str(notes["config"]), "weights": str(notes["weights"])}
            self.tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        except Exception as error:  # the tokenizer's reader raises plain Exceptions
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{directory}: damaged, or not an exported reader ({reason}); export it again") from None
        outputs = {output.name for output in session.get_outputs()}
        wanted = {output_name(name, key) for name, task in self.tasks.items() for key in task.ensemble.members}
        if lacking := sorted(wanted - outputs):
            raise UserError(f"{directory / GRAPH}: does not compute {lacking[0]}; export the reader again")
        check_seal(directory, config, seal)
        self._session, self._inputs = session, [given.name for given in session.get_inputs()]
        # One pass at a time: each uses all cores anyway, and two at once would only fight for them.
        self._turn = threading.Lock()

    def logits(self, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
        members = [(name, key) for name in names for key in self.tasks[name].ensemble.members]
        given = {"ids": batch.ids, "types": batch.types, "mask": batch.mask}
        feed = {name: given[name].numpy() for name in self._inputs}  # not all encoders read types
        with self._turn:
            arrays = self._session.run([output_name(*member) for member in members], feed)
        found = {member: torch.from_numpy(array) for member, array in zip(members, arrays)}
        return {
            name: blend(self.tasks[name], [found[name, key] for key in self.tasks[name].ensemble.members], batch)
            for name in names
        }


def need(module: str) -> ModuleType:
    """An optional module that only ONNX needs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f'ONNX needs {module}; pip install "bertvision[onnx]"') from None


def output_name(task: str, head: str) -> str:
    """What the graph calls the logits of a member of a task's ensemble."""
    return f"{task}/{head}"


def _session(path: Path) -> Any:
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()  # its own count takes in cores this process may not use
    options.log_severity_level = 3  # errors only: what it thinks of a graph's style is nothing to the user
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exception types share no base but this
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: onnxruntime cannot load it ({reason}); export the reader again") from None
