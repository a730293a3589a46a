"""Labels: their sets, predictions, scores and analysis; answerability from questions."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from bertvision.data.tables import Example
from bertvision.data.windows import Windows
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe, EvaluateRecipe
from bertvision.tasks import Dataset, Labels, Score, Spans
from bertvision.tasks.base import Judged
from bertvision.tasks.labels import LabelCollector, LabelPredictions
from real import DATA
from tables import labelled, text_recipe

needs_glue = pytest.mark.skipif(not (DATA / "glue").is_dir(), reason="needs the official GLUE files (BERTVISION_DATA)")


@pytest.fixture
def table(tmp_path) -> DataRecipe:
    return text_recipe(labelled(tmp_path / "train.csv", 50), labelled(tmp_path / "test.csv", 20, 1)).data


def test_sets_of_a_table(table, tokenizer):
    task = Labels()
    sets = task.load(table, tokenizer, seed=0)
    assert (task.labels, task.outputs, task.metrics) == (("north", "south"), 2, ("matthews", "f1", "accuracy"))
    assert {split: len(dataset.records) for split, dataset in sets.items()} == {"train": 40, "tune": 10, "test": 20}
    assert sets["tune"].source == f"{table.train}, 10 of its examples"
    texts = {record.texts for record in sets["train"].records}
    assert len(texts & {record.texts for record in sets["tune"].records}) < 3  # apart, but for texts that occur twice
    for dataset in sets.values():
        assert dataset.gold.tolist() == dataset.windows.targets.tolist()
        assert [task.labels[gold] for gold in dataset.gold] == [record.target for record in dataset.records]


def test_nothing_learnt_says_what_is_most_frequent(table, tokenizer):
    task = Labels()
    test = task.load(table, tokenizer, seed=0)["test"]
    north = 100 * sum(record.target == "north" for record in test.records) / len(test.records)
    found = task.constant(test)
    assert found == {
        "says": "north" if north >= 50 else "south",
        "matthews": 0.0,
        "f1": found["f1"],
        "accuracy": pytest.approx(max(north, 100 - north)),
    }
    assert task.constant(dataclasses.replace(test, gold=None)) == {}


def test_the_order_of_labels_can_be_given(table, tokenizer):
    task = Labels()
    task.load(dataclasses.replace(table, labels=("south", "north")), tokenizer, 0)
    assert task.labels == ("south", "north")
    with pytest.raises(UserError, match=r"train\.csv: line \d+: the label .* is not among those known"):
        Labels().load(dataclasses.replace(table, labels=("south", "west")), tokenizer, 0)


def test_which_metric_decides_can_be_given(table, tokenizer):
    task = Labels()
    task.load(dataclasses.replace(table, metric="f1"), tokenizer, 0)
    assert task.metrics == ("matthews", "accuracy", "f1")
    with pytest.raises(UserError, match=r"data\.metric: glue:RTE/train has its own, accuracy decides"):
        Labels().settle(DataRecipe("glue:RTE/train", "", "glue:RTE/dev", metric="f1"), {})


def test_facts_are_enough_without_the_training_data(table, tokenizer, tmp_path):
    task = Labels()
    task.load(table, tokenizer, 0)
    (tmp_path / "train.csv").unlink()
    again = Labels()
    again.settle(table, task.facts())
    assert again.labels == task.labels
    assert len(again.dataset(table.test, tokenizer, table).windows) == 20


def test_answerability_of_windows_and_questions(tokenizer):
    data = DataRecipe("sample:train:60", "sample:tune:20", "sample:test:40", max_length=64, overlap=16)
    task, spans = Labels(), Spans().load(data, tokenizer, 0)
    sets = task.load(data, tokenizer, seed=0)
    assert (task.labels, task.metrics) == (("answerable", "unanswerable"), ("accuracy", "f1"))
    for split, dataset in sets.items():
        held = spans[split].windows.targets[:, 0] > 0
        assert (dataset.windows.targets == ~held).all()
        assert dataset.gold.tolist() == [int(not record.has_answer) for record in dataset.records]
        assert len(dataset.windows) > len(dataset.records)
    # a question whose only answering window says so is answerable, whatever the others say
    test = sets["test"]
    collector = task.collector(test, EvaluateRecipe())
    sure = torch.nn.functional.one_hot(torch.from_numpy(test.windows.targets), 2).float() * 9
    collector.add(np.arange(len(test.windows)), sure)
    scores = task.scores(collector.finish(), test, 0.0)
    assert (scores["accuracy"], scores["f1"], scores["total"]) == (100.0, 100.0, 40)


def test_f1_is_that_of_the_questions_without_answer(tokenizer):
    data = DataRecipe("sample:train:60", "sample:tune:20", "sample:test:40")
    task = Labels()
    test = task.load(data, tokenizer, 0)["test"]
    always = LabelPredictions([record.id for record in test.records], task.labels, np.tile([0.0, 1.0], (40, 1)))
    share = test.gold.mean()
    scores = task.scores(always, test, 0.0)
    assert scores["f1"] == pytest.approx(200 * share / (1 + share))
    assert "always says 'unanswerable'" in scores["note"]


def test_a_limit_keeps_the_share_of_every_label(tmp_path, tokenizer):
    path = tmp_path / "rare.csv"
    kinds = ["c" if n % 100 == 7 else "b" if n % 10 == 3 else "a" for n in range(1000)]
    path.write_text("text,y\n" + "".join(f"the king {n},{kind}\n" for n, kind in enumerate(kinds)))
    data = DataRecipe(str(path), "", str(path), text=("text",), label="y", max_length=32, overlap=8)
    for options, sizes in (({"limit": 100}, (100, 10)), ({"limit": 20}, (20, 2)), ({"fraction": 0.1}, (90, 100))):
        sets = Labels().load(dataclasses.replace(data, **options), tokenizer, 0)
        for split, size in zip(("train", "tune"), sizes):
            found = np.bincount(sets[split].gold, minlength=3)
            assert found.sum() == size and np.all(np.abs(found - size * np.array([0.89, 0.1, 0.01])) <= 1)
        assert len(set(sets["train"].gold)) == 3  # even the rarest


def test_a_tune_set_of_one_label_is_noted(table, tokenizer):
    data = dataclasses.replace(table, limit=5)
    assert Labels().load(table, tokenizer, 0)["tune"].notes == ()
    (note,) = Labels().load(data, tokenizer, 0)["tune"].notes
    assert note.startswith(f"{table.train}, 1 of its examples: all are 'north', so little can be chosen")


RTE = "glue:RTE/train"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"train": "glue:RTE/test"}, r"data\.train: glue:RTE/test: comes without labels"),
        ({"train": RTE, "tune": "glue:RTE/test"}, r"data\.tune: glue:RTE/test: comes without labels"),
        ({"train": RTE, "test": "glue:RTE/dev+glue:RTE/test"}, r"data\.test: glue:RTE/test: comes without labels"),
        ({"train": RTE, "test": "glue:CoLA/dev"}, r"data\.test: glue:CoLA/dev: has 1 texts an example, .* has 2"),
        ({"train": RTE, "test": "glue:MNLI/dev_matched"}, "has entailment, neutral, contradiction, and glue:RTE/train"),
        ({"train": RTE, "test": "glue:STS-B/dev"}, "glue:STS-B/dev: has scores, and glue:RTE/train has entailment"),
        ({"train": RTE, "test": "sample:test"}, r"data\.test: sample:test: is not of the kind"),
        ({"train": RTE, "test": "glue:RTE/dev", "negatives": 0.5}, r"data\.negatives: are made of questions"),
        ({"train": RTE, "test": "glue:RTE/dev", "edited": 0.5}, r"data\.edited: are made of questions"),
    ],
)
def test_sets_that_cannot_be_used_are_refused_before_anything_is_read(data, says):
    with pytest.raises(UserError, match=says):
        Labels().settle(DataRecipe(**data), {})


def test_tasks_and_sources_that_do_not_fit():
    with pytest.raises(UserError, match='STS-B has scores; use task = "score"'):
        Labels().settle(DataRecipe(train="glue:STS-B/train"), {})
    with pytest.raises(UserError, match='CoLA has labels; use task = "labels"'):
        Score().settle(DataRecipe(train="glue:CoLA/train"), {})
    with pytest.raises(UserError, match="joins tasks with different labels"):
        Labels().settle(DataRecipe(train="glue:RTE/train+glue:MNLI/train"), {})


def test_a_set_without_labels_cannot_be_scored(tmp_path, tokenizer):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
    task, data = Labels(), DataRecipe(train="glue:RTE/train", test="glue:RTE/dev", glue=str(tmp_path))
    task.settle(data, {})
    with pytest.raises(UserError, match=r"glue:RTE/test: comes without labels and cannot be scored"):
        task.dataset("glue:RTE/test", tokenizer, data)
    test = task.dataset("glue:RTE/test", tokenizer, data, labelled=False)
    found = LabelPredictions(["0", "1"], task.labels, np.eye(2))
    with pytest.raises(UserError, match=r"glue:RTE/test: comes without labels and cannot be scored"):
        task.scores(found, test, 0.0)


@needs_glue
@pytest.mark.parametrize("name", ["CoLA", "STS-B", "WNLI"])
def test_real_sets_are_split_and_cut(name, tokenizer):
    data = DataRecipe(
        f"glue:{name}/train", "", f"glue:{name}/dev", glue=str(DATA / "glue"), limit=200, max_length=40, overlap=8
    )
    task = Score() if name == "STS-B" else Labels()
    sets = task.load(data, tokenizer, 0)
    assert len(sets["train"].records) == 200
    assert max(dataset.windows.lengths.max() for dataset in sets.values()) <= 40
    whole = task.dataset(data.train, tokenizer, data).gold
    for split, tolerance in (("train", 1 / 200), ("tune", 1 / 20)):  # as all of it, but for one example
        assert abs(sets[split].gold.mean() - whole.mean()) <= tolerance * np.ptp(whole)


def test_windows_in_any_order_and_the_one_likeliest_to_answer_counts():
    logits = torch.tensor([[-3.0, 3], [2, 0], [-1, 1], [-2, 2], [-4, 4]])
    ones, zeros = np.ones(5, np.int64), np.zeros(5, np.int64)
    windows = Windows.of_texts(zeros, zeros, ones, np.array([0, 0, 0, 1, 1]), zeros)
    collector = LabelCollector(["a", "b"], windows, ("yes", "no"))
    for part in ([3, 0], [4, 2, 1]):
        collector.add(np.array(part), logits[part])
    found = collector.finish()
    assert found.values() == ["yes", "no"]
    assert found.probabilities == pytest.approx(logits[[1, 3]].double().softmax(dim=1).numpy())
    again = LabelPredictions.from_json(json.loads(json.dumps(found.to_json())))
    assert (again.ids, again.labels, again.values()) == (found.ids, found.labels, found.values())
    assert again.probabilities == pytest.approx(found.probabilities, abs=1e-6)
    with pytest.raises(UserError, match=r"x\.json: not a predictions file"):
        LabelPredictions.from_json({"a": {"answer": ""}}, "x.json")


IDS = ["t0", "t1", "t2", "t3"]


def four(gold: list[int]) -> Dataset:
    return Dataset("four", [], [Example(key, (f"text {key}",), None, "file", 1) for key in IDS], None, np.array(gold))


def said(*second: float) -> LabelPredictions:
    """second: the probability of the label `yes` for each text."""
    return LabelPredictions(IDS, ("no", "yes"), np.array([[1 - p, p] for p in second]))


BACKBONE = said(0.1, 0.9, 0.9, 0.2)  # right, wrong, right, wrong where gold is 0, 0, 1, 1
HEAD = said(0.4, 0.8, 0.3, 0.6)  # right, wrong, wrong, right


def test_scores_and_points_say_the_same():
    task, data = Labels(("no", "yes")), four([0, 0, 1, 1])
    scores, points = task.scores(BACKBONE, data, 0.0), task.points(BACKBONE, data, 0.0)
    assert points.scores() == {name: scores[name] for name in task.metrics}
    assert scores["total"] == 4 and "note" not in scores
    assert points.metrics["accuracy"](points.values[[0, 2, 2]]) == 100.0
    constant = task.scores(said(0.1, 0.2, 0.3, 0.1), four([0, 0, 0, 1]), 0.0)
    assert (constant["accuracy"], constant["f1"], constant["matthews"]) == (75.0, 0.0, 0.0)
    assert constant["note"] == "always says 'no', which is right for 75.0%"
    assert "every example is 'yes'" in task.scores(BACKBONE, four([1, 1, 1, 1]), 0.0)["note"]


def test_analysis_by_hand():
    members = {
        "backbone": Judged(BACKBONE, 0.0, True),
        "head": Judged(HEAD, 0.0, True),
        "both": Judged(HEAD, 0.0, False),
    }
    found = Labels(("no", "yes")).analyse(four([0, 0, 1, 1]), members)
    backbone = found["members"]["backbone"]
    assert backbone["accuracy"] == 50.0
    assert backbone["confusion"] == {"labels": ["no", "yes"], "matrix": [[1, 1], [1, 1]]}
    assert backbone["auroc"] == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    assert [point["questions"] for point in backbone["reliability"]] == [1, 3]  # 0.8 once, 0.9 three times
    assert backbone["calibration_error"] == pytest.approx((0.8 + 3 * (0.9 - 2 / 3)) / 4)
    assert found["agreement"] == {"members": ["backbone", "head"], "matrix": [[1.0, 0.5], [0.5, 1.0]]}
    errors = {entry["id"]: entry for entry in found["errors"]}
    assert {key: entry["why"] for key, entry in errors.items()} == {
        "t1": "all members are wrong, and sure",
        "t2": "only backbone is right",
        "t3": "only head is right",
    }
    assert errors["t2"]["question"] == "text t2" and errors["t2"]["context"] == ""
    assert errors["t2"]["gold"] == ["yes"] and errors["t2"]["answers"] == {"backbone": "yes", "head": "no"}


def test_more_than_two_labels_have_no_auroc():
    three = LabelPredictions(IDS, ("a", "b", "c"), np.eye(3)[[0, 1, 2, 2]])
    found = Labels(("a", "b", "c")).analyse(four([0, 1, 2, 0]), {"x": Judged(three, 0.0, True)})["members"]["x"]
    assert found["confusion"]["matrix"] == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert "auroc" not in found
