"""Tuning plans and their parameter counts; of well-known encoders without importing transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertvision.errors import UserError


@dataclass(frozen=True, slots=True)
class Tuning:
    """How an encoder is tuned. All fields can be combined; `train_layers` concerns the encoder's own weights alone.

    train_layers: "all", or k: only the last k blocks train, and LayerNorms as `norms` says. k = the number of blocks is
        "all": embeddings and pooler train too. ALBERT's layers share one block's weights: there it is 0 or all.
    adapters: size of Houlsby adapters in every block, 0 = none. They always train.
    lora: rank of low-rank updates to queries and values, 0 = none. They always train.
    norms: "all" LayerNorms train, the embedding's included, or only those of the "trained" blocks.
    pooler: the encoder's pooler trains even where not all blocks do: it is part of a read-out.
    depth: so many blocks from the bottom are all that is used, 0 = all. Those above are not tuned; `train_layers`
        counts down from here.
    biases: all biases of embeddings and blocks train even where not all blocks do (BitFit, with train_layers = 0).
    """

    train_layers: int | Literal["all"] = "all"
    adapters: int = 0
    lora: int = 0
    norms: Literal["all", "trained"] = "all"
    pooler: bool = False
    biases: bool = False
    depth: int = 0

    def __post_init__(self) -> None:
        for key in ("adapters", "lora", "depth"):
            value = getattr(self, key)
            if not _is_count(value):
                raise UserError(f"{key}: {value!r} is not a whole number from 0 up (0 = none)")
        if self.train_layers != "all" and not _is_count(self.train_layers):
            raise UserError(f"train_layers: {self.train_layers!r} is neither 'all' nor a whole number from 0 up")
        if self.norms not in ("all", "trained"):
            raise UserError(f"norms: {self.norms!r} is neither 'all' nor 'trained'")


@dataclass(frozen=True, slots=True)
class Plan:
    """A tuning and its parameter counts. base: the plain encoder. added: adapters and LoRA.

    compressed: tensors and header of the file that it was loaded from, if that is a compressed one.
    """

    tuning: Tuning
    base: int
    added: int
    trainable: int
    compressed: tuple[dict[str, Any], dict[str, str]] | None = None


def known_shape(name: str | Path) -> dict[str, Any] | None:
    """{"blocks", "width", and parameters of "total", "block", "norms", "block_norms"} of an encoder in shapes.json.

    None if there is a directory of that name, and for ALBERT, whose blocks share their weights.
    """
    data = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    short = str(name).rpartition("/")[2].lower()
    return None if Path(name).is_dir() else data["parameters"].get(data["aliases"].get(short, short))


def known_plan(shape: dict[str, Any], tuning: Tuning) -> Plan:
    """The plan of an encoder of known shape, as `apply` would make it; not with LoRA."""
    check_depth(tuning.train_layers, shape["blocks"])
    size, width = tuning.adapters, shape["width"]
    added = 2 * shape["blocks"] * (2 * width * size + width + size) if size else 0
    trained_blocks = shape["blocks"] if tuning.train_layers == "all" else tuning.train_layers
    norms = shape["norms"] - trained_blocks * shape["block_norms"] if tuning.norms == "all" else 0
    trained_parameters = (
        shape["total"] if trained_blocks == shape["blocks"] else trained_blocks * shape["block"] + norms
    )
    return Plan(tuning, shape["total"], added, trained_parameters + added)


def check_depth(train_layers: int | Literal["all"], blocks: int) -> None:
    """Refuses more trained blocks than there are."""
    if train_layers != "all" and train_layers > blocks:
        raise UserError(
            f"train_layers: {train_layers} is too many: the encoder has {blocks} blocks; give 0 to {blocks} or 'all'"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
