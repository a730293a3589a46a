"""A run becomes a reader: the best on tune, and its answers are those that were scored."""

import dataclasses
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertvision import toml
from bertvision.backbone.checkpoint import trained_state
from bertvision.data.conll import load_conll
from bertvision.data.sources import load_articles
from bertvision.data.squad import records
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.evaluate.score import Score
from bertvision.evaluate.squad import score
from bertvision.files import load_whole, write_json
from bertvision.serve.build import Wanted, build_reader, leave_reader
from bertvision.serve.config import TaskConfig
from bertvision.serve.reader import Reader
from bertvision.tasks.tokens import entities
from bertvision.train.ensembling import ensemble_run
from bertvision.train.run_dir import file_name
from bertvision.train.study import Study
from checks import error_of, shown
from runs import questions, recipe_of
from tables import conll


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("build") / "run"
    Study(recipe_of(evaluate={"nbest": 20}), place, quiet=True).run()
    return place


@pytest.fixture(scope="module")
def run(whole, tmp_path_factory) -> Path:
    """The same without the ensembles that the study chose, which are the best on tune wherever they can be."""
    place = Path(shutil.copytree(whole, tmp_path_factory.mktemp("without") / "run"))
    (place / "greedy.json").unlink()
    return place


@pytest.fixture
def copy(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def rows(run: Path) -> list[dict]:
    found = json.loads((run / "metrics.json").read_text())
    return [row for row in found if row["threshold_from"] == "tune"]


def names(config: TaskConfig) -> tuple[str, ...]:
    return tuple(member.name for member in config.ensemble.members)


def parts(row: dict) -> str:
    return row.get("parts", row["member"])


def assert_answers_as_scored(reader: Reader, run: Path, row: dict) -> None:
    """What the reader says about the test set is what was scored there, at the threshold it was scored at."""
    place = run / f"seed-{row['seed']}" / "predictions" / f"{row['checkpoint']:g}" / "test"
    stored = json.loads((place / f"{file_name(parts(row))}.json").read_text())
    asked = records(load_articles(questions(24, 2)))
    found = reader([{"question": one.question, "context": one.context} for one in asked])
    for one, got in zip(asked, found):
        entry = stored[one.id]
        doubt = entry["no_answer_score"] - row["threshold"]
        if abs(doubt) > 1e-4:
            assert got["answer"] == ("" if doubt > 0 else entry["nbest"][0]["text"])


def test_the_best_on_tune_of_the_last_checkpoint(run, tmp_path):
    reader = Reader.from_pretrained(build_reader(run, tmp_path / "reader"))
    best = max((row for row in rows(run) if row["checkpoint"] == 1), key=lambda row: row["tune_f1"])
    config = reader.config.tasks["spans"]
    assert config.ensemble.parts == parts(best)
    assert config.threshold == best["threshold"]
    assert reader.config.tuning["train_layers"] == "all"
    assert_answers_as_scored(reader, run, best)


@pytest.mark.parametrize("member", ["pool", "backbone", "compress size=8"])
def test_any_member_that_was_scored(member, run, tmp_path):
    place = build_reader(run, tmp_path / "reader", Wanted(checkpoint=0.5, seed=1, members=[member]))
    (row,) = [row for row in rows(run) if row["checkpoint"] == 0.5 and row["member"] == member]
    assert_answers_as_scored(Reader.from_pretrained(place), run, row)
    card = (place / "README.md").read_text()
    assert f"| f1 | {row['f1']:.2f} |" in card
    assert f"- heads: {member}\n" in card
    assert "pipeline_tag: question-answering" in card
    assert "24 examples" in card


def test_an_ensemble_chosen_afterwards(copy, tmp_path):
    pool, backbone = Member("pool", 1, 1.0), Member("", 1, 1.0)
    ensemble = Ensemble((pool, backbone), (0.75, 0.25), "mean", "given")
    row = Score(ensemble, 0.5, "tune", {"f1": 1.0}, main="f1", tune=101.0)
    write_json(copy / "ensemble.json", {"test": [row.to_json()]})
    config = Reader.from_pretrained(build_reader(copy, tmp_path / "reader")).config.tasks["spans"]
    assert (config.ensemble.how, names(config)) == ("mean", ("pool", "backbone"))
    assert (config.ensemble.weights, config.threshold) == ((0.75, 0.25), 0.5)
    other = replace(row, ensemble=replace(ensemble, members=(replace(pool, seed=2), backbone)))
    write_json(copy / "ensemble.json", {"test": [other.to_json()]})  # two backbones: not one pass
    config = Reader.from_pretrained(build_reader(copy, tmp_path / "reader")).config.tasks["spans"]
    assert config.ensemble.how == "max"


def test_what_is_chosen_afterwards_becomes_the_reader_of_the_run(whole, tmp_path):
    copy = Path(shutil.copytree(whole, tmp_path / "run"))

    def how() -> str:
        return Reader.from_pretrained(leave_reader(copy)).config.tasks["spans"].ensemble.how

    text = (copy / "greedy.json").read_text()
    (copy / "greedy.json").unlink()
    assert how() == "max"
    (copy / "greedy.json").write_text(text)
    assert how() == "mean"
    ensemble_run(copy, members="pool, backbone", how="product", quiet=True)
    chosen = json.loads((copy / "ensemble.json").read_text())
    chosen["test"][-1]["tune_f1"] = 101.0
    (copy / "ensemble.json").write_text(json.dumps(chosen))
    assert how() == "product"


def test_the_ensemble_that_the_study_chose_is_its_reader(whole, tmp_path):
    found = json.loads((whole / "greedy.json").read_text())["ensembles"]
    chosen = next(one for one in found if one["members"][0]["checkpoint"] == 1)
    assert chosen["tune_f1"] > max(row["tune_f1"] for row in rows(whole) if row["checkpoint"] == 1)
    reader = Reader.from_pretrained(build_reader(whole, tmp_path / "reader"))
    config = reader.config.tasks["spans"]
    assert (config.ensemble.how, config.threshold) == ("mean", chosen["threshold"])
    assert dict(zip(names(config), config.ensemble.weights)) == {
        one["member"]: one["weight"] for one in chosen["members"]
    }
    articles = load_articles(questions(24, 2))
    asked = records(articles)
    said = reader([{"question": one.question, "context": one.context} for one in asked])
    f1 = score(articles, {one.id: got["answer"] for one, got in zip(asked, said)})["f1"]
    assert f1 == pytest.approx(chosen["test"][-1]["f1"], abs=5)  # stored in half precision: a question may turn
    assert f"| f1 | {chosen['test'][-1]['f1']:.2f} |" in reader.card


def test_members_never_scored_together_get_a_threshold_of_their_own(run, tmp_path):
    out = str(tmp_path / "reader")
    words = ["reader", str(run), "--out", out, "--members", "pool, compress size=8", "--how", "mean"]
    assert "nothing like this was scored" in error_of(shown, *words)
    data = questions(24, 1)
    made = shown(*words, "--storage", "fp16", "--threshold-data", data, "--json")
    assert json.loads(made) == {"path": out}
    reader = Reader.from_pretrained(out)
    config = reader.config.tasks["spans"]
    assert (names(config), config.ensemble.how) == (("pool", "compress size=8"), "mean")
    articles = load_articles(data)
    asked = records(articles)

    def f1(threshold: float) -> float:
        tasks = {"spans": dataclasses.replace(config, threshold=threshold)}
        read = Reader(dataclasses.replace(reader.config, tasks=tasks), reader.engine, about={})
        found = read([{"question": one.question, "context": one.context} for one in asked])
        return score(articles, {one.id: got["answer"] for one, got in zip(asked, found)})["f1"]

    assert f1(config.threshold) >= max(f1(config.threshold + off) for off in (-1e6, -1, 1, 1e6)) - 0.5
    assert f"- the threshold is the best on {data} (F1 " in reader.card
    assert "Not scored as it is." in reader.card


@pytest.mark.parametrize("how", ["rank=4,fp16", "rank=auto"])
def test_a_compressed_reader_is_small_and_comes_back_exactly(how, run, tmp_path):
    whole = build_reader(run, tmp_path / "whole", Wanted(members=["backbone"]))
    shown("reader", run, "--out", tmp_path / "small", "--members", "backbone", "--compress", how)
    sizes = [(place / "encoder.safetensors").stat().st_size for place in (whole, tmp_path / "small")]
    assert sizes[1] < sizes[0] / 2
    reader = Reader.from_pretrained(tmp_path / "small")
    again = Reader.from_pretrained(reader.save_pretrained(tmp_path / "again", storage="fp16"))
    files = [load_whole(tmp_path / name / "encoder.safetensors")[0] for name in ("again", "small")]
    assert files[0].keys() == files[1].keys()
    one, other = (trained_state(each.engine.backbone.model) for each in (reader, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert "a compressed difference to the public ones (rank=" in reader.card
    assert "before compression" in reader.card
    on_tune = float(re.search(r"\): ([\d.]+) on the tune set", reader.card)[1])
    articles = load_articles(questions(24, 1))
    said = {one.id: reader(question=one.question, context=one.context) for one in records(articles)}
    f1 = score(articles, {key: found["answer"] for key, found in said.items()})["f1"]
    assert f1 == pytest.approx(on_tune, abs=5)  # words are made whole, and equal spans merged
    if how == "rank=auto":
        before = float(re.search(r"([\d.]+) before compression", reader.card)[1])
        assert on_tune >= before - 0.2 or "rank=128" in reader.card


def test_a_checkpoint_without_scores_has_a_reader_of_its_backbone(run, copy, tmp_path):
    """As while a study runs: checkpoints are there before their scores, and a recipe may have no heads."""
    for path in [*copy.glob("seed-1/scores-*"), *copy.glob("seed-1/heads-*"), copy / "metrics.json"]:
        path.unlink()
    for wanted in (Wanted(), Wanted(checkpoint=1.0, members="backbone"), Wanted(checkpoint=1.0, members=["backbone"])):
        reader = Reader.from_pretrained(build_reader(copy, tmp_path / "reader", wanted))
        config = reader.config.tasks["spans"]
        (row,) = [row for row in rows(run) if row["checkpoint"] == 1 and row["member"] == "backbone"]
        assert config.threshold == pytest.approx(row["threshold"], abs=1e-3)
        assert names(config) == ("backbone",) and "Not scored as it is." in reader.card
    with pytest.raises(UserError, match="nothing has been scored yet"):
        build_reader(copy, tmp_path / "reader", Wanted(members="pool"))
    with pytest.raises(UserError, match="nothing has been scored yet"):
        build_reader(copy, tmp_path / "reader", Wanted(checkpoint=0.7))


def test_a_study_without_heads_has_a_reader(tmp_path):
    Study(recipe_of(heads=[], finetune={"checkpoints": []}), tmp_path / "run", quiet=True).run()
    (row,) = rows(tmp_path / "run")
    wanted = Wanted(checkpoint=1.0, members="backbone")
    assert_answers_as_scored(
        Reader.from_pretrained(build_reader(tmp_path / "run", tmp_path / "reader", wanted)), tmp_path / "run", row
    )


def test_what_was_not_scored_is_refused(run, copy, tmp_path):
    (copy / "seed-1" / "heads-1.safetensors").unlink()
    series = Path(shutil.copytree(run, tmp_path / "series"))
    (series / "recipe.toml").write_text(toml.write(recipe_of(variants=[{"name": "RTE"}, {"name": "CoLA"}])))
    for place, wanted, says in (
        (run, Wanted(members=["pool", "compress size=8"]), "nothing like this was scored; there is: backbone"),
        (run, Wanted(seed=7), "nothing like this was scored"),
        (tmp_path, None, "not the directory of a run"),
        (copy, Wanted(members=["pool"]), "the head 'pool' of epoch 1 is not there; run the study again"),
        (series, None, r"holds a run for each variant; name one of them: .*RTE, .*CoLA"),
    ):
        with pytest.raises(UserError, match=says):
            build_reader(place, tmp_path / "reader", wanted)


def test_an_untuned_backbone_needs_no_file_of_its_own_and_cannot_be_compressed(tmp_path):
    recipe = recipe_of(finetune={"epochs": 0, "checkpoints": []}, heads=[{"kind": "pool"}])
    Study(recipe, tmp_path / "run", quiet=True).run()
    reader = Reader.from_pretrained(build_reader(tmp_path / "run", tmp_path / "reader", Wanted(members=["pool"])))
    assert reader.config.tuning == {}
    assert not (tmp_path / "reader" / "encoder.safetensors").exists()
    (row,) = [row for row in rows(tmp_path / "run") if row["member"] == "pool"]
    assert_answers_as_scored(reader, tmp_path / "run", row)
    with pytest.raises(UserError, match="not tuned, so there is nothing to compress"):
        build_reader(tmp_path / "run", tmp_path / "small", compress="rank=4")


@pytest.mark.parametrize(("task", "metric"), [("labels", "accuracy"), ("score", "spearman")])
def test_labels_and_scores(task, metric, tmp_path):
    chance = random.Random(0)
    lines = ["text,target"]
    for number in range(48):
        word, target = (("king", "good"), ("river", "bad"))[number % 2]
        target = target if task == "labels" else str(number % 5)
        lines.append(f"the {word} of {chance.choice(['the north', 'the old city', 'a world'])} {number},{target}")
    table = tmp_path / "texts.csv"
    table.write_text("\n".join(lines) + "\n")
    data = {"train": str(table), "tune": str(table), "test": str(table), "text": ["text"], "label": "target"}
    recipe = recipe_of(task=task, data=data, heads=[{"kind": "pool", "name": "pool", "reduce": "mean"}])
    Study(recipe, tmp_path / "run", quiet=True).run()
    reader = Reader.from_pretrained(build_reader(tmp_path / "run", tmp_path / "reader", Wanted(members=["pool"])))
    stored = json.loads((tmp_path / "run/seed-1/predictions/1/test/pool.json").read_text())
    texts = [line.partition(",")[0] for line in lines[1:]]
    if task == "labels":
        assert [one["label"] for one in reader.classify(texts)] == [row["label"] for row in stored.values()]
    else:
        assert reader.similarity(texts) == pytest.approx([row["score"] for row in stored.values()], abs=1e-4)
    assert f"| {metric} |" in (tmp_path / "reader" / "README.md").read_text()


def test_entities_are_those_of_the_run(tmp_path):
    """Those of the stored labels, on the texts that the words of its test set make."""
    files = {name: conll(tmp_path / f"{name}.conll", 40, seed) for seed, name in enumerate(("train", "test"))}
    data = files | {"tune": files["train"], "max_length": 24, "overlap": 8}
    recipe = recipe_of(task="tokens", data=data, heads=[{"kind": "pool", "name": "pool"}])
    Study(recipe, tmp_path / "run", quiet=True).run()
    reader = Reader.from_pretrained(build_reader(tmp_path / "run", tmp_path / "reader", Wanted(members=["pool"])))
    stored = json.loads((tmp_path / "run/seed-1/predictions/1/test/pool.json").read_text())
    sentences = load_conll(files["test"])
    found = reader.entities([" ".join(sentence.words) for sentence in sentences])
    for sentence, row, own in zip(sentences, stored.values(), found):
        expected = [
            (label, " ".join(sentence.words[first : last + 1]))
            for label, first, last in sorted(entities(row["labels"]), key=lambda entity: entity[1])
        ]
        assert [(entity["label"], entity["text"]) for entity in own] == expected


def test_a_head_may_be_called_a_plus_b_and_win(tmp_path):
    """Its ensemble is the best on tune: the reader is of that, whatever signs the name holds."""
    study = Study(recipe_of(heads=[{"kind": "pool", "name": "a + b"}], finetune={"checkpoints": []}), tmp_path / "run")
    study.run()
    for path in (study.directory / "metrics.json", study.directory / "seed-1" / "scores-1.json"):
        found = json.loads(path.read_text())
        for row in found:
            row["tune_f1"] = 100.0 if row["role"] == "ensemble" else 0.0
        path.write_text(json.dumps(found))
    (study.directory / "greedy.json").unlink()
    reader = Reader.from_pretrained(leave_reader(study.directory))
    (row,) = [row for row in rows(study.directory) if row["role"] == "ensemble"]
    assert row["parts"] == "backbone + a + b"
    assert_answers_as_scored(reader, study.directory, row)
