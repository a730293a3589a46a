"""The parts of an encoder, found by structure: no class and no list of names per architecture.

Assumptions: the blocks are in one `nn.ModuleList`; a block registers its projections in the order in which they act
(queries, keys, values, attention output, feed-forward in, feed-forward out); the configuration has the width and the
number of layers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.errors import UserError


@dataclass(frozen=True, slots=True)
class Projections:
    """Names, within the model, of the linear maps of one block that tuning methods attach to.

    query, value: the same name twice where the attention computes all three in one fused map.
    attention, feedforward: the maps back to the width, whose outputs are added to the residual stream.
    """

    query: str
    value: str
    attention: str
    feedforward: str


def width(model: PreTrainedModel) -> int:
    """H: the size of a hidden state."""
    return model.config.hidden_size


def depth(model: PreTrainedModel) -> int:
    """Number of blocks a token passes; a shared one counts each time it is applied."""
    return model.config.num_hidden_layers


def layer_count(model: PreTrainedModel) -> int:
    """L: hidden states per token, the embedding output included."""
    return depth(model) + 1


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The transformer blocks that have weights of their own, from the bottom up; ALBERT has one, its shared group."""
    return [block for _, block in named_blocks(model)]


def named_blocks(model: PreTrainedModel) -> list[tuple[str, nn.Module]]:
    """The same with their names within the model."""
    if named := _list_of_blocks(model):
        return named
    raise UserError(f"{type(model).__name__}: no list of transformer blocks in it; choose an encoder such as BERT")


def shares_blocks(model: PreTrainedModel) -> bool:
    """True if one block's weights serve several layers, as in ALBERT."""
    return len(blocks(model)) < getattr(model, "cut_to", depth(model))


def are_separable(model: PreTrainedModel) -> bool:
    """True if some of the blocks can run without the others; ALBERT calls its one block, or its groups, by number."""
    grouped = any(isinstance(part, nn.ModuleList) for block in blocks(model) for part in block.modules())
    return not grouped and not shares_blocks(model)


def pooler(model: PreTrainedModel) -> nn.Module | None:
    """The dense layer on [CLS] that some encoders carry above their last block."""
    return getattr(model, "pooler", None)


def has_trained_pooler(model: PreTrainedModel) -> bool:
    """False where there is no pooler, or where its weights were drawn at random because the files had none."""
    return pooler(model) is not None and not getattr(model, "drawn_pooler", False)


def layer_norms(model: nn.Module) -> list[nn.Module]:
    """Every normalisation with a learned scale: `nn.LayerNorm`, `nn.RMSNorm`, and an architecture's own."""
    return [part for part in model.modules() if _is_norm(part)]


def projections(model: PreTrainedModel) -> list[Projections]:
    """The projections of every block with weights of its own. Call it before anything is inserted into the model."""
    return [_block_projections(model, name, layer) for name, layer in layers(model)]


def layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of every unit of one attention and one feed-forward part: blocks, or those in ALBERT's groups."""
    for name, block in named_blocks(model):
        yield from _list_of_blocks(block, name) or [(name, block)]


def _list_of_blocks(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """Names and members of the outermost list of blocks; empty if there is none."""
    for name, part in module.named_modules(prefix=prefix):  # parents come first
        if isinstance(part, nn.ModuleList) and len(part) and all(_is_block(member) for member in part):
            return [(f"{name}.{index}", member) for index, member in enumerate(part)]
    return []


def _is_block(part: nn.Module) -> bool:
    """True for a module with a norm and at least four linear maps: attention and feed-forward need no fewer."""
    maps = [inner for inner in part.modules() if isinstance(inner, nn.Linear) or hasattr(inner, "packed")]
    return len(maps) >= 4 and any(_is_norm(inner) for inner in part.modules())


def _block_projections(model: PreTrainedModel, name: str, block: nn.Module) -> Projections:
    linears = [(inner, part) for inner, part in block.named_modules(prefix=name) if isinstance(part, nn.Linear)]
    # A feed-forward part ends in two maps, in and out; the attention's output is the last map to the width before them.
    *before, _, (feedforward, last) = linears
    to_width = [index for index, (_, part) in enumerate(before) if part.out_features == width(model)]
    if last.out_features != width(model) or not to_width or to_width[-1] == 0:
        raise UserError(f"{type(model).__name__}: its blocks are built in an unknown way; use train_layers alone")
    inputs = [inner for inner, _ in before[: to_width[-1]]]  # query, key, value, ... or one fused map
    if len(inputs) == 2:
        raise UserError(f"{type(model).__name__}: its attention is built in an unknown way; use train_layers alone")
    value = inputs[2] if len(inputs) > 2 else inputs[0]
    return Projections(query=inputs[0], value=value, attention=before[to_width[-1]][0], feedforward=feedforward)


def _is_norm(part: nn.Module) -> bool:
    if isinstance(part, nn.LayerNorm | nn.RMSNorm):
        return True
    vectors_only = all(parameter.dim() == 1 for parameter in part.parameters(recurse=False))
    return type(part).__name__.endswith("Norm") and vectors_only and not list(part.children())


def keep_blocks(model: PreTrainedModel, part: slice) -> nn.Module:
    """Leaves only some of the blocks in the model; embeddings, masks and positions stay. The list of them all."""
    named = named_blocks(model)
    name = named[0][0].rpartition(".")[0]
    whole = model.get_submodule(name)
    model.set_submodule(name, nn.ModuleList(block for _, block in named[part]))
    return whole


@contextmanager
def only_blocks(model: PreTrainedModel, part: slice) -> Iterator[list[nn.Module]]:
    """Inside, the model has only some of its blocks, which are yielded."""
    all_blocks, name = blocks(model), named_blocks(model)[0][0].rpartition(".")[0]
    whole = keep_blocks(model, part)
    try:
        yield all_blocks[part]
    finally:
        model.set_submodule(name, whole)


@contextmanager
def watched(watched_blocks: list[nn.Module], entering: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Yields a list that receives the input of the first of these blocks and the output of each: (B, S, H) tensors.

    entering: replaces the input of the first block.
    """
    seen: list[Tensor] = []

    def before(block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(args[0] if entering is None else entering)
        return (seen[0], *args[1:])

    def after(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    hooks = [
        watched_blocks[0].register_forward_pre_hook(before),
        *(block.register_forward_hook(after) for block in watched_blocks),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
