"""Summaries and tables on rows whose numbers can be worked out by hand."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bertvision.errors import UserError
from bertvision.report.console import console_table
from bertvision.report.missing import unscored
from bertvision.report.summary import Metric, Spread, main_metric, metrics_of, rows_by_kind, summarise
from bertvision.report.tables import html_table, markdown_table, member_grid, paper_grid

EM_F1 = [Metric("exact", "EM", 2), Metric("f1", "F1", 1)]


def row(member, f1, seed=1, checkpoint=1.0, kind="tune", **more):
    role = member if member == "backbone" else "ensemble" if "+" in member else "head"
    place = {"seed": seed, "checkpoint": checkpoint, "member": member, "role": role, "threshold_from": kind}
    return place | {"f1": f1, "exact": f1 - 2} | more


def test_a_long_heading_is_no_tower_of_words():
    entry = {"checkpoint": None, "member": "pool", "f1": 70.0, "on": "BERT-large, SQuAD 2.0"}
    table = html_table(member_grid(summarise([row("pool", 70.5) | {"checkpoint": None}]), (), [entry]), "x")
    assert '<th scope="col" class="wide"><button type="button">F1, paper (BERT-large, SQuAD 2.0)</button>' in table
    assert '<th scope="col"><button type="button">F1</button>' in table


def test_mean_deviation_and_paired_difference():
    rows = [
        row("backbone", 70, 1),
        row("pool", 71, 1),
        row("backbone", 74, 2),
        row("pool", 78, 2),
        row("backbone", 72, 3),
    ]
    base, pool = summarise(rows)
    assert (base.scores["f1"].mean, base.scores["f1"].sd, base.scores["f1"].n) == (72, 2, 3)
    assert pool.scores["f1"].values == (71, 78)
    assert pool.differences["f1"].values == (1, 4)  # seed 3 has no pool: not paired
    assert pool.differences["f1"].mean == 2.5
    assert pool.differences["f1"].sd == pytest.approx(math.sqrt(4.5))
    assert base.differences == {}
    assert Spread((5.0,)).sd is None


def test_a_score_of_zero_is_a_percentage_like_any_other():
    found = [{"member": "backbone", "accuracy": 69.1, "matthews": 0.0, "also_matthews": 0.0, "made_up": 0.25}]
    assert [metric.label for metric in metrics_of(summarise(found))][2] == "Matthews, second set"
    assert {metric.key: metric.digits for metric in metrics_of(summarise(found))} == {
        "accuracy": 2,
        "matthews": 2,
        "also_matthews": 2,
        "made_up": 4,
    }


def test_difference_is_to_the_backbone_of_the_same_place():
    rows = [row("backbone", 60, checkpoint=0.3), row("backbone", 70), row("backbone", 65, kind="zero")]
    rows += [row("pool", 63, checkpoint=0.1 + 0.2), row("pool", 69), row("pool", 66, kind="zero")]
    found = {(r.checkpoint, r.threshold_from): r.differences["f1"].mean for r in summarise(rows) if r.member == "pool"}
    assert found == {(0.3, "tune"): 3, (1.0, "tune"): -1, (1.0, "zero"): 1}


def test_best_is_per_place_and_needs_as_many_seeds():
    rows = [row("backbone", 70, s) for s in (1, 2)] + [row("pool", 71, s) for s in (1, 2)] + [row("lucky", 99, 1)]
    assert [("f1" in r.best) for r in summarise(rows)] == [False, True, False]
    tied = summarise([row("backbone", 70), row("pool", 70)])
    assert all("f1" in r.best for r in tied)
    assert summarise([row("backbone", 70)])[0].best == frozenset()  # no rival, no best


def test_order_and_later_rows_win():
    rows = [
        row("a + b", 3),
        row("zeta", 2),
        row("alpha", 2),
        row("backbone", 1),
        row("zeta", 9, checkpoint=0.3),
        row("zeta", 5),
    ]
    assert [(r.checkpoint, r.member) for r in summarise(rows)] == [
        (0.3, "zeta"),
        (1.0, "backbone"),
        (1.0, "zeta"),
        (1.0, "alpha"),
        (1.0, "a + b"),
    ]
    assert summarise(rows)[2].scores["f1"].values == (5,)


def test_not_a_number_is_no_score():
    (only,) = summarise([row("pool", 70, HasAns_spans_f1=float("nan"), flag=True, note="x")])
    assert set(only.scores) == {"f1", "exact"}


def test_row_without_member_is_the_users_to_mend():
    with pytest.raises(UserError, match="without a member"):
        summarise([{"seed": 1, "f1": 3}])


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.floats(0, 100)), max_size=20))
def test_nothing_is_lost_or_invented(runs):
    rows = [row(member, value, seed) for seed, member, value in runs] + [row("backbone", 50.0, seed) for seed in (1, 2)]
    last = {(r["member"], r["seed"]): r["f1"] for r in rows}
    summary = summarise(rows)
    assert {(r.member, s): v for r in summary for s, v in zip(r.seeds, r.scores["f1"].values)} == last
    for r in summary:
        paired = [last[r.member, s] - 50 for s in r.seeds if s in (1, 2)]
        assert list(r.differences["f1"].values if "f1" in r.differences else ()) == (
            [] if r.role == "backbone" else paired
        )


def test_metrics_come_from_the_rows():
    assert [m.key for m in metrics_of(summarise([row("pool", 70, NoAns_f1=3.0, total=5)]))] == [
        "exact",
        "f1",
        "NoAns_f1",
    ]
    labels = summarise([{"member": "pool", "accuracy": 0.9, "matthews": 61.5, "parameters": 5, "tune_accuracy": 0.8}])
    assert metrics_of(labels) == (Metric("accuracy", "accuracy", 4), Metric("matthews", "Matthews", 2))
    assert main_metric(metrics_of(labels)).key == "accuracy"
    assert main_metric(EM_F1).key == "f1"


def test_tuned_threshold_comes_first():
    kinds = rows_by_kind(summarise([row("pool", 1, kind="zero"), row("pool", 2, kind="tune")]))
    assert list(kinds) == ["tune", "zero"]


def test_markdown_exact_text():
    rows = [row("backbone", 70, 1, parameters=1234567), row("a|b", 71, 1), row("backbone", 72, 2), row("a|b", 74, 2)]
    paper = [{"checkpoint": 1, "member": "backbone", "f1": 77.7}]
    assert markdown_table(summarise(rows), EM_F1, paper) == (
        "| Epoch | Member | F1 | Δ F1 | F1, paper | EM | Parameters |\n"
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| 1 | backbone | 71.0 ± 1.4 | – | 77.7 | 69.00 ± 1.41 | 1,234,567 |\n"
        "| 1 | a\\|b | **72.5 ± 2.1** | +1.5 ± 0.7 | – | **70.50 ± 2.12** | – |\n"
    )


def test_single_run_without_checkpoints_or_zero_sign():
    rows = [{"member": "backbone", "accuracy": 0.5}, {"member": "pool", "accuracy": 0.49999}]
    assert markdown_table(summarise(rows), [("accuracy", "Accuracy", 2)]) == (
        "| Member | Accuracy | Δ Accuracy |\n"
        "| --- | ---: | ---: |\n"
        "| backbone | **0.50** | – |\n"
        "| pool | 0.50 | +0.00 |\n"
    )


def test_seeds_are_counted_only_where_they_differ():
    rows = [row("backbone", 70, 1), row("backbone", 71, 2), row("pool", 71, 1)]
    assert "Seeds" in member_grid(summarise(rows)).heading
    assert "Seeds" not in member_grid(summarise(rows[:2])).heading


def test_paper_without_counterpart_has_its_own_table():
    rows = summarise([row("backbone", 70)])
    paper = [{"checkpoint": 1.0, "member": "backbone", "f1": 77.7}, {"checkpoint": 6, "member": "backbone", "f1": 79.6}]
    assert markdown_table(paper_grid(rows, EM_F1, paper)) == (
        "| Epoch | Member | F1, paper |\n| ---: | --- | ---: |\n| 6 | backbone | 79.6 |\n"
    )
    assert paper_grid(rows, EM_F1, paper[:1]) is None


def test_html_cells_carry_what_they_are_sorted_by():
    table = html_table(member_grid(summarise([row("backbone", 70.5), row("<b>", 71.25)])), "A & B")
    assert 'aria-label="A &amp; B"' in table
    assert '<td data-value="71.25"><strong>71.25</strong></td>' in table
    assert '<td class="word name">&lt;b&gt;</td>' in table


def test_a_head_is_known_whatever_its_share_and_epoch():
    rows = [row("pool", 1), row("pool @ 30 %", 1, fraction=0.3), row("pool, epoch 0.5", 1, head_epochs=0.5)]
    rows += [row("pool @ 30 %, epoch 0.5", 1, fraction=0.3, head_epochs=0.5), row("mine @ 5 %", 1)]
    found = {one.member: (one.head, one.family) for one in summarise(rows)}
    assert found == {
        "pool": ("pool", "pool"),
        "pool @ 30 %": ("pool", "pool"),
        "pool, epoch 0.5": ("pool", "pool, epoch 0.5"),
        "pool @ 30 %, epoch 0.5": ("pool", "pool, epoch 0.5"),
        "mine @ 5 %": ("mine @ 5 %", "mine @ 5 %"),  # a name of the user's
    }
    wanted = {"heads": [{}, {}], "bank": {"fractions": [0.3, 1.0]}}
    assert unscored(summarise(rows), wanted) == ["Not scored yet: 1 of 4 heads at checkpoint 1 of seed 1."]


def test_console_table_counts_the_seeds_of_a_mean():
    def caption(rows):
        return console_table(rows).caption

    apart = [row("backbone", 70, seed, variant=name) for seed, name in enumerate("abc")]
    assert caption(apart) == "single runs" and caption(apart[:1]) == "a single run"
    both = [row("backbone", 70, 1), row("backbone", 71, 2), row("backbone", 60, 1, checkpoint=0.3)]
    assert caption(both) == "mean ± sample standard deviation over 1 to 2 seeds"


def test_console_table_shows_every_member_in_eighty_columns():
    rows = [row(m, 70 + n, s) for s in (1, 2) for n, m in enumerate(["backbone", "pool", "backbone + [red]pool[/red]"])]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(console_table(rows))
    text = console.export_text()
    assert "72.00 ± 0.00" in text and "+2.00 ± 0.00" in text and "[red]pool" in text and "over 2 seeds" in text
    assert max(map(len, text.splitlines())) <= 80
