"""One learner: what a step does, what it leaves alone, and that its whole state goes into tensors and back."""

import math

import pytest
import torch

from bertvision.backbone.states import States
from bertvision.data.batches import Batch, collate
from bertvision.errors import UserError
from bertvision.heads import build_head
from bertvision.recipe import Training
from bertvision.runtime import fold
from bertvision.tasks import Spans
from bertvision.train.learner import Learner
from runs import load, recipe_of

SHAPE = {"layers": 4, "width": 32, "task": "spans"}
TASK = Spans()


@pytest.fixture(scope="module")
def batch() -> Batch:
    backbone, _, data = load(recipe_of())
    return collate(data["train"].windows, torch.arange(6).numpy(), backbone.pad)


@pytest.fixture
def states(batch) -> States:
    torch.manual_seed(0)
    return States(torch.randn(*batch.mask.shape, 4, 32).movedim(2, 1).contiguous(), batch.mask)


def learner(spec=None, seed: int = 1, rate: float = 0.01, **options: object) -> Learner:
    torch.manual_seed(7)
    head = build_head(spec or {"kind": "compress", "size": 4}, **SHAPE).train()
    return Learner("one", head, Training(learning_rate=rate, **options), steps=10, seed=seed)


def weights(one: Learner) -> dict[str, torch.Tensor]:
    return {key: parameter.detach().clone() for key, parameter in one.named.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_seeds_are_spread_and_stable():
    assert fold(1, "pool", 0) == fold(1, "pool", 0) != fold(1, "pool", 1)
    assert len({fold(seed, name) for seed in range(50) for name in ("a", "b")}) == 100
    assert all(0 <= fold(seed) < 2**63 for seed in range(50))


def test_learning_lowers_the_loss_and_takes_time(states, batch):
    one = learner()
    losses = []
    for step in range(10):
        one.learn(states, batch, TASK, step)
        losses.append(one.loss)
    assert losses[-1] < losses[0] - 0.1
    assert one.seconds > 0 and not one.stopped


def test_clipping_bounds_the_gradient(states, batch):
    """SGD would show it directly; of Adam it is seen in the moments, which are a tenth of the first gradient."""

    def norm(clip: float) -> float:
        one = learner(clip=clip)
        one.learn(states, batch, TASK, 0)
        moments = [value for key, value in one.state().items() if key.startswith("exp_avg.")]
        return 10 * torch.cat([moment.flatten() for moment in moments]).norm().item()

    free = norm(0)
    assert free > 0.02
    assert norm(100) == pytest.approx(free, rel=1e-5)
    assert norm(0.01) == pytest.approx(0.01, rel=1e-3)


def test_the_state_goes_into_tensors_and_back(states, batch):
    one, other = (learner({"kind": "conv", "form": "xception", "dropout": 0.1}) for _ in range(2))
    for each in (one, other):  # no head of ours keeps statistics, but one may
        each.head.register_buffer("seen", torch.zeros(()))
        each.head.register_forward_pre_hook(lambda head, inputs: head.seen.add_(1) and None)
    for step in range(3):
        one.learn(states, batch, TASK, step)
    kept, notes = {key: value.clone() for key, value in one.state().items()}, one.notes()
    one.learn(states, batch, TASK, 3)
    other.restore(kept, notes)
    assert same(other.state(), kept) and kept["now.head.seen"] == 3
    other.learn(states, batch, TASK, 3)
    assert same(one.state(), other.state()) and one.loss == other.loss


def test_dropout_depends_on_seed_name_and_step_alone(states, batch):
    spec = {"kind": "conv", "dropout": 0.5}

    def loss(seed: int, step: int) -> float:
        one = learner(spec, seed)
        torch.rand(step + 3)  # draws of others
        one.learn(states, batch, TASK, step)
        return one.loss

    assert loss(1, 0) == loss(1, 0)
    assert len({loss(1, 0), loss(1, 1), loss(2, 0)}) == 3


def test_a_head_alone_never_moves_the_backbone(states, batch):
    source = states.layers.requires_grad_()
    learner().learn(States(source, states.mask), batch, TASK, 0)
    assert source.grad is None


def test_a_loss_that_is_not_finite_stops_it_for_good(states, batch):
    one = learner()
    broken = States(states.layers * math.inf, states.mask)
    before = weights(one)
    one.learn(broken, batch, TASK, 4)
    assert one.stopped == "its loss became nan at step 4; a lower learning rate may help"
    one.learn(states, batch, TASK, 5)
    assert same(weights(one), before)


def test_a_gradient_that_is_not_finite_stops_it_before_it_does_harm(states, batch):
    one = learner({"kind": "last"})
    one.head.readout.weight.register_hook(lambda gradient: gradient * math.nan)
    before = weights(one)
    one.learn(states, batch, TASK, 2)
    assert math.isfinite(one.loss) and one.stopped.startswith("its gradient became nan at step 2")
    assert same(weights(one), before)


def test_judging_sees_what_the_last_update_did(states, batch):
    one = learner(rate=1e30)
    one.learn(states, batch, TASK, 0)
    assert not one.stopped
    before = weights(one)
    one.judge(states, batch, TASK, 1)
    assert "at step 1" in one.stopped and same(weights(one), before)


def test_with_a_backbone_it_is_an_error(states, batch):
    head = build_head({"kind": "last"}, **SHAPE)
    joint = Learner("backbone", head, Training(), steps=1, seed=0, backbone={})
    with pytest.raises(UserError, match="finetune: its loss became nan at step 0; a lower learning rate may help"):
        joint.learn(States(states.layers * math.nan, states.mask), batch, TASK, 0)
