"""The parts of every encoder are found, and are what they are taken for."""

import re

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from bertvision.backbone import anatomy
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_batch, tiny_encoder


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_and_layers(family):
    model = tiny_encoder(family, num_hidden_layers=4)
    assert len(anatomy.blocks(model)) == (1 if family == "albert" else 4)
    assert anatomy.shares_blocks(model) == (family == "albert")
    states = model(**tiny_batch(model), output_hidden_states=True).hidden_states
    assert anatomy.depth(model) == 4
    assert anatomy.layer_count(model) == len(states) == 5
    assert anatomy.width(model) == states[-1].shape[-1] == 32
    pooled = getattr(model(**tiny_batch(model)), "pooler_output", None)
    assert (anatomy.pooler(model) is None) == (pooled is None)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_all_that_repeats(family):
    """Another block adds exactly a block's parameters, so nothing of a block is left out and nothing else is in it."""
    one, two = (tiny_encoder(family, num_hidden_layers=layers) for layers in (1, 2))
    grown = sum(p.numel() for p in two.parameters()) - sum(p.numel() for p in one.parameters())
    size = sum(p.numel() for p in anatomy.blocks(two)[-1].parameters())
    assert grown == (0 if family == "albert" else size)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_norm_is_found(family):
    model = tiny_encoder(family)
    found = {id(p) for norm in anatomy.layer_norms(model) for p in norm.parameters()}
    named = {id(p) for name, p in model.named_parameters() if re.search("layer_?norm", name.lower())}
    assert found == named
    expected = {"albert": 3, "deberta-v2": 8}.get(family, 7)  # one per embedding table and two per block
    assert len(anatomy.layer_norms(model)) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_output_projections_feed_the_residual_stream(family):
    """LayerNorm reads (block input + attention projection), then (its own output + feed-forward projection)."""
    model = tiny_encoder(family)
    block, found = anatomy.blocks(model)[-1], anatomy.projections(model)[-1]
    attention, feedforward = (model.get_submodule(name) for name in (found.attention, found.feedforward))
    calls = []  # (module, its first input, its output), in the order in which they end

    def note(module, args, output):
        calls.append((module, args[0], output))

    norms = anatomy.layer_norms(block)
    for part in (attention, feedforward, *norms):
        part.register_forward_hook(note)
    inputs = []
    block.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(**tiny_batch(model))
    (first, _, attended), (norm, first_sum, between), (second, _, fed), (last_norm, second_sum, _) = calls[-4:]
    assert (first, second) == (attention, feedforward)
    assert {norm, last_norm} == set(norms)
    torch.testing.assert_close(first_sum, inputs[-1] + attended)
    torch.testing.assert_close(second_sum, between + fed)


@pytest.mark.parametrize("family", FAMILIES)
def test_query_and_value(family):
    model = tiny_encoder(family)
    for found in anatomy.projections(model):
        assert found.query.rpartition(".")[2].startswith("q")
        assert found.value.rpartition(".")[2].startswith("v")
        value = model.get_submodule(found.value)
        nn.init.zeros_(value.weight)
        nn.init.zeros_(value.bias)
    attended = []  # where all values are 0, so is what attention hands to its output projection
    model.get_submodule(found.attention).register_forward_pre_hook(lambda _, args: attended.append(args[0]))
    model(**tiny_batch(model))
    assert attended
    assert all(not state.any() for state in attended)


def test_narrow_feed_forward_is_no_attention():
    """Where the feed-forward part is as wide as the model, its first map too leads to the width."""
    assert anatomy.projections(tiny_encoder("bert", intermediate_size=32)) == anatomy.projections(tiny_encoder("bert"))


def test_fused_attention_without_a_line_for_it():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes["vocab_size"] = 99
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    model = AutoModel.from_config(AutoConfig.for_model("modernbert", **sizes, **tokens))
    assert len(anatomy.blocks(model)) == 2
    found = anatomy.projections(model)[1]
    assert found.query == found.value == "layers.1.attn.Wqkv"
    assert (found.attention, found.feedforward) == ("layers.1.attn.Wo", "layers.1.mlp.Wo")


def test_albert_groups_of_several_blocks():
    model = tiny_encoder("albert", num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    assert len(anatomy.blocks(model)) == 2
    assert len(anatomy.projections(model)) == 4
    assert len({found.attention for found in anatomy.projections(model)}) == 4


def test_no_transformer_is_refused():
    model = AutoModel.from_config(AutoConfig.for_model("gpt2", n_embd=8, n_layer=1, n_head=2, vocab_size=20))
    with pytest.raises(UserError, match="no list of transformer blocks"):
        anatomy.blocks(model)
