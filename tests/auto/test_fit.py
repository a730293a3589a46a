"""`fit` from end to end with a tiny encoder: tables, questions and sentences; Ctrl-C; going on; out of time."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

import bertvision
from bertvision import Reader, load_recipe
from bertvision.auto import fit as fitting
from bertvision.auto.fit import fit
from bertvision.auto.ladder import ladder
from bertvision.auto.look import Item, Looked
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.evaluate.score import Cost, Score
from bertvision.train.run_dir import RunDir
from bertvision.train.study import Study
from encoders import WORDS
from runs import encoder, questions
from tables import alike, conll, labelled


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("fit")
    return fit(labelled(place / "a.csv", 60), text="first", out=place / "a", steps=2, encoder=encoder(), quiet=True)


def test_a_table_ends_in_a_reader_a_page_and_a_recipe(fitted):
    reader = fitted.reader()
    assert reader.classify(["north the old city", "south the river"])[0]["label"] in ("north", "south")
    assert list(fitted.steps) == ["01-frozen", "02-tuned"]
    assert fitted.low <= fitted.test <= fitted.high
    assert fitted.tune == fitted.steps[fitted.step]["tune"]
    page = (fitted.directory / "report.html").read_text()
    assert all(words in page for words in ("02-tuned", "Confusion matrix", "What was tried", "95 %"))
    final = fitted.directory / "steps" / f"{fitted.step}-with-tune" / "recipe.toml"
    assert load_recipe(fitted.directory / "recipe.toml") == load_recipe(final)
    assert (fitted.directory / "model" / "README.md").is_file()


def test_what_is_chosen_learns_once_more_from_train_and_tune(fitted):
    first, final = (fitted.directory / "steps" / f"{fitted.step}{end}" for end in ("", "-with-tune"))
    sizes, after = (json.loads((one / "study.json").read_text())["data"] for one in (first, final))
    assert after["train"]["questions"] == sizes["train"]["questions"] + sizes["tune"]["questions"]
    chosen = fitted.steps[fitted.step]["score"]["member"]
    (row,) = [row for row in json.loads((final / "metrics.json").read_text()) if row["member"] == chosen]
    assert fitted.test == row["accuracy"]
    card = (fitted.directory / "model" / "README.md").read_text()
    assert f"{fitted.tune:.2f}" in card  # as it was before the model had seen tune


def row(name, tune):
    return Score(Ensemble.of(Member(name, 1, 0.0)), 0.0, "", {"accuracy": 0.0}, Cost(), "accuracy", tune)


@pytest.mark.parametrize(
    ("size", "other", "wanted"), [(4, 100.0, "a"), (4, 50.0, "a"), (32, 56.0, "a"), (32, 57.0, "b")]
)
def test_something_else_must_get_more_than_two_examples_more_right(fitted, monkeypatch, size, other, wanted):
    run = RunDir.open(fitted.directory / "steps" / "01-frozen")
    monkeypatch.setattr(run, "rows", lambda *_: [row("", 99.0), row("a", 50.0), row("b", other)])
    monkeypatch.setattr(run, "greedy", list)
    assert fitting.best_of(run, size).name == wanted


def test_more_examples_need_not_be_clearly_better():
    looked = Looked("labels", {"text": ["a", "b"], "label": "y", "max_length": 64, "overlap": 8}, {})
    looked.sets |= dict.fromkeys(("train", "tune", "test"), [Item(("a", "b"), "y")] * 3000)
    files = {"train": "a.jsonl", "tune": "b.jsonl", "test": "c.jsonl"}
    first, apart, more, more_apart = ladder(looked, files, "minilm", 1)[:4]
    assert [step.examples for step in (first, apart, more, more_apart)] == [1000, 1000, 3000, 3000]
    assert fitting.is_better(more, 60.0, first, 60.0, 200) and not fitting.is_better(more, 59.9, first, 60.0, 200)
    assert fitting.is_better(more_apart, 60.1, apart, 60.0, 200)
    assert fitting.is_better(apart, 61.1, first, 60.0, 200) and not fitting.is_better(apart, 61.0, first, 60.0, 200)
    assert not fitting.is_better(more_apart, 60.5, first, 60.0, 200)


def test_no_step_is_begun_after_the_time(tmp_path):
    found = fit(
        labelled(tmp_path / "a.csv", 40),
        text="first",
        out=tmp_path / "a",
        minutes=0.0001,
        encoder=encoder(),
        quiet=True,
    )
    assert list(found.steps) == ["01-frozen"]
    assert [path.name for path in (tmp_path / "a" / "steps").iterdir()] == ["01-frozen"]
    assert (found.directory / "model" / "README.md").is_file()


def test_the_same_steps_give_the_same_model(fitted, tmp_path):
    data = fitted.directory.parent / "a.csv"
    again = bertvision.fit(data, text="first", out=tmp_path / "b", steps=2, encoder=encoder(), quiet=True)
    assert (again.step, again.test, again.tune) == (fitted.step, fitted.test, fitted.tune)
    files = [path.relative_to(fitted.directory) for path in fitted.directory.rglob("*.safetensors")]
    assert len(files) > 5
    for file in files:
        one, other = load_file(again.directory / file), load_file(fitted.directory / file)
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_it_goes_on_where_it_stopped_and_refuses_other_data(fitted, tmp_path, monkeypatch):
    data = fitted.directory.parent / "a.csv"
    monkeypatch.setattr(Study, "run", lambda self: pytest.fail("this step is done"))
    again = fit(data, text="first", out=fitted.directory, steps=2, encoder=encoder(), quiet=True)
    assert (again.step, again.test) == (fitted.step, fitted.test)
    with pytest.raises(UserError, match="holds the fit of other data or options"):
        fit(
            labelled(tmp_path / "b.csv", 90, 1),
            text="first",
            out=fitted.directory,
            steps=2,
            encoder=encoder(),
            quiet=True,
        )


def interrupt(monkeypatch, error, after: int) -> None:
    """Makes the study after so many raise `error`."""
    run, begun = Study.run, []

    def maybe(self):
        begun.append(self)
        if len(begun) > after:
            raise error
        return run(self)

    monkeypatch.setattr(Study, "run", maybe)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), fitting.OutOfTime()])
def test_an_interrupted_step_leaves_the_best_so_far(tmp_path, monkeypatch, error):
    interrupt(monkeypatch, error, 1)
    found = fit(
        labelled(tmp_path / "a.csv", 40), text="first", out=tmp_path / "a", minutes=30, encoder=encoder(), quiet=True
    )
    assert list(found.steps) == ["01-frozen"]
    assert Reader.from_pretrained(found.model).tasks == ("labels",)
    assert (tmp_path / "a" / "report.html").is_file()
    log = [json.loads(line) for line in (tmp_path / "a" / "log.jsonl").read_text().splitlines()]
    (plan,) = [entry for entry in log if entry["event"] == "plan"]
    assert plan["chosen"] == "02-tuned"
    assert set(plan["expected"]) >= {"02-tuned", "03-adapters"}


def test_ctrl_c_before_the_first_model_is_passed_on(tmp_path, monkeypatch):
    interrupt(monkeypatch, KeyboardInterrupt(), 0)
    with pytest.raises(KeyboardInterrupt):
        fit(labelled(tmp_path / "a.csv", 40), text="first", out=tmp_path / "a", encoder=encoder(), quiet=True)


def test_questions_end_in_a_reader(tmp_path):
    found = fit(questions(60), out=tmp_path / "q", steps=1, encoder=encoder(), quiet=True)
    answer = found.reader()(question="what is the city", context="the old city was great")
    assert {"answer", "score", "no_answer_score"} <= answer.keys()


def test_sentences_end_in_a_reader(tmp_path):
    found = fit(conll(tmp_path / "b.conll", 60), out=tmp_path / "b", steps=1, encoder=encoder(), quiet=True)
    assert found.metric == "f1"
    (entities,) = found.reader().entities(["the king of the old city"])
    assert {entity["label"] for entity in entities} <= {"PER", "LOC"}
    assert "entities of a text: LOC, PER" in (found.model / "README.md").read_text()


def test_pairs_that_have_to_be_compared_are_encoded_apart(tmp_path):
    options = {"text": ["first", "second"], "encoder": encoder(), "quiet": True}
    found = fit(alike(tmp_path / "a.csv", 400), out=tmp_path / "a", steps=2, **options)
    assert list(found.steps) == ["01-frozen", "02-frozen-apart"]
    assert found.step == "02-frozen-apart"
    reader = found.reader()
    assert [one["label"] for one in reader.classify(["king king"] * 2, ["king", "river"])] == ["same", "other"]
    assert '"A text to be classified.", "The second text of the pair."' in (found.model / "README.md").read_text()
    assert ".classify(first, second)" in (found.directory / "report.html").read_text()
    assert found.test > 90


def test_scores_end_in_a_reader(tmp_path):
    chance = random.Random(0)
    rows = []
    for number in range(60):
        words = chance.choices(WORDS.split(), k=6)
        rows.append({"text": " ".join([*words, *["king"] * (number % 12)]), "y": number % 12})
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = fit(tmp_path / "c.jsonl", out=tmp_path / "c", steps=1, encoder=encoder(), quiet=True)
    assert found.metric == "spearman"
    assert isinstance(found.reader().similarity("the king"), float)


def test_unknown_options_are_named():
    with pytest.raises(UserError, match="did you mean 'minutes'"):
        fit("a.csv", minuts=3)
