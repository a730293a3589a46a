"""Runtime on one CPU process."""

import numpy as np
import torch

from bertvision.backbone.states import States
from bertvision.data.batches import Batch
from bertvision.runtime import CPU, Runtime


def test_a_seed_is_its_own_and_leaves_the_others_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with CPU.seed(1, "pool", 0):
        first = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    with CPU.seed(1, "pool", 0):
        assert torch.equal(torch.rand(4), first)
    with CPU.seed(1, "pool", 1):
        assert not torch.equal(torch.rand(4), first)


def test_things_go_to_the_device():
    meta = Runtime(device="meta")
    states = States(torch.zeros(1, 2, 3, 4), torch.ones(1, 3, dtype=torch.bool), (0, 1))
    moved = meta.to(states)
    assert moved.layers.device.type == moved.mask.device.type == "meta" and moved.numbers == (0, 1)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    batch = Batch(np.arange(1), ids, ids, states.mask, ids)
    assert CPU.to(batch).ids is ids and CPU.to(batch).index is batch.index
    assert meta.to(torch.nn.Linear(2, 2)).weight.device.type == "meta"


def test_one_process_is_the_main_one():
    assert CPU.is_main and not Runtime(rank=1, world=2).is_main
    assert 0 < CPU.clock() <= CPU.clock()
