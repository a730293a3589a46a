"""A large batch goes through the encoder in slices where nothing learns: the states are those of the whole."""

import pytest
import torch

from bertvision.backbone import backbone as module
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.split import split
from encoders import FAMILIES
from runs import ROWS, batch_of, encoder


@pytest.mark.parametrize("reads", ["all", "last", (0, 2)])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_slices_give_the_states_of_the_whole(family, reads, monkeypatch):
    backbone = Backbone.load(encoder(family))
    batch = batch_of(backbone)
    whole = backbone(batch, reads)
    monkeypatch.setattr(module, "SLICE", 20)
    sliced = backbone(batch, reads)
    assert torch.equal(sliced.mask, batch.mask)
    assert bool(sliced.layers.isfinite().all())  # padding too: heads multiply it by zero
    for row, length in enumerate(ROWS):
        torch.testing.assert_close(sliced.layers[row, :, :length], whole.layers[row, :, :length], atol=2e-6, rtol=1e-5)


@torch.no_grad()
def test_the_lower_part_of_a_backbone_goes_in_slices_too(monkeypatch):
    backbone = Backbone.load(encoder("bert"))
    batch = batch_of(backbone)
    wanted = backbone(batch).layers
    monkeypatch.setattr(module, "SLICE", 20)
    lower, upper = split(backbone, 2, batch)
    real = batch.mask[:, None, :, None]
    torch.testing.assert_close(lower(batch).layers * real, wanted[:, :3] * real, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(upper(batch, lower(batch)).layers * real, wanted * real, atol=2e-6, rtol=1e-5)


def test_learning_sees_the_batch_as_one(monkeypatch):
    backbone = Backbone.load(encoder("bert"))
    batch = batch_of(backbone)
    monkeypatch.setattr(module, "SLICE", 20)
    monkeypatch.setattr(backbone, "_in_slices", None)  # to call it would fail
    states = backbone(batch)
    assert states.layers.requires_grad
    with torch.no_grad():
        assert torch.equal(backbone.train()(batch).mask, batch.mask)
