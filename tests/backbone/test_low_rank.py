"""Compressed tunings: close to the tuned weights, exact in their own form, and never added to other weights."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from bertvision.backbone.checkpoint import (
    RANKS,
    Compression,
    Difference,
    Plain,
    expand,
    load_tuned,
    parse_compression,
    save_tuned,
    trained_state,
)
from bertvision.backbone.tuning import Tuning, apply
from bertvision.errors import UserError
from bertvision.files import load_whole, write_tensors
from encoders import tiny_encoder

PLANS = [Tuning(), Tuning(1), Tuning("all", adapters=4), Tuning(0, adapters=4, lora=2)]


def tuned(family: str, tuning: Tuning, seed: int = 0):
    """(the plain weights, the encoder with everything that trains shaken)"""
    if tuning.lora:
        pytest.importorskip("peft")
    model = tiny_encoder(family)
    plain = Plain(model)
    apply(model, tuning)
    generator = torch.Generator().manual_seed(seed)
    for tensor in trained_state(model).values():
        tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return plain, model


def compress(file: Path, family: str, tuning: Tuning, how: str) -> tuple[dict, dict]:
    """Writes a compressed tuning; the tuned weights, and those that the compressed form stands for."""
    plain, model = tuned(family, tuning)
    before = {name: tensor.clone() for name, tensor in trained_state(model).items()}
    (one,) = parse_compression(how)
    write_tensors(file, *plain.compressed(model, tuning, plain.difference(model), one))
    return before, trained_state(model)


@pytest.mark.parametrize("tuning", PLANS, ids=str)
@pytest.mark.parametrize("family", ["bert", "albert", "deberta-v2"])
def test_full_rank_gives_the_tuned_weights_back(family, tuning, tmp_path):
    if family == "albert" and tuning.train_layers == 1:
        pytest.skip("its blocks share their weights")
    before, _ = compress(tmp_path / "tuned", family, tuning, "rank=999,fp32")
    model = tiny_encoder(family)
    assert load_tuned(model, tmp_path / "tuned").tuning == tuning
    found = trained_state(model)
    assert found.keys() == before.keys()
    for name, tensor in before.items():
        assert torch.allclose(found[name], tensor, atol=1e-6), name


@pytest.mark.parametrize("how", ["rank=4,fp16", "rank=4,int8", "rank=4,fp32", "rank=999,int8"])
def test_what_is_loaded_is_what_was_compressed_to_the_last_bit(how, tmp_path):
    _, standing_for = compress(tmp_path / "tuned", "bert", Tuning(), how)
    model = tiny_encoder("bert")
    tensors, header = load_tuned(model, tmp_path / "tuned").compressed
    for name, tensor in trained_state(model).items():
        assert torch.equal(tensor, standing_for[name]), name
    write_tensors(tmp_path / "again", tensors, header)
    again, told = load_whole(tmp_path / "again")
    same = {"encoder", "format", "frozen", "tuning"}
    assert {key: told[key] for key in same} == {key: header[key] for key in same} and again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())


def test_a_file_is_the_smaller_the_lower_the_rank_and_the_shorter_the_numbers(tmp_path):
    _, model = tuned("bert", Tuning())
    save_tuned(model, Tuning(), tmp_path / "whole")
    sizes = [(tmp_path / "whole").stat().st_size]
    for how in ("rank=8,fp32", "rank=8,fp16", "rank=8,int8", "rank=2,int8"):
        compress(tmp_path / "tuned", "bert", Tuning(), how)
        sizes.append((tmp_path / "tuned").stat().st_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 5
    assert load_file(tmp_path / "tuned")["embeddings.word_embeddings.weight:left"].dtype == torch.int8


@given(seed=st.integers(0, 999), rank=st.integers(1, 5))
@settings(max_examples=20)
def test_a_difference_of_low_rank_is_kept_whole(seed, rank):
    torch.manual_seed(seed)
    plain, terms = {"w": torch.randn(40, 24)}, torch.randn(rank, 40).T @ torch.randn(rank, 24)
    difference = Difference(plain, {"w": plain["w"] + terms})
    for numbers, most in (("fp32", 1e-5), ("fp16", 2e-3), ("int8", 3e-2)):
        found = expand(difference.compress(Compression(5, numbers)))["w"]
        assert float((found - terms).norm() / terms.norm()) < most
    errors = [float((expand(difference.compress(Compression(r, "fp32")))["w"] - terms).norm()) for r in range(1, 6)]
    assert errors == sorted(errors, reverse=True) or errors[-1] < 1e-4


def test_what_did_not_change_is_left_out():
    plain = {"w": torch.randn(8, 8), "b": torch.randn(8), "still": torch.randn(8, 8)}
    found = Difference(plain, plain | {"b": plain["b"] + 1}).compress(Compression(2, "int8"))
    assert {name: tensor.dtype for name, tensor in found.items()} == {"b": torch.float16}


def test_it_is_added_to_the_plain_encoder_alone(tmp_path):
    compress(tmp_path / "tuned", "bert", Tuning(), "rank=4")
    for wrong in (tiny_encoder("bert", seed=1), tuned("bert", Tuning())[1]):
        state = {name: tensor.clone() for name, tensor in wrong.state_dict().items()}
        with pytest.raises(UserError, match="trained on other weights than this encoder's"):
            load_tuned(wrong, tmp_path / "tuned")
        assert all(torch.equal(state[name], tensor) for name, tensor in wrong.state_dict().items())
    model = tiny_encoder("bert")
    load_tuned(model, tmp_path / "tuned")
    with pytest.raises(UserError, match="other weights"):
        load_tuned(model, tmp_path / "tuned")


def test_a_damaged_file_is_refused(tmp_path):
    compress(tmp_path / "tuned", "bert", Tuning(), "rank=4")
    tensors, header = load_whole(tmp_path / "tuned")
    right = next(name for name in tensors if name.endswith(":right"))
    write_tensors(tmp_path / "less", {name: one for name, one in tensors.items() if name != right}, header)
    with pytest.raises(UserError, match="damaged, or not a compressed tuning"):
        load_tuned(tiny_encoder("bert"), tmp_path / "less")
    write_tensors(tmp_path / "more", tensors | {"who": torch.ones(3)}, header)
    with pytest.raises(UserError, match="do not fit its own header"):
        load_tuned(tiny_encoder("bert"), tmp_path / "more")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rank=64", [Compression(64, "int8")]),
        ("rank=8, fp16", [Compression(8, "fp16")]),
        ("rank=auto,fp32", [Compression(rank, "fp32") for rank in RANKS]),
    ],
)
def test_how_compression_is_asked_for(text, found):
    assert parse_compression(text) == found
    assert parse_compression(str(found[0])) == found[:1]


@pytest.mark.parametrize("text", ["", "64", "rank=", "rank=0", "rank=-1", "rank=4,rank=5", "int8", "rank=4,int8,fp16"])
def test_how_it_cannot_be_asked_for(text):
    with pytest.raises(UserError, match=r"--compress .*(give rank=64|not a kind of number)"):
        parse_compression(text)
    with pytest.raises(UserError, match="'int7' is not a kind of number; did you mean 'int8'"):
        parse_compression("rank=4,int7")
