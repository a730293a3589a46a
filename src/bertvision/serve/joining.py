"""Several readers on one encoder -> one reader: a single backbone pass then serves all of their tasks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from bertvision.backbone.trained import trained_state
from bertvision.errors import UserError
from bertvision.serve.config import ReaderConfig
from bertvision.serve.engine import TorchEngine

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
