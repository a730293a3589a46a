"""One pass for all ensembles of a checkpoint, the same whatever the batches; what members cost."""

import math
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch

from bertvision.data.batches import collate
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.heads.pool import Pool
from bertvision.recipe import EvaluateRecipe
from bertvision.tasks import TASKS
from bertvision.train.bank import HeadBank
from bertvision.train.progress import Journal
from bertvision.train.run_results import check_names
from bertvision.train.scoring import Pass, Setting, predict
from bertvision.train.study import Study
from encoders import FAMILIES, save_tiny
from runs import encoder, load, members_of, peak_of_prediction, questions, recipe_of

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
HEADS = members_of(BANK)
LAST, POOL = list(HEADS)[:2]
BOTH = Ensemble((LAST, POOL), chosen="pair")


def run(batch_tokens: int = 4096, heads=HEADS, backbone=BACKBONE, data=DATA, ensembles=(BOTH,), journal=JOURNAL):
    setting = Setting(TASK, EvaluateRecipe(nbest=3, batch_tokens=batch_tokens), journal)
    everything = [*map(Ensemble.of, heads), *ensembles]
    return predict(backbone, heads, everything, data["test"], setting, keep=True)


def assert_close(first: Pass, second: Pass) -> None:
    assert first.predictions.keys() == second.predictions.keys()
    for name, predictions in first.predictions.items():
        expected = second.predictions[name]
        assert predictions.ids == expected.ids
        assert predictions.best() == expected.best(), name
        assert predictions.answers(0.5) == expected.answers(0.5), name
        kept = np.isfinite(predictions.scores)
        assert (kept == np.isfinite(expected.scores)).all()
        assert np.abs(predictions.scores[kept] - expected.scores[kept]).max() < 1e-4
        assert np.abs(predictions.no_answer - expected.no_answer).max() < 1e-4


def test_the_loss_is_the_mean_over_windows():
    result, windows = run(200), DATA["test"].windows
    for member, logits in result.logits.items():
        losses = []
        for number, (first, last) in enumerate(pairwise(windows.starts)):
            targets = torch.tensor(windows.targets[number])
            log_shares = logits[first:last].double().log_softmax(dim=0)  # (S, 2)
            losses.append(-float(log_shares[targets, torch.arange(2)].mean()))
        assert result.losses[member] == pytest.approx(np.mean(losses), abs=1e-3), member


@pytest.mark.parametrize("batch_tokens", [1, 64, 200, 100_000])
def test_the_size_of_batches_does_not_matter(batch_tokens):
    assert_close(run(batch_tokens), run(333))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
def test_nor_does_it_with_any_family(family):
    backbone, _, data = load(recipe_of(backbone={"name": encoder(family)}))
    bank = HeadBank(ENTRIES[:2], layers=backbone.layers, width=backbone.width, task="spans")
    one, other = (run(size, members_of(bank), backbone, data) for size in (1, 500))
    assert_close(one, other)


def test_members_do_not_affect_each_other():
    together = run()
    for member, head in HEADS.items():
        one = Ensemble.of(member)
        assert_close(run(heads={member: head}, ensembles=()), Pass({one: together.predictions[one]}, {}))


def test_dropout_is_off_even_if_the_members_come_in_training_mode():
    BANK.train()
    BACKBONE.train()
    assert_close(run(), run())
    assert not BACKBONE.training and not any(head.training for head in HEADS.values())


def test_an_ensemble_takes_the_larger_probability_of_each_token():
    """By hand, for every window: softmax of each member, the larger of the two, then the best legal pair."""
    windows, records = DATA["test"].windows, DATA["test"].records
    predictions = run().predictions[BOTH]
    for number in range(len(windows)):
        batch = collate(windows, np.array([number]), BACKBONE.pad)
        with torch.no_grad():
            states = BACKBONE.eval()(batch)
            members = [HEADS[one].eval()(states)[0].softmax(dim=0) for one in BOTH.members]  # (S, 2)
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
        assert predictions.scores[row, 0] == pytest.approx(pairs[best], abs=1e-4)
        assert predictions.no_answer[row] == pytest.approx((start[0] + end[0]).item() - pairs[best], abs=1e-4)
        chars = windows.span_chars(np.array([number]), np.array([best[0]]), np.array([best[1]]))[0]
        assert predictions.best()[records[row].id] == records[row].context[chars[0] : chars[1]]
    assert len(windows) == 24


def test_the_older_rule_compares_probabilities_over_whole_windows():
    """Questions of several windows: each member's softmax over all tokens of a window; the best window wins."""
    data = load(recipe_of(data={"max_length": 16, "overlap": 2}))[2]["test"]
    windows, records = data.windows, data.records
    assert len(windows) > 1.3 * len(records)
    setting = Setting(TASK, EvaluateRecipe(decoding="independent", batch_tokens=333), JOURNAL)
    passed = predict(BACKBONE, HEADS, [*map(Ensemble.of, HEADS), BOTH], data, setting)
    for ensemble, predictions in passed.predictions.items():
        bids: dict[str, list[tuple[float, str]]] = {}
        for number in range(len(windows)):
            with torch.no_grad():
                states = BACKBONE.eval()(collate(windows, np.array([number]), BACKBONE.pad))
                shares = [HEADS[one].eval()(states)[0].softmax(dim=0) for one in ensemble.members]  # (S, 2)
            start, end = torch.stack(shares).amax(dim=0).T
            places = [0, *range(windows.context_at[number], windows.context_end[number])]
            first, last = (places[int(side[places].argmax())] for side in (start, end))
            record, text = records[int(windows.example[number])], ""
            if 0 < first <= last:
                chars = windows.span_chars(np.array(number), np.array(first), np.array(last)).tolist()
                text = record.context[slice(*chars)]
            bids.setdefault(record.id, []).append(((start[first] * end[last]).item(), text))
        assert predictions.answers() == {key: max(said)[1] for key, said in bids.items()}, ensemble.name


def test_an_ensemble_of_equals_is_the_member_itself():
    twice = Ensemble((POOL, POOL), chosen="pair")
    predictions = run(ensembles=[twice]).predictions
    assert predictions[twice].best() == predictions[Ensemble.of(POOL)].best()
    assert np.allclose(predictions[twice].no_answer, predictions[Ensemble.of(POOL)].no_answer, atol=1e-4)


def test_seconds_are_those_each_would_have_needed_alone(monkeypatch):
    """With a clock that every part moves on by a known amount."""
    now = [0.0]
    monkeypatch.setattr("bertvision.train.scoring.clock", lambda: now[0])

    def takes(cls: type, method: str, seconds: float) -> None:
        real = getattr(cls, method)

        def timed(self, *args):
            now[0] += seconds
            return real(self, *args)

        monkeypatch.setattr(cls, method, timed)

    collector = type(TASK.collector(DATA["test"], EvaluateRecipe()))
    parts = ((type(BACKBONE), "encode", 100.0), (type(HEADS[LAST]), "forward", 10.0), (Pool, "forward", 3.0))
    for cls, method, seconds in (*parts, (collector, "finish", 1.0)):
        takes(cls, method, seconds)
    seconds = run(100_000, heads={one: HEADS[one] for one in (LAST, POOL)}).seconds
    assert seconds == {Ensemble.of(LAST): 111.0, Ensemble.of(POOL): 104.0, BOTH: 114.0}


def broken() -> HeadBank:
    """Two heads, the second of broken numbers."""
    entries = [{"kind": "pool"}, {"kind": "pool", "name": "broken"}]
    bank = HeadBank(entries, layers=BACKBONE.layers, width=BACKBONE.width, task="spans")
    bank["broken"].readout.weight.data.fill_(math.nan)
    return bank


def test_a_head_of_broken_numbers_is_dropped_with_its_ensembles(tmp_path):
    heads = members_of(broken())
    pool, bad = heads
    twice = Ensemble((pool, pool), chosen="pair")
    log = tmp_path / "log.jsonl"
    pairs = [Ensemble((pool, bad), chosen="pair"), twice]
    result = run(64, heads, ensembles=pairs, journal=Journal(log, quiet=True))
    assert list(result.predictions) == list(result.seconds) == [Ensemble.of(pool), twice]
    assert list(result.logits) == [pool]
    assert list(result.dropped) == [bad] and "not finite" in result.dropped[bad]
    assert log.read_text().count("broken is dropped: its logits are not finite") == 1
    alone = run(64, {pool: heads[pool]}, ensembles=())
    assert_close(Pass({Ensemble.of(pool): result.predictions[Ensemble.of(pool)]}, {}), alone)


def test_a_backbone_of_broken_numbers_is_an_error():
    with pytest.raises(UserError, match="backbone: its logits are not finite; tune it again with a lower"):
        run(heads={Member("", 1, 1.0): broken()["broken"]}, ensembles=())


def test_heads_that_read_cls_are_given_no_more(monkeypatch):
    recipe = recipe_of(task="labels")
    task = TASKS["labels"]()
    data = task.load(recipe.data, BACKBONE.tokenizer, seed=0)["test"]
    shape = {"layers": BACKBONE.layers, "width": BACKBONE.width, "task": "labels", "outputs": task.outputs}
    heads, seen, forward = members_of(HeadBank([{"kind": "pool"}, {"kind": "last"}], **shape)), [], Pool.forward

    def watched(self, states):
        seen.append(states.layers.shape[2])
        return forward(self, states)

    monkeypatch.setattr(Pool, "forward", watched)
    predict(BACKBONE, heads, [*map(Ensemble.of, heads)], data, Setting(task, recipe.evaluate, JOURNAL))
    assert set(seen) == {1}


def test_states_and_logits_live_no_longer_than_their_batch(monkeypatch):
    kept: list[weakref.ref] = []
    forward = Pool.forward

    def watched(self, states):
        logits = forward(self, states)
        kept.extend((weakref.ref(states.layers), weakref.ref(logits)))
        return logits

    def all_gone(*_: object) -> None:
        assert not any(reference() is not None for reference in kept)

    monkeypatch.setattr(Pool, "forward", watched)
    watching = BACKBONE.register_forward_pre_hook(all_gone)
    try:
        run(64, heads={POOL: HEADS[POOL]}, ensembles=())
    finally:
        watching.remove()
    assert len(kept) > 10


def test_memory_does_not_grow_with_the_data(tmp_path):
    """Peaks of 12,000 windows and of 1,000: of a window only its candidates and its null score are kept."""
    name = str(save_tiny(tmp_path, "bert", num_hidden_layers=1, intermediate_size=32))
    small, large = (peak_of_prediction(name, questions(12_000, 9), count) for count in (1_000, 12_000))
    assert large - small < 200


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    directory = tmp_path_factory.mktemp("members") / "run"
    brief = {"epochs": 1, "checkpoints": [], "batch_size": 8}
    bank = {"fractions": [1.0, 0.5], "checkpoints": [0.5, 1]}
    made = Study(recipe_of(finetune=brief, heads=[{"kind": "pool"}], bank=bank), directory, quiet=True)
    made.begin()
    made.tune(1)
    made.train(1, 1.0)
    made.score(1, 1.0)
    return made


def test_heads_of_an_earlier_epoch_are_scored_beside_those_of_the_last(study):
    rows = {row["member"]: row for row in study.rows() if row["threshold_from"] == "tune"}
    assert set(rows) == {
        *("backbone", "pool", "pool @ 50 %", "pool, epoch 0.5", "pool @ 50 %, epoch 0.5", "backbone + best head")
    }
    assert rows["pool, epoch 0.5"]["head_epochs"] == 0.5 and "head_epochs" not in rows["pool"]
    assert rows["pool @ 50 %"]["fraction"] == 0.5 and "fraction" not in rows["pool"]
    loaded = study.members(1, 1.0)
    last = Member("pool", 1, 1.0)
    early, late = (loaded.heads[one].readout.weight for one in (Member("pool", 1, 1.0, 1.0, 0.5), last))
    assert early.shape == late.shape and not early.equal(late)  # it went on learning
    assert rows["pool, epoch 0.5"]["head_seconds"] < rows["pool"]["head_seconds"]
    # pairs are made with heads that have seen everything, to the end
    assert [one.members for one in loaded.pairs(["max"])] == [(Member("", 1, 1.0), last)]


def test_what_members_take(study):
    rows = {row["member"]: row for row in study.rows() if row["threshold_from"] == "tune"}
    head = study.members(1, 1.0).heads[Member("pool", 1, 1.0)].parameter_count()
    backbone, pool, both = rows["backbone"], rows["pool"], rows["backbone + best head"]
    assert pool["parameters"] == head and backbone["parameters"] == backbone["total_parameters"]  # all of it trains
    assert both["total_parameters"] == backbone["total_parameters"] + head
    assert both["disk_bytes"] == backbone["disk_bytes"] + 4 * head
    assert backbone["head_seconds"] == 0 and backbone["train_seconds"] == backbone["tuning_seconds"] > 0
    assert pool["tuning_seconds"] == backbone["tuning_seconds"] and pool["head_seconds"] > 0
    assert pool["train_seconds"] == pytest.approx(pool["tuning_seconds"] + pool["head_seconds"], abs=2e-3)


@pytest.mark.parametrize(
    "heads, bank, hows",
    [
        (["pool, mean", "pool"], {}, ["max", "mean"]),
        (["pool", "pool @ 50 %"], {"fractions": [1.0, 0.5]}, ["max"]),
        (["pool", "pool, epoch 0.5"], {"checkpoints": [0.5]}, ["max"]),
        (["pool", "backbone + pool"], {}, ["max"]),
        (["greedy ensemble"], {}, ["max"]),
        (["Backbone + best head"], {}, ["mean"]),
        (["ensemble (mean)"], {}, ["max"]),
    ],
)
def test_names_of_two_things_are_refused(heads, bank, hows):
    entries = [{"kind": "pool", "name": name} for name in heads]
    with pytest.raises(UserError, match=r"heads: .* is also the name of another"):
        check_names(recipe_of(heads=entries, bank=bank, evaluate={"ensembles": hows}))
    check_names(recipe_of(heads=[{"kind": "pool", "name": name} for name in ("a", "b", "a + b", "backbone + c")]))


@pytest.mark.parametrize(
    "name, says", [("x" * 300, "is too long"), ("x" * 195, "is too long"), ("..", "begins with a dot")]
)
def test_names_that_are_no_file_names_are_refused_before_training(name, says, tmp_path):
    """195 letters are too many with `backbone+` before them."""
    with pytest.raises(UserError, match=f"heads: .*{says}"):
        Study(recipe_of(heads=[{"kind": "pool", "name": name}]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
