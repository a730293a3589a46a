"""Where a study's numbers come from: data, times, versions and machine, as (label, text) lines."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

SHOWN_ELSEWHERE = {"title", "paper", "command", "started", "finished", "dropped", "variants", "constant"}


def fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """study.json, line by line; whatever else it holds is shown as well."""
    lines = list(_times(facts))
    for key, value in facts.items():
        if key not in SHOWN_ELSEWHERE and value not in (None, "", {}, []):
            lines.append((key.replace("_", " ").capitalize(), _text(value)))
    return lines


def data_line(facts: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Which data was used, for the badge: `train: sample:train; test: …`."""
    labels = facts.get("data") or recipe.get("data") or {}
    if not isinstance(labels, Mapping):
        return str(labels)
    known = {split: labels[split] for split in ("train", "tune", "test") if labels.get(split)}
    return "; ".join(f"{split}: {_source(label)}" for split, label in known.items())


def _source(label: Any) -> str:
    return str(label.get("source", "?")) if isinstance(label, Mapping) else str(label)


def _times(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("started", "finished"):
        if facts.get(key):
            yield key.capitalize(), str(facts[key])
    try:
        took = datetime.fromisoformat(facts["finished"]) - datetime.fromisoformat(facts["started"])
    except (KeyError, TypeError, ValueError):
        return
    yield "From start to finish", str(timedelta(seconds=round(took.total_seconds())))


def _text(value: Any) -> str:
    """Nested plain values on one line: `train: source sample:train, synthetic, questions 400; tune: …`."""
    if isinstance(value, Mapping):
        if any(isinstance(item, Mapping) for item in value.values()):
            return "; ".join(f"{key}: {_text(item)}" for key, item in value.items())
        return ", ".join(_pair(str(key), item) for key, item in value.items() if item is not False)
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _pair(key: str, value: Any) -> str:
    if key.endswith("_gib"):
        return f"{key.removesuffix('_gib').replace('_', ' ')} {_text(value)} GiB"
    name = key.replace("_", " ")
    return name if value is True else f"{name} {_text(value)}"
