"""Adapters do nothing at first, then what Houlsby's formula says, and leave the encoder's own tensors alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import gelu, linear

from bertvision.backbone.tuning import Adapter, adapter_size, insert
from bertvision.backbone.anatomy import blocks, projections
from bertvision.backbone.tuning import count
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_batch, tiny_encoder


def hidden_states(model) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack(model(**tiny_batch(model), output_hidden_states=True).hidden_states)


@pytest.mark.parametrize("size", [1, 8, 96])
@pytest.mark.parametrize("family", FAMILIES)
def test_almost_the_identity_at_first(family, size):
    model = tiny_encoder(family)
    plain = hidden_states(model)
    insert(model, size, seed=3)
    torch.testing.assert_close(hidden_states(model), plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_keeps_its_tensors(family):
    model, untouched = tiny_encoder(family), tiny_encoder(family).state_dict()
    insert(model, 8)
    kept = {name: tensor for name, tensor in model.state_dict().items() if ".adapter." not in name}
    assert kept.keys() == untouched.keys()
    assert all(torch.equal(kept[name], untouched[name]) for name in kept)
    other = tiny_encoder(family, seed=1).state_dict()
    result = model.load_state_dict(other, strict=False)  # a plain checkpoint still fits
    assert not result.unexpected_keys
    assert all(".adapter." in name for name in result.missing_keys)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_per_block(family):
    model = tiny_encoder(family)
    plain, shared = count(model), family == "albert"
    insert(model, 5)
    assert count(model) - plain == (1 if shared else 3) * 2 * (2 * 32 * 5 + 32 + 5)
    assert all(sum(isinstance(part, Adapter) for part in block.modules()) == 2 for block in blocks(model))
    assert adapter_size(model) == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_formula_behind_the_projection(family):
    """What the block sees is p + up(GELU(down(p))), p the plain projection: before dropout, residual and LayerNorm."""
    model = tiny_encoder(family)
    found = projections(model)[-1]
    insert(model, 8)
    for name in (found.attention, found.feedforward):
        adapted = model.get_submodule(name)
        for parameter in adapted.adapter.parameters():
            torch.nn.init.normal_(parameter)
        x = torch.randn(2, 3, adapted.in_features)
        p = linear(x, adapted.weight, adapted.bias)
        down, up = adapted.adapter.down, adapted.adapter.up
        expected = p + linear(gelu(linear(p, down.weight, down.bias)), up.weight, up.bias)
        torch.testing.assert_close(adapted(x), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_adapters_matter_in_both_modes(family):
    model = tiny_encoder(family)
    insert(model, 8)
    plain = hidden_states(model)
    for part in model.modules():
        if isinstance(part, Adapter):
            torch.nn.init.normal_(part.up.weight)
    changed = hidden_states(model)
    torch.testing.assert_close(changed[0], plain[0])  # the embedding output lies below all of them
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(changed[1:], plain[1:]))
    assert hidden_states(model.train()).shape == changed.shape


def test_the_seed_alone_decides():
    def adapters(seed: int) -> list[torch.Tensor]:
        model = tiny_encoder("bert")
        insert(model, 8, seed)
        return [
            tensor for name, tensor in model.state_dict().items() if ".adapter." in name and name.endswith("weight")
        ]

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = adapters(7), adapters(7), adapters(8)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not any(torch.equal(a, b) for a, b in zip(first, other))
    assert len({tensor.sum().item() for tensor in first}) == len(first) == 12  # no two adapters start alike


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_of_the_encoder_is_kept(dtype):
    model = tiny_encoder("bert").to(dtype)
    insert(model, 4)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    if dtype != torch.bfloat16:  # some virtual machines promise instructions for it that they do not have
        assert hidden_states(model).dtype == dtype


@given(width=st.integers(1, 40), size=st.integers(1, 40), scale=st.floats(1e-3, 1.0))
def test_any_width_and_size(width, size, scale):
    adapter = Adapter(width, size, like=torch.zeros(()))
    adapter.reset(torch.Generator().manual_seed(0))
    x = torch.linspace(-scale, scale, 3 * width).view(3, width)
    torch.testing.assert_close(adapter(x), x, rtol=0, atol=1e-5)
    assert count(adapter) == 2 * width * size + width + size


def test_impossible_insertions():
    model = tiny_encoder("bert")
    with pytest.raises(UserError, match="size of 0"):
        insert(model, 0)
    insert(model, 4)
    with pytest.raises(UserError, match="already has adapters of size 4"):
        insert(model, 4)
