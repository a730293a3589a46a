"""Published results stand beside the run, the checkpoint and the member they belong to, and beside no other."""

from dataclasses import replace

import pytest

from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.paper import alone, beside, for_run
from bertvision.report.summary import Metric, summarise
from bertvision.report.tables import markdown_table, paper_grid

RECIPE = {"finetune": {"train_layers": 6, "adapters": 0, "head": {"kind": "attend", "form": "dot"}}}
F1 = [Metric("f1", "F1", 1)]


def rows(*members: str, checkpoint: float = 3.0):
    return summarise(
        {"checkpoint": checkpoint, "member": member, "f1": 70.0, "parameters": 1_000_000, "role": role(member)}
        for member in members
    )


def role(member: str) -> str:
    return "backbone" if member == "backbone" else "ensemble" if " + " in member else "head"


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ("", True),
        ("finetune.train_layers=6", True),
        ("finetune.train_layers=6 finetune.adapters=0", True),
        ("finetune.train_layers=6 finetune.adapters=64", False),
        ("finetune.train_layers=all", False),
        ("finetune.head.form=dot", True),
        ("finetune.head.form=bilinear", False),
        ("finetune.head=last", False),
        ("finetune.train_layers.deeper=1", False),
        ("no settings at all", False),
    ],
)
def test_an_entry_belongs_to_the_runs_with_its_settings(when, holds):
    entry = {"checkpoint": 3, "member": "backbone", "f1": 75.2, "when": when, "label": "L6"}
    (seen,) = for_run([entry], RECIPE)
    assert seen == (entry if holds else {**entry, "member": "backbone, L6"})
    assert beside(rows("backbone"), [seen]) == [seen if holds else {}]
    assert alone(rows("backbone"), [seen]) == ([] if holds else [seen])


def test_without_a_label_another_run_is_called_after_its_settings():
    (seen,) = for_run([{"checkpoint": 3, "member": "backbone", "when": "finetune.adapters=64"}], RECIPE)
    assert seen["member"] == "backbone, finetune.adapters=64"


def test_a_study_without_variants_has_no_use_for_what_is_published_of_one():
    entry = {"checkpoint": 3, "member": "backbone", "f1": 63.9, "variant": "RTE"}
    assert for_run([entry, {**entry, "variant": "", "f1": 70.1}], RECIPE) == [{**entry, "variant": "", "f1": 70.1}]


def test_the_ensemble_is_found_whatever_it_blends():
    found = rows("backbone", "pool", "backbone + pool")
    entry = {"checkpoint": 3, "member": "ensemble", "f1": 79.8}
    assert beside(found, [entry]) == [{}, {}, entry] and alone(found, [entry]) == []
    exact = {"checkpoint": 3, "member": "backbone + pool", "f1": 80.0}
    assert beside(found, [entry, exact]) == [{}, {}, exact]
    assert beside(rows("backbone", "backbone + pool", checkpoint=1.0), [entry]) == [{}, {}]
    greedy = replace(rows("backbone + pool")[0], member=GREEDY)
    assert beside([greedy], [entry]) == [{}] and alone([greedy], [entry]) == [entry]


def test_what_was_measured_on_something_else_says_so_in_the_heading():
    entry = {"checkpoint": 3, "member": "backbone", "f1": 79.8, "parameters": 3, "on": "BERT-large, SQuAD 2.0"}
    heading = markdown_table(rows("backbone", "pool"), F1, [entry]).splitlines()[0]
    assert "| F1, paper (BERT-large, SQuAD 2.0) |" in heading and "| Parameters, paper (BERT-large, SQ" in heading
    apart = paper_grid(rows("pool"), F1, [entry])
    assert apart is not None and "F1, paper (BERT-large, SQuAD 2.0)" in apart.heading
    assert "| F1, paper |" in markdown_table(rows("backbone"), F1, [entry | {"on": ""}])


def test_published_costs_have_columns_too():
    paper = [
        {"checkpoint": 3, "member": "backbone", "f1": 75.25, "parameters": 42_548_738},
        {"checkpoint": 3, "member": "backbone, L0", "train_seconds": 11_280.0},
    ]
    assert markdown_table(rows("backbone"), F1, paper) == (
        "| Epoch | Member | F1 | F1, paper | Parameters | Parameters, paper |\n"
        "| ---: | --- | ---: | ---: | ---: | ---: |\n"
        "| 3 | backbone | 70.0 | 75.2 | 1,000,000 | 42,548,738 |\n"
    )
    assert markdown_table(paper_grid(rows("backbone"), F1, paper)) == (
        "| Epoch | Member | Training s, paper |\n| ---: | --- | ---: |\n| 3 | backbone, L0 | 11,280.0 |\n"
    )


def test_published_costs_alone_do_not_make_a_report():
    assert paper_grid([], [], [{"checkpoint": 3, "member": "backbone", "parameters": 5}]) is None
