"""Prediction: one pass for all members, the same whatever the batches, and nothing kept that grows with the data."""

import math
import time
import weakref

import numpy as np
import pytest
import torch

from bertvision.backbone.backbone import Backbone
from bertvision.data.batches import collate
from bertvision.errors import UserError
from bertvision.heads.last import Last
from bertvision.heads.pool import Pool
from bertvision.recipe import EvaluateRecipe
from bertvision.tasks import TASKS
from bertvision.tasks.decode import SpanCollector
from bertvision.train.bank import HeadBank
from bertvision.train.predict import Joined, Pass, predict
from bertvision.train.progress import Journal
from encoders import FAMILIES, save_tiny
from runs import articles, encoder, load, peak_of_prediction, questions, recipe_of

JOURNAL = Journal(quiet=True)
ENTRIES = [
    {"kind": "last"},
    {"kind": "pool"},
    {"kind": "conv", "form": "grid", "dropout": 0.5},
    {"kind": "cacnn"},
    {"kind": "attend", "form": "encoder"},
]
RECIPE = recipe_of()
BACKBONE, TASK, DATA = load(RECIPE)
BANK = HeadBank(ENTRIES, layers=BACKBONE.layers, width=BACKBONE.width, task="spans", seed=3)
MEMBERS = dict(BANK.items())
PAIRS = {"both": Joined(("last", "pool"))}


def run(batch_tokens: int = 4096, members=MEMBERS, backbone=BACKBONE, data=DATA, ensembles=PAIRS, **options) -> Pass:
    settings = EvaluateRecipe(nbest=3, batch_tokens=batch_tokens, **options)
    return predict(backbone, members, TASK, data["test"], settings, JOURNAL, ensembles=ensembles)


def assert_close(one: Pass, other: Pass) -> None:
    assert one.predictions.keys() == other.predictions.keys()
    for name, found in one.predictions.items():
        expected = other.predictions[name]
        assert found.ids == expected.ids
        assert found.best() == expected.best(), name
        assert found.answers(0.5) == expected.answers(0.5), name
        kept = np.isfinite(found.scores)
        assert (kept == np.isfinite(expected.scores)).all()
        assert np.abs(found.scores[kept] - expected.scores[kept]).max() < 1e-4
        assert np.abs(found.no_answer - expected.no_answer).max() < 1e-4


@pytest.mark.parametrize("batch_tokens", [1, 64, 200, 100_000])
def test_the_size_of_batches_does_not_matter(batch_tokens):
    assert_close(run(batch_tokens), run(333))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
def test_nor_does_it_with_any_family(family):
    backbone, _, data = load(recipe_of(backbone={"name": encoder(family)}))
    bank = HeadBank([{"kind": "pool"}, {"kind": "last"}], layers=backbone.layers, width=backbone.width, task="spans")
    members = dict(bank.items())
    one, other = (run(size, members, backbone, data) for size in (1, 500))
    assert_close(one, other)


def test_members_do_not_notice_each_other():
    together = run()
    for name, head in MEMBERS.items():
        alone = run(members={name: head}, ensembles={})
        assert_close(alone, Pass({name: together.predictions[name]}, {}))


def test_dropout_is_off_even_if_the_members_come_in_training_mode():
    BANK.train()
    BACKBONE.train()
    assert_close(run(), run())
    assert not BACKBONE.training and not any(head.training for head in MEMBERS.values())


def test_an_ensemble_takes_the_larger_probability_of_each_token():
    """By hand, for every window: softmax of each member, the larger of the two, then the best legal pair."""
    windows, records = DATA["test"].windows, DATA["test"].records
    found = run().predictions["both"]
    checked = 0
    for number in range(len(windows)):
        batch = collate(windows, np.array([number]), BACKBONE.pad)
        with torch.no_grad():
            states = BACKBONE.eval()(batch)
            members = [MEMBERS[name].eval()(states)[0].softmax(dim=0) for name in PAIRS["both"].parts]  # (S, 2)
        start, end = torch.maximum(*members).log().double().unbind(dim=1)
        begin, stop = int(windows.context_at[number]), int(windows.context_end[number])
        pairs = {
            (first, last): (start[first] + end[last]).item()
            for first in range(begin, stop)
            for last in range(first, min(stop, first + 30))
        }
        best = max(pairs, key=pairs.__getitem__)
        row = int(windows.example[number])
        assert list(windows.example).count(row) == 1  # one window per question here
        assert found.scores[row, 0] == pytest.approx(pairs[best], abs=1e-4)
        assert found.no_answer[row] == pytest.approx((start[0] + end[0]).item() - pairs[best], abs=1e-4)
        chars = windows.span_chars(np.array([number]), np.array([best[0]]), np.array([best[1]]))[0]
        assert found.best()[records[row].id] == records[row].context[chars[0] : chars[1]]
        checked += 1
    assert checked == 24


def test_an_ensemble_of_equals_is_the_member_itself():
    twice = run(ensembles={"twice": Joined(("pool", "pool"))}).predictions
    assert twice["twice"].best() == twice["pool"].best()
    assert np.allclose(twice["twice"].no_answer, twice["pool"].no_answer, atol=1e-4)


def test_seconds_are_those_each_would_have_needed_alone(monkeypatch):
    """Every part is made to take longer than the rest of the test."""

    def slow(cls: type, method: str) -> None:
        real = getattr(cls, method)
        monkeypatch.setattr(cls, method, lambda self, *args: (time.sleep(0.3), real(self, *args))[1])

    for cls, method in ((Backbone, "encode"), (Last, "forward"), (Pool, "forward"), (SpanCollector, "finish")):
        slow(cls, method)
    seconds = run(members={name: MEMBERS[name] for name in ("last", "pool")}).seconds
    assert seconds["last"] == pytest.approx(0.9, abs=0.25)
    assert seconds["pool"] == pytest.approx(0.9, abs=0.25)  # decoding is part of it
    assert seconds["both"] == pytest.approx(1.2, abs=0.25)  # one pass, both heads, and its own decoding alone


def broken() -> HeadBank:
    """Two heads, the second of broken numbers."""
    entries = [{"kind": "pool"}, {"kind": "pool", "name": "broken"}]
    bank = HeadBank(entries, layers=BACKBONE.layers, width=BACKBONE.width, task="spans")
    bank["broken"].readout.weight.data.fill_(math.nan)
    return bank


def test_a_head_of_broken_numbers_is_dropped_with_its_ensembles(tmp_path):
    members, journal = dict(broken().items()), Journal(tmp_path / "log.jsonl", quiet=True)
    pairs = {"both": Joined(("pool", "broken")), "twice": Joined(("pool", "pool"))}
    settings = EvaluateRecipe(nbest=3, batch_tokens=64)
    found = predict(BACKBONE, members, TASK, DATA["test"], settings, journal, ensembles=pairs, keep=True)
    assert list(found.predictions) == list(found.seconds) == ["pool", "twice"]
    assert list(found.log_probabilities) == ["pool"]
    assert list(found.dropped) == ["broken"] and "not finite" in found.dropped["broken"]
    assert (tmp_path / "log.jsonl").read_text().count("broken is dropped: its logits are not finite") == 1
    assert_close(
        Pass({"pool": found.predictions["pool"]}, {}), run(64, members={"pool": members["pool"]}, ensembles={})
    )


def test_a_backbone_of_broken_numbers_is_an_error():
    with pytest.raises(UserError, match="backbone: its logits are not finite; tune it again with a lower"):
        run(members={"backbone": broken()["broken"]}, ensembles={})


def test_heads_that_read_cls_are_given_no_more(monkeypatch):
    recipe = recipe_of(task="labels")
    task = TASKS["labels"]()
    data = task.load(recipe.data, BACKBONE.tokenizer, seed=0)["test"]
    shape = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "labels", "outputs": task.outputs}
    bank, seen, forward = HeadBank([{"kind": "pool"}, {"kind": "last"}], **shape), [], Pool.forward

    def watched(self, states):
        seen.append(states.layers.shape[2])
        return forward(self, states)

    monkeypatch.setattr(Pool, "forward", watched)
    predict(BACKBONE, dict(bank.items()), task, data, recipe.evaluate, JOURNAL)
    assert set(seen) == {1}


def test_states_and_logits_live_no_longer_than_their_batch():
    kept: list[weakref.ref] = []

    class Watched(type(MEMBERS["last"])):
        def forward(self, states):
            logits = super().forward(states)
            kept.extend((weakref.ref(states.layers), weakref.ref(logits)))
            return logits

    def all_gone(*_: object) -> None:
        assert not any(reference() is not None for reference in kept)

    watching = BACKBONE.register_forward_pre_hook(all_gone)
    try:
        run(64, members={"watched": Watched(BACKBONE.layers, BACKBONE.width, 2, task="spans")}, ensembles={})
    finally:
        watching.remove()
    assert len(kept) > 10


def test_memory_does_not_grow_with_the_data(tmp_path):
    """Peaks of 12,000 windows and of 1,000: of a window only its candidates and its null score are kept."""
    name = str(save_tiny(tmp_path, "bert", num_hidden_layers=1, intermediate_size=32))
    small, large = (peak_of_prediction(name, questions(12_000, 9), count) for count in (1_000, 12_000))
    assert large - small < 200


def test_the_data_of_these_tests_is_what_it_claims():
    found = [qa for article in articles(30) for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    assert len(found) == 30 and sum(qa["is_impossible"] for qa in found) == 10
