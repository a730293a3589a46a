"""Exactly what the plan says trains, on every family; the published counts hold to the unit."""

import copy
import re

import pytest
import torch

from bertvision.backbone.shapes import empty_model
from bertvision.backbone.tuning import Tuning, apply, count, first_trained, is_split, set_training
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_batch, tiny_encoder
from real import minilm

READOUT = 768 * 2 + 2


def moved_by_one_step(model) -> set[str]:
    """Names of the parameters that one AdamW step in training mode changes, and no buffer does."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.train()
    torch.manual_seed(0)
    states = model(**tiny_batch(model, batch=4, tokens=9), output_hidden_states=True).hidden_states
    (states[-1] * torch.randn_like(states[-1])).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad or parameter.grad is None, name
    optimizer.step()
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def is_norm(name: str) -> bool:
    return bool(re.search("layer_?norm", name.lower()))


def in_last_blocks(name: str, train_layers: int, depth: int = 3) -> bool:
    index = re.search(r"\blayer\.(\d+)\.", name)
    return index is not None and int(index[1]) >= depth - train_layers


@pytest.mark.parametrize(
    ("family", "train_layers"),
    [(family, k) for family in FAMILIES for k in (0, 1, 2) if k == 0 or family != "albert"],  # it has one shared block
)
def test_only_the_last_blocks_and_every_norm_move(family, train_layers):
    model = tiny_encoder(family)
    plan = apply(model, Tuning(train_layers))
    expected = {n for n, _ in model.named_parameters() if is_norm(n) or in_last_blocks(n, train_layers)}
    assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
    assert moved_by_one_step(model) == expected
    assert plan.trainable == sum(p.numel() for n, p in model.named_parameters() if n in expected)
    assert plan.added == 0


@pytest.mark.parametrize(
    ("family", "train_layers"),
    [(family, k) for family in FAMILIES for k in (0, 1, 2) if k == 0 or family != "albert"],
)
def test_with_the_norms_of_trained_blocks_alone_the_rest_is_frozen(family, train_layers):
    model = tiny_encoder(family)
    plan = apply(model, Tuning(train_layers, norms="trained"))
    expected = {n for n, _ in model.named_parameters() if in_last_blocks(n, train_layers)}
    assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
    assert plan.trainable == sum(p.numel() for n, p in model.named_parameters() if n in expected)
    if train_layers:
        assert moved_by_one_step(model) == expected


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_what_is_entirely_frozen_runs_without_dropout(family):
    model, tuning = tiny_encoder(family), Tuning(1, norms="trained")
    apply(model, tuning)
    set_training(model, tuning)
    first = first_trained(model, tuning)
    below, above = (
        {name for name, part in model.named_modules() if isinstance(part, torch.nn.Dropout) and part.training is mode}
        for mode in (False, True)
    )
    assert first == 2 and above and all(in_last_blocks(f"{name}.", 1) for name in above)
    assert not any(in_last_blocks(f"{name}.", 1) for name in below)
    batch = tiny_batch(model)
    torch.manual_seed(0)
    states = [model(**batch, output_hidden_states=True).hidden_states for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(states[0][:-1], states[1][:-1]))
    assert not torch.equal(states[0][-1], states[1][-1])


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(1),
        Tuning("all", norms="trained"),
        Tuning(3, norms="trained"),
        Tuning(1, adapters=4, norms="trained"),
        Tuning(1, lora=2, norms="trained"),
    ],
)
def test_where_something_trains_below_there_is_dropout_everywhere(tuning):
    model = tiny_encoder("bert")
    apply(model, tuning)
    set_training(model, tuning)
    assert not is_split(model, tuning)
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("train_layers", [3, "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_is_everything(family, train_layers):
    model = tiny_encoder(family)
    plan = apply(model, Tuning(train_layers))
    assert plan.trainable == plan.base == count(model)
    # the pooler may train, but no head reads it, so no gradient comes to it
    assert moved_by_one_step(model) == {n for n, _ in model.named_parameters() if not n.startswith("pooler")}


@pytest.mark.parametrize(
    ("family", "train_layers"),
    [(family, k) for family in FAMILIES for k in (0, 1, "all") if k != 1 or family != "albert"],
)
def test_adapters_train_beside_what_train_layers_says(family, train_layers):
    model = tiny_encoder(family)
    apply(model, Tuning(train_layers, adapters=4))
    expected = {
        n
        for n, _ in model.named_parameters()
        if is_norm(n) or ".adapter." in n or train_layers == "all" or in_last_blocks(n, train_layers)
    }
    assert moved_by_one_step(model) == {n for n in expected if not n.startswith("pooler")}


@pytest.mark.parametrize(("train_layers", "size"), [(0, 0), (3, 0), (0, 64), (6, 0)])
def test_on_the_packaged_minilm(train_layers, size):
    model = copy.deepcopy(minilm().model)
    plain = model(**tiny_batch(model)).last_hidden_state
    apply(model, Tuning(train_layers, adapters=size))
    assert torch.allclose(model(**tiny_batch(model)).last_hidden_state, plain, atol=1e-5)
    expected = {
        n
        for n, _ in model.named_parameters()
        if is_norm(n) or ".adapter." in n or train_layers == 6 or in_last_blocks(n, train_layers, depth=6)
    }
    assert moved_by_one_step(model) == {n for n in expected if not n.startswith("pooler")}


def test_a_plan_replaces_the_one_before():
    model = tiny_encoder("bert")
    apply(model, Tuning(0))
    assert apply(model, Tuning("all")).trainable == count(model)
    assert apply(model, Tuning(1)).trainable == count(model, trainable=True) < count(model)


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
    ],
)
def test_published_counts(tuning, published):
    """Hulburd's table, BERT-base cased, with the span read-out."""
    assert apply(empty_model("bert-base-cased"), tuning).trainable + READOUT == published


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_a_block_of_bert_base_with_its_own_norms(blocks):
    assert apply(empty_model("bert-base-cased"), Tuning(blocks, norms="trained")).trainable == blocks * 7_087_872


def test_published_count_without_the_readout():
    plan = apply(empty_model("bert-base-cased"), Tuning(0, adapters=64))
    assert plan.trainable == 2_417_664
    assert plan.added == 24 * 99_136


@pytest.mark.parametrize("train_layers", [1, 2])
def test_albert_layers_cannot_train_apart(train_layers):
    with pytest.raises(UserError, match=r"same weights.*0 \(LayerNorms only\) or 'all'"):
        apply(tiny_encoder("albert"), Tuning(train_layers))


def test_albert_with_a_group_per_layer_shares_nothing():
    model = tiny_encoder("albert", num_hidden_groups=3)
    assert 0 < apply(model, Tuning(1)).trainable < apply(model, Tuning(2)).trainable < count(model)


def test_too_many_layers():
    with pytest.raises(UserError, match=r"train_layers: 4 .* 0 to 3 or 'all'"):
        apply(tiny_encoder("bert"), Tuning(4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_layers": -1},
        {"train_layers": "some"},
        {"train_layers": True},
        {"adapters": -2},
        {"adapters": 1.5},
        {"lora": -1},
        {"norms": "none"},
    ],
)
def test_impossible_plans(wrong):
    (key,) = wrong
    with pytest.raises(UserError, match=f"^{key}: "):
        Tuning(**wrong)
