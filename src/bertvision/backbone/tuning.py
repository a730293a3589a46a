"""The tuning plan: which tensors of an encoder train, and what is added to it for training."""

from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers import PreTrainedModel

from bertvision.backbone import adapters, lora
from bertvision.backbone.anatomy import blocks, depth, layer_norms, projections, shares_blocks
from bertvision.errors import UserError


@dataclass(frozen=True, slots=True)
class Tuning:
    """How an encoder is tuned. The three can be combined: `train_layers` rules the encoder's own weights alone.

    train_layers: "all", or k: only the last k blocks train, and LayerNorms as `norms` says. k = the number of blocks is
        "all": embeddings and pooler train too. Layers that share one block's weights (ALBERT) cannot train apart: there
        it is 0 or all.
    adapters: size of Houlsby adapters in every block, 0 = none. They always train.
    lora: rank of low-rank updates to queries and values, 0 = none. They always train.
    norms: "all" LayerNorms train, the embedding's included, or only those of the "trained" blocks.
    """

    train_layers: int | Literal["all"] = "all"
    adapters: int = 0
    lora: int = 0
    norms: Literal["all", "trained"] = "all"

    def __post_init__(self) -> None:
        for key in ("adapters", "lora"):
            value = getattr(self, key)
            if not _is_count(value):
                raise UserError(f"{key}: {value!r} is not a whole number from 0 up (0 = none)")
        if self.train_layers != "all" and not _is_count(self.train_layers):
            raise UserError(f"train_layers: {self.train_layers!r} is neither 'all' nor a whole number from 0 up")
        if self.norms not in ("all", "trained"):
            raise UserError(f"norms: {self.norms!r} is neither 'all' nor 'trained'")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `apply` did, in parameters. base: the encoder as it came. added: adapters and LoRA."""

    tuning: Tuning
    base: int
    added: int
    trainable: int


def apply(model: PreTrainedModel, tuning: Tuning, seed: int | None = 0) -> Plan:
    """Prepares `model` for training, in place: inserts what `tuning` adds, and sets requires_grad on every parameter.

    seed: decides the starting values of adapters and LoRA, and nothing else does; None: they are about to be filled.
    """
    _check_layers(model, tuning.train_layers)
    base = count(model)
    found = projections(model) if tuning.adapters or tuning.lora else []
    if tuning.adapters:
        adapters.insert(model, tuning.adapters, seed)
    if tuning.lora:
        lora.insert(model, found, tuning.lora, seed or 0)
    if _trains_all(model, tuning):
        model.requires_grad_(True)
    else:
        model.requires_grad_(False)
        norms = layer_norms(model) if tuning.norms == "all" else []
        for part in [*blocks(model)[first_trained(model, tuning) :], *norms]:
            part.requires_grad_(True)
        for name, parameter in model.named_parameters():
            if is_added(name):
                parameter.requires_grad_(True)
    return Plan(tuning, base, count(model) - base, count(model, trainable=True))


def first_trained(model: PreTrainedModel, tuning: Tuning) -> int:
    """The number of the first block that trains; 0 if all do, the number of blocks if none does."""
    own = blocks(model)
    return 0 if _trains_all(model, tuning) else len(own) - int(tuning.train_layers)


def is_split(model: PreTrainedModel, tuning: Tuning) -> bool:
    """True if everything below the first trained block is frozen: no LayerNorm, adapter or LoRA trains there."""
    plain = not tuning.adapters and not tuning.lora
    return plain and tuning.norms == "trained" and not _trains_all(model, tuning)


def set_training(model: PreTrainedModel, tuning: Tuning) -> None:
    """Training mode, that is, dropout; but none in a part that is entirely frozen: what it gives never changes."""
    model.train()
    if is_split(model, tuning):
        model.eval()
        for block in blocks(model)[first_trained(model, tuning) :]:
            block.train()


def set_attention_dropout(model: PreTrainedModel, probability: float) -> None:
    """Sets the dropout of attention weights everywhere. At 0 fused attention kernels can run, which know no dropout."""
    for found in projections(model):
        attention = model.get_submodule(found.query.rpartition(".")[0])
        for name, part in attention.named_children():
            # ALBERT keeps the dropout of its output here, too
            if isinstance(part, nn.Dropout) and not name.startswith("output"):
                part.p = probability


def is_added(name: str) -> bool:
    """True for the name of a parameter that tuning has added: of an adapter or of LoRA."""
    return adapters.MARK in name or lora.MARK in name


def count(model: nn.Module, trainable: bool = False) -> int:
    """Number of parameters, shared ones once; with `trainable` only those that train."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


def _trains_all(model: PreTrainedModel, tuning: Tuning) -> bool:
    return tuning.train_layers in ("all", depth(model))


def _check_layers(model: PreTrainedModel, train_layers: int | Literal["all"]) -> None:
    layers = depth(model)
    if train_layers in ("all", 0, layers):
        return
    if shares_blocks(model):
        raise UserError(
            f"train_layers: {train_layers} is impossible: {type(model).__name__} uses the same weights in several of "
            f"its {layers} layers, so they cannot train apart; give 0 (LayerNorms only) or 'all'"
        )
    if int(train_layers) > layers:
        raise UserError(
            f"train_layers: {train_layers} is too many: the encoder has {layers} blocks; give 0 to {layers} or 'all'"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
