"""Tuning with the encoder's products in bfloat16, where the processor has instructions for them."""

from dataclasses import replace

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import Reads, States
from bertvision.data.batches import Batch
from bertvision.errors import UserError


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself; imitating it takes up to a hundred times as long."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_bf16() -> None:
    """UserError where bfloat16 would be slow."""
    if not has_bf16():
        raise UserError(
            'finetune.precision: this processor has no instructions for bf16, it would be slower; give "fp32"'
        )


def in_bf16(backbone: Backbone, batch: Batch, reads: Reads) -> States:
    """The states of a batch as fp32, from products in bfloat16; gradients flow back through these."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = backbone(batch, reads)
    return replace(states, layers=states.layers.float())
