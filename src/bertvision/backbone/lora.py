"""LoRA on the attention's queries and values, through the optional package `peft`."""

import torch
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import Projections
from bertvision.errors import UserError

MARK = ".lora_"


def insert(model: PreTrainedModel, found: list[Projections], rank: int, seed: int = 0) -> None:
    """Adds low-rank updates 2 * (x A B) to the query and value maps of `found`, in place. B is 0 at first: no change.

    found: `anatomy.projections(model)`, taken from the plain encoder.
    Parameters: 2 * rank * (in + out) per block; a fused query-key-value map gets one update.
    """
    if rank < 1:
        raise UserError(f"lora: a rank of {rank} is impossible; give 1 or more, for example 8")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError("lora needs the package peft: pip install 'bertvision[lora]'") from None
    targets = sorted({name for block in found for name in (block.query, block.value)})
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets)
    with torch.random.fork_rng(devices=[]):  # peft draws from the global generator, which must not notice
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
