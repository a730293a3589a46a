"""Packed copies give the states of the plain encoder from shared weights; bf16 states are close to fp32."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import Kernels, Packed, attention, in_bf16, packed
from bertvision.backbone.tuning import Tuning, apply
from bertvision.data.batches import by_length, collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from encoders import FAMILIES, tiny_encoder, tiny_tokenizer
from runs import batch_of

possible = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this machine has no oneDNN")


def backbone_of(family: str, **overrides: object) -> Backbone:
    model = tiny_encoder(family, **overrides)
    return Backbone(model, tiny_tokenizer(family).backend_tokenizer, family).eval()


def batches_of(backbone: Backbone):
    windows = make_windows(backbone.tokenizer, records(load_articles("sample:test:6")), 128, 32)
    return [collate(windows, index, backbone.pad) for index in by_length(windows.lengths, 512)]


@possible
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuning", [Tuning("all"), Tuning(0, adapters=8)], ids=["plain", "adapters"])
def test_same_states_as_the_plain_encoder(family, tuning):
    backbone = backbone_of(family)
    apply(backbone.model, tuning, 1)
    for key, parameter in backbone.model.named_parameters():
        if ".adapter." in key:  # as if they had learnt something
            nn.init.normal_(parameter, std=0.1)
    twin = packed(backbone)
    assert any(isinstance(part, Packed) and part.then[0] == "gelu" for part in twin.model.modules())
    with torch.no_grad():
        for batch in batches_of(backbone):
            plain, found = backbone(batch).layers, twin(batch).layers
            real = batch.mask[:, None, :, None]
            torch.testing.assert_close(found * real, plain * real, atol=2e-5, rtol=1e-4)


@possible
@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_other_activations(activation):
    backbone = backbone_of("bert", hidden_act=activation)
    batch = batches_of(backbone)[0]
    with torch.no_grad():
        torch.testing.assert_close(packed(backbone)(batch).layers, backbone(batch).layers, atol=2e-5, rtol=1e-4)


@possible
def test_the_backbone_itself_stays_as_it_was():
    backbone = backbone_of("bert")
    before, modules = backbone.fingerprint, [type(part) for part in backbone.model.modules()]
    twin = packed(backbone)
    assert backbone.fingerprint == before
    assert [type(part) for part in backbone.model.modules()] == modules
    own = {parameter.data_ptr() for parameter in backbone.model.parameters()}
    assert {parameter.data_ptr() for parameter in twin.model.parameters()} == own  # shared, not copied


def test_a_double_precision_encoder_is_left_alone():
    backbone = backbone_of("bert")
    backbone.model.double()
    assert packed(backbone) is backbone


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_states_are_near_those_of_fp32_and_gradients_reach_the_weights(family):
    backbone = backbone_of(family)
    batch = batch_of(backbone)
    exact, states = backbone(batch, "all"), in_bf16(backbone, batch, "all")
    assert states.layers.dtype == torch.float32
    real = batch.mask[:, None, :, None]
    assert (states.layers - exact.layers).mul(real).abs().max() < 0.1
    assert not torch.equal(states.layers, exact.layers)  # else it was no bf16
    states.layers[:, -1].sum().backward()
    weights = [parameter for parameter in backbone.parameters() if parameter.grad is not None]
    assert weights
    assert all(weight.grad.dtype == torch.float32 for weight in weights)


@possible
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tuning", [Tuning("all"), Tuning(0, adapters=8)], ids=["all", "adapters"])
def test_gradients_of_quicker_kernels_are_those_of_torch(family, tuning):
    backbone = backbone_of(family)
    apply(backbone.model, tuning, 1)
    batch, found = batch_of(backbone), []
    for kernels in (nullcontext(), Kernels()):
        with kernels:
            states = backbone(batch).layers
        assert ("LinearBackward" in str(_functions(states))) == isinstance(kernels, Kernels)
        (states * batch.mask[:, None, :, None]).square().mean().backward()
        moved = {key: p.grad for key, p in backbone.model.named_parameters() if p.grad is not None}
        found.append({"states": states.detach(), **moved})
        backbone.zero_grad()
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-3)


def _functions(tensor: torch.Tensor) -> set[str]:
    """The names of all steps back from a tensor."""
    names, waiting = set(), [tensor.grad_fn]
    seen = set(waiting)
    while waiting:
        step = waiting.pop()
        names.add(type(step).__name__)
        new = {before for before, _ in step.next_functions if before is not None} - seen
        seen |= new
        waiting += new
    return names


@possible
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (1, 1, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map_and_its_gradients(shape, bias):
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    added = [torch.randn(5, requires_grad=True)] if bias else []
    found = []
    for kernels in (nullcontext(), Kernels()):
        with kernels:
            loss = nn.functional.linear(x, weight, *added).sin().sum()
        found.append([loss, *torch.autograd.grad(loss, [x, weight, *added])])
    torch.testing.assert_close(found[1], found[0])
    with Kernels():  # left to torch
        assert nn.functional.linear(torch.randn(0, 4), weight).shape == (0, 5)
        assert nn.functional.linear(x[..., 0, :].flatten()[:4], weight).shape == (5,)
        assert nn.functional.linear(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("masked", ["", "bool", "bias"])
def test_attention_is_that_of_torch(masked):
    query, key, value = (torch.randn(2, 3, 7, 4) for _ in range(3))
    keys = torch.tensor([7, 4])[:, None, None, None] > torch.arange(7)  # (2, 1, 1, 7)
    mask = {"": None, "bool": keys, "bias": torch.zeros(keys.shape).masked_fill(~keys, -1e9)}[masked]
    wanted = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(attention(query, key, value, attn_mask=mask), wanted)
