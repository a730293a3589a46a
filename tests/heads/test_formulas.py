"""Heads compute by short cuts. Here each is compared with its formula, written out the long way."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, gelu, linear, scaled_dot_product_attention

from bertvision.backbone.states import States
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
    for form in ("weighted", "dot", "bilinear"):
        head = build({"kind": "attend", "form": form})
        for output, query in enumerate(head.queries):
            if form == "weighted":
                weights = (head.gamma[output] * head.weights[output])[None, :, None].expand(3, L, S)
            else:
                keys = states.layers if form == "dot" else states.layers @ head.maps[output].T  # M h
                weights = (keys @ query).softmax(dim=1)  # (B, L, S)
            merged = (weights.unsqueeze(-1) * states.layers).sum(dim=1)  # (B, S, H)
            close(head.logits(states)[..., output], merged @ query)


def test_bilinear_starts_as_dot_attention(states: States) -> None:
    dot, bilinear = (
        build_head({"kind": "attend", "form": form}, layers=L, width=H, task="spans") for form in ("dot", "bilinear")
    )
    bilinear.load_state_dict({**bilinear.state_dict(), **dot.state_dict()})
    close(bilinear(states), dot(states))


def test_attend_encoder_is_a_transformer_block(states: States) -> None:
    head = build({"kind": "attend", "form": "encoder", "heads": 3})
    by_token = states.layers.transpose(1, 2).flatten(0, 1)  # (B * S, L, H)
    for output, (query, block) in enumerate(zip(head.queries, head.encoders)):
        asked = block.query(query).expand(len(by_token), 1, H)
        parts = [x.unflatten(-1, (3, -1)).transpose(1, 2) for x in (asked, block.key(by_token), block.value(by_token))]
        attended = scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2).squeeze(1)  # (B * S, H)
        x = block.norm(query + block.out(attended))
        merged = block.out_norm(x + block.feed_forward(x))
        close(head.logits(states)[..., output], (merged @ query).view(3, S))


@pytest.mark.parametrize("context", [True, False])
def test_cacnn_convolves_each_example_with_its_own_filters(states: States, context: bool) -> None:
    size, made = 3, 2
    head = build({"kind": "cacnn", "context": context, "generated": made, "kernel": size})
    for index, length in enumerate(states.mask.sum(dim=1)):
        sequence = states.layers[index, -1, :length].T  # (H, n)
        first = head.weight.unflatten(0, (size, -1)).permute(1, 2, 0)  # (F, H, k)
        maps = gelu(conv1d(sequence, first, head.bias, padding=size // 2))  # (F, n)
        if context:
            filters = head.project(maps.amax(dim=1)).view(size, made, H).permute(1, 2, 0)  # (G, H, k)
        else:
            parts = nn.functional.adaptive_avg_pool1d(maps, made * size)  # (H, G * k)
            filters = parts.view(H, made, size).transpose(0, 1)
        found = gelu(conv1d(sequence, filters / math.sqrt(size * H), padding=size // 2))  # (G, n)
        close(head.logits(states)[index, :length], head.readout(torch.cat([sequence, found]).T))


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
    ],
    ids=head_name,
)
def test_captured_graph_takes_any_batch(states: States, spec: dict) -> None:
    class Wrapped(nn.Module):
        def __init__(self, head: Head) -> None:
            super().__init__()
            self.head = head

        def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
            return self.head(States(layers, mask))

    head = build(spec)
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2)
    shapes = {"layers": {0: batch, 2: tokens}, "mask": {0: batch, 1: tokens}}
    graph = torch.export.export(Wrapped(head), (states.layers, states.mask), dynamic_shapes=shapes).module()
    close(graph(states.layers, states.mask)[states.mask], head.logits(states)[states.mask])
    other = States(torch.randn(5, L, 9, H), torch.ones(5, 9, dtype=torch.bool))
    close(graph(other.layers, other.mask), head(other))


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
