"""The spans task: its sets, its loss, its ensembles, its thresholds and its scores."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from bertvision.data.batches import Batch, collate
from bertvision.data.sources import is_synthetic
from bertvision.data.squad import records
from bertvision.evaluate.squad import score
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks import Dataset, Spans
from bertvision.tasks.decode import SpanPredictions

SAMPLE = DataRecipe(train="sample:train:200", tune="sample:tune:40", test="sample:test:60")


@pytest.fixture(scope="module")
def sets(tokenizer):
    return Spans().load(SAMPLE, tokenizer, seed=0)


def titles(dataset: Dataset) -> set[str]:
    return {article["title"] for article in dataset.articles}


def test_the_three_sets_of_a_recipe(sets):
    assert {name: len(each.records) for name, each in sets.items()} == {"train": 200, "tune": 40, "test": 60}
    assert [each.source for each in sets.values()] == ["sample:train:200", "sample:tune:40", "sample:test:60"]
    for each in sets.values():
        assert sorted(set(each.windows.example.tolist())) == list(range(len(each.records)))
        assert [record.id for record in records(each.articles)] == [record.id for record in each.records]


def test_a_tune_set_is_split_off_by_article(tokenizer):
    recipe = DataRecipe(train="sample:train:200", tune="", test="sample:test:60", tune_share=0.25)
    one, same, other = (Spans().load(recipe, tokenizer, seed=seed) for seed in (0, 0, 1))
    assert len(one["train"].records) + len(one["tune"].records) == 200
    assert 20 <= len(one["tune"].records) <= 80
    assert not titles(one["train"]) & titles(one["tune"])
    assert titles(one["tune"]) == titles(same["tune"])
    assert titles(one["tune"]) != titles(other["tune"])
    assert one["tune"].source == "sample:train:200, 25 % of it, by article"
    assert is_synthetic(one["tune"].source)  # the report must still be able to tell


def test_a_fraction_is_part_of_a_larger_and_of_training_alone(tokenizer):
    ids = {}
    for fraction, limit in ((0.1, 0), (0.5, 30), (0.5, 0), (1.0, 150), (1.0, 0)):
        found = Spans().load(replace(SAMPLE, fraction=fraction, limit=limit), tokenizer, seed=0)
        ids[fraction, limit] = {record.id for record in found["train"].records}
        assert (len(found["tune"].records), len(found["test"].records)) == (40, 60)
    assert [len(each) for each in ids.values()] == [20, 30, 100, 150, 200]
    assert all(less < more for less, more in pairwise(ids.values()))


def batch_of(sets, size: int = 6) -> Batch:
    return collate(sets["train"].windows, np.arange(size))


def test_the_loss_is_the_mean_of_two_cross_entropies(sets):
    batch = batch_of(sets)
    assert not bool(batch.mask.all())
    logits = torch.randn(*batch.ids.shape, 2, generator=torch.Generator().manual_seed(0))
    expected = []
    for row, target in zip(range(len(batch.ids)), batch.targets.tolist()):
        real = logits[row, batch.mask[row]]
        expected += [-torch.log_softmax(real[:, side], dim=0)[target[side]] for side in (0, 1)]
    assert float(Spans().loss(logits, batch)) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)


def test_the_loss_neither_sees_nor_moves_padding(sets):
    batch = batch_of(sets)
    logits = torch.randn(*batch.ids.shape, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = Spans().loss(logits, batch)
    loss.backward()
    assert bool(logits.grad.isfinite().all())
    assert bool((logits.grad[~batch.mask] == 0).all())
    wider = torch.cat([logits.detach(), torch.full((len(logits), 5, 2), 99.0)], dim=1)
    padded = [torch.nn.functional.pad(each, (0, 5)) for each in (batch.ids, batch.types, batch.mask)]
    assert float(Spans().loss(wider, Batch(batch.index, *padded, batch.targets))) == pytest.approx(loss.item())


def gold_predictions(dataset: Dataset, doubts: np.ndarray) -> SpanPredictions:
    """The right answer everywhere, some word where there is none."""
    texts = [[record.answers[0] if record.answers else record.context.split()[0]] for record in dataset.records]
    count = len(texts)
    ids = [record.id for record in dataset.records]
    return SpanPredictions(ids, texts, np.zeros((count, 1, 2), np.int64), np.zeros((count, 1)), doubts)


def test_the_threshold_with_the_best_f1_is_chosen(sets):
    test = sets["test"]
    has = np.array([record.has_answer for record in test.records])
    assert 0 < has.sum() < len(has)
    perfect = gold_predictions(test, np.where(has, 1.0, 3.0))
    threshold = Spans().choose(perfect, test)
    assert threshold == 2.0
    scores = Spans().scores(perfect, test, threshold)
    assert scores["exact"] == scores["f1"] == scores["HasAns_f1"] == scores["NoAns_f1"] == 100.0
    noisy = gold_predictions(test, np.random.default_rng(0).normal(size=len(has)))
    best = max(score(test.articles, noisy.answers(t))["f1"] for t in [*noisy.no_answer, -np.inf])
    assert score(test.articles, noisy.answers(Spans().choose(noisy, test)))["f1"] == pytest.approx(best)


def test_scores_are_the_official_ones_and_those_of_the_spans(sets):
    test = sets["test"]
    found = gold_predictions(test, np.full(len(test.records), 1.0))  # every answer is doubted
    scores = Spans().scores(found, test, 0.0)
    assert {key: scores[key] for key in score(test.articles, found.answers())} == score(test.articles, found.answers())
    assert scores["HasAns_f1"] == 0.0
    assert scores["HasAns_spans_f1"] == 100.0  # with "no answer" switched off, all are right
    assert scores["total"] == 60


def test_nothing_learnt_says_that_there_is_no_answer(sets):
    none = 100 * sum(not record.has_answer for record in sets["test"].records) / len(sets["test"].records)
    assert Spans().constant(sets["test"]) == {"says": "no answer", "exact": none, "f1": none}


def test_scores_without_answerable_questions_are_still_json(tokenizer):
    article = {
        "title": "A",
        "paragraphs": [{"context": "Ada.", "qas": [{"id": "1", "question": "Who?", "answers": []}]}],
    }
    dataset = Spans().from_articles("x", [article], tokenizer, DataRecipe())
    scores = Spans().scores(gold_predictions(dataset, np.array([1.0])), dataset, 0.0)
    json.dumps(scores, allow_nan=False)
    assert scores["f1"] == 100.0
    assert "HasAns_spans_f1" not in scores


def test_a_collector_follows_the_recipe(sets):
    options = EvaluateRecipe(decoding="independent", answer_tokens=7, nbest=3)
    collector = Spans().collector(sets["test"], options)
    windows = sets["test"].windows
    for n in range(len(windows)):
        collector.add(np.array([n]), torch.randn(1, int(windows.lengths[n]), 2))
    found = collector.finish()
    assert found.ids == [record.id for record in sets["test"].records]
    assert found.scores.shape == (60, 3)
    assert np.isfinite(found.scores).all()
    assert collector.options == {"nbest": 3, "answer_tokens": 7, "rule": "independent"}


@pytest.mark.parametrize("option", ["negatives", "edited"])
def test_unanswerable_questions_are_added_to_training_alone(tokenizer, option):
    recipe = DataRecipe("sample:train:200", "sample:tune:40", "sample:test:60")
    plain, more = (Spans().load(replace(recipe, **{option: n}), tokenizer, 0) for n in (0.0, 1.0))
    assert len(more["train"].records) > len(plain["train"].records)
    assert sum(record.has_answer for record in more["train"].records) == sum(
        record.has_answer for record in plain["train"].records
    )
    assert all(len(more[split].records) == len(plain[split].records) for split in ("tune", "test"))


def test_points_give_every_score_again(sets):
    test = sets["test"]
    found = gold_predictions(test, np.random.default_rng(0).normal(size=len(test.records)))
    points, scores = Spans().points(found, test, 0.2), Spans().scores(found, test, 0.2)
    assert set(points.metrics) == {"exact", "f1", "HasAns_f1", "NoAns_f1", "HasAns_spans_f1"}
    for name, metric in points.metrics.items():
        assert metric(points.values) == pytest.approx(scores[name])
    half = np.arange(0, len(test.records), 2)
    assert points.metrics["f1"](points.values[half]) == pytest.approx(100 * points.values[half, 1].mean())


def test_log_probabilities_are_over_the_real_tokens(sets):
    batch = batch_of(sets)
    logits = torch.randn(*batch.ids.shape, 2, generator=torch.Generator().manual_seed(0))
    kept = Spans().log_probabilities(logits, batch.mask)[batch.mask]
    assert kept.shape == (batch.tokens, 2)
    first = int(batch.mask[0].sum())
    torch.testing.assert_close(kept[:first], logits[0, :first].log_softmax(dim=0))
