"""Several readers on one encoder -> one reader: a single backbone pass then serves all of their tasks."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch

from bertvision.backbone.checkpoint import trained_state
from bertvision.errors import UserError
from bertvision.serve.config import ReaderConfig
from bertvision.serve.engine import TorchEngine

FRONT = re.compile(r"\A---\n.*?^---$", re.DOTALL | re.MULTILINE)
LICENCE = re.compile(r"^license: (.+)$", re.MULTILINE)
HEADING = re.compile(r"^(?=#)", re.MULTILINE)
Part = tuple[ReaderConfig, TorchEngine, Mapping[str, Any]]


def join(parts: Mapping[str, Part]) -> tuple[ReaderConfig, TorchEngine, dict[str, Any]]:
    """The parts of a reader with every task of `parts`: {name of a task: a reader that has one, in its parts}."""
    if not parts:
        raise UserError("join: give at least one reader")
    (config, engine, _), *_ = parts.values()
    tasks, heads, about = {}, {}, {}
    for name, (other, its_engine, its_about) in parts.items():
        if len(other.tasks) != 1:
            raise UserError(f"join: {name}: has the tasks {', '.join(other.tasks)}; give readers with one task each")
        if why := _difference(config, engine, other, its_engine):
            raise UserError(f"join: {name}: stands on {why}, so that one pass cannot serve both")
        (own,) = other.tasks
        tasks[name], heads[name], about[name] = other.tasks[own], its_engine.heads[own], its_about[own]
    return dataclasses.replace(config, tasks=tasks), TorchEngine(engine.backbone, heads, tasks), about


def join_cards(cards: Mapping[str, str]) -> str:
    """One card of several, {name of a task: a reader's card}: all that they say, each under its task."""
    found = {name: FRONT.sub("", card).strip() for name, card in cards.items()}
    licences = sorted({licence for card in cards.values() for licence in LICENCE.findall(card)})
    front = ["library_name: bertvision", *(f"license: {one}" for one in licences if len(licences) == 1)]
    if len(licences) > 1:
        front += ["license: other", f"license_name: {' and '.join(licences)}"]
    parts = [f"# {name}\n\n{HEADING.sub('#', text)}" for name, text in found.items()]
    return "\n".join(["---", *front, "---\n\n"]) + "\n\n".join(parts) + "\n"


def _difference(config: ReaderConfig, engine: TorchEngine, other: ReaderConfig, its: TorchEngine) -> str:
    """What keeps two readers from sharing an encoder; empty if nothing does."""
    if config.fingerprint != other.fingerprint:
        return f"another backbone ({other.backbone}, not {config.backbone})"
    if config.tuning != other.tuning:
        return "a backbone tuned in another way"
    if config.tuning:
        here, there = trained_state(engine.backbone.model), trained_state(its.backbone.model)
        if here.keys() != there.keys() or not all(torch.equal(here[key], there[key]) for key in here):
            return "a backbone tuned on something else"
    return ""
