"""A learner: what a step changes, that its state survives saving, its optimiser and schedule, and its share."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertvision.backbone.states import States
from bertvision.backbone.tuning import Tuning, apply, is_added
from bertvision.data.batches import Batch, BatchPlan, collate
from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.recipe import FinetuneRecipe, Training
from bertvision.runtime import fold
from bertvision.train.learner import SHAPES, Learner, Share, fetch_losses, make_optimizer, make_schedule
from devices import RUNTIME
from encoders import tiny_encoder
from runs import load, recipe_of

SHAPE = {"layers": 4, "width": 32, "task": "spans"}
BACKBONE, TASK, DATA = load(recipe_of(data={"max_length": 16, "overlap": 2}))
WINDOWS = DATA["train"].windows  # several per question


@pytest.fixture(scope="module")
def batch() -> Batch:
    return RUNTIME.to(collate(WINDOWS, np.arange(6), BACKBONE.pad))


@pytest.fixture
def states(batch) -> States:
    torch.manual_seed(0)
    return States(RUNTIME.to(torch.randn(*batch.mask.shape, 4, 32).movedim(2, 1).contiguous()), batch.mask)


def learner(spec=None, seed: int = 1, rate: float = 0.01, **options: object) -> Learner:
    torch.manual_seed(7)
    head = RUNTIME.to(build_head(spec or {"kind": "compress", "size": 4}, **SHAPE).train())
    return Learner("one", head, Training(learning_rate=rate, **options), steps=10, seed=seed)


def learn(one: Learner, states: States, batch: Batch, step: int) -> None:
    """A step, and a look at what it did."""
    one.learn(states, batch, TASK, step, RUNTIME)
    fetch_losses([one])


def weights(one: Learner) -> dict[str, torch.Tensor]:
    return {key: parameter.detach().clone() for key, parameter in one.named.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_seeds_are_spread_and_stable():
    assert fold(1, "pool", 0) == fold(1, "pool", 0) != fold(1, "pool", 1)
    assert len({fold(seed, name) for seed in range(50) for name in ("a", "b")}) == 100
    assert all(0 <= fold(seed) < 2**63 for seed in range(50))


@pytest.mark.device
def test_learning_lowers_the_loss_and_leaves_the_backbone_alone(states, batch):
    one, losses, source = learner(), [], states.layers.requires_grad_()
    for step in range(10):
        learn(one, States(source, states.mask), batch, step)
        losses.append(one.loss)
    assert losses[-1] < losses[0] - 0.1
    assert one.seconds > 0 and not one.stopped and source.grad is None


def test_clipping_bounds_the_gradient(states, batch):
    """SGD would show it directly; with Adam it is seen in the moments, which are a tenth of the first gradient."""

    def norm(clip: float) -> float:
        one = learner(clip=clip)
        learn(one, states, batch, 0)
        moments = [value for key, value in one.state().items() if key.startswith("exp_avg.")]
        return 10 * torch.cat([moment.flatten() for moment in moments]).norm().item()

    free = norm(0)
    assert free > 0.02
    assert norm(100) == pytest.approx(free, rel=1e-5)
    assert norm(0.01) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.device
def test_the_state_goes_into_tensors_and_back(states, batch):
    one, other = (learner({"kind": "conv", "form": "xception", "dropout": 0.1}) for _ in range(2))
    for each in (one, other):  # no head of ours keeps statistics, but one may
        each.head.register_buffer("seen", RUNTIME.to(torch.zeros(())))
        each.head.register_forward_pre_hook(lambda head, inputs: head.seen.add_(1) and None)
    for step in range(3):
        learn(one, states, batch, step)
    kept, notes = {key: value.clone() for key, value in one.state().items()}, one.notes()
    learn(one, states, batch, 3)
    other.restore(kept, notes)
    assert same(other.state(), kept) and kept["now.head.seen"] == 3
    learn(other, states, batch, 3)
    assert same(one.state(), other.state()) and one.loss == other.loss


@pytest.mark.device
def test_dropout_depends_on_seed_name_and_step_alone(states, batch):
    def loss(seed: int, step: int) -> float:
        one = learner({"kind": "conv", "dropout": 0.5}, seed)
        torch.rand(step + 3)  # draws of others
        learn(one, states, batch, step)
        return one.loss

    assert loss(1, 0) == loss(1, 0)
    assert len({loss(1, 0), loss(1, 1), loss(2, 0)}) == 3


@pytest.mark.device
def test_a_loss_that_is_not_finite_stops_it_for_good(states, batch):
    one = learner()
    before = weights(one)
    learn(one, States(states.layers * math.inf, states.mask), batch, 4)
    assert "loss became nan at step 4; a lower learning rate" in one.stopped
    learn(one, states, batch, 5)
    assert same(weights(one), before)
    joint = Learner(
        "backbone", RUNTIME.to(build_head({"kind": "last"}, **SHAPE)), Training(), steps=1, seed=0, backbone={}
    )
    with pytest.raises(UserError, match="finetune: its loss became nan at step 0; a lower learning rate"):
        learn(joint, States(states.layers * math.nan, states.mask), batch, 0)


@pytest.mark.device
def test_a_gradient_that_is_not_finite_stops_it_before_the_update(states, batch):
    one = learner({"kind": "last"})
    one.head.readout.weight.register_hook(lambda gradient: gradient * math.nan)
    before = weights(one)
    learn(one, states, batch, 2)
    assert math.isfinite(one.loss) and one.stopped.startswith("its gradient became nan at step 2")
    assert same(weights(one), before)


@pytest.mark.device
def test_judging_sees_what_the_last_update_did(states, batch):
    one = learner(rate=1e30)
    learn(one, states, batch, 0)
    assert not one.stopped
    before = weights(one)
    one.judge(states, batch, TASK, 1, RUNTIME)
    fetch_losses([one])
    assert "at step 1" in one.stopped and same(weights(one), before)


def factors(steps: int, **options: object) -> list[float]:
    schedule = make_schedule(Training(**options), steps)
    return [schedule(step) for step in range(steps)]


def test_every_schedule_and_warmup_by_hand():
    assert factors(4, schedule="constant") == [1, 1, 1, 1]
    assert factors(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    half = math.sqrt(0.5)
    assert factors(4, schedule="cosine") == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert factors(4, schedule="restarts", restarts=2) == pytest.approx([1, 0.5, 1, 0.5])
    by_share = factors(10, schedule="linear", warmup=0.4)
    assert by_share == factors(10, schedule="linear", warmup=4)
    assert by_share == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert factors(3, schedule="constant", warmup=1) == [0.5, 1, 1]  # 1 is one step, not all of them


@given(
    schedule=st.sampled_from(list(SHAPES)),
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
        if schedule in ("linear", "cosine"):
            assert found[warm:] == sorted(found[warm:], reverse=True)
    if schedule != "restarts":
        assert found[-1] > 0  # no step is wasted on a rate of zero


@given(cosines=st.integers(1, 60), length=st.integers(1, 60))
def test_every_restart_begins_at_the_peak(cosines, length):
    found = factors(cosines * length, schedule="restarts", restarts=cosines)
    assert found[::length] == pytest.approx([1.0] * cosines, abs=1e-9)


def test_decay_and_rates_of_every_parameter():
    """Biases and LayerNorms are not decayed; each parameter has its own rate."""
    model = tiny_encoder("bert")
    apply(model, Tuning("all", adapters=4))
    head = build_head({"kind": "compress", "size": 4, "shared": False}, **SHAPE)
    named = dict(model.named_parameters()) | {f"head.{name}": p for name, p in head.named_parameters()}
    wanted = {name: (p, 1e-3 if is_added(name) else 1e-5) for name, p in named.items()}
    optimizer = make_optimizer(wanted, FinetuneRecipe(weight_decay=0.1))
    found = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(found) == len(named)
    for name, (parameter, rate) in wanted.items():
        spared = name.endswith("bias") or "LayerNorm" in name
        assert found[id(parameter)]["weight_decay"] == (0.0 if spared else 0.1), name
        assert found[id(parameter)]["peak"] == rate, name
    assert named["head.squeeze.bias"].ndim == 3  # a bias per layer is no vector, and a bias all the same


@pytest.mark.parametrize(
    ("optimizer", "gradient", "decay", "expected"),
    [
        ("adamw", 0.5, 0.0, 0.9),
        ("adamw", 0.5, 0.2, 0.98 - 0.1),
        ("adam", 0.5, 0.2, 0.9),  # Adam's first step has the length of the rate; decay only changes its sign
        ("adam", -0.5, 0.2, 1.1),
        ("adam", -0.5, 0.8, 0.9),
    ],
)
def test_adamw_decays_beside_the_gradient_and_adam_within_it(optimizer, gradient, decay, expected):
    weight = nn.Parameter(torch.ones(1, 1))
    made = make_optimizer({"weight": (weight, 0.1)}, Training(optimizer=optimizer, weight_decay=decay))
    weight.grad = torch.full((1, 1), gradient)
    made.step()
    assert weight.item() == pytest.approx(expected, abs=1e-6)


def plan_of(epochs: float, batch_size: int) -> BatchPlan:
    return BatchPlan(WINDOWS.lengths, epochs=epochs, batch_size=batch_size, batch_tokens=4096, seed=3)


@given(
    fraction=st.floats(0.01, 0.99),
    epochs=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_updates_use_every_window_of_the_share_once_per_pass(fraction, epochs, batch_size, seed):
    plan = plan_of(epochs, 8)
    share = Share(WINDOWS, plan, fraction, batch_size=batch_size, seed=seed)
    steps, (numbers, sizes) = list(share.updates), zip(*share.updates.values()) if share.updates else ((), ())
    assert list(numbers) == list(range(len(steps))) and steps == sorted(steps)
    assert sum(sizes) == sum(int(share.contains[index].sum()) for index in plan.batches)
    assert all(batch_size <= size < batch_size + 8 for size in sizes[:-1])
    assert not sizes or 0 < sizes[-1] < batch_size + 8


@given(small=st.floats(0.01, 1), large=st.floats(0.01, 1), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_shares_are_nested_and_hold_whole_examples(small, large, seed):
    small, large = sorted([small, large])
    one, other = (Share(WINDOWS, plan_of(1, 8), f, batch_size=8, seed=seed) for f in (small, large))
    assert not (one.seen & ~other.seen).any()
    assert set(WINDOWS.example[one.seen]).isdisjoint(WINDOWS.example[~one.seen])
    assert len(set(WINDOWS.example[one.seen])) == max(1, round(small * len(DATA["train"].records)))
    assert len(WINDOWS) > len(DATA["train"].records)
