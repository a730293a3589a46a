"""Packed twins: the states of the plain encoder, from shared weights, and nothing learnt is lost or kept by mistake."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import Packed, packed
from bertvision.backbone.tuning import Tuning, apply
from bertvision.data.batches import by_length, collate
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import make_windows
from encoders import FAMILIES, tiny_encoder, tiny_tokenizer

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


ROWS = """
import torch
from bertvision.backbone.cpu_kernels import Packed

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

dense = Packed(torch.nn.Linear(16, 16))
with torch.no_grad():
    for rows in range(1, 801):
        dense(torch.zeros(rows, 16))
        if rows == 200:
            before = resident()
print(resident() - before)
"""


@possible
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads its memory from /proc")
def test_memory_does_not_grow_with_every_new_number_of_rows():
    # A process of its own: how many kernels are kept is settled when the first one is made.
    grown = subprocess.run([sys.executable, "-c", ROWS], capture_output=True, text=True, check=True).stdout
    assert float(grown) < 60  # MiB; 300 if all are kept
