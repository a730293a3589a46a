"""Several studies on one page: variants of a recipe, and runs given together."""

import json
from pathlib import Path

import pytest

from bertvision.evaluate.ensemble import BEST
from bertvision.report.page import write_pages, write_report
from bertvision.report.reading import read_runs, read_study, run_names
from bertvision.report.terminal import print_study
from bertvision.report.variants import outcome_grid, outcome_sentences, variant_outcomes
from report.rows import comparison, summarised, with_ensemble
from report.test_page import check_page

RECIPE = """
title = "Three tasks"
seeds = [1, 2]
paper = [
    {variant = "CoLA", checkpoint = 1, member = "backbone", matthews = 53.4, source = "Somebody 2021"},
    {variant = "CoLA", checkpoint = 1, member = "best head", matthews = 60.0, source = "Somebody 2021"},
    {variant = "RTE", checkpoint = 1, member = "pool", accuracy = 72.6, source = "Somebody 2021"},
    {variant = "RTE", checkpoint = 1, member = "pool (large)", accuracy = 59.2, source = "Somebody 2021"},
    {variant = "WNLI", checkpoint = 1, member = "backbone", accuracy = 56.3, source = "Somebody 2021"},
]
[finetune]
epochs = 1
[[heads]]
kind = "pool"
[[heads]]
kind = "conv"
[[variants]]
name = "CoLA"
data = {test = "glue:CoLA/dev"}
[[variants]]
name = "RTE"
data = {test = "glue:RTE/dev"}
[[variants]]
name = "../RTE"
data = {test = "glue:RTE/dev"}
"""
SCORES = {"backbone": (50.0, 50.0), "pool": (52.0, 55.0), "conv": (58.0, 51.0), BEST: (57.0, 56.0)}


def rows(variant, metric, shift=0.0, seeds=(1, 2)):
    return [
        with_ensemble(
            {"seed": s, "checkpoint": 1.0, "member": m, "variant": variant, "accuracy": 90.0 + s, "parameters": 7}
            | {metric: test + shift + s, f"tune_{metric}": tune + shift}
        )
        for s in seeds
        for m, (test, tune) in SCORES.items()
    ]


def interval(variant, metric, low, high):
    of = {"variant": variant, "threshold_from": "", "metric": metric, "seeds": [1, 2]}
    return comparison(2.0, low, high, questions=9, draws=1000, **of)


@pytest.fixture
def glue(tmp_path) -> Path:
    """A study of two variants, and a third without scores."""
    directory = tmp_path / "glue"
    directory.mkdir()
    scores = rows("CoLA", "matthews") + rows("RTE", "accuracy", 10)
    known = [interval("CoLA", "matthews", 0.5, 3.5), interval("RTE", "accuracy", -1.0, 5.0)]
    for name, content in (("metrics", scores), ("comparisons", {"comparisons": known}), ("study", {"finished": "x"})):
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (directory / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return directory


def test_one_line_per_variant_with_heads_chosen_on_tune():
    paper = [{"checkpoint": 1, "member": "best head", "matthews": 60.0}]
    found = variant_outcomes(summarised(rows("CoLA", "matthews") + rows("RTE", "accuracy", 10)), {"CoLA": paper})
    assert [outcome.metric.key for outcome in found] == ["matthews", "accuracy"]  # by which members were chosen
    assert {outcome.rows["head"].name for outcome in found} == {"pool"}  # conv is higher on test
    grid = outcome_grid(found)
    assert [cell.text for cell in grid.lines[0]] == [
        *("CoLA", "Matthews", "1", "51.50 ± 0.71", "53.50 ± 0.71", "60.0", "+2.00 ± 0.00", "58.50 ± 0.71", "pool")
    ]
    assert [cell.text for cell in grid.lines[1]][5] == "–"  # the paper says nothing about RTE
    assert [cell.best for cell in grid.lines[0]].index(True) == grid.heading.index("Ensemble")
    other = [{"checkpoint": 1, "member": "backbone", "accuracy": 82.0}]
    grid = outcome_grid(variant_outcomes(summarised(rows("CoLA", "matthews")), {"CoLA": other}))
    assert grid.lines[0][grid.heading.index("Backbone, paper")].text == "82.0 accuracy"  # another metric is named


def test_losses_stand_beside_published_ones():
    scores = [numbers | {"loss": 0.7} for numbers in rows("dot", "f1")]
    entry = {"checkpoint": 1, "member": "backbone", "f1": 79.953, "loss": 0.634}
    grid = outcome_grid(variant_outcomes(summarised(scores), {"dot": [entry]}))
    shown = dict(zip(grid.heading, (cell.text for cell in grid.lines[0])))
    assert (shown["Loss"], shown["Loss, paper"], shown["Backbone, paper"]) == ("0.700", "0.634", "79.953")
    assert "Loss" not in outcome_grid(variant_outcomes(summarised(scores), {})).heading


def test_page_of_variants(glue):
    page = write_report(glue).read_text(encoding="utf-8")
    check_page(page)
    assert "2 variants were compared: CoLA and RTE." in page
    assert "Of 2, the best head is clearly above the backbone in 1 (CoLA); in 1 it does not differ clearly." in page
    assert "the best heads were picked on the tuning set" in page
    assert "Not scored yet: variant ../RTE." in page
    text = (glue / "report.md").read_text(encoding="utf-8")
    joint, cola, rte = (text.split(f"\n## {name}\n")[1].split("\n## ")[0] for name in ("All variants", "CoLA", "RTE"))
    line = (
        "| CoLA | Matthews | 1 | 51.50 ± 0.71 | 53.4 | 53.50 ± 0.71 | 60.0 | **+2.00 (+0.50 to +3.50)** "
        "| **58.50 ± 0.71** | pool |"
    )
    assert line in joint
    assert "| 72.6 |" in joint and "| 53.4 |" in cola and "| 53.4 |" not in rte and "72.6" in rte
    apart = text.split("## Published results without a counterpart here")[1]
    assert "| 1 | backbone, WNLI | 56.3 |" in apart and "| 53.4 |" not in apart
    assert "| 1 | pool (large), RTE | 59.2 |" in apart and "60.0 |" not in apart
    assert "On the same data" not in text  # two test sets: never in one plot


def test_a_variant_is_looked_for_inside_its_study_only(glue):
    outside = glue.parent / "RTE"
    outside.mkdir()
    (outside / "study.json").write_text('{"secret": "not to be shown"}', encoding="utf-8")
    (glue / "cola-1").mkdir()
    (glue / "cola-1" / "study.json").write_text('{"note": "inside"}', encoding="utf-8")
    (glue / "study.json").write_text('{"finished": "x", "variants": {"CoLA": "cola-1"}}', encoding="utf-8")
    page = write_report(glue).read_text(encoding="utf-8")
    assert "inside" in page and "not to be shown" not in page


def test_a_variant_under_way_is_reported_from_its_own_directory(glue):
    for name in ("metrics", "comparisons"):
        (glue / f"{name}.json").unlink()
    (glue / "RTE").mkdir()
    own_rows = [{k: v for k, v in row.items() if k != "variant"} for row in rows("RTE", "accuracy", 10, seeds=[1])]
    (glue / "RTE" / "metrics.json").write_text(json.dumps(own_rows), encoding="utf-8")
    known = {**interval("RTE", "accuracy", 0.5, 3.5), "seeds": [1], "variant": ""}
    (glue / "RTE" / "comparisons.json").write_text(json.dumps({"comparisons": [known]}), encoding="utf-8")
    page = write_report(glue).read_text(encoding="utf-8")
    check_page(page)
    assert "1 variant has scores: RTE." in page and "There are no scores yet" not in page
    assert "Of 1, the best head is clearly above the backbone in 1 (RTE)" in page
    assert "RTE: Not scored yet: seed 2 of 2." in page and "Not scored yet: variants CoLA, ../RTE." in page
    assert {score.variant for score in read_study(glue).scores} == {"RTE"}


def write_run(directory: Path, test: str, shift: float, epochs=(0.5, 1.0)) -> Path:
    directory.mkdir(parents=True)
    scores = [
        with_ensemble(
            {"seed": 1, "checkpoint": e, "member": m, "threshold_from": "tune", "exact": f1, "f1": f1 + e}
            | {"parameters": 10 * n + 10, "tune_f1": tune, "train_seconds": 5.0 + n}
        )
        for e in epochs
        for n, (m, (f1, tune)) in enumerate((m, (test + shift, tune)) for m, (test, tune) in SCORES.items())
    ]
    (directory / "metrics.json").write_text(json.dumps(scores), encoding="utf-8")
    text = f'[data]\ntest = "{test}"\n[finetune]\nepochs = 1\ncheckpoints = [0.5]\n'
    (directory / "recipe.toml").write_text(text, encoding="utf-8")
    (directory / "study.json").write_text('{"finished": "x", "command": "bertvision study a"}', encoding="utf-8")
    return directory


def test_several_runs_on_one_page(tmp_path):
    runs = [write_run(tmp_path / "a" / "base", "dev.json", 0), write_run(tmp_path / "b" / "base", "dev.json", 5)]
    one = with_ensemble({"member": "pool", "f1": 3.0, "exact": 2.0})
    both = {"test": [one | {"ensemble": one["ensemble"] | {"chosen": "given"}}]}
    (runs[1] / "ensemble.json").write_text(json.dumps(both), encoding="utf-8")
    study = read_runs(runs)
    page = write_pages(study, tmp_path / "out").read_text(encoding="utf-8")
    check_page(page)
    assert "<h1>Compared: a/base, b/base</h1>" in page
    assert {score.variant for score in study.scores} == {"a/base", "b/base"}
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "| a/base | F1 | 1 | 51.00 | 53.00 | +2.00 | **58.00** | pool |" in text
    assert "## On the same data" in text and "| b/base | 0.5 | conv |" in text
    names = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"score.svg", "front-parameters.png", "a-base-score-tune.svg", "b-base-score-tune.svg"} <= names
    assert page.count("bertvision study a") == 2
    assert page.count("The ensemble in ensemble.json") == 1 and "given on the command line" in page


def test_runs_are_drawn_together_on_the_same_data_only_and_each_once(tmp_path):
    run, other = write_run(tmp_path / "a", "dev.json", 0), write_run(tmp_path / "b", "other.json", 5)
    page = write_pages(read_runs([run, other]), tmp_path / "out").read_text(encoding="utf-8")
    assert "On the same data" not in page
    assert read_runs([run, tmp_path / "." / "a" / ".." / "a"]) == read_study(run)
    assert run_names([tmp_path / "x" / "r", tmp_path / "y" / "r"]) == ["x/r", "y/r"]
    assert run_names([tmp_path / "x", tmp_path / "y"]) == ["x", "y"]


def test_sentences_without_heads_intervals_or_scores():
    def sentences(found):
        return outcome_sentences(variant_outcomes(summarised(found), {}))

    assert sentences([]) == ["There are no scores yet."]
    alone = [row for row in rows("A", "accuracy") if row["member"] == "backbone"]
    assert sentences(alone)[1] == "No heads were trained."
    assert "were not computed" in sentences(rows("A", "accuracy"))[1]


def test_variants_in_the_terminal(glue, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    print_study(read_study(glue))
    text = capsys.readouterr().out
    assert "CoLA" in text and "53.50 ± 0.71" in text and "63.50 ± 0.71" in text
    assert "60.0" in text  # as published
