"""Faster passes: oneDNN on a CPU, with packed weights where nothing trains; bfloat16 where the device has it.

A plain linear map rearranges its weights in every product, adds the bias, and another kernel applies GELU. Packed,
all three are one oneDNN kernel: the operators that torch's own compiler puts in place of a linear map. No compiler is
needed on the machine.
"""

import copy
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation

from bertvision.backbone.anatomy import layers
from bertvision.backbone.backbone import SLICE, Backbone
from bertvision.backbone.states import Positions, Reads, States
from bertvision.backbone.tuning import ADAPTER, Adapted
from bertvision.data.batches import Batch
from bertvision.devices import has_onednn
from bertvision.runtime import Runtime

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
    return Backbone(model, backbone.tokenizer, backbone.name, backbone.runtime).eval()


def frozen(backbone: Backbone) -> Callable[..., States]:
    """(batch, reads, positions) -> states without gradients, by the backbone's runtime and with its current weights.

    The batch may lie anywhere. The backbone is put into eval mode.
    """
    runtime = backbone.runtime
    run = partial(in_bf16, backbone.eval()) if runtime.precision == "bf16" else packed(backbone)

    def states(batch: Batch, reads: Reads = "all", positions: Positions = "all") -> States:
        with torch.no_grad():
            return run(runtime.to(batch), reads, positions)

    return states


def _possible(model: PreTrainedModel) -> bool:
    return has_onednn() and all(tensor.is_cpu and tensor.dtype == torch.float32 for tensor in model.parameters())


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


def in_bf16(backbone: Backbone, batch: Batch, reads: Reads, positions: Positions = "all") -> States:
    """The states of a batch as fp32, from products in bfloat16; gradients flow back through these."""
    with backbone.runtime.autocast(), training_kernels(backbone.runtime):
        states = backbone(batch, reads, positions)
    return replace(states, layers=states.layers.float())


def training_kernels(runtime: Runtime) -> AbstractContextManager[object]:
    """Within, training on a CPU uses quicker kernels than those torch chooses; elsewhere nothing changes."""
    return Kernels() if runtime.kind == "cpu" and not runtime.compiled and has_onednn() else nullcontext()


class Kernels(TorchFunctionMode):
    """Within, linear maps in fp32 run in oneDNN, and attention in bfloat16 with gradients as plain products.

    torch gives fp32 products to MKL, which uses half the width of the vector units of processors that are not Intel's:
    114 GFLOP/s where oneDNN has 260, on one core of an AMD EPYC. Backwards, torch's fused attention for CPUs takes two
    to four times as long in bfloat16 as plain products; forwards it is the quicker one.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is linear and not kwargs and _is_plain(*args):
            return Linear.apply(*args, *([None] if len(args) == 2 else []))
        if func is scaled_dot_product_attention and _is_learnt(args[0]) and not _is_special(kwargs):
            return attention(*args, **{key: kwargs[key] for key in ("attn_mask", "scale") if key in kwargs})
        return func(*args, **kwargs)


class Linear(torch.autograd.Function):
    """x W^T + b, and its gradients, in oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, wanted = gradient.reshape(-1, gradient.shape[-1]), ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if wanted[0] else None,
            _product(rows.t(), x.reshape(-1, x.shape[-1]).t()) if wanted[1] else None,
            rows.sum(0) if wanted[2] else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *NOTHING)


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, scale: float = 0.0) -> Tensor:
    """softmax(q k^T scale + mask) v, (..., S, D). Every token must attend to another: [CLS] is never padding."""
    scores = (query * (scale or query.shape[-1] ** -0.5)) @ key.transpose(-1, -2)  # (..., S, S)
    if attn_mask is not None:
        bias = attn_mask
        if bias.dtype == torch.bool:
            bias = torch.zeros(bias.shape, dtype=scores.dtype).masked_fill_(~bias, -torch.inf)
        scores = scores + bias
    return torch._softmax(scores, -1, False) @ value  # autocast would compute `softmax` in fp32


def _is_plain(*operands: Tensor | None) -> bool:
    """Whether these are what `Linear` takes."""
    if torch.is_autocast_enabled("cpu") or operands[0].dim() < 2 or not operands[0].numel():  # type: ignore[union-attr]
        return False
    return all(operand is None or (operand.is_cpu and operand.dtype == torch.float32) for operand in operands)


def _is_learnt(query: Tensor) -> bool:
    return query.dtype == torch.bfloat16 and torch.is_grad_enabled()


def _is_special(options: dict[str, Any]) -> bool:
    return any(options.get(key) for key in ("dropout_p", "is_causal", "enable_gqa"))
