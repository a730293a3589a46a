"""Exactly the planned tensors train, on every family; adapters follow Houlsby's formula; published counts hold."""

import re
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu, linear

from bertvision.backbone.anatomy import blocks, projections
from bertvision.backbone.loading import empty_model
from bertvision.backbone.tuning import Adapter, Tuning, apply, count, first_trained, is_added, is_split, set_training
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_batch, tiny_encoder

READOUT = 768 * 2 + 2
# ALBERT's layers share one block, so they cannot train apart
FAMILIES_AND_BLOCKS = [(family, k) for family in FAMILIES for k in (0, 1, 2) if k == 0 or family != "albert"]


def hidden_states(model) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack(model(**tiny_batch(model), output_hidden_states=True).hidden_states)


def moved_by_training(model, steps: int = 1) -> set[str]:
    """Names of the parameters that AdamW steps in training mode change; no buffer changes."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    torch.manual_seed(0)
    for _ in range(steps):
        optimizer.zero_grad()
        states = model(**tiny_batch(model, batch=4, tokens=9), output_hidden_states=True).hidden_states
        (states[-1] * torch.randn_like(states[-1])).sum().backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad or parameter.grad is None, name
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def expected_to_move(model, tuning: Tuning) -> set[str]:
    """By name, from the plan's definition; no gradient reaches the pooler, which no head reads."""

    def moves(name: str) -> bool:
        depth, block = 3, re.search(r"\blayer\.(\d+)\.", name)
        if tuning.train_layers in ("all", depth) or is_added(name):
            return True
        if block is not None and int(block[1]) >= depth - tuning.train_layers:
            return True
        return tuning.norms == "all" and bool(re.search("layer_?norm", name.lower()))

    return {name for name, _ in model.named_parameters() if moves(name)}


@pytest.mark.parametrize("tuning", [{}, {"adapters": 4}, {"norms": "trained"}], ids=str)
@pytest.mark.parametrize(("family", "train_layers"), [*FAMILIES_AND_BLOCKS, *((family, 3) for family in FAMILIES)])
def test_exactly_the_planned_tensors_move(family, train_layers, tuning):
    model, tuning = tiny_encoder(family), Tuning(train_layers, **tuning)
    base = count(model)
    plan = apply(model, tuning)
    expected = expected_to_move(model, tuning)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
    assert plan.trainable == sum(p.numel() for n, p in model.named_parameters() if n in expected)
    assert (plan.base, plan.added) == (base, count(model) - base)
    if expected:
        assert moved_by_training(model) == {n for n in expected if not n.startswith("pooler")}


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_train_everywhere_but_in_the_pooler(family):
    model = tiny_encoder(family)
    plan = apply(model, Tuning(0, biases=True, norms="trained"))
    wanted = {name for name, _ in model.named_parameters() if name.endswith(".bias") and "pooler" not in name}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted
    assert plan.trainable == sum(p.numel() for name, p in model.named_parameters() if name in wanted)
    assert moved_by_training(model) <= wanted and not is_split(model, plan.tuning)


def test_a_plan_replaces_the_one_before():
    model = tiny_encoder("bert")
    apply(model, Tuning(0))
    assert apply(model, Tuning("all")).trainable == count(model)
    assert apply(model, Tuning(1)).trainable == count(model, trainable=True) < count(model)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_a_frozen_lower_part_runs_without_dropout(family):
    model, tuning = tiny_encoder(family), Tuning(1, norms="trained")
    apply(model, tuning)
    set_training(model, tuning)
    assert is_split(model, tuning) and first_trained(model, tuning) == 2
    batch = tiny_batch(model)
    torch.manual_seed(0)
    states = [model(**batch, output_hidden_states=True).hidden_states for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(states[0][:-1], states[1][:-1]))
    assert not torch.equal(states[0][-1], states[1][-1])


@pytest.mark.parametrize("tuning", [Tuning(1), Tuning(3, norms="trained"), Tuning(1, adapters=4, norms="trained")])
def test_where_something_trains_below_there_is_dropout_everywhere(tuning):
    model = tiny_encoder("bert")
    apply(model, tuning)
    set_training(model, tuning)
    assert not is_split(model, tuning)
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize(
    ("tuning", "published"),
    [
        (Tuning(0), 39_938),
        (Tuning(1), 7_124_738),
        (Tuning(3), 21_294_338),
        (Tuning(6), 42_548_738),
        (Tuning(12), 108_311_810),
        (Tuning("all"), 108_311_810),
        (Tuning(12, adapters=64), 110_691_074),
        (Tuning(0, adapters=64), 2_419_202),
        (Tuning(0, adapters=768), 28_388_354),
        (Tuning(3, norms="trained"), 3 * 7_087_872 + READOUT),
        (Tuning(0, lora=8, norms="trained"), 12 * 2 * 8 * 2 * 768 + READOUT),
    ],
)
def test_published_counts(tuning, published):
    """Hulburd's table, BERT-base cased, with the span read-out; and two counted by hand."""
    assert apply(empty_model("bert-base-cased"), tuning).trainable + READOUT == published


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_follow_the_formula_and_leave_the_encoder_alone(family):
    """A block sees p + up(GELU(down(p))), p the plain projection: before dropout, residual and LayerNorm."""
    model, plain = tiny_encoder(family), hidden_states(tiny_encoder(family))
    found = projections(model)[-1]
    apply(model, Tuning(adapters=8), seed=3)
    torch.testing.assert_close(hidden_states(model), plain, rtol=0, atol=1e-5)
    assert all(sum(isinstance(part, Adapter) for part in block.modules()) == 2 for block in blocks(model))
    result = model.load_state_dict(tiny_encoder(family, seed=1).state_dict(), strict=False)  # a plain one still fits
    assert not result.unexpected_keys and all(".adapter." in name for name in result.missing_keys)
    for name in (found.attention, found.feedforward):
        adapted = model.get_submodule(name)
        for parameter in adapted.adapter.parameters():
            torch.nn.init.normal_(parameter)
        x = torch.randn(2, 3, adapted.in_features)
        p = linear(x, adapted.weight, adapted.bias)
        down, up = adapted.adapter.down, adapted.adapter.up
        expected = p + linear(gelu(linear(p, down.weight, down.bias)), up.weight, up.bias)
        torch.testing.assert_close(adapted(x), expected)
    assert not torch.allclose(hidden_states(model)[-1], plain[-1], atol=1e-3)


@given(width=st.integers(1, 40), size=st.integers(1, 40), scale=st.floats(1e-3, 1.0))
def test_adapters_of_any_size_are_almost_the_identity_at_first(width, size, scale):
    adapter = Adapter(width, size, like=torch.zeros(()))
    adapter.reset(torch.Generator().manual_seed(0))
    x = torch.linspace(-scale, scale, 3 * width).view(3, width)
    torch.testing.assert_close(adapter(x), x, rtol=0, atol=1e-5)
    assert count(adapter) == 2 * width * size + width + size


@pytest.mark.parametrize("tuning", [Tuning(0, adapters=8), Tuning(0, lora=2)], ids=["adapters", "lora"])
def test_the_seed_alone_decides_initial_values(tuning):
    if tuning.lora:
        pytest.importorskip("peft")

    def added(seed: int) -> list[torch.Tensor]:
        model = tiny_encoder("bert")
        apply(model, tuning, seed)
        return [t for n, t in model.state_dict().items() if is_added(n) and n.endswith("weight") and "lora_B" not in n]

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = added(7), added(7), added(8)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not any(torch.equal(a, b) for a, b in zip(first, other))
    assert len({tensor.sum().item() for tensor in first}) == len(first)  # no two start alike


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_and_norms_train_alone(family):
    pytest.importorskip("peft")
    model = tiny_encoder(family)
    plain = hidden_states(model)
    plan = apply(model, Tuning(0, lora=2), seed=1)
    torch.testing.assert_close(hidden_states(model), plain)
    assert plan.added == (1 if family == "albert" else 3) * 2 * 2 * (32 + 32)
    expected = {name for name, _ in model.named_parameters() if is_added(name) or "norm" in name.lower()}
    assert moved_by_training(model, steps=2) == expected  # B is 0 at first: A moves from the second step on


def test_lora_beside_adapters():
    pytest.importorskip("peft")
    plan = apply(tiny_encoder("bert"), Tuning(0, adapters=4, lora=2))
    assert plan.added == 3 * (2 * (2 * 32 * 4 + 32 + 4) + 2 * 2 * 64)
    assert plan.trainable == plan.added + 7 * 64


def test_albert_with_a_group_per_layer_shares_nothing():
    model = tiny_encoder("albert", num_hidden_groups=3)
    assert 0 < apply(model, Tuning(1)).trainable < apply(model, Tuning(2)).trainable < count(model)


@pytest.mark.parametrize(
    ("family", "train_layers", "message"),
    [
        ("albert", 1, r"same weights.*0 \(LayerNorms only\) or 'all'"),
        ("bert", 4, r"train_layers: 4 .* 0 to 3 or 'all'"),
    ],
)
def test_layers_that_cannot_train(family, train_layers, message):
    with pytest.raises(UserError, match=message):
        apply(tiny_encoder(family), Tuning(train_layers))


def test_adapters_twice_are_refused_and_lora_needs_peft(monkeypatch):
    model = tiny_encoder("bert")
    apply(model, Tuning(adapters=4))
    with pytest.raises(UserError, match="already has adapters"):
        apply(model, Tuning(adapters=4))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'bertvision\[lora\]'"):
        apply(tiny_encoder("bert"), Tuning(0, lora=4))


WRONG = {"train_layers": [-1, "some", True], "adapters": [-2, 1.5], "lora": [-1], "norms": ["none"]}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_impossible_plans(key, value):
    with pytest.raises(UserError, match=f"^{key}: "):
        Tuning(**{key: value})
