from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from bertvision.data.batches import BatchPlan
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.data.windows import Windows, make_windows
from bertvision.errors import UserError
from bertvision.recipe import BankRecipe
from bertvision.states.layout import Selection
from bertvision.states.store import Source, live, stored
from bertvision.states.write import shard_batches, write_store
from bertvision.tasks import Spans
from bertvision.train.bank import HeadBank
from bertvision.train.learner import Learner
from bertvision.train.loop import Feed, Job, Plan, fit
from bertvision.train.progress import Journal
from states.stores import LENGTHS, tiny_backbone, windows_of

STEPS = 100
BATCH_TOKENS = 1024


@cache
def questions() -> Windows:
    return make_windows(tiny_backbone().tokenizer, records(load_articles("sample:train:40")), 128, 32)


def train(source: Source, plan: BatchPlan, place: Path) -> dict[str, Learner]:
    """A pool and a compress head after the plan."""
    backbone = tiny_backbone()
    shape = {"layers": backbone.layers, "width": backbone.width, "task": "spans"}
    bank = HeadBank([{"kind": "pool"}, {"kind": "compress", "size": 8}], **shape)
    recipe = BankRecipe(learning_rate=1e-2)
    learners = [Learner(name, head.train(), recipe, steps=len(plan), seed=0) for name, head in bank.items()]
    job = Job(place, "heads", 0, "", 1e9, Journal(quiet=True))
    fit(learners, Feed(questions(), source, backbone.pad), Plan(Spans(), plan, job))
    return {learner.name: learner for learner in learners}


def test_fp32_training_is_the_same_bit_for_bit(tmp_path):
    backbone, windows = tiny_backbone(), questions()
    store = write_store(tmp_path / "store", backbone, windows, Selection("fp32"), batch_tokens=BATCH_TOKENS)
    # in the company they were stored in: only then matrix products round alike on every machine
    company = [index for part in store.manifest.shards for index in shard_batches(windows.lengths, part, BATCH_TOKENS)]
    plan = BatchPlan(windows.lengths, epochs=1, batch_size=1, batch_tokens=1, seed=0)
    random = np.random.default_rng(0)
    plan.batches = [company[random.integers(len(company))] for _ in range(STEPS)]
    alive, read = train(live(backbone), plan, tmp_path), train(stored(store), plan, tmp_path)
    for name, learner in alive.items():
        assert learner.loss == read[name].loss
        for key, tensor in learner.state().items():
            assert torch.equal(tensor, read[name].state()[key]), (name, key)


@pytest.mark.parametrize("dtype, within", [("fp32", 1e-5), ("fp16", 1e-3)])
def test_training_agrees_in_any_company(tmp_path, dtype, within):
    backbone, windows = tiny_backbone(), questions()
    store = write_store(tmp_path / "store", backbone, windows, Selection(dtype), shard_bytes=1 << 20)
    plan = BatchPlan(windows.lengths, epochs=50, batch_size=8, batch_tokens=BATCH_TOKENS, seed=0)
    plan.batches = plan.batches[:STEPS]
    assert len(plan) == STEPS
    alive, read = train(live(backbone), plan, tmp_path), train(stored(store), plan, tmp_path)
    for name, learner in alive.items():
        assert abs(learner.loss - read[name].loss) < within, name


def test_a_source_never_gives_less_than_heads_read(tmp_path):
    backbone, windows = tiny_backbone(), windows_of(LENGTHS)
    store = write_store(tmp_path, backbone, windows, Selection("fp16", "last", "cls"))
    stored(store, "last", "cls")
    with pytest.raises(
        UserError, match="holds fp16 states of last layers and cls positions, these heads read all layers"
    ):
        stored(store, "all", "cls")
    with pytest.raises(UserError, match="use live states"):
        stored(store, "last")
