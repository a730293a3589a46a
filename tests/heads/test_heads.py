"""Every head, every task: shapes, padding, exact size, round trip, gradients, and that it can learn at all."""

import copy
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from bertvision.backbone.states import POOLED, States, numbered
from bertvision.heads import Head, build_head, head_name
from bertvision.heads import head as head_module

L, H, CLASSES = 3, 32, 3
OUTPUTS = {"spans": 2, "labels": CLASSES, "score": 1, "tokens": CLASSES}
PER_TOKEN = ("spans", "tokens")
LENGTHS = [7, 4, 1, 7, 2, 5, 3, 6]


def pairs(sizes: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(sizes))


def kernels(channels: int, filters: int, sizes: range, power: int) -> int:
    return sum(filters * (channels * size**power + 1) for size in sizes)


def inception(channels: int, spans: bool, outputs: int, unit: int = 8, positions: int = 1) -> int:
    power = 2 if spans else 1
    count = channels * (3 if spans else 1) * 7 * unit + 2 * unit
    sizes = [unit, 2 * unit, 8 * unit, 16 * unit, 16 * unit, 16 * unit]
    for i, o in pairs(sizes):
        count += (i + 1) * (o // 4) + (i + 1) * (o // 8)  # dense, and dense after the maximum
        count += (i + 1) * (o // 4) + (o // 4 * 3**power + 1) * (o // 2)
        count += (i + 1) * (o // 16) + (o // 16 * 5**power + 1) * (o // 8)
        count += 2 * o
    return count + outputs * (16 * unit * positions + 1)


def xception(
    channels: int, reach: int, stem: list[int], entry: list[int], middle: int, exit_: int, tail: list[int], stride: int
) -> int:
    def separable(i: int, o: int) -> int:
        return 3 * reach * i + i * o + 2 * o

    count = (
        channels * reach * max(3, 2 * stride - 1) * stem[0] + 2 * stem[0] + stem[0] * reach * 3 * stem[1] + 2 * stem[1]
    )
    for i, o in pairs([stem[1], *entry]):
        count += separable(i, o) + separable(o, o) + i * o + 2 * o
    last = entry[-1]
    count += middle * 3 * separable(last, last)
    if exit_:
        count += separable(last, last) + separable(last, exit_) + last * exit_ + 2 * exit_
    return count + sum(separable(i, o) for i, o in pairs([exit_ or last, *tail]))


def short(channels: int, outputs: int) -> int:
    count = channels * 3 * 64 + 64 * 3 * 128 + 128 * 512 + 128 * (3 + 256) + 256 * (3 + 512)  # no biases
    return count + 4 * (64 + 128 + 512 + 256 + 512) + outputs * 513  # a batch norm has four numbers per channel


def token_net(channels: int, unit: int = 8, positions: int = 1) -> int:
    sizes = [2 * unit, 4 * unit, 8 * unit], [16 * unit, 24 * unit]
    return xception(channels, 3, [unit, unit], sizes[0], 4, 0, sizes[1], 4) + 2 * (24 * unit * positions + 1)


def encoder(outputs: int) -> int:
    return outputs * (H + 12 * H * H + 12 * H)


SQUEEZE = (H + 1) * 386
# (spec, task, number of parameters at L = 3, H = 32)
CASES = [
    ({"kind": "last"}, "spans", 2 * (H + 1)),
    ({"kind": "last"}, "labels", 3 * (H + 1)),
    ({"kind": "last"}, "score", H + 1),
    ({"kind": "pool"}, "spans", L + 1 + 2 * (H + 1)),
    ({"kind": "pool"}, "labels", L + 1 + 3 * (H + 1)),
    ({"kind": "pool"}, "score", L + 1 + H + 1),
    ({"kind": "pool", "weights": "mean"}, "spans", 2 * (H + 1)),
    ({"kind": "pool", "weights": "mean"}, "labels", 3 * (H + 1)),
    ({"kind": "pool", "weights": "mean", "lowest": 1}, "labels", 3 * (H + 1)),
    ({"kind": "pool", "lowest": 1}, "score", L + H + 1),
    ({"kind": "compress"}, "spans", SQUEEZE + 2 * (L * 386 + 1)),
    ({"kind": "compress", "size": 5, "skip": True}, "spans", (H + 1) * 5 + 2 * (L * 5 + H + 1)),
    ({"kind": "compress", "size": 5, "shared": False}, "spans", L * (H + 1) * 5 + 2 * (L * 5 + 1)),
    ({"kind": "compress", "size": 5, "shared": False, "skip": True}, "score", L * (H + 1) * 5 + L * 5 + H + 1),
    ({"kind": "compress", "size": 5, "pool_first": True, "skip": True}, "labels", 165 + 4 + 3 * (5 + H + 1)),
    ({"kind": "compress", "size": 5, "pool_first": True, "weights": "mean"}, "labels", 165 + 3 * (5 + 1)),
    ({"kind": "compress", "size": 5, "beside": True}, "spans", 165 + 4 + 2 * (L * 5 + H + 1)),
    ({"kind": "compress", "size": 5, "beside": True, "skip": True}, "spans", 165 + 4 + 2 * (L * 5 + 2 * H + 1)),
    ({"kind": "compress", "size": 5, "beside": True, "pool_first": True}, "spans", 165 + 4 + 2 * (5 + H + 1)),
    ({"kind": "compress", "size": 5, "tokens": "all"}, "labels", 165 + 3 * (L * 5 + 1)),
    (
        {"kind": "compress", "size": 5, "tokens": "all", "shared": False, "skip": True, "beside": True},
        "score",
        L * 165 + 4 + (L * 5 + 2 * H + 1),
    ),
    ({"kind": "conv"}, "spans", kernels(L, 8, range(1, 8), 1) + (7 * 8 * 8 + 1) * 22 + 2 * 23),
    ({"kind": "conv", "skip": True}, "labels", kernels(L, 8, range(1, 8), 1) + 449 * 22 + 3 * (22 + H + 1)),
    ({"kind": "conv", "input": "pooled", "filters": 2}, "score", 4 + kernels(1, 2, range(1, 8), 1) + 113 * 22 + 23),
    ({"kind": "conv", "input": "pooled", "weights": "mean"}, "spans", kernels(1, 8, range(1, 8), 1) + 449 * 22 + 46),
    (
        {"kind": "conv", "dilated": True},
        "spans",
        kernels(L, 8, range(1, 8), 1) + kernels(L, 8, range(2, 8), 1) + (448 + 6 * 8 * 2 + 1) * 22 + 46,
    ),
    (
        {"kind": "conv", "form": "grid", "input": "compressed"},
        "spans",
        4 + SQUEEZE + kernels(1, 8, range(1, 8), 2) + 449 * 50 + 2 * (50 + 386 + 1),
    ),
    (
        {"kind": "conv", "form": "grid", "dilated": True, "filters": 2},
        "spans",
        kernels(L, 2, range(1, 8), 2) + kernels(L, 2, range(2, 8), 2) + (112 + 6 * 2 * 2 + 1) * 50 + 2 * 51,
    ),
    ({"kind": "conv", "form": "inception"}, "spans", inception(L, True, 2)),
    ({"kind": "conv", "form": "inception", "input": "pooled"}, "labels", 4 + inception(1, False, 3)),
    ({"kind": "conv", "form": "xception"}, "spans", token_net(L)),
    ({"kind": "conv", "form": "xception", "input": "compressed"}, "spans", 4 + SQUEEZE + token_net(1) + 2 * 386),
    ({"kind": "conv", "form": "xception"}, "labels", short(L, 3)),
    ({"kind": "conv", "form": "xception", "pooled": True}, "labels", short(L + 1, 3)),
    ({"kind": "last", "pooled": True}, "labels", 3 * (H + 1)),
    ({"kind": "probe", "layer": 1}, "spans", 2 * (H + 1)),
    ({"kind": "probe", "layer": 1, "cumulative": True}, "labels", 3 * (H + 1) + 3),
    ({"kind": "compress", "size": 5, "squeezed_mix": True}, "spans", 2 * 165 + 4 + 2 * (L * 5 + 5 + 1)),
    ({"kind": "compress", "size": 5, "tokens": "all", "places": 20}, "labels", 165 + 3 * (20 * L * 5 + 1)),
    (
        {"kind": "compress", "size": 5, "tokens": "all", "places": 17, "skip": True, "squeezed_mix": True},
        "score",
        2 * 165 + 4 + 17 * (L * 5 + 5 + H) + 1,
    ),
    ({"kind": "conv", "form": "xception", "skip": True}, "score", short(L, 1) + H),
    ({"kind": "attend", "form": "weighted"}, "spans", 2 * (H + L)),
    ({"kind": "attend", "form": "weighted", "embedding": True}, "labels", 3 * (H + L + 2)),
    ({"kind": "attend"}, "spans", 2 * H),
    ({"kind": "attend", "form": "dot"}, "labels", 3 * (H + 1)),
    ({"kind": "attend", "form": "bilinear"}, "spans", 2 * (H + H * H)),
    ({"kind": "attend", "form": "bilinear"}, "score", H + H * H + 1),
    ({"kind": "attend", "form": "encoder"}, "spans", encoder(2)),
    ({"kind": "attend", "form": "encoder", "heads": 2}, "labels", encoder(3) + 3),
    ({"kind": "cacnn"}, "spans", 64 * (3 * H + 1) + 16 * 2 * 4 + 2 * 17),
    ({"kind": "cacnn", "fill": "tile"}, "spans", 64 * (3 * H + 1) + 16 * 4 + 2 * 17),
    (
        {"kind": "cacnn", "fill": "dense", "readout": True, "filters": 4, "generated": 2, "kernel": 5},
        "spans",
        4 * (5 * H + 1) + 5 * 2 * 5 * H + 2 * (H + 3),
    ),
    ({"kind": "cacnn", "context": False}, "spans", 64 * (3 * H + 1) + 2 * 17),
    ({"kind": "cacnn", "context": False, "fill": "mean", "readout": True}, "spans", H * (3 * H + 1) + 2 * (H + 17)),
    ({"kind": "cacnn", "reduce": "mean", "readout": True}, "labels", 64 * (3 * H + 1) + 16 * 2 * 4 + 3 * (H + 17)),
    ({"kind": "pool", "reduce": "sum"}, "score", L + 1 + H + 1),
    ({"kind": "last"}, "tokens", 3 * (H + 1)),
    ({"kind": "attend"}, "tokens", 3 * (H + 1)),
    ({"kind": "conv", "form": "grid", "filters": 2}, "tokens", kernels(L, 2, range(1, 8), 2) + 113 * 50 + 3 * 51),
    (
        {"kind": "cacnn", "context": False, "generated": 2, "kernel": 1, "filters": 5, "readout": True},
        "spans",
        5 * (H + 1) + 2 * (H + 3),
    ),
]
every_head = pytest.mark.parametrize(
    ("spec", "task", "parameters"), CASES, ids=[f"{task}: {head_name(spec)}" for spec, task, _ in CASES]
)


def build(spec: dict, task: str, seed: int = 0) -> Head:
    torch.manual_seed(seed)
    return build_head(spec, layers=L, width=H, task=task, outputs=CLASSES).eval()


def make_states(lengths: list[int] = LENGTHS, seed: int = 1) -> States:
    """All layers, and the output of the pooler before them, as if other heads read that."""
    tokens = max(lengths)
    layers = torch.randn(len(lengths), 1 + L, tokens, H, generator=torch.Generator().manual_seed(seed))
    return States(layers, torch.arange(tokens) < torch.tensor(lengths)[:, None], (POOLED, *range(L)))


def pad_states(states: States, extra: int, garbage: float) -> States:
    """The same batch with `extra` more places at the end, and all places without a token filled with garbage."""
    batch, depth, _, width = states.layers.shape
    layers = torch.cat([states.layers, torch.zeros(batch, depth, extra, width)], dim=2)
    mask = torch.cat([states.mask, torch.zeros(batch, extra, dtype=torch.bool)], dim=1)
    return States(layers.masked_fill(~mask[:, None, :, None], garbage), mask, states.numbers)


def real(logits: Tensor, states: States, task: str) -> Tensor:
    """The logits that count: those of real tokens, or all."""
    return logits[states.mask] if task in PER_TOKEN else logits


@every_head
def test_shape_and_exact_size(spec: dict, task: str, parameters: int) -> None:
    head, states = build(spec, task), make_states()
    wanted = (*states.mask.shape[: 1 + (task in PER_TOKEN)], OUTPUTS[task])
    assert head.logits(states).shape == wanted
    assert head.parameter_count() == parameters
    assert all(parameter.requires_grad for parameter in head.parameters())


@every_head
@pytest.mark.parametrize("garbage", [0.0, 1e4, float("nan"), float("inf")])
def test_padding_never_changes_a_result(spec: dict, task: str, parameters: int, garbage: float) -> None:
    head, states = build(spec, task), make_states()
    padded = pad_states(states, 9, garbage)
    torch.testing.assert_close(
        real(head.logits(padded), padded, task), real(head.logits(states), states, task), atol=1e-5, rtol=1e-5
    )


@every_head
def test_an_example_does_not_depend_on_its_batch(spec: dict, task: str, parameters: int) -> None:
    head, states = build(spec, task), make_states()
    together = head.logits(states)
    for index, length in enumerate(LENGTHS):
        row = slice(index, index + 1)
        alone = States(states.layers[row, :, :length], states.mask[row, :length], states.numbers)
        expected = together[index : index + 1, :length] if task in PER_TOKEN else together[index : index + 1]
        torch.testing.assert_close(head.logits(alone), expected, atol=1e-5, rtol=1e-5)


@every_head
def test_slices_change_nothing(spec: dict, task: str, parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, states = build(spec, task), make_states()
    whole = head.logits(states)
    monkeypatch.setattr(head_module, "CACHE", 1)
    torch.testing.assert_close(head.logits(states), whole, atol=1e-5, rtol=1e-5)


@every_head
def test_survives_a_round_trip(spec: dict, task: str, parameters: int, tmp_path) -> None:
    head, other, states = build(spec, task, seed=0), build(spec, task, seed=1), make_states()
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert torch.equal(head.logits(states), other.logits(states))


@every_head
def test_reads_no_more_than_it_says(spec: dict, task: str, parameters: int) -> None:
    head, states = build(spec, task), make_states()
    less = States(torch.full_like(states.layers, torch.nan), states.mask, states.numbers)
    numbers = numbered(head.reads, L)
    less.layers[:, [1 + number for number in numbers]] = states.only(numbers).layers
    for given in (less, states.only(numbers)):
        given = given.cls() if head.positions == "cls" else given
        torch.testing.assert_close(head.logits(given), head.logits(states), atol=1e-6, rtol=1e-6)


@every_head
def test_gradient_reaches_every_parameter_and_only_real_states(spec: dict, task: str, parameters: int) -> None:
    head, states = build(spec, task), make_states()
    layers = states.layers.clone().requires_grad_()
    joint = States(layers, states.mask, states.numbers)
    real(head.logits(joint), joint, task).square().sum().backward()
    dead = [name for name, p in head.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead
    assert layers.grad is not None and layers.grad.isfinite().all()
    touched = layers.grad.abs().sum(dim=(1, 3))  # (B, S)
    assert (touched[:, 0] > 0).all()
    assert (touched[~states.mask] == 0).all()
    if head.positions == "all":
        assert (touched[states.mask] > 0).all()

    on_its_own = copy.deepcopy(head)
    on_its_own.zero_grad()
    real(on_its_own.logits(joint.detach()), joint, task).square().sum().backward()
    for (name, joined), alone in zip(head.named_parameters(), on_its_own.parameters()):
        torch.testing.assert_close(alone.grad, joined.grad, atol=1e-4, rtol=1e-4, msg=name)


@every_head
def test_overfits_eight_examples(spec: dict, task: str, parameters: int) -> None:
    head = build(spec, task)
    states = make_states([4, 3, 2, 4, 4, 3, 4, 4])
    start, end = torch.tensor([0, 1, 1, 3, 2, 0, 1, 2]), torch.tensor([0, 2, 1, 3, 3, 0, 3, 2])
    classes, scores = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.linspace(-1, 1, 8)

    def loss() -> Tensor:
        logits = head.logits(states)
        if task == "spans":
            logits = logits.masked_fill(~states.mask.unsqueeze(-1), -torch.inf)
            return (cross_entropy(logits[..., 0], start) + cross_entropy(logits[..., 1], end)) / 2
        if task == "tokens":
            return cross_entropy(logits[states.mask], torch.arange(int(states.mask.sum())) % CLASSES)
        return cross_entropy(logits, classes) if task == "labels" else mse_loss(logits[:, 0], scores)

    head.train()
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(400):
        optimizer.zero_grad()
        value = loss()
        if value < 0.02:
            return
        value.backward()
        optimizer.step()
    pytest.fail(f"still at a loss of {value:.3f}")


@every_head
def test_layer_weights_are_shares(spec: dict, task: str, parameters: int) -> None:
    head = build(spec, task)
    weights = head.layer_weights()
    unlearned = (spec["kind"] != "probe" and len(numbered(head.reads, L)) == 1) or spec.get("weights") == "mean"
    per_token = spec["kind"] == "attend" and spec.get("form", "dot") != "weighted"
    if unlearned or per_token:
        assert weights is None
        return
    assert weights is not None and weights.shape == (L,)
    assert not weights.requires_grad and (weights >= 0).all()
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("spec", [{"kind": "pool"}, {"kind": "compress", "size": 4}, {"kind": "conv"}], ids=head_name)
def test_layer_weights_find_the_layer_that_matters(spec: dict) -> None:
    target = torch.arange(64) % CLASSES
    head = build(spec, "labels")
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-2)
    for step in range(100):
        states = make_states([1] * 64, seed=step)  # noise, always new: nothing in it can be learned by heart
        states.layers[:, 2, 0, :CLASSES] += 4 * torch.eye(CLASSES)[target]  # only the middle layer knows
        optimizer.zero_grad()
        cross_entropy(head.logits(states), target).backward()
        optimizer.step()
    assert head.layer_weights().argmax() == 1


def test_dropout_acts_in_training_only() -> None:
    head, states = build({"kind": "conv", "dropout": 0.5}, "spans").train(), make_states()
    assert not torch.equal(head.logits(states), head.logits(states))
    head.eval()
    plain = build({"kind": "conv"}, "spans").eval()
    assert torch.equal(head.logits(states), head.logits(states))
    assert torch.equal(head.logits(states), plain.logits(states))


@every_head
def test_a_depth_makes_the_head_of_a_shorter_encoder(spec: dict, task: str, parameters: int) -> None:
    if spec.get("pooled") or spec.get("layer", 0) >= L - 1:
        return
    head, states = build(spec | {"depth": L - 2}, task), make_states()
    torch.manual_seed(0)
    shorter = build_head(spec, layers=L - 1, width=H, task=task, outputs=CLASSES).eval()
    below = States(states.layers[:, 1:-1], states.mask)
    torch.testing.assert_close(head.logits(states), shorter.logits(below), rtol=0, atol=0)
    assert max(head.reads) <= L - 2
    if (weights := head.encoder_weights()) is not None:
        assert weights.shape == (L,) and weights[-1] == 0
