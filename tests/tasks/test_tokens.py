"""Token labels: windows that cover every word once, entity scores as seqeval counts them, and a study end to end."""

import dataclasses
import json
import random

import numpy as np
import pytest
import seqeval.metrics as oracle
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.data.batches import collate
from bertvision.data.conll import Sentence
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.serve.reader import Reader
from bertvision.tasks import Dataset
from bertvision.tasks.base import Judged
from bertvision.tasks.tokens import NONE, TokenPredictions, Tokens, entities, make_windows
from checks import shown
from encoders import plain_tokenizer
from runs import encoder
from tables import conll

LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def dataset(sentences: list[list[str]]) -> Dataset:
    records = [Sentence(str(n), tuple("the" for _ in labels), tuple(labels)) for n, labels in enumerate(sentences)]
    return Dataset("set", [], records, make_windows(plain_tokenizer(), records, LABELS, 32, 8))


def said(sentences: list[list[str]]) -> TokenPredictions:
    return TokenPredictions([str(n) for n in range(len(sentences))], [tuple(labels) for labels in sentences])


@st.composite
def two_labelings(draw):
    """Any labels at all, also those that no scheme allows, twice for the same words."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    label = st.sampled_from(LABELS)
    return [[draw(st.lists(label, min_size=size, max_size=size)) for size in sizes] for _ in range(2)]


@given(two_labelings())
@pytest.mark.filterwarnings("ignore")  # seqeval warns where a score has no meaning and is 0
def test_scores_are_those_of_seqeval(pair):
    gold, predicted = pair
    found = Tokens(LABELS).scores(said(predicted), dataset(gold), 0.0)
    expected = {
        "precision": oracle.precision_score(gold, predicted),
        "recall": oracle.recall_score(gold, predicted),
        "f1": oracle.f1_score(gold, predicted),
        "accuracy": oracle.accuracy_score(gold, predicted),
    }
    assert {key: found[key] / 100 for key in expected} == pytest.approx(expected)
    assert found["total"] == len(gold) and found["words"] == sum(map(len, gold))


@given(st.lists(st.sampled_from(LABELS), max_size=12))
def test_entities_are_those_of_seqeval(labels):
    assert entities(labels) == set(oracle.sequence_labeling.get_entities(labels))


@given(two_labelings())
def test_points_give_the_scores_of_any_part(pair):
    task, (gold, predicted) = Tokens(LABELS), pair
    points = task.points(said(predicted), dataset(gold), 0.0)
    part = task.scores(said(predicted[:1]), dataset(gold[:1]), 0.0)
    assert {name: metric(points.values[:1]) for name, metric in points.metrics.items()} == {
        name: part[name] for name in task.metrics
    }


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("words", [1, 9, 200])
def test_every_word_is_labelled_in_one_window(family, words):
    chance = random.Random(words)
    text = [chance.choice(["the", "king", "riverbank", "1066", "é", "old-city", "in"]) for _ in range(words)]
    labels = [chance.choice(LABELS) for _ in text]
    sentences = [Sentence("0", tuple(text), tuple(labels)), Sentence("1", ("the",), ("B-PER",))]
    windows = make_windows(plain_tokenizer(family), sentences, LABELS, 24, 8)
    assert windows.lengths.max() <= 24 and (len(windows) > 2 or words < 200)
    own = windows.targets[windows.example == 0].reshape(-1, 2)
    found = own[own[:, 1] != NONE]
    assert found[:, 1].tolist() == list(range(words))
    assert [LABELS[number] for number in found[:, 0]] == labels
    for number in range(len(windows)):  # labels are on real tokens, never on [CLS], [SEP] or padding
        places = np.flatnonzero(windows.targets[number, :, 0] != NONE)
        assert set(places) <= set(range(1, windows.lengths[number] - 1))


def test_right_logits_give_the_labels_back_in_any_order_and_padding():
    task = Tokens(LABELS)
    gold = [["O", "B-LOC", "I-LOC"] * 12, ["B-PER"], ["O"]]
    data = dataset(gold)
    collector = task.collector(data, EvaluateRecipe())
    assert len(data.windows) > 3
    for number in np.random.default_rng(0).permutation(len(data.windows)):
        targets = torch.from_numpy(data.windows.targets[number, :, 0]).long().clamp(min=0)
        logits = torch.nn.functional.one_hot(targets, len(LABELS)).float()[None]
        collector.add(np.array([number]), torch.nn.functional.pad(logits, (0, 0, 0, int(number))))
    found = collector.finish()
    assert found.labels == [tuple(labels) for labels in gold]
    assert task.scores(found, data, 0.0)["f1"] == 100.0
    again = task.read_predictions(json.loads(json.dumps(found.to_json())), "x.json")
    assert again == found
    for wrong in ({"0": {"label": "O"}}, {"0": {"labels": [1]}}, {"0": 3}):
        with pytest.raises(UserError, match=r"x\.json: not a predictions file"):
            task.read_predictions(wrong, "x.json")


def test_the_loss_is_the_mean_over_words_and_padding_changes_nothing():
    task, data = Tokens(LABELS), dataset([["O", "B-LOC"], ["B-PER"] * 9, ["I-LOC"]])
    batch = collate(data.windows, np.arange(3))
    logits = torch.randn(*batch.ids.shape, len(LABELS), generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = batch.targets[:, : logits.shape[1], 0]
    words = logits.log_softmax(dim=-1)[targets != NONE]
    expected = -words[torch.arange(len(words)), targets[targets != NONE].long()].mean()
    loss = task.loss(logits, batch)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert (logits.grad[targets == NONE] == 0).all() and (logits.grad[targets != NONE] != 0).all()
    alone = collate(data.windows, np.array([0]))  # the first sentence without padding
    padded = dataclasses.replace(batch, targets=batch.targets[:1])
    torch.testing.assert_close(task.loss(logits[:1, : alone.ids.shape[1]], alone), task.loss(logits[:1], padded))
    shares = task.log_probabilities(logits, batch.mask).exp()
    torch.testing.assert_close(shares.sum(dim=-1), torch.ones(batch.ids.shape))


def test_sets_of_a_recipe(tmp_path):
    train, test = conll(tmp_path / "train.conll", 50), conll(tmp_path / "test.bio", 20, 1)
    data = DataRecipe(train, "", test, tune_share=0.2, max_length=32, overlap=8)
    task = Tokens()
    sets = task.load(data, plain_tokenizer(), 0)
    assert task.labels == LABELS and task.outputs == 5 and task.facts() == {"labels": list(LABELS)}
    assert {split: len(one.records) for split, one in sets.items()} == {"train": 40, "tune": 10, "test": 20}
    empty = [
        sum(set(one.labels) == {"O"} for one in sets[split].records) / len(sets[split].records)
        for split in ("train", "tune")
    ]
    assert abs(empty[0] - empty[1]) < 0.15
    assert not {one.id for one in sets["train"].records} & {one.id for one in sets["tune"].records}
    less = Tokens().load(DataRecipe(train, test, test, limit=7, max_length=32, overlap=8), plain_tokenizer(), 0)
    assert len(less["train"].records) == 7 and len(less["tune"].records) == 20
    again = Tokens()
    again.settle(data, task.facts())
    assert again.labels == LABELS
    both = again.dataset(f"{train}+{test}", plain_tokenizer(), data)
    assert [one.id for one in both.records] == [str(number) for number in range(70)]
    (tmp_path / "new.conll").write_text("the O\nking B-ORG\n")
    strange = again.dataset(str(tmp_path / "new.conll"), plain_tokenizer(), data)
    assert "B-ORG" in strange.notes[0]
    assert task.scores(said([["O", "O"]]), strange, 0.0)["recall"] == 0.0


def test_what_cannot_be_learnt_is_refused(tmp_path):
    good = conll(tmp_path / "a.conll", 5)
    (tmp_path / "empty.conll").write_text("the O\n\nking O\n")
    for data, says in (
        ({"train": "sample:train", "test": good}, r"data\.train: sample:train: tokens are learnt from .*\.conll"),
        ({"train": good, "test": good, "metric": "f1"}, r"data\.metric: is not for tokens"),
        ({"train": str(tmp_path / "empty.conll"), "test": good}, "every label is O"),
    ):
        with pytest.raises(UserError, match=says):
            Tokens().load(DataRecipe(**data), plain_tokenizer(), 0)
    with pytest.raises(UserError, match=r"data\.max_length"):
        make_windows(plain_tokenizer(), [], LABELS, 9, 8)


def test_analysis_by_hand():
    data = dataset([["B-PER", "O"], ["B-LOC", "I-LOC"], ["O"]])
    one, other = said([["B-PER", "O"], ["B-LOC", "O"], ["O"]]), said([["O", "O"], ["B-LOC", "O"], ["O"]])
    found = Tokens(LABELS).analyse(data, {"one": Judged(one, 0.0, True), "other": Judged(other, 0.0, True)})
    assert found["agreement"]["matrix"] == [[1.0, 0.8], [0.8, 1.0]]
    told = found["members"]["one"]
    assert told["by_type"] == [
        {"group": "LOC", "questions": 1, "f1": 0.0},
        {"group": "PER", "questions": 1, "f1": 100.0},
    ]
    assert told["f1"] == 50.0 and np.trace(told["confusion"]["matrix"]) == 4
    assert [(entry["id"], entry["why"]) for entry in found["errors"]] == [
        ("1", "all members are wrong"),
        ("0", "only one is right"),
    ]
    assert found["errors"][0]["gold"] == ["LOC: the the"] and found["errors"][0]["answers"]["one"] == "LOC: the"


def test_a_study_of_tokens_from_the_command_line(tmp_path):
    train, test = conll(tmp_path / "train.conll", 60), conll(tmp_path / "test.conll", 20, 1)
    recipe = tmp_path / "tokens.toml"
    recipe.write_text(f"""
task = "tokens"
[backbone]
name = {json.dumps(encoder())}
[data]
train = {json.dumps(train)}
test = {json.dumps(test)}
tune = ""
max_length = 32
overlap = 8
[finetune]
epochs = 8
batch_size = 4
learning_rate = 3e-3
[bank]
epochs = 3
states = "stored"
patience = 3
[[heads]]
kind = "pool"
[[heads]]
kind = "attend"
[[heads]]
kind = "conv"
form = "inception"
""")
    rows = json.loads(shown("study", str(recipe), "--out", str(tmp_path / "run"), "--json"))
    best = {row["member"]: row["f1"] for row in rows}
    assert {"backbone", "pool", "attend"} <= set(best) and any(row["role"] == "ensemble" for row in rows)
    assert best["backbone"] > 90 and max(best.values()) > 90
    assert (tmp_path / "run" / "report.html").is_file()
    (entities,) = Reader.from_pretrained(tmp_path / "run" / "reader").entities(["the king of old city"])
    assert [(entity["label"], entity["text"]) for entity in entities] == [("PER", "king"), ("LOC", "old city")]
    analysis = json.loads(shown("analyze", str(tmp_path / "run"), "--json"))
    assert "by_type" in json.dumps(analysis)
    out = tmp_path / "predicted.jsonl"
    shown("evaluate", str(tmp_path / "run"), "--data", test, "--predictions", str(out))
    assert out.is_file()
