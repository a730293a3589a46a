"""The engine of exported readers, in ONNX Runtime and without torch; and which engine a reader is loaded with."""

import dataclasses
import gc
import importlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bertvision.data.batches import gather
from bertvision.data.windows import Windows
from bertvision.errors import UserError, nearest, no_panic
from bertvision.files import read_json
from bertvision.serve.config import ReaderConfig
from bertvision.serve.reader_dir import (
    CONFIG,
    GRAPH,
    TOKENIZER,
    WAY_OUT,
    absolute_name,
    check_digests,
    config_digest,
    is_exported,
    load_backbone,
    load_heads,
    stored_digest,
)

NOTES = "bertvision"  # the metadata entry of a graph that says how batches must look, as JSON
ENGINES = ("torch", "onnx", "auto")
Loaded = tuple[ReaderConfig, "Engine", dict[str, Any]]


class Engine(Protocol):
    """Runs a reader's encoder and heads; may be called by several threads at once.

    pad: the id that fills padding; longest: most tokens in a window.
    """

    tokenizer: Tokenizer
    pad: int
    longest: int

    def collate(self, windows: Windows, index: NDArray[np.int64]) -> Any:
        """The windows `index` (B,) as a batch for `logits`."""
        ...

    def logits(self, batch: Any, names: Sequence[str]) -> dict[str, Any]:
        """{task's name: logits of its ensemble}, (B, S, 2) for spans, else (B, outputs); for the tasks in `names`."""
        ...


class OnnxEngine:
    """The engine of a directory that `bertvision export` wrote: model.onnx and tokenizer.json."""

    def __init__(self, directory: Path, config: ReaderConfig) -> None:
        self.tasks = config.tasks
        if not (directory / GRAPH).is_file():
            raise UserError(f"{directory}: has no {GRAPH}; `bertvision export READER --out DIR` writes one")
        check_digests(directory)
        self._session = session_of(directory / GRAPH)
        try:
            notes = json.loads(self._session.get_modelmeta().custom_metadata_map[NOTES])
            self.pad, self.longest, self.int8 = int(notes["pad"]), int(notes["longest"]), bool(notes["int8"])
            made_from = notes["config"], notes["weights"]
            with no_panic(f"{directory}: its tokenizer"):
                self.tokenizer = Tokenizer.from_file(str(directory / TOKENIZER))
        except Exception as error:  # the tokenizer's reader raises plain Exceptions
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{directory}: damaged, or not an exported reader ({reason}); export it again") from None
        outputs = {output.name for output in self._session.get_outputs()}
        if lacking := sorted(self.tasks.keys() - outputs):
            raise UserError(f"{directory / GRAPH}: does not compute {lacking[0]}; export the reader again")
        here = config_digest(read_json(directory / CONFIG)), stored_digest(directory, config) or made_from[1]
        if here != made_from:
            raise UserError(f"{directory / GRAPH}: was made from another reader than the one here; export this one")
        self._inputs = [given.name for given in self._session.get_inputs()]
        self._lock = threading.Lock()  # one pass at a time: each uses all cores

    def collate(self, windows: Windows, index: NDArray[np.int64]) -> dict[str, NDArray]:
        return gather(windows, index, self.pad)

    def logits(self, batch: dict[str, NDArray], names: Sequence[str]) -> dict[str, NDArray]:
        feed = {name: batch[name] for name in self._inputs}  # not all encoders read types
        with self._lock:
            return dict(zip(names, self._session.run(list(names), feed)))


def need(module: str) -> ModuleType:
    """An optional module that only ONNX needs."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f'ONNX needs {module}; pip install "bertvision[onnx]"') from None


def session_of(path: Path) -> Any:
    """The session of a graph on the CPU, with the threads that this process may use."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = _threads()
    options.log_severity_level = 3  # errors only
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own exception types share no base but this
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: onnxruntime cannot load it ({reason}); export the reader again") from None


def _threads() -> int:
    """As many as torch would use; ONNX Runtime's own count includes cores that this process may not use."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Without garbage collection, which takes a fifth of the time of importing torch and transformers."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_engine(
    directory: Path, config: ReaderConfig, name: str, backbone: str | None, device: str, precision: str
) -> Loaded:
    """The configuration, the engine, and what was noted with the heads; see `Reader.from_pretrained`."""
    exported = is_exported(directory)
    name = ("onnx" if exported else "torch") if name == "auto" else name
    if name not in ENGINES:
        raise UserError(f"engine: there is none called {name!r}; {nearest(name, ENGINES)}")
    if name == "torch" and exported:
        way_out = 'run it with engine="onnx", or load the one it was made from'
        raise UserError(f"{directory}: is an exported reader; {way_out}")
    if name == "onnx" and backbone is not None:
        raise UserError('backbone: an exported reader carries its own; leave it out, or use engine="torch"')
    about: dict[str, Any] = {}
    if name == "onnx":
        for key, given, fits in (("device", device, ("cpu", "auto")), ("precision", precision, ("fp32", "auto"))):
            if given not in fits:
                way_out = f'{key}="{fits[0]}"'
                raise UserError(f"{key}: an exported reader runs on the CPU in fp32, not on {given}; use {way_out}")
        engine: Engine = OnnxEngine(directory, config)
    else:
        with without_garbage_collection():
            from bertvision.devices import find_device, find_precision
            from bertvision.runtime import Runtime
            from bertvision.serve.engines import TorchEngine

        runs_on = find_device(device, "device")
        runtime = Runtime(runs_on, find_precision(precision, runs_on, "precision"))
        encoder = load_backbone(directory, config, backbone, runtime)
        heads, about = load_heads(directory, config, encoder)
        engine = TorchEngine(encoder, heads, config.tasks)
        if backbone is not None:
            config = dataclasses.replace(config, backbone=absolute_name(backbone))  # for a copy that is saved
    for name, task in config.tasks.items():
        if (length := task.windows.max_length) > engine.longest:
            raise UserError(
                f"{directory / CONFIG}: tasks.{name}.windows.max_length: {length} tokens are more than the "
                f"{engine.longest} its encoder takes; {WAY_OUT}"
            )
    return config, engine, about
