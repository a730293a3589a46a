"""The reader that comes with the package: small, complete, the default, and it answers real questions."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from bertvision import Reader
from bertvision.data.squad import read_articles
from bertvision.evaluate.squad import score
from bertvision.serve.reader_dir import CARD, PACKAGED, read_config
from checks import error_of, shown
from real import DATA, marco, needs_squad

POCKET = PACKAGED / "pocket"
MILL = (
    "The old paper mill at Harrow Bend was built in 1872 by the engineer Ada Moss. It stood on the left bank of the "
    "river and employed forty people. After the flood of 1911 the mill was sold to a brewery, which used the building "
    "as a store for barrels until 1954. Today it houses a small museum about the making of paper."
)
ANSWERS = {
    "Who built the mill?": "Ada Moss",
    "When was the mill built?": "1872",
    "How many people did it employ?": "forty",
    "What does it house today?": "a small museum",
}


@pytest.fixture(scope="module")
def pocket() -> Reader:
    marco()
    return Reader.from_pretrained("pocket")


def test_it_is_small_and_tied_to_its_encoder():
    assert sum(path.stat().st_size for path in POCKET.iterdir()) <= 16_000_000
    config = read_config(POCKET)
    assert config.backbone == "marco" and config.tuning["adapters"] == 0 and config.tuning["train_layers"] == "all"
    largest = max(load_file(POCKET / "encoder.safetensors").values(), key=lambda tensor: tensor.numel())
    assert str(largest.dtype) == "torch.int8"


def test_its_card_says_what_it_was_trained_on_and_how_it_was_measured():
    card = (POCKET / CARD).read_text(encoding="utf-8")
    said = ("CC BY-SA 4.0", "recipes/pocket.toml", "Nothing of the development set", "seed", "95 %", "5,707 questions")
    for words in said:
        assert words in card, words


@pytest.mark.parametrize("verb", ["ask", "serve"])
def test_it_is_the_default(verb):
    assert "[default: pocket]" in shown(verb, "--help", env={"COLUMNS": "200", "TERM": "dumb"})


def test_it_answers_what_the_text_says_and_nothing_else(pocket):
    for question, gold in ANSWERS.items():
        found = pocket(question=question, context=MILL)
        assert gold in found["answer"], (question, found)
        assert MILL[found["start"] : found["end"]] == found["answer"]
    assert pocket(question="What is the capital of Mongolia?", context=MILL)["answer"] == ""
    assert "Ada Moss" in json.dumps(json.loads(shown("ask", "Who built the mill?", "--context", MILL, "--json")))


def test_one_of_an_older_version_that_knew_its_encoder_otherwise_is_refused(tmp_path):
    marco()
    old = shutil.copytree(POCKET, tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    config["backbone"]["fingerprint"] = "0" * 64
    (old / "config.json").write_text(json.dumps(config))
    message = error_of(Reader.from_pretrained, old)
    assert "to have it fetched again, or build the reader again if it was made by an older version" in message


@needs_squad
def test_on_real_questions_it_is_far_better_than_saying_nothing(pocket):
    articles = [
        {
            **article,
            "paragraphs": [{**p, "qas": p["qas"][:: max(1, len(p["qas"]) - 1)]} for p in article["paragraphs"][:14]],
        }
        for article in read_articles(DATA / "squad2" / "tune.json")
    ]
    asked = [(p["context"], qa) for article in articles for p in article["paragraphs"] for qa in p["qas"]]
    answers = pocket(question=[qa["question"] for _, qa in asked], context=[context for context, _ in asked])
    found = score(articles, {qa["id"]: answer["answer"] for (_, qa), answer in zip(asked, answers)})
    assert found["f1"] > 65 and found["HasAns_f1"] > 60 and found["NoAns_f1"] > 65, found
