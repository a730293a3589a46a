"""LoRA through peft: nothing at first, then queries and values alone."""

import sys

import pytest
import torch

from bertvision.backbone.anatomy import projections
from bertvision.backbone.lora import insert
from bertvision.backbone.shapes import empty_model
from bertvision.backbone.tuning import Tuning, apply, count, is_added
from bertvision.errors import UserError
from encoders import FAMILIES, tiny_batch, tiny_encoder


def test_without_peft_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'bertvision\[lora\]'"):
        apply(tiny_encoder("bert"), Tuning(0, lora=4))


def test_impossible_rank():
    model = tiny_encoder("bert")
    with pytest.raises(UserError, match="rank of 0"):
        insert(model, projections(model), 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_and_norms_train_alone(family):
    pytest.importorskip("peft")
    model = tiny_encoder(family)
    batch = tiny_batch(model)
    plain = model(**batch).last_hidden_state
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plan = apply(model, Tuning(0, lora=2), seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model(**batch).last_hidden_state, plain)
    assert plan.added == (1 if family == "albert" else 3) * 2 * 2 * (32 + 32)

    weights = torch.randn_like(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):  # B is 0 at first: A moves from the second step on
        optimizer.zero_grad()
        (model.train()(**batch).last_hidden_state * weights).sum().backward()
        optimizer.step()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, start[name])}
    expected = {name for name, _ in model.named_parameters() if is_added(name) or "norm" in name.lower()}
    assert moved == expected


def test_the_seed_alone_decides():
    pytest.importorskip("peft")

    def matrices(seed: int) -> list[torch.Tensor]:
        model = tiny_encoder("bert")
        apply(model, Tuning(0, lora=2), seed)
        return [tensor for name, tensor in model.state_dict().items() if "lora_A" in name]

    assert all(torch.equal(a, b) for a, b in zip(matrices(1), matrices(1)))
    assert not any(torch.equal(a, b) for a, b in zip(matrices(1), matrices(2)))


def test_beside_adapters():
    pytest.importorskip("peft")
    model = tiny_encoder("bert")
    plan = apply(model, Tuning(0, adapters=4, lora=2))
    assert plan.added == 3 * (2 * (2 * 32 * 4 + 32 + 4) + 2 * 2 * 64)
    assert plan.trainable == plan.added + 7 * 64
    assert count(model) == plan.base + plan.added


def test_counts_without_weights():
    pytest.importorskip("peft")
    plan = apply(empty_model("bert-base-uncased"), Tuning(0, lora=8))
    assert plan.added == 12 * 2 * 8 * 2 * 768 == 294_912
