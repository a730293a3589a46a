"""Trained tensors survive a round trip through their file, and a wrong file never changes an encoder."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bertvision.backbone.checkpoint import load_tuned, save_tuned, trained_state
from bertvision.backbone.tuning import Tuning, apply
from bertvision.errors import UserError
from bertvision.files import write_tensors
from encoders import FAMILIES, tiny_batch, tiny_encoder

PLANS = [Tuning(0), Tuning(0, adapters=4), Tuning("all", adapters=2), Tuning(0, lora=2), Tuning(0, adapters=4, lora=2)]


def trained(family: str, tuning: Tuning, scale: float = 0.1):
    """An encoder whose trained tensors all differ from where they started."""
    if tuning.lora:
        pytest.importorskip("peft")
    model = tiny_encoder(family)
    apply(model, tuning)
    generator = torch.Generator().manual_seed(9)
    for tensor in trained_state(model).values():
        tensor.add_(torch.randn(tensor.shape, generator=generator) * scale)
    return model


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "tuned.safetensors"
    save_tuned(trained("bert", Tuning(1, adapters=4)), Tuning(1, adapters=4), file)
    return file


@pytest.mark.parametrize("tuning", PLANS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family, tuning, tmp_path):
    file = tmp_path / "tuned.safetensors"
    model = trained(family, tuning)
    save_tuned(model, tuning, file)
    assert load_file(file).keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.stat().st_size < 4 * sum(tensor.numel() for tensor in trained_state(model).values()) + 16_384

    again = tiny_encoder(family)
    plan = load_tuned(again, file)
    assert plan.tuning == tuning
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    batch = tiny_batch(model)
    assert torch.equal(again(**batch).last_hidden_state, model(**batch).last_hidden_state)
    assert {n for n, p in again.named_parameters() if p.requires_grad} == set(trained_state(model))


@pytest.mark.parametrize("tuning", [Tuning(1), Tuning("all", adapters=2), Tuning(0, adapters=4, lora=2)], ids=str)
def test_checkpoints_of_one_training_can_follow_each_other(tuning, tmp_path):
    early, late = trained("bert", tuning), trained("bert", tuning, scale=0.5)
    model = tiny_encoder("bert")
    for number, one in enumerate((early, late, early)):
        save_tuned(one, tuning, tmp_path / str(number))
        plan = load_tuned(model, tmp_path / str(number))
        found, wanted = model.state_dict(), one.state_dict()
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
    assert plan == load_tuned(tiny_encoder("bert"), tmp_path / "0")


def test_everything_trained_needs_no_particular_weights(tmp_path):
    file = tmp_path / "tuned.safetensors"
    model = trained("bert", Tuning("all"))
    save_tuned(model, Tuning("all"), file)
    other = tiny_encoder("bert", seed=4)
    load_tuned(other, file)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_the_pooler_and_the_precision_may_differ(saved):
    """Many checkpoints come without a pooler, and it is then drawn at random."""
    model = tiny_encoder("bert")
    torch.nn.init.ones_(model.pooler.dense.weight)
    load_tuned(model, saved)
    assert load_file(saved)["embeddings.LayerNorm.weight"].equal(model.embeddings.LayerNorm.weight)
    half = tiny_encoder("bert").to(torch.bfloat16)
    load_tuned(half, saved)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("roberta", {}, "type bert, this one has roberta"),
        ("bert", {"hidden_size": 64}, "width 32, this one has 64"),
        ("bert", {"num_hidden_layers": 4}, "layers 3, this one has 4"),
        ("bert", {"vocab_size": 300}, "vocabulary 156, this one has 300"),
        ("bert", {"seed": 1}, "other weights"),
        ("bert", {"intermediate_size": 32}, "other weights"),
    ],
)
def test_another_encoder_is_refused_untouched(saved, family, change, message):
    model = tiny_encoder(family, **change)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=message):
        load_tuned(model, saved)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_encoder_that_is_no_longer_plain(saved):
    with pytest.raises(UserError, match="already has adapters"):
        load_tuned(trained("bert", Tuning(0, adapters=4)), saved)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"damaged, or not a tuned encoder .*; copy or train it again"):
        load_tuned(tiny_encoder("bert"), saved)


def test_missing_or_foreign(saved):
    save_file({"a": torch.zeros(2)}, saved)
    with pytest.raises(UserError, match="not a tuning"):
        load_tuned(tiny_encoder("bert"), saved)
    with pytest.raises(UserError, match="no such file"):
        load_tuned(tiny_encoder("bert"), saved.parent / "nothing.safetensors")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tuning", json.dumps({"train_layers": 1, "adapters": 8, "lora": 0}), "do not fit its own header"),
        ("tuning", json.dumps({"unknown": 1}), "header is damaged"),
        ("tuning", json.dumps({"train_layers": -1}), "header is damaged"),
        ("encoder", "[1]", "header is damaged"),
        ("frozen", "{", "header is damaged"),
    ],
)
def test_damaged_header(saved, key, value, message):
    with safe_open(saved, framework="pt") as opened:
        header = opened.metadata()
    write_tensors(saved, load_file(saved), {**header, key: value})
    with pytest.raises(UserError, match=message):
        load_tuned(tiny_encoder("bert"), saved)
