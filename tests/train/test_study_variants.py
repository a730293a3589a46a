"""A series of variants: checked before it begins, each in its directory, joined in one table, resumed."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bertvision.data.glue import GLUE
from bertvision.errors import UserError
from bertvision.files import load_tensors, write_json
from bertvision.recipe import Recipe, load_recipe
from bertvision.report.page import write_report
from bertvision.train import make_run
from bertvision.train.compare import join_comparisons
from bertvision.train.evaluation import predict_run, score_run, submit_run
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import StoredResults
from bertvision.train.study import Study
from bertvision.train.study_variants import VariantStudies, variant_recipes
from checks import shown
from runs import questions, recipe_of, tiny_recipe
from tables import labelled, scored, text_recipe

BRIEF = {"finetune": {"epochs": 0.5, "checkpoints": []}, "heads": [{"kind": "pool"}]}
VARIANTS = [{"name": "L0", "finetune": {"train_layers": 0}}, {"name": "all of it", "seeds": [1, 2]}]
PAPER = [
    {"checkpoint": 0.5, "member": "backbone", "f1": 50.0, "source": "x", "variant": "L0"},
    {"checkpoint": 0.5, "member": "pool", "f1": 60.0, "source": "x"},
]


def command(*words: object) -> Any:
    """What `bertvision WORDS --json` prints."""
    return json.loads(shown(*words, "--json"))


def series(**tables: object) -> Recipe:
    return recipe_of(**(BRIEF | {"variants": VARIANTS, "paper": PAPER} | tables))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("series") / "run"
    make_run(series(), directory, quiet=True).run()
    return directory


def test_tables_are_laid_over_and_the_rest_replaced():
    recipes = variant_recipes(series())
    assert recipes["L0"].finetune.train_layers == 0 and recipes["L0"].finetune.epochs == 0.5
    assert recipes["all of it"].seeds == (1, 2) and recipes["all of it"].finetune.train_layers == "all"
    assert all(recipe.variants == () for recipe in recipes.values())
    assert [len(recipe.paper) for recipe in recipes.values()] == [2, 1]
    assert not any(
        "variant" in entry for recipe in recipes.values() for entry in recipe.paper
    )  # their own from here on


def test_one_table_joins_the_variants(finished):
    rows = json.loads((finished / "metrics.json").read_text())
    assert {(row["variant"], row["seed"]) for row in rows} == {("L0", 1), ("all of it", 1), ("all of it", 2)}
    own = json.loads((finished / "L0" / "metrics.json").read_text())
    assert [{"variant": "L0", **row} for row in own] == [row for row in rows if row["variant"] == "L0"]
    assert (finished / "all-of-it" / "seed-2").is_dir()
    facts = json.loads((finished / "study.json").read_text())
    assert facts["variants"] == {"L0": "L0", "all of it": "all-of-it"} and facts["finished"]
    again = make_run(series(), finished, quiet=True)
    assert isinstance(again, VariantStudies) and again.finished and again.rows() == rows
    compared = json.loads((finished / "comparisons.json").read_text())
    assert {entry["variant"] for entry in compared["comparisons"]} == {"L0", "all of it"}


def test_variants_are_compared_with_the_first(finished):
    rows = json.loads((finished / "metrics.json").read_text())
    entries = json.loads((finished / "comparisons.json").read_text())["variants"]
    assert {(entry["variant"], entry["against"], tuple(entry["seeds"])) for entry in entries} == {
        ("all of it", "L0", (1,))
    }
    last = [row for row in rows if row["member"] == "backbone" and row["seed"] == 1]
    scores = {(row["variant"], row["threshold_from"]): row for row in last}
    for entry in entries:
        key = entry["threshold_from"]
        gap = scores["all of it", key][entry["metric"]] - scores["L0", key][entry["metric"]]
        assert entry["difference"] == pytest.approx(gap) and entry["low"] <= entry["difference"] <= entry["high"]
    assert {entry["metric"] for entry in entries} >= {"f1", "exact", "HasAns_spans_f1"}
    assert "Δ to L0" not in write_report(finished).read_text()  # one of the two has more seeds: the means differ
    second = [entry | {"seeds": [1, 2]} for entry in entries]
    write_json(finished / "comparisons.json", {"variants": second})
    page = write_report(finished).read_text()
    assert "Δ to L0" in page and "Backbones, against L0" in page and "Δ F1, spans alone" in page
    join_comparisons(RunDir.open(finished), {name: StoredResults.open(finished / name) for name in ("L0", "all-of-it")})
    again = json.loads((finished / "comparisons.json").read_text())["variants"]
    assert [entry | {"variant": "all of it"} for entry in again] == entries  # from the files, without the study


def test_what_is_done_is_not_done_again(finished):
    kept = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    longer = make_run(series(variants=[*VARIANTS, {"name": "third", "heads": []}]), finished, quiet=True)
    longer.begin()
    assert "finished" not in json.loads((finished / "study.json").read_text())
    rows = longer.run()
    assert {row["variant"] for row in rows} == {"L0", "all of it", "third"}
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())


def test_a_changed_recipe_is_refused(finished):
    with pytest.raises(UserError, match=r"L0: holds a run of another recipe .*bank\.epochs"):
        make_run(series(bank={"epochs": 2}), finished, quiet=True).run()
    with pytest.raises(UserError, match="holds a run without variants"):
        make_run(series(), finished / "L0", quiet=True).begin()
    with pytest.raises(UserError, match="holds a run for each variant"):
        score_run(finished, quiet=True)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ({"name": "b", "finetune": {"epoch": 1}}, r"variants\.1 \(b\): finetune\.epoch: unknown key"),
        ({"name": "b", "heads": [{"kind": "pol"}]}, r"variants\.1 \(b\): heads\.0\.kind"),
        ({"name": "b", "task": "labels", "data": {"train": "glue:CoLA/trian"}}, "CoLA has no split 'trian'"),
        ({"finetune": {}}, r"variants\.1\.name: every variant needs a name"),
        ({"name": "A"}, r"variants\.1\.name: 'A' is taken"),
        ({"name": ".."}, r"variants\.1\.name: '\.\.' begins with a dot"),
        ({"name": ".b.1-00000000"}, r"variants\.1\.name: .* begins with a dot"),
        ({"name": "ü" * 150}, r"variants\.1\.name: .* is too long"),
        ({"name": "Reader"}, r"variants\.1\.name: 'Reader' is taken"),
    ],
)
def test_a_mistake_in_the_last_shows_before_the_first_begins(last, says, tmp_path):
    with pytest.raises(UserError, match=says):
        make_run(series(variants=[{"name": "a"}, last]), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_command_line_runs_a_series(tmp_path):
    both = [{"name": "a"}, {"name": "b", "heads": [{"kind": "last"}]}]
    path = tiny_recipe(tmp_path / "r.toml", **BRIEF, variants=both)
    assert load_recipe(path).variants == tuple(both)
    tuned = command("finetune", path, "--out", tmp_path / "out")
    assert list(tuned) == [str(tmp_path / "out" / name) for name in "ab"]
    trained = command("train", path, "--out", tmp_path / "out")
    assert trained == [str(tmp_path / "out" / name / "seed-1" / "heads-0.5.safetensors") for name in "ab"]
    rows = command("study", path, "--out", tmp_path / "out")
    assert {(row["variant"], row["member"]) for row in rows} >= {("a", "pool"), ("b", "last")}
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A series of a table with labels, one with scores, and answerability."""
    place = tmp_path_factory.mktemp("texts")
    heads = [{"kind": "pool"}, {"kind": "compress", "size": 8, "tokens": "all"}, {"kind": "last"}]
    recipe = text_recipe(
        labelled(place / "a.csv", 60),
        labelled(place / "b.csv", 30, 1),
        heads=heads,
        bank={"epochs": 12, "batch_size": 16, "learning_rate": 3e-2},
    )
    other = text_recipe(scored(place / "a.jsonl", 60), scored(place / "b.jsonl", 30, 1), "score")
    data = {key: getattr(other.data, key) for key in ("train", "test", "text", "label")}
    asked = {"train": questions(24), "tune": questions(12, 1), "test": questions(12, 2)}
    variants = [
        {"name": "labels"},
        {"name": "score", "task": "score", "data": data},
        {"name": "answerability", "data": asked},
    ]
    directory = place / "run"
    make_run(Recipe(**(vars(recipe) | {"variants": tuple(variants)})), directory, quiet=True).run()
    return directory


def test_every_task_runs_from_tuning_to_scores(texts):
    rows = json.loads((texts / "metrics.json").read_text())
    metrics = {"labels": "accuracy", "score": "spearman", "answerability": "f1"}
    for variant, main in metrics.items():
        here = [row for row in rows if row["variant"] == variant]
        assert len(here) == 5 and {row["threshold_from"] for row in here} == {""}
        assert all(-100 <= row[main] <= 100 and f"tune_{main}" in row for row in here)
        for row in here:
            assert row["train_seconds"] == pytest.approx(row["tuning_seconds"] + row["head_seconds"], abs=2e-3)
            assert row["total_parameters"] >= row["parameters"] > 0 and row["disk_bytes"] > 0
            assert row["ms_per_question"] > 0
    best = max(row["accuracy"] for row in rows if row["variant"] == "labels")
    assert best >= 90  # the label is the first word
    assert max(row["spearman"] for row in rows if row["variant"] == "score") > 50


def test_logits_are_kept_for_ensembles_later(texts):
    for variant, shape in (("labels", (30, 2)), ("score", (30, 1))):
        tensors, about = load_tensors(texts / variant / "seed-1" / "predictions" / "1" / "test" / "logits.safetensors")
        assert about == {"per": "window"}
        assert {tuple(entry.shape) for entry in tensors.values()} == {shape} and len(tensors) == 4
    study = Study.open(texts / "labels", quiet=True)
    path = texts / "labels" / "seed-1" / "predictions" / "1" / "test"
    predictions = study.task.read_predictions(json.loads((path / "pool.json").read_text()), "x")
    kept = load_tensors(path / "logits.safetensors")[0]["pool"].softmax(dim=1).numpy()
    assert kept == pytest.approx(predictions.probabilities, abs=1e-6)


@pytest.mark.parametrize("variant", ["labels", "score", "answerability"])
def test_evaluate_says_what_the_study_said(variant, texts):
    study = json.loads((texts / variant / "metrics.json").read_text())
    rows = score_run(texts / variant, quiet=True)
    for row, expected in zip(rows, study, strict=True):
        for key in ("infer_seconds", "ms_per_question"):
            row.pop(key), expected.pop(key)
        expected.pop("loss", None)  # evaluate does not compute it
        assert row == {key: value for key, value in expected.items() if not key.startswith("tune_")}


def test_a_submission_to_glue(texts, tmp_path):
    folder = tmp_path / "glue" / "WNLI"
    folder.mkdir(parents=True)
    rows = [f"{n}\tthe {word} river\ta king" for n, word in enumerate(["north", "south"])]
    for split, label in (("train", True), ("dev", True), ("test", False)):
        lines = [row + (f"\t{n % 2}" if label else "") for n, row in enumerate(rows * (8 if label else 73))]
        header = "index\tsentence1\tsentence2" + ("\tlabel" if label else "")
        (folder / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    recipe = text_recipe(
        "glue:WNLI/train",
        "glue:WNLI/dev",
        data={"glue": str(folder.parent), "text": [], "label": ""},
        heads=[{"kind": "pool"}],
    )
    Study(recipe, tmp_path / "run", quiet=True).run()
    path, member = submit_run(tmp_path / "run", tmp_path / "out", data="glue:WNLI/test", quiet=True)
    assert member in ("backbone", "pool", "backbone + pool")
    lines = path.read_text().splitlines()
    assert path.name == "WNLI.tsv" and lines[0] == "index\tprediction" and len(lines) == 147
    assert {line.split("\t")[1] for line in lines[1:]} <= set(GLUE["WNLI"].labels)
    with pytest.raises(UserError, match="comes without labels"):
        score_run(tmp_path / "run", data="glue:WNLI/test", quiet=True)
    for wrong, says in (
        ("glue:WNLI/dev", "name glue:WNLI/test"),
        ("glue:MNLI/test_matched", "has entailment, neutral"),
        ("glue:SST-2/test", "has 1 texts an example"),
    ):
        with pytest.raises(UserError, match=says):
            submit_run(tmp_path / "run", tmp_path / "wrong", data=wrong, quiet=True)
    assert not (tmp_path / "wrong").exists()
    with pytest.raises(UserError, match=r"--data is missing"):
        submit_run(tmp_path / "run", tmp_path / "out", data="", quiet=True)
    words = ("--data", "glue:WNLI/test", "--submission", tmp_path / "again", "--member", "pool")
    assert command("evaluate", tmp_path / "run", *words) == {
        "file": str(tmp_path / "again" / "WNLI.tsv"),
        "member": "pool",
    }


def test_rows_without_labels_are_predicted(texts, tmp_path):
    (tmp_path / "new.csv").write_text("second,first\na king,north river\na river,south king\nold,north old\n")
    words = ("--data", tmp_path / "new.csv", "--predictions", tmp_path / "out" / "labels.jsonl")
    written = command("evaluate", texts / "labels", *words)
    lines = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert written == {"file": str(tmp_path / "out" / "labels.jsonl"), "member": written["member"]}
    assert [line["label"] for line in lines] == ["north", "south", "north"]
    assert all(line["probabilities"][line["label"]] >= 0.5 for line in lines)
    (tmp_path / "new.jsonl").write_text('{"text": "king king king"}\n')
    words = ("--data", tmp_path / "new.jsonl", "--predictions", tmp_path / "scores.jsonl", "--member", "pool")
    assert command("evaluate", texts / "score", *words)["member"] == "pool"
    (line,) = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert set(json.loads(line)) == {"id", "score"}
    with pytest.raises(UserError, match="--data is missing"):
        predict_run(texts / "labels", tmp_path / "x.jsonl", data="", quiet=True)
    with pytest.raises(UserError, match="has no column 'label'"):
        score_run(texts / "labels", data=str(tmp_path / "new.csv"), quiet=True)


def test_lines_that_are_left_out_are_told(tmp_path):
    path = Path(labelled(tmp_path / "a.csv", 30))
    path.write_text(path.read_text() + "torn\n")
    with pytest.raises(UserError, match=r"a\.csv: line 32 has 1 columns"):
        Study(text_recipe(str(path), str(path)), tmp_path / "refused", quiet=True).run()
    study = Study(text_recipe(str(path), str(path), data={"broken": "leave out"}), tmp_path / "run", quiet=True)
    study.begin()
    assert len(study.data["test"].records) == 30
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["text"] for entry in log if entry["event"] == "note"] == [
        f"{path}: 1 of 31 lines are broken and left out"
    ] * 2


@pytest.mark.parametrize("task", ["labels", "spans"])
def test_a_second_set_is_scored_by_the_same_members(task, tmp_path):
    if task == "labels":
        test, heads = labelled(tmp_path / "b.csv", 16, 1), [{"kind": "pool"}]
        recipe = text_recipe(labelled(tmp_path / "a.csv", 24), test, data={"also": test}, heads=heads)
    else:
        recipe = recipe_of(**BRIEF, data={"also": questions(24, 2)})
    study = Study(recipe, tmp_path / "run", quiet=True)
    rows = study.run()
    assert {row["role"] for row in rows} == {"backbone", "head", "ensemble"}
    assert recipe.data.also == recipe.data.test
    for row, metric in product(rows, study.task.metrics):
        assert row[f"also_{metric}"] == row[metric]
    assert all(stage.done for stage in study.journal.stages.all)
    assert "second set" in write_report(tmp_path / "run").read_text(encoding="utf-8")
