"""Tuning plans: which tensors of an encoder train, and the Houlsby adapters or LoRA maps inserted for it."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import (
    Projections,
    are_separable,
    blocks,
    depth,
    layer_norms,
    pooler,
    projections,
    shares_blocks,
)
from bertvision.backbone.plan import Plan, Tuning, check_depth
from bertvision.errors import UserError, one_line

ADAPTER, LORA = ".adapter.", ".lora_"  # parts of the names of added parameters
# Size of an untrained adapter's update, relative to its input. Not 0: both matrices get a gradient from step one.
START = 1e-6


def plan_of(model: PreTrainedModel, tuning: Tuning) -> Plan:
    """The plan of an encoder to which `tuning` has been applied."""
    added = sum(parameter.numel() for name, parameter in model.named_parameters() if is_added(name))
    return Plan(tuning, count(model) - added, added, count(model, trainable=True))


def apply(model: PreTrainedModel, tuning: Tuning, seed: int | None = 0) -> Plan:
    """Prepares `model` for training, in place: inserts adapters and LoRA, and sets requires_grad on every parameter.

    seed: of the initial values of adapters and LoRA. None: adapters stay uninitialised, to be loaded from a file.
    """
    _check_layers(model, tuning)
    projected = projections(model)[: tuning.depth or None] if tuning.adapters or tuning.lora else []
    if tuning.adapters:
        _insert_adapters(model, projected, tuning.adapters, seed)
    if tuning.lora:
        _insert_lora(model, projected, tuning.lora, seed or 0)
    if _trains_all(model, tuning):
        model.requires_grad_(True)
    else:
        model.requires_grad_(False)
        norms = layer_norms(model) if tuning.norms == "all" else []
        readout = pooler(model) if tuning.pooler else None
        for part in [*blocks(model)[first_trained(model, tuning) :], *norms, *([readout] if readout else [])]:
            part.requires_grad_(True)
        above = {id(parameter) for parameter in (pooler(model) or nn.Identity()).parameters()}
        for name, parameter in model.named_parameters():
            is_bias = tuning.biases and name.rpartition(".")[2] == "bias" and id(parameter) not in above
            if is_added(name) or is_bias:
                parameter.requires_grad_(True)
    for part in unused(model, tuning):
        part.requires_grad_(False)
    return plan_of(model, tuning)


def unused(model: PreTrainedModel, tuning: Tuning) -> list[nn.Module]:
    """The parts above the plan's depth, blocks and pooler: no head reads them."""
    last = pooler(model)
    return [*blocks(model)[tuning.depth :], *([last] if last else [])] if tuning.depth else []


def first_trained(model: PreTrainedModel, tuning: Tuning) -> int:
    """The number of the first block that trains; 0 if all do, the number of blocks if none does."""
    return 0 if _trains_all(model, tuning) else (tuning.depth or len(blocks(model))) - int(tuning.train_layers)


def is_split(model: PreTrainedModel, tuning: Tuning) -> bool:
    """True if everything below the first trained block is frozen: no LayerNorm, bias, adapter or LoRA trains there."""
    plain = not (tuning.adapters or tuning.lora or tuning.biases)
    return plain and tuning.norms == "trained" and not _trains_all(model, tuning)


def set_training(model: PreTrainedModel, tuning: Tuning) -> None:
    """Training mode, that is, dropout; but none in a lower part that is entirely frozen: its states never change."""
    model.train()
    if is_split(model, tuning):
        model.eval()
        for block in blocks(model)[first_trained(model, tuning) :]:
            block.train()


def set_attention_dropout(model: PreTrainedModel, probability: float) -> None:
    """Sets the dropout of attention weights everywhere. Fused attention kernels run only at 0."""
    for block in projections(model):
        attention = model.get_submodule(block.query.rpartition(".")[0])
        for name, part in attention.named_children():
            # ALBERT keeps the dropout of its output here, too
            if isinstance(part, nn.Dropout) and not name.startswith("output"):
                part.p = probability


@contextmanager
def leaner(
    model: PreTrainedModel,
    *,
    checkpointing: bool,
    compiled: bool,
    kernels: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[None]:
    """Within, training keeps only the input of each block and computes the rest again, or runs compiled. kernels: the
    context of what is computed again, for a backward pass leaves that of the forward pass."""
    if checkpointing:
        kind = model.device.type
        keeps = kind == "cpu" or getattr(torch.get_device_module(kind), "_initialized", False)  # its random numbers
        if not model.supports_gradient_checkpointing or not keeps:
            model_and_device = f"{type(model).__name__} on {kind}"
            raise UserError(
                f"runtime.gradient_checkpointing: {model_and_device} has none; give false, or raise runtime.accumulate"
            )
        model.config.use_cache = False  # of decoders; transformers would switch it off with a warning
        model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": lambda: (nullcontext(), kernels())})
    if compiled:
        model.compile(dynamic=True)
    try:
        yield
    except Exception as error:
        if not compiled or not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        raise UserError(
            f"runtime.compile: torch cannot compile this encoder here ({one_line(error)}); give false"
        ) from None
    finally:
        if checkpointing:
            model.gradient_checkpointing_disable()
        model._compiled_call_impl = None


def is_added(name: str) -> bool:
    """True for the name of a parameter of an adapter or of LoRA."""
    return ADAPTER in name or LORA in name


def count(model: nn.Module, trainable: bool = False) -> int:
    """Number of parameters, shared ones once; with `trainable` only those that train."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable)


class Adapter(nn.Module):
    """x + up(GELU(down(x))), down: H -> A, up: A -> H, both with bias. 2 * H * A + H + A parameters.

    Almost the identity before training. (..., H) -> (..., H).
    """

    def __init__(self, width: int, size: int, like: Tensor) -> None:
        super().__init__()
        # skip_init: the usual random initialisation would draw from the global generator
        self.down = nn.utils.skip_init(nn.Linear, width, size, device=like.device, dtype=like.dtype)
        self.up = nn.utils.skip_init(nn.Linear, size, width, device=like.device, dtype=like.dtype)

    def reset(self, generator: torch.Generator) -> None:
        """Sets the initial values, drawn from `generator` alone."""
        for dense, spread in ((self.down, 1.0), (self.up, START)):
            normal = torch.empty(dense.weight.shape)  # drawn on the CPU: the same numbers on every device
            nn.init.trunc_normal_(normal, a=-2.0, b=2.0, generator=generator)
            with torch.no_grad():
                dense.weight.copy_(normal * (spread / math.sqrt(dense.in_features)))
                dense.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(nn.functional.gelu(self.down(x)))  # (..., H) -> (..., A) -> (..., H)


class Adapted(nn.Linear):
    """A linear map followed by an adapter, in place of the map alone; dropout, residual and LayerNorm follow.

    It keeps the map's parameters under their old names, so a state dict of the plain encoder still fits; the new
    tensors are called `adapter.*`.
    """

    def __init__(self, plain: nn.Linear, size: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.adapter = Adapter(plain.out_features, size, like=plain.weight)
        self.train(plain.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.adapter(super().forward(x))


def _insert_adapters(model: PreTrainedModel, projected: list[Projections], size: int, seed: int | None) -> None:
    """Puts two adapters into every block, in place. ALBERT's shared block gets one shared pair."""
    if any(isinstance(part, Adapter) for part in model.modules()):
        raise UserError("adapters: the model already has adapters; start from a plain one")
    generator = torch.Generator().manual_seed(seed or 0)
    for name in [name for block in projected for name in (block.attention, block.feedforward)]:
        adapted = Adapted(model.get_submodule(name), size)  # type: ignore[arg-type]
        if seed is not None and adapted.weight.device.type != "meta":
            adapted.adapter.reset(generator)
        model.set_submodule(name, adapted)


def _insert_lora(model: PreTrainedModel, projected: list[Projections], rank: int, seed: int) -> None:
    """Adds low-rank updates 2 * (x A B) to the query and value maps, in place. B is 0 before training: no change.

    Parameters: 2 * rank * (in + out) per block; a fused query-key-value map gets one update.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise UserError("lora needs the package peft: pip install 'bertvision[lora]'") from None
    targets = sorted({name for block in projected for name in (block.query, block.value)})
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets)
    with torch.random.fork_rng(devices=[]):  # peft draws on the CPU; the global generator stays as it was
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, model)


def _trains_all(model: PreTrainedModel, tuning: Tuning) -> bool:
    return tuning.train_layers in ("all", tuning.depth or depth(model))


def _check_layers(model: PreTrainedModel, tuning: Tuning) -> None:
    layers, train_layers = depth(model), tuning.train_layers
    if tuning.depth and (tuning.depth > layers or not are_separable(model)):
        why = "has shared blocks, which cannot be left out" if tuning.depth <= layers else f"has {layers} blocks"
        raise UserError(f"depth: {tuning.depth} is impossible: {type(model).__name__} {why}")
    layers = tuning.depth or layers
    if train_layers in ("all", 0, layers):
        return
    if shares_blocks(model):
        raise UserError(
            f"train_layers: {train_layers} is impossible: {type(model).__name__} uses the same weights in several of "
            f"its {layers} layers, so they cannot train apart; give 0 (LayerNorms only) or 'all'"
        )
    check_depth(train_layers, layers)
