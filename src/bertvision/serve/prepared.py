"""Readers prepared to start without torch: ONNX graphs in the user's cache, made once by `bertvision export READER`."""

import hashlib
import importlib.util
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.files import file_digest, read_json, write_json
from bertvision.serve.answers import cut
from bertvision.serve.onnx_engine import Engine, OnnxEngine, without_garbage_collection
from bertvision.serve.reader import Reader
from bertvision.serve.reader_dir import CONFIG, ENCODER, GRAPH, HEADS, find_reader, is_exported, read_config
from bertvision.wheels import cache_directory

FORMAT = 1  # of the graphs: those of another format are not found
SPEED = "speed.json"  # seconds of one batch by engine, measured when the graph was made
SLOWER = 1.25  # a graph is used if it takes at most so many times the seconds of torch: it starts sooner
WINDOWS, WORDS, PASSES = 4, 20, 3  # of the measurement: 4 windows of about 120 tokens, 3 times
OPEN = {  # values of options with which any engine may answer
    "engine": ("auto",),
    "backbone": (None,),
    "device": ("auto", "cpu"),
    "precision": ("fp32", "auto"),
    "exit": (None,),
}


def prepared_path(reader: Path) -> Path:
    """Where the graph of a reader's directory belongs. Its name is a digest of the files: a changed reader has none."""
    names = [name for name in (CONFIG, ENCODER, HEADS) if (reader / name).is_file()]
    digest = hashlib.sha256("\n".join(f"{name} {file_digest(reader / name)}" for name in names).encode())
    return cache_directory() / "readers" / f"{digest.hexdigest()[:24]}-{FORMAT}"


def prepare(name: str, *, int8: bool = False, backbone: str | None = None) -> tuple[Path, dict[str, float]]:
    """Exports a reader into the cache, in place of an earlier graph: (its path, seconds of a batch by engine)."""
    from bertvision.serve.export import export

    reader, out = Reader.from_pretrained(name, engine="torch", backbone=backbone), prepared_path(find_reader(name))
    graph = export(reader, out, int8=int8)
    speed = {"torch": _seconds(reader, reader.engine), "onnx": _seconds(reader, OnnxEngine(out, reader.config))}
    write_json(out / SPEED, speed)
    return graph, speed


def _seconds(reader: Reader, engine: Engine) -> float:
    """The median time of a batch, after one that does not count."""
    name, config = next(iter(reader.config.tasks.items()))
    windows = cut(engine.tokenizer, [("who", "the king of the old city " * WORDS)] * WINDOWS, config)
    batch = engine.collate(windows, np.arange(WINDOWS))
    times = []
    for _ in range(1 + PASSES):
        began = time.perf_counter()
        engine.logits(batch, [name])
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def load_quickly(name: str, *, alone: bool = False, **how: Any) -> tuple[Reader, str]:
    """A reader as `Reader.from_pretrained(name, **how)` gives, from a prepared graph if there is one; and why so.

    Only where `how` leaves the choice open. A graph that is damaged, or was slower than torch, is not used.
    alone: the process does nothing else, so that less of transformers need be imported; see backbone/lean.py.
    """
    directory = find_reader(name)
    how |= {"alone": alone}
    if any(value not in choices for key, choices in OPEN.items() for value in [how.get(key, choices[0])]):
        return _loaded(name, how, "the options leave no choice")
    if is_exported(directory):
        return _loaded(name, how, "the reader is an exported one")
    graph = prepared_path(directory)
    if not (graph / GRAPH).is_file():
        installed = importlib.util.find_spec("onnxruntime") is not None
        first = "" if installed else 'pip install "bertvision[onnx]", then '
        return _loaded(name, how, f"{first}`bertvision export {name}` once lets it start without torch")
    try:
        speed = read_json(graph / SPEED)
        measured = f"{1000 * speed['onnx']:.0f} ms a batch when it was made, torch {1000 * speed['torch']:.0f} ms"
        if speed["onnx"] > SLOWER * speed["torch"]:
            return _loaded(name, how, f"the prepared graph is slower: {measured}")
        reader, why = _loaded(str(graph), how, f"{graph}: {measured}")
        reader.name = Path(name).name
        return reader, why
    except (UserError, KeyError, TypeError) as error:
        again = f"`bertvision export {name}` makes it again"
        print(f"bertvision: prepared graph not used: {error}; {again}", file=sys.stderr)
        return _loaded(name, how, "the prepared graph is damaged")


def _loaded(name: str, how: dict[str, Any], why: str) -> tuple[Reader, str]:
    options = {key: value for key, value in how.items() if key != "alone"}
    directory = find_reader(name)
    needs_all = is_exported(directory) or read_config(directory).tuning.get("lora")  # PEFT imports all of transformers
    if how["alone"] and not needs_all:
        from bertvision.backbone.lean import import_lean

        with without_garbage_collection():
            import_lean()
            reader = Reader.from_pretrained(name, **options)
    else:
        reader = Reader.from_pretrained(name, **options)
    engine = reader.engine
    kind = ("onnx int8" if engine.int8 else "onnx fp32") if isinstance(engine, OnnxEngine) else "torch"
    return reader, f"engine {kind} ({why})"
