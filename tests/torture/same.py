"""Whether two directories hold the same results: all but times, peaks of memory and logs."""

import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open

TIMES = {
    *("train_seconds", "tuning_seconds", "feed_seconds", "head_seconds", "infer_seconds", "ms_per_question", "seconds"),
    *("started", "finished", "command", "peak", "device_peak_gib", "datetime_start", "datetime_complete"),
}
# Logs, and what shows times: only whether they exist is compared. Digests of score files cover the times in these.
SHOWN = ("log.jsonl", "optuna.jsonl", "journal.json", "report.html", "report.md", "study.toml", "README.md")
DIGESTS = {"made_from"}


def plain(value: Any) -> Any:
    """Plain values without times."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items() if key not in TIMES | DIGESTS}
    if isinstance(value, list):  # what is compared at equal seconds depends on how fast the machine was
        return [plain(part) for part in value if not (isinstance(part, dict) and part.get("by") == "train_seconds")]
    return value


def difference(one: Path, other: Path, but: str = "") -> str:
    """The first difference between the files of two directories; empty if there is none. but: a file not compared."""
    names, others = (_files(root) - {but} for root in (one, other))
    if names != others:
        return f"files: {sorted(names ^ others)[:4]}"
    for name in sorted(names):
        left, right = one / name, other / name
        if Path(name).name in SHOWN or "figures" in Path(name).parts:
            continue
        if _content(left, one) != _content(right, other):
            return f"{name} differs"
    return ""


def _files(root: Path) -> set[str]:
    found = (Path(folder) / name for folder, _, names in os.walk(root) for name in names)
    return {str(path.relative_to(root)) for path in found}


def _content(path: Path, root: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            read = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        tensors = {key: (str(tensor.dtype), tensor.numpy().tobytes()) for key, tensor in read.items()}
        header.pop("digest", None)
        return tensors, plain({key: _json(text) for key, text in header.items()})
    if path.suffix == ".json":
        return plain(_json(path.read_text(encoding="utf-8").replace(str(root), "PLACE")))
    return path.read_bytes().replace(str(root).encode(), b"PLACE")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
