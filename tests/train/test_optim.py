"""Optimisers and schedules: who is decayed, whose rate is whose, and how the rate goes over the steps."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bertvision.backbone.tuning import Tuning, apply, is_added
from bertvision.heads import build_head
from bertvision.recipe import FinetuneRecipe, Training
from bertvision.train.learner import SHAPES, make_optimizer, make_schedule
from encoders import tiny_encoder

SCHEDULES = list(SHAPES)


def factors(steps: int, **options: object) -> list[float]:
    schedule = make_schedule(Training(**options), steps)
    return [schedule(step) for step in range(steps)]


def test_every_schedule_by_hand():
    assert factors(4, schedule="constant") == [1, 1, 1, 1]
    assert factors(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    half = math.sqrt(0.5)
    assert factors(4, schedule="cosine") == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert factors(4, schedule="restarts", restarts=2) == pytest.approx([1, 0.5, 1, 0.5])
    assert factors(4, schedule="restarts", restarts=1) == pytest.approx(factors(4, schedule="cosine"))


def test_warmup_is_a_share_or_a_number_of_steps():
    by_share = factors(10, schedule="linear", warmup=0.4)
    assert by_share == factors(10, schedule="linear", warmup=4)
    assert by_share[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])
    assert by_share[5:] == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert factors(3, schedule="constant", warmup=1) == [0.5, 1, 1]  # 1 is one step, not all of them
    assert factors(3, schedule="cosine", warmup=100) == pytest.approx([1 / 101, 2 / 101, 3 / 101])


@given(
    schedule=st.sampled_from(SCHEDULES),
    steps=st.integers(1, 400),
    warmup=st.one_of(st.floats(0, 0.99), st.integers(1, 500).map(float)),
    restarts=st.integers(1, 12),
)
def test_factors_stay_within_bounds_and_peak_once_warm(schedule, steps, warmup, restarts):
    found = factors(steps, schedule=schedule, warmup=warmup, restarts=restarts)
    assert all(0 <= factor <= 1 for factor in found)
    warm = round(warmup * steps) if warmup < 1 else int(warmup)
    assert found[:warm] == sorted(found[:warm])
    if warm < steps:
        assert found[warm] == 1
        falling = found[warm:]
        if schedule in ("linear", "cosine"):
            assert falling == sorted(falling, reverse=True)
    if schedule != "restarts":
        assert found[-1] > 0  # no step is wasted on a rate of zero


@given(cosines=st.integers(1, 60), length=st.integers(1, 60))
def test_every_restart_begins_at_the_peak(cosines, length):
    """Also where the share of the steps done is a hair below the whole number it stands for."""
    found = factors(cosines * length, schedule="restarts", restarts=cosines)
    assert found[::length] == pytest.approx([1.0] * cosines, abs=1e-9)


def test_biases_and_layer_norms_are_not_decayed():
    model = tiny_encoder("bert")
    apply(model, Tuning("all", adapters=4))
    head = build_head({"kind": "compress", "size": 4, "shared": False}, layers=4, width=32, task="spans")
    named = dict(model.named_parameters()) | {f"head.{name}": p for name, p in head.named_parameters()}
    optimizer = make_optimizer({name: (p, 1e-3) for name, p in named.items()}, FinetuneRecipe(weight_decay=0.1))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(named)
    for name, parameter in named.items():
        spared = name.endswith("bias") or "LayerNorm" in name
        assert decay[id(parameter)] == (0.0 if spared else 0.1), name
    assert named["head.squeeze.bias"].ndim == 3  # a bias per layer is no vector, and a bias all the same


def test_groups_have_their_own_rates():
    model = tiny_encoder("bert")
    apply(model, Tuning(0, adapters=4))
    moving = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wanted = {name: (p, 1e-3 if is_added(name) else 1e-5) for name, p in moving.items()}
    optimizer = make_optimizer(wanted, FinetuneRecipe())
    rates = {id(p): group["peak"] for group in optimizer.param_groups for p in group["params"]}
    assert set(rates.values()) == {1e-5, 1e-3}
    assert all(rates[id(p)] == rate for p, rate in wanted.values())


def stepped(gradient: float, **options: object) -> float:
    """A weight of 1 after one step at rate 0.1."""
    weight = nn.Parameter(torch.ones(1, 1))
    optimizer = make_optimizer({"weight": (weight, 0.1)}, Training(**options))
    weight.grad = torch.full((1, 1), gradient)
    optimizer.step()
    return weight.item()


def test_adamw_decays_beside_the_gradient_and_adam_within_it():
    assert stepped(0.5, optimizer="adamw", weight_decay=0.0) == pytest.approx(0.9, abs=1e-6)
    assert stepped(0.5, optimizer="adamw", weight_decay=0.2) == pytest.approx(0.98 - 0.1, abs=1e-6)
    # Adam's first step has the length of the rate whatever the gradient; decay only turns it round
    assert stepped(0.5, optimizer="adam", weight_decay=0.2) == pytest.approx(0.9, abs=1e-6)
    assert stepped(-0.5, optimizer="adam", weight_decay=0.2) == pytest.approx(1.1, abs=1e-6)
    assert stepped(-0.5, optimizer="adam", weight_decay=0.8) == pytest.approx(0.9, abs=1e-6)
