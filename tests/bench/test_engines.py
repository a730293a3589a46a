"""The benches of the reader and its engines: counts on a case worked by hand, and that everything runs."""

import numpy as np

from bertvision.data.sources import load_articles
from bertvision.tasks.decode import SpanPredictions
from readers import tiny_reader


def article(name: str, golds: list[str]) -> dict:
    qas = [
        {"id": f"{name}{n}", "question": "?", "answers": [{"text": gold, "answer_start": 0}] if gold else []}
        for n, gold in enumerate(golds)
    ]
    return {"title": name, "paragraphs": [{"context": "one two three", "qas": qas}]}


ARTICLES = [article("a", ["one", "", "one two"]), article("b", ["three", ""])]
FOUND = SpanPredictions(
    ids=["a0", "a1", "a2", "b0", "b1"],
    texts=[["one"], ["two"], ["two"], ["three"], ["one"]],
    chars=np.zeros((5, 1, 2), dtype=np.int64),
    scores=np.zeros((5, 1)),
    no_answer=np.array([0.0, 3.0, 1.0, -1.0, 2.0]),
)


def test_each_half_is_scored_at_the_threshold_of_the_other(bench):
    """The threshold of b lies between -1 and 2, at 0.5: it empties a1 and a2. That of a, between 1 and 3 at 2, leaves
    b1 its wrong answer, for it is not above it."""
    found = bench("engines").scores(FOUND, ARTICLES)
    assert {name: value[0] for name, value in found.items()} == {
        "EM": 60.0,  # a0, a1, b0
        "F1": 60.0,
        "HasAns F1": 66.67,
        "NoAns F1": 50.0,
        "spans F1": 88.89,  # a2 has one word of two: 2/3
    }
    assert all(low <= value <= high for value, low, high in found.values())


def test_all_engines_answer_and_are_compared(bench, tmp_path):
    engines = bench("engines")
    place = tiny_reader().save_pretrained(tmp_path / "reader")
    found = engines.measure(str(place), load_articles("sample:tune:40"), rounds=1)
    assert set(found) == set(engines.ENGINES)
    assert found["onnx fp32"]["same best span as torch"] == found["torch"]["same best span as torch"]
    assert found["onnx fp32"]["F1"] == found["torch"]["F1"]
    assert found["onnx int8"]["MB"] <= found["onnx fp32"]["MB"]


def test_a_given_reader_is_timed_against_the_plain_loop(bench, tmp_path):
    place = tiny_reader().save_pretrained(tmp_path / "reader")
    pairs = [("who was king", "the first king of the old city " * 12), ("where", "by the great river")]
    found = bench("reader").one_reader(str(place), pairs, rounds=1)
    assert found["tokens"] > 80
    assert found["reader, torch : plain loop"] > 0 and found["reader, onnx int8 : plain loop"] > 0
    assert found["plain loop, questions per second"] > 0
