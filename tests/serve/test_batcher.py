"""The queue in front of the model: nothing lost, nothing mixed up, never more than it may hold."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.serve.batcher import Batch, Batcher
from bertvision.serve.config import Cutting
from bertvision.serve.server import Limits


def doubled(kind, works, wanted):
    if "bad" in works:
        raise ValueError("bad work")
    return [(kind, work * 2) for work in works]


def size(kind, work):
    return len(str(work))


class Gated:
    """`doubled`, but it waits until the gate is open; `begun` is set when it is at work."""

    def __init__(self):
        self.gate, self.begun = threading.Event(), threading.Event()

    def __call__(self, kind, works, wanted):
        self.begun.set()
        assert self.gate.wait(30)
        return doubled(kind, works, wanted)


@settings(max_examples=30)
@given(
    orders=st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.text(max_size=6), max_size=6)), max_size=12),
    budget=st.integers(1, 30),
)
def test_every_order_gets_its_own_results_within_the_budget(orders, budget):
    batches: list[Batch] = []
    batcher = Batcher(doubled, size, batch_tokens=budget, queue=100, observe=batches.append)

    async def run():
        return await asyncio.gather(*(batcher.submit(kind, works) for kind, works in orders))

    found = asyncio.run(run())
    batcher.close()
    assert found == [[(kind, work * 2) for work in works] for kind, works in orders]
    assert sum(batch.questions for batch in batches) == sum(len(works) for _, works in orders)
    assert all(batch.tokens <= budget or batch.questions == 1 for batch in batches)


def gathered(first, rest, **options):
    """The results of orders that arrive while the first is in the model, and the batcher, closed."""
    work = Gated()
    batcher = Batcher(work, size, queue=100, **options)

    async def run():
        tasks = [asyncio.create_task(batcher.submit(*first))]
        await asyncio.to_thread(work.begun.wait, 30)
        tasks += [asyncio.create_task(batcher.submit(*order)) for order in rest]
        await asyncio.sleep(0)
        work.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(run())
    batcher.close()
    return found, batcher


def test_what_waits_is_answered_in_one_pass_per_kind():
    batches = []
    gathered(("a", ["x"]), [(kind, [kind]) for kind in "abababab"], batch_tokens=100, observe=batches.append)
    assert [batch.questions for batch in batches] == [1, 4, 4]


def test_only_the_sender_of_what_is_wrong_hears_of_it():
    orders = [("a", works) for works in (["1"], ["2", "bad", "3"], ["4"])]
    (_, one, wrong, four), batcher = gathered(("a", ["x"]), orders, batch_tokens=1000)
    assert (one, four) == ([("a", "11")], [("a", "44")])
    assert isinstance(wrong, ValueError) and batcher.waiting == 0


@given(
    question=st.text("ab é日", min_size=1, max_size=200),
    context=st.text("ab é日\n", min_size=1, max_size=3000),
    cutting=st.builds(Cutting, st.integers(40, 400), st.integers(0, 39), st.sampled_from(["windows", "trim"])),
)
def test_the_estimated_cost_is_positive_and_grows_with_the_text(question, context, cutting):
    found = cutting.estimate(question, context)
    assert 0 < found <= cutting.estimate(question, context * 2)
    if cutting.too_long == "trim":
        assert found <= cutting.max_length


@pytest.mark.parametrize(
    "wrong", [{"body": 0}, {"timeout": float("nan")}, {"timeout": float("inf")}, {"queue": 10, "questions": 11}]
)
def test_impossible_limits_are_refused(wrong):
    with pytest.raises(UserError, match="limit"):
        Limits(**wrong)
