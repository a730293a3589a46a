"""Summaries, tables and published results, on rows whose numbers can be computed by hand."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bertvision.evaluate.bootstrap import Interval
from bertvision.evaluate.ensemble import BEST, GREEDY
from bertvision.report.analysis import expected_layer, gains_of_layers
from bertvision.report.grid import main_grid, member_grid, paper_grid
from bertvision.report.lists import print_heads, print_trials
from bertvision.report.reading import unscored
from bertvision.report.rows import (
    Metric,
    Spread,
    beside,
    for_run,
    main_metric,
    metrics_of,
    rows_by_kind,
    with_intervals,
    without_counterpart,
)
from bertvision.report.terminal import score_table
from report.rows import comparison, row, summarised

EM_F1 = [Metric("exact", "EM", 2), Metric("f1", "F1", 2)]
RECIPE = {"finetune": {"train_layers": 6, "adapters": 0, "head": {"kind": "attend", "form": "dot"}}}


def lines(grid):
    return [list(grid.heading), *([cell.text for cell in line] for line in grid.lines)]


def test_mean_deviation_and_paired_difference():
    found = [("backbone", 70, 1), ("pool", 71, 1), ("backbone", 74, 2), ("pool", 78, 2), ("backbone", 72, 3)]
    base, pool = summarised(row(member, f1, seed=seed) for member, f1, seed in found)
    assert (base.scores["f1"].mean, base.scores["f1"].sd, len(base.scores["f1"].values)) == (72, 2, 3)
    assert pool.scores["f1"].values == (71, 78)
    assert pool.differences["f1"].values == (1, 4)  # seed 3 has no pool: not paired
    assert pool.differences["f1"].sd == pytest.approx(math.sqrt(4.5))
    assert base.differences == {}
    assert Spread((5.0,)).sd is None


def test_metrics_come_from_the_rows():
    found = metrics_of(summarised([row("pool", 70, NoAns_f1=3.0, total=5)]))
    assert [metric.key for metric in found] == ["exact", "f1", "NoAns_f1"]
    numbers = {"accuracy": 69.1, "matthews": 0.0, "also_matthews": 0.0, "made_up": 0.25, "tune_matthews": 3.0}
    labels = summarised([{"member": "backbone", "parameters": 5, **numbers}])
    assert metrics_of(labels) == [
        Metric("accuracy", "accuracy", 2),
        Metric("matthews", "Matthews", 2),
        Metric("made_up", "made up", 4),
        Metric("also_matthews", "Matthews, second set", 2),
    ]
    assert main_metric(labels).key == "matthews" and main_metric(summarised([row("pool", 1)])).key == "f1"


def test_difference_is_to_the_backbone_of_the_same_place():
    rows = [row("backbone", 60, checkpoint=0.3), row("backbone", 70), row("backbone", 65, "zero")]
    rows += [row("pool", 63, checkpoint=0.1 + 0.2), row("pool", 69), row("pool", 66, "zero")]
    found = {(r.epoch, r.threshold_from): r.differences["f1"].mean for r in summarised(rows) if r.name == "pool"}
    assert found == {(0.3, "tune"): 3, (1.0, "tune"): -1, (1.0, "zero"): 1}
    assert list(rows_by_kind(summarised([row("pool", 1, "zero"), row("pool", 2, "tune")]))) == ["tune", "zero"]


def test_best_is_per_place_and_needs_as_many_seeds():
    rows = [row(m, f1, seed=s) for m, f1 in (("backbone", 70), ("pool", 71)) for s in (1, 2)] + [row("lucky", 99)]
    assert [("f1" in r.best) for r in summarised(rows)] == [False, True, False]
    assert all("f1" in r.best for r in summarised([row("backbone", 70), row("pool", 70)]))
    assert summarised([row("backbone", 70)])[0].best == frozenset()  # no rival, no best


def test_order_and_later_rows_win():
    found = [("backbone + b", 3), ("zeta", 2), ("alpha", 2), ("backbone", 1), ("zeta", 5)]
    rows = summarised([row(*member_and_f1) for member_and_f1 in found] + [row("zeta", 9, checkpoint=0.3)])
    assert [(r.epoch, r.name) for r in rows] == [
        *((0.3, "zeta"), (1.0, "backbone"), (1.0, "zeta"), (1.0, "alpha"), (1.0, "backbone + b"))
    ]
    assert rows[2].scores["f1"].values == (5,)


def test_names_are_never_parsed():
    """Heads may be named like an ensemble, a share or an epoch."""
    names = ["backbone + best head", "greedy ensemble", "a + b", "pool @ 30 %", "mine, epoch 1"]
    rows = [row("backbone", 70)]
    for name in names:
        entry = row("pool", 71, tune_f1=1.0)
        entry["ensemble"]["members"][0]["head"] = name
        rows.append(entry | {"member": name})
    found = summarised([*rows, row(BEST, 72), row(GREEDY, 73)])
    assert [summary_row.role for summary_row in found] == ["backbone", *["head"] * 5, "ensemble", "ensemble"]
    assert [summary_row.family for summary_row in found[1:6]] == names and [
        summary_row.is_greedy for summary_row in found
    ][-2:] == [False, True]


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abc"), st.floats(0, 100)), max_size=20))
def test_nothing_is_lost_or_invented(runs):
    rows = [row(member, value, seed=seed) for seed, member, value in runs]
    rows += [row("backbone", 50.0, seed=seed) for seed in (1, 2)]
    last = {(r["member"], r["seed"]): r["f1"] for r in rows}
    summary = summarised(rows)
    assert {(r.name, s): v for r in summary for s, v in zip(r.seeds, r.scores["f1"].values)} == last
    for r in summary:
        paired = [] if r.role == "backbone" else [last[r.name, s] - 50 for s in r.seeds if s in (1, 2)]
        assert list(r.differences["f1"].values if "f1" in r.differences else ()) == paired


def test_intervals_find_their_row():
    rows = [row("backbone", 70), row("pool", 71), row("pool", 72, "zero"), row("pool", 73, checkpoint=0.3)]
    known = [comparison(1.0, 0.25, 1.75), comparison(3.0, None, None, checkpoint=0.3)]
    found = {(r.name, r.threshold_from, r.epoch): r.intervals for r in with_intervals(summarised(rows), known)}
    assert {key: intervals for key, intervals in found.items() if intervals} == {
        ("pool", "tune", 1.0): {"f1": Interval(1.0, 0.25, 1.75)}  # an undefined one is left out
    }
    two = summarised(row(member, 70, seed=seed) for member in ("backbone", "pool") for seed in (1, 2))
    assert not any(summary_row.intervals for summary_row in with_intervals(two, known))  # they are of seed 1 alone


def test_the_table_of_members():
    rows = [row("backbone", 70, parameters=1234567), row("a|b", 71)]
    rows += [row("backbone", 72, seed=2), row("a|b", 74, seed=2)]
    paper = [{"checkpoint": 1, "member": "backbone", "f1": 77.7}]
    grid = member_grid(summarised(rows), EM_F1, paper)
    assert lines(grid) == [
        ["Epoch", "Member", "F1", "F1, paper", "EM", "Threshold"],
        ["1", "backbone", "71.00 ± 1.41", "77.7", "69.00 ± 1.41", "0.00"],
        ["1", "a|b", "72.50 ± 2.12", "–", "70.50 ± 2.12", "0.00"],
    ]
    assert [cell.best for cell in grid.lines[1]] == [False, False, True, False, True, False]
    near = [{"member": "backbone", "accuracy": 50.0}, {"member": "pool", "accuracy": 49.999}]
    assert lines(main_grid(summarised(near)))[2] == ["1", "pool", "50.00", "+0.00"]  # no negative zero
    assert "Seeds" in member_grid(summarised(rows[:3])).heading and "Seeds" not in grid.heading


def test_the_main_table_has_both_thresholds_and_the_papers_column():
    scores = {"backbone": (66, 70), "pool": (69, 71)}
    costs = {"parameters": 778, "train_seconds": 12.34}
    found = [row(m, f1, kind, **costs) for m, pair in scores.items() for kind, f1 in zip(("zero", "tune"), pair)]
    gap = comparison(1.0, 0.25, 1.75)
    equal = comparison(-2.0, -3.0, 0.5, by="train_seconds", how="interpolated", epoch=1.2)
    paper = [{"checkpoint": 1, "member": "pool", "exact": 73.1, "f1": 76.6, "on": "BERT-large"}]
    rows = with_intervals(summarised(found), [gap], [equal])
    grid = main_grid(rows, paper)
    assert grid.heading == [
        *("Epoch", "Member", "EM / F1, threshold 0", "EM / F1, paper (BERT-large)", "F1, threshold tuned", "Δ F1"),
        *("Δ F1 at equal cost", "Parameters", "Training s"),
    ]
    assert lines(grid)[2] == [
        *("1", "pool", "67.00 / 69.00", "73.1 / 76.6", "71.00", "+1.00 (+0.25 to +1.75)", "-2.00 (-3.00 to +0.50)"),
        *("778", "12.3"),
    ]
    assert [cell.best for cell in grid.lines[1]] == [False, False, True, False, True, True, False, False, False]
    beyond = with_intervals(rows, [gap], [equal | {"how": "beyond"}])
    assert lines(main_grid(beyond))[2][5] == "beyond"
    assert lines(main_grid(rows, paper, brief=True)) == [
        ["Epoch", "Member", "EM / F1 at 0", "paper", "F1 tuned", "Δ F1", "Equal cost"],
        ["1", "backbone", "64.00 / 66.00", "–", "70.00", "–", "–"],
        ["1", "pool", "67.00 / 69.00", "73.1 / 76.6", "71.00", "+1.00", "-2.00"],
    ]


def test_a_head_is_counted_whatever_its_share_and_epoch():
    kinds = [{}, {"fraction": 0.3}, {"head_epochs": 0.5}, {"fraction": 0.3, "head_epochs": 0.5}]
    rows = summarised([*(row("pool", 1, **more) for more in kinds), row("mine @ 5 %", 1)])
    assert {summary_row.name: summary_row.family for summary_row in rows} == {
        "pool": "pool",
        "pool @ 30 %": "pool",
        "pool, epoch 0.5": "pool, epoch 0.5",
        "pool @ 30 %, epoch 0.5": "pool, epoch 0.5",
        "mine @ 5 %": "mine @ 5 %",  # a name of the user's
    }
    wanted = {"heads": [{}, {}], "bank": {"fractions": [0.3, 1.0]}}
    assert unscored(rows, wanted) == ["Not scored yet: 1 of 4 heads at checkpoint 1 of seed 1."]


def test_scores_in_the_terminal():
    def caption(rows):
        return score_table(summarised(rows)).caption

    apart = [row("backbone", 70, seed=seed, variant=name) for seed, name in enumerate("abc")]
    assert caption(apart) == "single runs" and caption(apart[:1]) == "a single run"
    both = [row("backbone", 70), row("backbone", 71, seed=2), row("backbone", 60, checkpoint=0.3)]
    assert caption(both) == "mean ± sample standard deviation over 1 to 2 seeds"

    members = ["backbone", "pool", "backbone + [red]pool[/red]"]
    rows = [row(m, 70 + n, seed=s) for s in (1, 2) for n, m in enumerate(members)]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(score_table(summarised(rows), [{"checkpoint": 1, "member": "pool", "f1": 76.6}]))
    text = console.export_text()
    assert (
        "72.00 ± 0.00" in text and "+2.00" in text and "76.6" in text and "[red]pool" in text and "over 2 seeds" in text
    )
    assert max(map(len, text.splitlines())) <= 80


def test_heads_and_trials_in_the_terminal(capsys):
    option = {"name": "shared", "type": "bool", "default": True, "limit": ""}
    entry = {"kind": "pool", "parameters": None, "summary": "y = [x]", "options": [option]}
    print_heads([entry], 7, 384, "labels")
    shown = capsys.readouterr().out
    assert "pool  not for labels" in shown and "y = [x]" in shown and "shared = true" in shown
    head = {"kind": "conv", "form": "row", "dilated": False}
    trials = [{"trial": 1, "head": head, "parameters": 1200, "state": "complete", "tune_f1": 70.0}]
    trials.append(trials[0] | {"trial": 2, "state": "pruned", "tune_f1": None})
    print_trials(trials, "f1")
    shown = capsys.readouterr().out
    assert 'conv form="row" dilated=false' in shown and "70.00" in shown and "pruned" in shown and "1,200" in shown


def published(*members: str, checkpoint: float = 3.0):
    rows = [row(member, 70.0, checkpoint=checkpoint, parameters=1_000_000) for member in members]
    return summarised(rows)


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
    assert beside(published("backbone"), [seen]) == [seen if holds else {}]
    assert without_counterpart(published("backbone"), [seen]) == ([] if holds else [seen])
    if not holds:
        (seen,) = for_run([entry | {"label": ""}], RECIPE)
        assert seen["member"] == f"backbone, {when}"


def test_published_results_of_variants_and_ensembles():
    mine, other = ({"checkpoint": 3, "member": "backbone", "f1": 63.9, "variant": name} for name in ("", "RTE"))
    assert for_run([other, mine], RECIPE) == [mine]  # not what is published of a variant
    found = published("backbone", "pool", "backbone + pool")
    entry = {"checkpoint": 3, "member": "ensemble", "f1": 79.8}
    assert beside(found, [entry]) == [{}, {}, entry] and without_counterpart(found, [entry]) == []
    exact = {"checkpoint": 3, "member": "backbone + pool", "f1": 80.0}
    assert beside(found, [entry, exact]) == [{}, {}, exact]
    assert beside(published("backbone", "backbone + pool", checkpoint=1.0), [entry]) == [{}, {}]
    greedy = published(GREEDY)
    assert beside(greedy, [entry]) == [{}] and without_counterpart(greedy, [entry]) == [entry]


def test_published_numbers_have_columns():
    paper = [
        {"checkpoint": 3, "member": "backbone", "f1": 75.253, "parameters": 42_548_738},
        {"checkpoint": 3, "member": "backbone, L0", "train_seconds": 11_280.0},
    ]
    grid = member_grid(published("backbone"), EM_F1[1:], paper)
    assert lines(grid) == [
        ["Epoch", "Member", "F1", "F1, paper", "Threshold"],
        ["3", "backbone", "70.00", "75.253", "0.00"],
    ]
    apart = paper_grid(EM_F1, published("backbone"), paper)
    assert apart is not None and lines(apart) == [
        ["Epoch", "Member", "Training s, paper"],
        ["3", "backbone, L0", "11,280.0"],
    ]
    assert paper_grid(EM_F1, published("backbone"), paper[:1]) is None and paper_grid([], [], paper) is None
    on = [paper[0] | {"on": "BERT-large, SQuAD 2.0"}]
    heading = member_grid(published("backbone"), EM_F1, on).heading
    assert "F1, paper (BERT-large, SQuAD 2.0)" in heading


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([50, 60, 60, 60], 1.0),  # the first block does it all
        ([50, 50, 50, 62], 3.0),
        ([40, 50, 60, 60], 1.5),
        ([40, 50, 45, 60], (10 - 2 * 5 + 3 * 15) / 20),  # a layer may take away
        ([40, 40], None),
        ([40, 30, 35], None),
    ],
)
def test_layers_weighted_by_what_they_add(scores, expected):
    assert expected_layer(scores) == (None if expected is None else pytest.approx(expected))
    assert scores[0] + sum(gains_of_layers(scores)) == scores[-1]
