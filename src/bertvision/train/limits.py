"""Forecasts of memory and steps: sizes that cannot work are refused before training begins."""

from collections.abc import Mapping
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.devices import memory
from bertvision.errors import TooLarge, UserError
from bertvision.heads.base import head_size
from bertvision.recipe import DataRecipe, Recipe, head_spec
from bertvision.states.layout import readable
from bertvision.tasks import Dataset

STEPS = 10_000_000  # a plan of all batches is kept in memory
TRAINED = 16  # bytes per parameter in training: value, gradient and two moments
ADDED = 4  # matrices (width, size) that adapters or LoRA add to a block
CANDIDATE = 24  # bytes of an answer that is kept: its score and its place


def refuse_too_large(recipe: Recipe, data: Mapping[str, Dataset], shape: Mapping[str, Any]) -> None:
    """TooLarge, naming the key, where something of a recipe cannot be done. shape: arguments of `build_head`."""
    tuning, bank = recipe.finetune, recipe.bank
    windows = {split: len(one.windows) for split, one in data.items()}
    for key, epochs, size in (
        ("finetune.epochs", tuning.epochs, tuning.batch_size),
        ("bank.epochs", bank.epochs, bank.batch_size),
    ):
        if (steps := epochs * windows["train"] / size) > STEPS:
            raise TooLarge(key, f"{epochs:g} epochs are {steps:,.0f} steps, of which at most {STEPS:,} are planned")
    if bank.patience and bank.epochs * bank.checks > STEPS:
        raise TooLarge("bank.checks", f"{bank.checks:,} checks per epoch")
    heads = {f"heads.{number}": head_spec(entry) for number, entry in enumerate(recipe.heads)}
    for key, spec in {"finetune.head": head_spec(tuning.head), **heads}.items():
        copies = len(bank.fractions) if key in heads else 1
        _refuse(key, TRAINED * copies * head_size(spec, **shape, key=key))
    for key, size in (("finetune.adapters", tuning.adapters), ("finetune.lora", tuning.lora)):
        _refuse(key, TRAINED * ADDED * (shape["layers"] - 1) * shape["width"] * size)
    _refuse("evaluate.nbest", CANDIDATE * max(windows.values()) * (len(heads) + 1) * recipe.evaluate.nbest)


def _refuse(key: str, needed: int) -> None:
    if needed > (room := memory()):
        raise TooLarge(key, f"it needs {readable(needed)} of memory, and this machine has {readable(room)}")


def refuse_too_long(data: DataRecipe, backbone: Backbone) -> None:
    """UserError if windows may be longer than the encoder has positions for."""
    if data.max_length > backbone.longest:
        room = f"more than {backbone.name} has positions for ({backbone.longest})"
        raise UserError(f"data.max_length: {data.max_length} is {room}")
