"""Counted FLOPs against torch's counter on passes that are really computed, and against the textbook formula."""

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertvision.backbone.flops import Flops, Work, encoder_work, head_work
from bertvision.backbone.loading import empty_model
from bertvision.backbone.states import States
from bertvision.backbone.tuning import Tuning, apply
from bertvision.heads import build_head
from encoders import FAMILIES, tiny_encoder

LENGTHS = np.array([20, 20, 20])
TUNINGS = [
    Tuning(),
    Tuning(train_layers=1),
    Tuning(train_layers=2, norms="trained"),
    Tuning(train_layers=0, adapters=4),
    Tuning(train_layers=0, lora=2),
]


def computed(model, lengths) -> tuple[int, int]:
    """FLOPs of a real forward pass on windows of one length, and of that with its backward pass."""
    ids = torch.full((len(lengths), int(lengths[0])), 7)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        last = model(input_ids=ids).last_hidden_state
        forward = counter.get_total_flops()
        if last.requires_grad:
            last.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_of_every_family(family):
    model = tiny_encoder(family)
    work, three, two = encoder_work(model, "last"), computed(model, LENGTHS), computed(model, LENGTHS[1:])
    assert (work.forward(LENGTHS[:1]), work.train(LENGTHS[:1])) == (three[0] - two[0], three[1] - two[1])
    if family != "deberta-v2":  # it projects its table of positions once per batch
        assert (work.forward(LENGTHS), work.train(LENGTHS)) == three


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_the_backward_pass_reaches_what_trains(tuning):
    model = tiny_encoder("bert")
    apply(model, tuning)
    work = encoder_work(model, "last")
    assert (work.forward(LENGTHS), work.train(LENGTHS)) == computed(model, LENGTHS)


def test_it_leaves_no_trace():
    model, state = tiny_encoder("deberta-v2").train(), torch.random.get_rng_state()
    assert encoder_work(model).train is not None
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_formula_of_a_block():
    """24 n H² of linear maps and 4 n² H of attention per block, 2 H² of the pooler; twice that again backwards."""
    work, blocks, width = encoder_work(empty_model("bert-base-uncased")), 12, 768
    assert work.forward == Flops(2 * width**2, 24 * blocks * width**2, 4 * blocks * width)
    assert work.train == work.forward + Flops(0, 48 * blocks * width**2, 8 * blocks * width)
    lower = encoder_work(empty_model("bert-base-uncased"), below=5).forward
    assert lower == Flops(2 * width**2, 24 * 5 * width**2, 4 * 5 * width)


def test_padding_is_not_counted():
    flops = encoder_work(tiny_encoder("bert")).forward
    assert flops(np.array([5, 20])) == flops(np.array([5])) + flops(np.array([20])) < flops(np.array([20, 20]))


@pytest.mark.parametrize("kind", ["last", "pool", "compress", "conv", "attend", "cacnn"])
@pytest.mark.parametrize("joint", [False, True])
def test_a_head(kind, joint):
    head = build_head({"kind": kind}, layers=4, width=32, task="spans").eval()
    work = head_work(head, 4, 32, joint=joint)
    states = torch.zeros(2, 4, 20, 32, requires_grad=joint)
    if head.reads != "all":
        numbers = (3,) if head.reads == "last" else head.reads
        found = States(states[:, list(numbers)], torch.ones(2, 20, dtype=torch.bool), numbers)
    else:
        found = States(states, torch.ones(2, 20, dtype=torch.bool))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = head.logits(found)
        forward = counter.get_total_flops()
        logits.sum().backward()
    assert (work.forward(LENGTHS[:2]), work.train(LENGTHS[:2])) == (forward, counter.get_total_flops())
    assert forward > 0 or kind == "pool"


def test_what_cannot_be_counted_is_unknown():
    class Odd(torch.nn.Module):
        reads = "all"

        def logits(self, states):
            raise RuntimeError("not like this")

    assert head_work(Odd(), 4, 32) == Work(None, None)
