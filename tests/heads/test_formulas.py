"""Heads compute by short cuts. Here each is compared with its formula, written out the long way."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, gelu, linear, scaled_dot_product_attention

from bertvision.backbone.states import POOLED, States
from bertvision.errors import UserError
from bertvision.heads import Head, build_head, head_name
from bertvision.heads.cacnn import parts_mean
from bertvision.heads.conv import LARGEST, STRIDE, LaidOut

L, H, S = 4, 24, 6


def build(spec: dict, task: str = "spans") -> Head:
    torch.manual_seed(0)
    head = build_head(spec, layers=L, width=H, task=task, outputs=3)
    with torch.no_grad():  # away from the special values that some parameters start with
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return head


@pytest.fixture
def states() -> States:
    layers = torch.randn(3, L, S, H, generator=torch.Generator().manual_seed(1))
    return States(layers, torch.arange(S) < torch.tensor([6, 4, 1])[:, None])


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_pool(states: States) -> None:
    head = build({"kind": "pool"})
    mixed = sum(share * states.layers[:, layer] for layer, share in enumerate(head.pool.weights.softmax(0)))
    close(head.logits(states), head.readout(head.pool.gamma * mixed))
    mean = build({"kind": "pool", "weights": "mean"})
    close(mean(states), mean.readout(states.layers.mean(dim=1)))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("extras", [(), ("skip",), ("beside",), ("skip", "beside")])
def test_compress(states: States, shared: bool, extras: tuple[str, ...]) -> None:
    head = build({"kind": "compress", "size": 5, "shared": shared, **dict.fromkeys(extras, True)})
    features = []
    for layer in range(L):
        copy = 0 if shared else layer
        features.append(gelu(linear(states.layers[:, layer], head.squeeze.weight[copy], head.squeeze.bias[copy, 0])))
    if "skip" in extras:
        features.append(states.layers[:, -1])
    if "beside" in extras:
        features.append(head.pool(states.layers))
    close(head.logits(states), head.readout(torch.cat(features, dim=-1)))


def test_compress_over_all_tokens_averages_features_of_real_tokens(states: States) -> None:
    head = build({"kind": "compress", "size": 5, "tokens": "all", "skip": True}, "labels")
    for index, length in enumerate(states.mask.sum(dim=1)):
        layers = states.layers[index, :, :length]  # (L, n, H)
        squeezed = gelu(linear(layers, head.squeeze.weight[0], head.squeeze.bias[0, 0])).mean(dim=1).flatten()
        features = torch.cat([squeezed, layers[-1].mean(dim=0)])
        close(head.logits(states)[index], head.readout(features))


def test_compress_flattened_gives_every_token_place_weights_of_its_own(states: States) -> None:
    head = build({"kind": "compress", "size": 5, "tokens": "all", "places": 8, "squeezed_mix": True}, "labels")
    squeezed = gelu(linear(states.layers, head.squeeze.weight[0], head.squeeze.bias[0, 0]))  # (B, L, S, 5)
    mix = gelu(linear(head.pool(states.layers), head.second.weight[0], head.second.bias[0, 0]))  # (B, S, 5)
    features = torch.cat([squeezed.transpose(1, 2).flatten(2), mix], dim=-1) * states.mask.unsqueeze(-1)
    flat = nn.functional.pad(features, (0, 0, 0, 8 - S)).flatten(1)  # (B, 8 * (L + 1) * 5), padding zero
    close(head.logits(states), head.readout(flat))
    with pytest.raises(UserError, match="9 tokens for 8 places"):
        head.logits(States(torch.randn(1, L, 9, H), torch.ones(1, 9, dtype=torch.bool)))


@pytest.mark.parametrize("network", ["short", "full"])
def test_xception_of_the_paper(network: str) -> None:
    """Written out again from the paper, with the head's own tensors in the order in which they are applied."""
    torch.manual_seed(0)
    head = build_head(
        {"kind": "conv", "form": "xception", "network": network, "pooled": True}, layers=L, width=96, task="labels"
    )
    tensors = iter([tensor for key, tensor in head.state_dict().items() if "tracked" not in key])
    for name, tensor in head.named_buffers():
        if "running" in name:
            tensor.uniform_(0.5, 1.5)

    def conv(x: Tensor, stride: int = 1) -> Tensor:
        kernel = next(tensors)
        return norm(conv1d(x, kernel, stride=stride, padding=kernel.shape[2] // 2))

    def separable(x: Tensor) -> Tensor:
        return norm(conv1d(conv1d(x, next(tensors), padding=1, groups=x.shape[1]), next(tensors)))

    def norm(x: Tensor) -> Tensor:
        weight, bias, mean, variance = (next(tensors)[:, None] for _ in range(4))
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    def block(x: Tensor, steps: int, shrinks: bool) -> Tensor:
        y = x
        for _ in range(steps):
            y = separable(y.relu())
        if not shrinks:
            return x + y
        y = nn.functional.avg_pool1d(y, 3, stride=2, padding=1, count_include_pad=False)
        return y + conv(x, stride=2)

    layers = torch.randn(2, 1 + L, 1, 96)
    x = conv(conv(layers[:, :, 0], stride=3).relu()).relu()
    if network == "short":
        x = block(x, 2, shrinks=True)
    else:
        for steps, shrinks in [(2, True)] * 3 + [(3, False)] * 8 + [(2, True)]:
            x = block(x, steps, shrinks)
        x = separable(separable(x).relu()).relu()
    expected = linear(x.mean(dim=2), next(tensors), next(tensors))
    found = head.eval().logits(States(layers, torch.ones(2, 1, dtype=torch.bool), (POOLED, *range(L))))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", ["row", "grid"])
def test_parallel_convolutions(states: States, form: str) -> None:
    head = build({"kind": "conv", "form": form, "dilated": True, "filters": 2})
    image = states.layers.masked_fill(~states.mask[:, None, :, None], 0)
    found = []
    for bundle, apart in ((head.trunk.near, 1), (head.trunk.far, 4)):
        maps = []
        for kernel, bias in zip(bundle.kernels, bundle.bias.view(-1, 2)):
            size = kernel.shape[-1]
            left, right = size // 2, (size - 1) // 2
            above, below = (left, right) if form == "grid" else (0, 0)
            padded = nn.functional.pad(image, (left * apart, right * apart, above, below))
            maps.append(conv2d(padded, kernel, bias, stride=(1, 4 * apart), dilation=(1, apart)))
        found.append(gelu(torch.cat(maps, dim=1)).permute(0, 2, 3, 1).flatten(2))
    expected = head.readout(gelu(head.trunk.dense(torch.cat(found, dim=-1))))
    close(head.logits(states)[states.mask], expected[states.mask])


def test_attend_weighted_dot_and_bilinear(states: States) -> None:
    for form, first in product(("weighted", "dot", "bilinear"), (0, 1)):
        head = build({"kind": "attend", "form": form, "embedding": not first})
        layers = states.layers[:, first:]  # the blocks' outputs, or all
        for output, query in enumerate(head.queries):
            if form == "weighted":
                weights = (head.gamma[output] * head.weights[output])[None, :, None].expand(3, L - first, S)
            else:
                keys = layers if form == "dot" else layers @ head.maps[output].T  # M h
                weights = (keys @ query).softmax(dim=1)  # (B, L, S)
            merged = (weights.unsqueeze(-1) * layers).sum(dim=1)  # (B, S, H)
            close(head.logits(states)[..., output], merged @ query)


def test_bilinear_starts_as_dot_attention(states: States) -> None:
    dot, bilinear = (
        build_head({"kind": "attend", "form": form}, layers=L, width=H, task="spans") for form in ("dot", "bilinear")
    )
    bilinear.load_state_dict({**bilinear.state_dict(), **dot.state_dict()})
    close(bilinear.logits(states), dot.logits(states))


def test_attend_encoder_is_a_transformer_block(states: States) -> None:
    head = build({"kind": "attend", "form": "encoder", "heads": 3})
    by_token = states.layers[:, 1:].transpose(1, 2).flatten(0, 1)  # (B * S, L - 1, H)
    for output, (query, block) in enumerate(zip(head.queries, head.encoders)):
        asked = block.query(query).expand(len(by_token), 1, H)
        parts = [x.unflatten(-1, (3, -1)).transpose(1, 2) for x in (asked, block.key(by_token), block.value(by_token))]
        attended = scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2).squeeze(1)  # (B * S, H)
        x = block.norm(query + block.out(attended))
        merged = block.out_norm(x + block.feed_forward(x))
        close(head.logits(states)[..., output], (merged @ query).view(3, S))


@pytest.mark.parametrize("readout", [True, False])
@pytest.mark.parametrize(
    ("context", "fill"), [(True, "concat"), (True, "tile"), (True, "dense"), (False, "concat"), (False, "mean")]
)
def test_cacnn_convolves_each_example_with_its_own_filters(
    states: States, context: bool, fill: str, readout: bool
) -> None:
    size, made, number = 3, 2, H if fill == "mean" else 5
    spec = {"kind": "cacnn", "context": context, "fill": fill, "generated": made, "kernel": size, "readout": readout}
    head = build(spec if fill == "mean" else {**spec, "filters": number})
    for index, length in enumerate(states.mask.sum(dim=1)):
        sequence = states.layers[index, -1, :length].T  # (H, n)
        first = head.weight.unflatten(0, (size, -1)).permute(1, 2, 0)  # (F, H, k)
        maps = gelu(conv1d(sequence, first, head.bias, padding=size // 2))  # (F, n)
        seen = maps.amax(dim=1)  # (F,), the context
        if fill == "dense":
            filters = head.project(seen).view(size, made, H).permute(1, 2, 0)  # (G, H, k)
        elif fill == "mean":
            parts = nn.functional.adaptive_avg_pool1d(maps, made * size)  # (H, G * k)
            filters = parts.view(H, made, size).transpose(0, 1)
        else:
            if not context:  # token after token, from the first again
                numbers = maps.T.flatten().repeat(made * size * H)[: made * size * H].view(made, -1)
            else:
                results = conv1d(seen[None], head.project.weight, head.project.bias, padding=size // 2)
                each = len(results) // made
                assert each == (math.ceil(size * H / number) if fill == "concat" else 1)
                numbers = torch.stack(
                    [torch.cat(list(results[g * each :][:each]) * size * H)[: size * H] for g in range(made)]
                )
            filters = numbers.view(made, size, H).transpose(1, 2)
        found = gelu(conv1d(sequence, filters / math.sqrt(size * H), padding=size // 2))  # (G, n)
        features = torch.cat([sequence, found]) if readout else found
        close(head.logits(states)[index, :length], head.readout(features.T))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 3))
def test_parts_mean_is_adaptive_pooling_of_the_real_tokens(lengths: list[int], parts: int, extra: int) -> None:
    tokens = max(lengths) + extra
    maps = torch.randn(len(lengths), tokens, 2, generator=torch.Generator().manual_seed(tokens))
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    pooled = parts_mean(maps, mask, parts)
    for index, length in enumerate(lengths):
        close(pooled[index], nn.functional.adaptive_avg_pool1d(maps[index, :length].T, parts).T)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "compress", "size": 3, "shared": False},
        {"kind": "conv", "form": "grid", "dilated": True},
        {"kind": "attend", "form": "encoder"},
        {"kind": "cacnn", "context": False},
        {"kind": "cacnn"},
    ],
    ids=head_name,
)
def test_captured_graph_takes_any_batch(states: States, spec: dict) -> None:
    class Wrapped(nn.Module):
        def __init__(self, head: Head) -> None:
            super().__init__()
            self.head = head

        def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
            return self.head.logits(States(layers, mask))

    head = build(spec)
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2)
    shapes = {"layers": {0: batch, 2: tokens}, "mask": {0: batch, 1: tokens}}
    graph = torch.export.export(Wrapped(head), (states.layers, states.mask), dynamic_shapes=shapes).module()
    close(graph(states.layers, states.mask)[states.mask], head.logits(states)[states.mask])
    other = States(torch.randn(5, L, 9, H), torch.ones(5, 9, dtype=torch.bool))
    close(graph(other.layers, other.mask), head.logits(other))


@pytest.mark.parametrize("width", [3, 29, 30, 32])
@pytest.mark.parametrize(("channels", "rows"), [(1, 7), (3, 7), (1, 1), (2, 1)])
def test_it_is_the_convolution_of_torch(channels, rows, width):
    draw = torch.Generator().manual_seed(1)
    shapes = (2, channels, 5, width), (4, channels, rows, LARGEST), (4,)
    inputs = [torch.randn(shape, generator=draw, dtype=torch.double).requires_grad_() for shape in shapes]
    found = LaidOut.apply(*inputs)
    wanted = conv2d(*inputs, (1, STRIDE), (rows // 2, LARGEST // 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(found, wanted)
    from_above = torch.randn(found.shape, generator=draw, dtype=torch.double)
    for ours, theirs in zip(*(torch.autograd.grad(each, inputs, from_above) for each in (found, wanted)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_states_that_do_not_learn_cost_no_gradient():
    image, kernel = torch.randn(1, 1, 4, 16), torch.randn(2, 1, 7, LARGEST, requires_grad=True)
    LaidOut.apply(image, kernel, torch.zeros(2, requires_grad=True)).sum().backward()
    assert image.grad is None
    assert kernel.grad is not None
