"""Faster passes on a CPU: packed weights where nothing trains, bfloat16 products where the processor has them.

A plain linear map rearranges its weights in every product, adds the bias, and another kernel applies GELU. Packed,
all three are one oneDNN kernel: the operators that torch's own compiler puts in place of a linear map. No compiler is
needed on the machine.
"""

import copy
import os
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation

from bertvision.backbone.anatomy import layers
from bertvision.backbone.backbone import SLICE, Backbone
from bertvision.backbone.states import Reads, States
from bertvision.backbone.tuning import ADAPTER, Adapted
from bertvision.data.batches import Batch
from bertvision.errors import UserError

Then = tuple[str, list, str]  # what follows the product in the same kernel: its name, its constants, its variant
NOTHING: Then = ("none", [], "")

# A kernel is made for one number of rows. torch and oneDNN cache 1,024 kernels each, half a megabyte per kernel, and
# windows of many lengths fill the caches. A new kernel is cheap, since a pass uses it in every layer.
KERNELS = 128
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, str(KERNELS))  # read when the first kernel is made


class Packed(nn.Module):
    """then(x W^T + b) of a linear map, with its weights at this moment. (..., in) -> (..., out)."""

    def __init__(self, dense: nn.Linear, then: Then = NOTHING) -> None:
        super().__init__()
        self.weight, self.bias, self.then = dense.weight, dense.bias, then
        self.packed = torch.ops.mkldnn._reorder_linear_weight(dense.weight.detach(), SLICE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, *self.then)


def packed(backbone: Backbone) -> Backbone:
    """A copy of `backbone` that shares its parameters, with packed linear maps; for use without gradients.

    Both are put into eval mode. The copy does not follow later training. It takes milliseconds to make, and the memory
    of the linear maps again. Without such kernels, and for a part of a backbone, it is the backbone itself.
    """
    backbone.eval()
    if type(backbone) is not Backbone or not _possible(backbone.model):
        return backbone
    shared = {id(tensor): tensor for tensor in chain(backbone.model.parameters(), backbone.model.buffers())}
    model = copy.deepcopy(backbone.model, shared)
    with torch.no_grad():
        _fuse(model)
        for name, part in reversed(list(model.named_modules())):  # inner modules before outer ones
            if type(part) is nn.Linear:
                model.set_submodule(name, Packed(part))
            elif type(part) is Adapted:
                model.set_submodule(name, nn.Sequential(Packed(part), part.adapter))
    return Backbone(model, backbone.tokenizer, backbone.name).eval()


def _possible(model: PreTrainedModel) -> bool:
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return all(tensor.is_cpu and tensor.dtype == torch.float32 for tensor in model.parameters())


def _fuse(model: PreTrainedModel) -> None:
    """Moves the GELU of every feed-forward part into the linear map before it, where it certainly follows the map."""
    for name, layer in list(layers(model)):
        parts = list(layer.named_modules(prefix=name))
        gelus = [(inner, then) for inner, part in parts if (then := _gelu(part))]
        maps = [(inner, part) for inner, part in parts if isinstance(part, nn.Linear) and ADAPTER not in inner]
        (first, into), (_, out) = maps[-2:]
        if len(gelus) == 1 and type(into) is nn.Linear and into.out_features == out.in_features:  # not so if gated
            activation, then = gelus[0]
            model.set_submodule(first, Packed(into, then))
            model.set_submodule(activation, nn.Identity())


def _gelu(activation: nn.Module) -> Then | None:
    """oneDNN's name of a GELU; None for other activations."""
    if isinstance(activation, NewGELUActivation | GELUTanh):
        return ("gelu", [], "tanh")
    if isinstance(activation, nn.GELU):
        return ("gelu", [], activation.approximate)
    return ("gelu", [], "none") if isinstance(activation, GELUActivation) else None


def has_bf16() -> bool:
    """True if the processor multiplies bfloat16 itself; emulating it takes up to a hundred times as long."""
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
