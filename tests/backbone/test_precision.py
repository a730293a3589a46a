"""bf16 while tuning: states close to those of fp32, gradients to fp32 weights."""

import pytest
import torch

from bertvision.backbone import precision
from bertvision.backbone.backbone import Backbone
from encoders import FAMILIES
from runs import batch_of, encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_near_those_of_fp32_and_gradients_reach_the_weights(family):
    backbone = Backbone.load(encoder(family))
    batch = batch_of(backbone)
    exact, states = backbone(batch, "all"), precision.in_bf16(backbone, batch, "all")
    assert states.layers.dtype == torch.float32
    real = batch.mask[:, None, :, None]
    assert (states.layers - exact.layers).mul(real).abs().max() < 0.1
    assert not torch.equal(states.layers, exact.layers)  # or it was no bf16
    states.layers[:, -1].sum().backward()
    weights = [parameter for parameter in backbone.parameters() if parameter.grad is not None]
    assert weights
    assert all(weight.grad.dtype == torch.float32 for weight in weights)
