"""A backbone for passes in which nothing learns: the same weights, laid out once as oneDNN's products want them.

A plain linear map arranges its weights anew in every product, adds the bias, and another kernel applies GELU. Here all
three are one kernel. The operators are those that torch's own compiler puts in place of a linear map; they need no
compiler on the machine.
"""

import copy
import os
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation

from bertvision.backbone.adapters import MARK, Adapted
from bertvision.backbone.anatomy import layers
from bertvision.backbone.backbone import SLICE, Backbone

Then = tuple[str, list, str]  # what follows the product in the same kernel: its name, its constants, its variant
NOTHING: Then = ("none", [], "")

# A kernel is made for a number of rows. torch and oneDNN keep 1,024 each, and what they keep of one comes to half a
# megabyte: windows of ever other lengths fill them. Making one anew is cheap, for a pass uses it in every layer.
KERNELS = 128
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_cache, str(KERNELS))  # read when the first kernel is made


class Packed(nn.Module):
    """then(x W^T + b) of a linear map, with weights as they are now. (..., in) -> (..., out)."""

    def __init__(self, dense: nn.Linear, then: Then = NOTHING) -> None:
        super().__init__()
        self.weight, self.bias, self.then = dense.weight, dense.bias, then
        self.packed = torch.ops.mkldnn._reorder_linear_weight(dense.weight.detach(), SLICE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, *self.then)


def packed(backbone: Backbone) -> Backbone:
    """A twin of `backbone` that shares its parameters, with packed linear maps; for use without gradients.

    Both are put into eval mode. The twin does not see what is learnt later. Where this machine has no such kernels, and
    for a part of a backbone, it is the backbone itself. It costs milliseconds, and the memory of the linear maps again.
    """
    backbone.eval()
    if type(backbone) is not Backbone or not _possible(backbone.model):
        return backbone
    shared = {id(tensor): tensor for tensor in chain(backbone.model.parameters(), backbone.model.buffers())}
    model = copy.deepcopy(backbone.model, shared)
    with torch.no_grad():
        _fuse(model)
        for name, part in reversed(list(model.named_modules())):  # what is inside another first
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
    """Moves the GELU of every feed-forward part into the map before it, where the one surely follows the other."""
    for name, layer in list(layers(model)):
        parts = list(layer.named_modules(prefix=name))
        gelus = [(inner, then) for inner, part in parts if (then := _gelu(part))]
        maps = [(inner, part) for inner, part in parts if isinstance(part, nn.Linear) and MARK not in inner]
        (first, into), (_, out) = maps[-2:]
        if len(gelus) == 1 and type(into) is nn.Linear and into.out_features == out.in_features:  # not so if gated
            activation, then = gelus[0]
            model.set_submodule(first, Packed(into, then))
            model.set_submodule(activation, nn.Identity())


def _gelu(activation: nn.Module) -> Then | None:
    """The same function as oneDNN names it; None if it has none."""
    if isinstance(activation, NewGELUActivation | GELUTanh):
        return ("gelu", [], "tanh")
    if isinstance(activation, nn.GELU):
        return ("gelu", [], activation.approximate)
    return ("gelu", [], "none") if isinstance(activation, GELUActivation) else None
