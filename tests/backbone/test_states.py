"""States of some layers: which are asked for, and which are there."""

import pytest
import torch

from bertvision.backbone.states import POOLED, States, numbered, spelt, together
from bertvision.errors import UserError


def states_of(*numbers: int) -> States:
    """Each state is the number of its layer."""
    layers = torch.tensor(numbers, dtype=torch.float)[None, :, None, None].expand(2, -1, 3, 4)
    return States(layers, torch.ones(2, 3, dtype=torch.bool), numbers)


def test_a_layer_is_found_by_its_number():
    whole = States(states_of(0, 1, 2).layers, torch.ones(2, 3, dtype=torch.bool))
    for states in (whole, states_of(0, 2), states_of(2), states_of(1, 2).detach()):
        assert (states.layer(2) == 2).all() and states.layer(2).shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"layer 0 is not among \[2\]"):
        states_of(2).layer(0)


@pytest.mark.parametrize(
    ("reads", "wanted"),
    [("last", (2,)), ("all", (0, 1, 2)), ((POOLED,), (POOLED,)), ((POOLED, 1), (POOLED, 1)), ((1, 2), (1, 2))],
)
def test_no_more_layers_than_asked_for(reads, wanted):
    states = states_of(POOLED, 0, 1, 2).only(reads)
    assert states.layers[0, :, 0, 0].tolist() == list(wanted) and states.numbers == wanted
    assert states.only(reads) is states


@pytest.mark.parametrize(
    ("several", "wanted"),
    [
        ([], "last"),
        (["last", "last"], "last"),
        (["last", "all"], "all"),
        (["last", (1,)], (1, 3)),
        ([(0, 2), (1, 2)], (0, 1, 2)),
        ([(0, 1, 2), "last"], "all"),
        ([(3,)], "last"),
        (["last", (POOLED,)], (POOLED, 3)),
        (["all", (POOLED,)], (POOLED, 0, 1, 2, 3)),
        ([(POOLED, 1, 2, 3)], (POOLED, 1, 2, 3)),
    ],
)
def test_what_several_read_together(several, wanted):
    assert together(several, 4) == wanted


@pytest.mark.parametrize("reads", [(), (4,), (-2,), (2, 1), (1, 1)])
def test_layers_that_cannot_be(reads):
    with pytest.raises(UserError, match="name some of 0 to 3, each once, in rising order"):
        numbered(reads, 4)


def test_how_they_are_spelt():
    assert [spelt(reads) for reads in ("all", "last", (0, 6, 12))] == ["all", "last", "0,6,12"]


def test_cls_is_contiguous_however_the_states_lie():
    """A product with a view copies the weights once per row: heads on [CLS] beside heads on all tokens, in one bank,
    took a hundred times as long."""
    layers = torch.randn(4, 5, 3, 8).transpose(1, 2)  # (batch, layer, token, width), token by token as in a store
    states = States(layers, torch.ones(4, 5, dtype=torch.bool))
    assert states.cls().layers.is_contiguous() and torch.equal(states.cls().layers, layers[:, :, :1])
