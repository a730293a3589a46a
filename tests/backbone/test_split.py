"""A backbone in two gives what it gives in one piece, whatever the family; what cannot be split says so."""

import numpy as np
import pytest
import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.split import Lower, split
from bertvision.data.batches import Batch
from bertvision.errors import UserError
from encoders import FAMILIES, save_tiny, tiny_batch, tiny_encoder, tiny_tokenizer
from runs import encoder

SEPARABLE = [family for family in FAMILIES if family != "albert"]


def batch_of(backbone: Backbone) -> Batch:
    """Three rows, the last with padding."""
    made = tiny_batch(backbone.model, batch=3, tokens=9)
    mask, none = made["attention_mask"].bool(), torch.zeros_like(made["input_ids"])
    return Batch(np.arange(3), made["input_ids"], none, mask, torch.zeros(3, 2, dtype=torch.long))


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("family", SEPARABLE)
def test_both_parts_give_the_whole(family, first):
    whole = Backbone.load(encoder(family))
    batch = batch_of(whole)
    lower, upper = split(whole, first, batch)
    with torch.no_grad():
        wanted, below = whole(batch).layers, lower(batch)
        assert below.layers.shape[1] == lower.layers == first + 1
        assert torch.equal(below.layers, wanted[:, : first + 1])
        assert torch.equal(upper(batch, below).layers, wanted)
        assert torch.equal(upper(batch, lower(batch, "last")).layers, wanted[:, -1:])
        assert torch.equal(whole(batch).layers, wanted)  # in one piece again


@pytest.mark.parametrize("family", SEPARABLE)
def test_gradients_reach_the_blocks_above_and_no_further(family):
    whole = Backbone.load(encoder(family))
    batch = batch_of(whole)
    lower, upper = split(whole, 2, batch)
    with torch.no_grad():
        below = lower(batch)
    whole(batch).layers[:, -1].square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in whole.model.named_parameters() if p.grad is not None}
    whole.model.zero_grad()
    upper(batch, below).layers[:, -1].square().sum().backward()
    found = {name: p.grad for name, p in whole.model.named_parameters() if p.grad is not None}
    above = {name for name in wanted if ".2." in name}
    assert above and above <= found.keys()
    assert not any(".0." in name or ".1." in name or name.startswith("embeddings") for name in found)
    for name in above:
        torch.testing.assert_close(found[name], wanted[name])


@pytest.mark.parametrize("groups", [1, 3])
def test_albert_cannot_be_entered_in_the_middle(groups, tmp_path):
    whole = Backbone.load(str(save_tiny(tmp_path, "albert", num_hidden_groups=groups)))
    with pytest.raises(UserError, match=r'finetune.lower: the layers of AlbertModel .* use lower = "live"'):
        split(whole, 1, batch_of(whole))


def test_an_encoder_with_something_between_its_blocks_is_found_out():
    model = tiny_encoder("deberta-v2", conv_kernel_size=3)  # a convolution behind the first block, counted from within
    whole = Backbone(model, tiny_tokenizer("deberta-v2").backend_tokenizer, "tiny")
    with pytest.raises(UserError, match=r"DebertaV2Model cannot be entered at block 1"):
        split(whole, 1, batch_of(whole))


def test_the_fingerprint_is_of_the_lower_part_alone():
    whole = Backbone.load(encoder())
    before = [Lower(whole, first).fingerprint for first in (1, 2, 3)]
    assert len(set(before)) == 3 and before[2] == whole.fingerprint
    with torch.no_grad():
        whole.model.encoder.layer[2].output.dense.weight += 1
    after = [Lower(whole, first).fingerprint for first in (1, 2, 3)]
    assert after[:2] == before[:2] and after[2] != before[2]
