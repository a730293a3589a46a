"""The parts of a report, on rows and files whose numbers can be worked out by hand."""

import pytest
from matplotlib.figure import Figure

from bertvision.evaluate.bootstrap import Interval
from bertvision.report.analysis import analysis_sections, marked
from bertvision.report.committee import committee_section, greedy_section
from bertvision.report.cost import cost_grid, cost_section
from bertvision.report.document import Album, Fold, Note, Passage, Picture, Pictures, Table
from bertvision.report.gains import gain_blocks
from bertvision.report.reading import Study, row_notes, with_intervals
from bertvision.report.scores import score_blocks
from bertvision.report.sentences import summary_sentences
from bertvision.report.summary import SPANS, Metric, metrics_of, summarise

F1 = Metric("f1", "F1", 2)


def row(member, f1, kind="tune", checkpoint=1.0, seed=1, **more):
    role = member if member == "backbone" else "ensemble" if "+" in member else "head"
    place = {"seed": seed, "checkpoint": checkpoint, "member": member, "role": role, "threshold_from": kind}
    return place | {"exact": f1 - 2, "f1": f1, "tune_f1": f1} | more


def interval(member, difference, low, high, kind="tune", metric="f1", checkpoint=1.0):
    place = {"checkpoint": checkpoint, "member": member, "threshold_from": kind, "metric": metric}
    return place | {"difference": difference, "low": low, "high": high, "seeds": [1], "questions": 9, "draws": 1000}


def tables(blocks):
    found = [block for block in blocks if isinstance(block, Table)]
    return found + [table for block in blocks if isinstance(block, Fold) for table in tables(block.blocks)]


def texts(grid, name):
    place = grid.heading.index(name)
    return [line[place].text for line in grid.lines]


def pictures(blocks) -> list[Picture]:
    return [picture for block in blocks if isinstance(block, Pictures) for picture in block.pictures]


def test_intervals_find_their_row():
    rows = with_intervals(
        summarise([row("backbone", 70), row("pool", 71), row("pool", 72, "zero"), row("pool", 73, checkpoint=0.3)]),
        [interval("pool", 1.0, 0.25, 1.75), interval("pool", 3.0, None, None, checkpoint=0.3)],
    )
    known = {(one.member, one.threshold_from, one.checkpoint): one.intervals for one in rows if one.intervals}
    assert known == {("pool", "tune", 1.0): {"f1": Interval(1.0, 0.25, 1.75)}}  # one that is undefined is left out
    two = summarise([row(member, 70, seed=seed) for member in ("backbone", "pool") for seed in (1, 2)])
    stale = with_intervals(two, [interval("pool", 1.0, 0.25, 1.75)])
    assert not any(one.intervals for one in stale)  # it is of seed 1 alone


@pytest.mark.parametrize(
    ("pool", "conv", "said"),
    [
        (
            (0.25, 1.75),
            (-0.5, 0.7),
            "pool, best on the tuning set, is above the backbone "
            "(F1 71.00 against 70.00, +1.00, 95 % interval +0.25 to +1.75).",
        ),
        (
            (-0.25, 2.25),
            (-0.5, 0.7),
            "no member differs clearly from the backbone (best on the tuning set: pool, "
            "F1 71.00 against 70.00, +1.00, 95 % interval -0.25 to +2.25).",
        ),
        (
            (-0.25, 2.25),
            (-2.0, -0.1),
            "pool, best on the tuning set, does not differ clearly from the backbone "
            "(F1 71.00 against 70.00, +1.00, 95 % interval -0.25 to +2.25), though 1 of the others does.",
        ),
    ],
)
def test_words_claim_what_the_intervals_allow(pool, conv, said):
    rows = with_intervals(
        summarise([row("backbone", 70), row("pool", 71), row("conv", 69.0)]),
        [interval("pool", 1.0, *pool), interval("conv", -1.0, *conv)],
    )
    _, second, third = summary_sentences(rows, SPANS)
    assert second == f"With the no-answer threshold chosen on the tuning set, at epoch 1 {said}"
    assert "paired bootstrap" in third


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((3, 1), "pool, best on the tuning set, is above the backbone (F1 72.00 against 70.00, +2.00, 95 % interval "),
        ((5, -1), "no member differs clearly from the backbone (best on the tuning set: pool, F1 72.00 against 70.00"),
    ],
)
def test_words_claim_what_the_seeds_allow(gains, said):
    scores = [row("backbone", 70, seed=seed) for seed in (1, 2)]
    scores += [row("pool", 70 + gain, seed=seed) for seed, gain in zip((1, 2), gains)]
    rows = with_intervals(summarise(scores), [interval("pool", 2.0, 0.5, 3.5) | {"seeds": [1, 2]}])
    _, second, third = summary_sentences(rows, SPANS)
    higher = sum(gain > 0 for gain in gains)
    assert said in second and f"+0.50 to +3.50, higher in {higher} of 2 seeds)." in second
    assert "so that the chance in training is outside them" in third


@pytest.mark.parametrize(
    ("more", "facts", "said"),
    [
        ({"total": 8, "NoAns_total": 2}, {}, "always saying “no answer” scores EM 25.00, F1 25.00 on this test set."),
        ({}, {"constant": {"says": "yes", "f1": 61.5}}, "always saying “yes” scores F1 61.50 on this test set."),
    ],
)
def test_what_nothing_learnt_would_score(more, facts, said):
    study = Study("x", rows=summarise([row("pool", 71, **more)]), facts=facts)
    notes = [block.text for block in score_blocks(study, [F1], Album()) if isinstance(block, Note)]
    assert notes[0] == f"Nothing learnt: {said}"


def test_curves_that_are_not_drawn_are_counted():
    members = {f"head {n}": MEMBER | {"auroc": 0.5 + n / 100} for n in range(8)}
    (_, section) = analysis_sections(Study("x", analysis={"members": members}), Album())
    (picture,) = pictures(section.blocks)
    assert picture.caption.endswith("6 of 8 members, those with the highest AUROC")
    assert "head 7" in picture.svg and "head 1 " not in picture.svg
    members["backbone"] = MEMBER | {"auroc": 0.1}  # the others are held against it
    (_, section) = analysis_sections(Study("x", analysis={"members": members}), Album())
    (picture,) = pictures(section.blocks)
    assert picture.caption.endswith("6 of 9 members, the backbone and those with the highest AUROC")
    assert "backbone (AUROC" in picture.svg and "head 2 " not in picture.svg and "head 3 " in picture.svg


def test_gains_are_kept_apart():
    scores = [
        row(member, f1 + plus, kind, HasAns_spans_f1=spans)
        for member, f1, spans in (("backbone", 70, 80), ("pool", 71, 80.5), ("backbone + pool", 74, 83))
        for kind, plus in (("zero", 0), ("tune", 1 if member == "backbone" else 0.5))
    ]
    known = [
        interval("pool", 0.5, -0.1, 1.1, "zero", "HasAns_spans_f1"),
        interval("pool", 1.0, 0.4, 1.6, "zero"),
        interval("pool", 0.5, -0.3, 1.3, "tune"),
    ]
    rows = with_intervals(summarise(scores), known)
    blocks = gain_blocks(rows, metrics_of(rows), Album())
    (table,) = tables(blocks)
    columns = ["Better spans", "Null as it comes (threshold 0)", "Threshold tuned for both"]
    assert table.grid.heading == ["Epoch", "Member", *columns]
    assert texts(table.grid, columns[0]) == ["+0.50 (-0.10 to +1.10)", "+3.00"]
    assert texts(table.grid, columns[1]) == ["+1.00 (+0.40 to +1.60)", "+4.00"]
    assert texts(table.grid, columns[2]) == ["+0.50 (-0.30 to +1.30)", "+3.50"]
    assert [[cell.best for cell in line[2:]] for line in table.grid.lines] == [[False, True, False], [False] * 3]
    assert [picture.name for picture in pictures(blocks)] == ["gain-1"]


def test_gains_without_intervals_are_never_clear():
    rows = summarise([row(m, f1, "", None, s) for m, f1 in (("backbone", 70), ("pool", 90)) for s in (1, 2)])
    blocks = gain_blocks(rows, [F1], Album())
    (table,) = tables(blocks)
    assert texts(table.grid, "F1") == ["+20.00"] and not table.grid.lines[0][1].best
    assert "No intervals were computed" in " ".join(block.text for block in blocks if isinstance(block, Note))
    assert gain_blocks(summarise([row("backbone", 70)]), [F1], Album()) == []


def test_costs_beside_the_score():
    costs = {"tuning_seconds": 90.0, "head_seconds": 10.0, "train_seconds": 100.0, "ms_per_question": 7.125}
    rows = summarise(
        [
            row("backbone", 70, parameters=1, total_parameters=1000, disk_bytes=999),
            row("pool", 71, parameters=1152, total_parameters=2152, disk_bytes=4608, **costs),
            row("huge", 40, parameters=10, disk_bytes=7_654_321_000),
        ]
    )
    paper = [{"checkpoint": 1, "member": "pool", "parameters": 2076}]
    grid = cost_grid(rows, F1, paper)
    assert texts(grid, "Trained parameters") == ["1", "1,152", "10"]
    assert texts(grid, "Trained parameters, paper") == ["–", "2,076", "–"]
    assert texts(grid, "Tuning s")[1] == "90.0" and texts(grid, "Head s")[1] == "10.0"
    assert texts(grid, "ms per question")[1] == "7.12"
    assert texts(grid, "On disk") == ["999 B", "4.61 KB", "7.65 GB"]
    assert texts(grid, "Efficiency") == ["–", "2.98", "-4.34"]  # 21 / ln 1152, -10 / ln 10
    (section,) = cost_section(Study("x", rows=rows, facts={"peak": {"memory_gib": 1.5}}), [F1], Album())
    names = ["front-parameters", "front-total-parameters", "front-disk-bytes"]
    assert [picture.name for picture in pictures(section.blocks)] == names
    assert "Peak memory of the whole run: 1.5 GiB." in [b.text for b in section.blocks if isinstance(b, Note)]


def test_heads_that_saw_less_data_have_their_own_table_and_curve():
    scores = [row("backbone", 70), row("conv", 72), row("pool", 71, fraction=1.0), row("pool @ 30 %", 75, fraction=0.3)]
    scores.append(row("backbone + best head", 71.5, fraction=0.65))  # the mean over seeds that chose differently
    study = Study("x", rows=summarise(scores))
    blocks = score_blocks(study, [F1], Album())
    main, less = tables(blocks)
    assert texts(main.grid, "Member") == ["backbone", "conv", "pool", "backbone + best head"]
    assert texts(less.grid, "Member") == ["backbone", "pool", "pool @ 30 %"]
    assert main.grid.lines[1][2].best  # among those that saw everything
    assert [picture.name for picture in pictures(blocks)] == ["share-tune"]


def test_published_scores_of_real_questions_are_not_held_against_synthetic_ones():
    rows = summarise([row("backbone", 70), row("pool", 72)])
    entry = {"checkpoint": 1.0, "member": "pool", "f1": 71.2}

    def notes(**more):
        found = score_blocks(Study("x", rows=rows, **more), [F1], Album())
        return " ".join(block.text for block in found if isinstance(block, Note))

    assert "never the height" in notes(paper=[entry], facts={"synthetic": True})
    assert "never the height" not in notes(paper=[entry]) + notes(facts={"synthetic": True})


def test_a_tune_set_that_was_split_off_is_said():
    facts = {"data": {"tune": {"source": "mine.json, 10 % of it, by article"}}}
    study = Study("x", rows=summarise([row("pool", 1)]), recipe={"data": {"tune": ""}}, facts=facts)
    notes = [block.text for block in score_blocks(study, [F1], Album()) if isinstance(block, Note)]
    wanted = "No tuning set was given, so one was split off the training data: mine.json, 10 % of it, by article."
    assert wanted in notes
    given = Study("x", rows=study.rows, recipe={"data": {"tune": "t.json"}}, facts=facts)
    assert wanted not in [block.text for block in score_blocks(given, [F1], Album()) if isinstance(block, Note)]


MEMBER = {
    "has_answer": 0.5,
    "no_answer": 0.75,
    "wrong_predicted_empty": 0.65,
    "second_right": None,
    "only_right": {"questions": 3, "context_words": 120.5},
    "by_question_word": [{"group": "who", "questions": 1200, "f1": 71.25}],
    "reliability": [{"confidence": 0.1, "observed": 0.2, "questions": 9}],
    "auroc": 0.875,
    "layer_weights": [0.25, 0.75],
}
ERROR = {
    "id": "1",
    "question": "Where <is> it?",
    "context": "In Paris, the city of Paris Hilton.",
    "gold": ["Paris"],
    "answers": {"backbone": "city of Paris Hilton", "pool": ""},
    "why": "they disagree",
}


def test_analysis_shows_what_the_file_has():
    found = {
        "checkpoint": 1.0,
        "seed": 1,
        "members": {"backbone": MEMBER | {"layer_weights": None}, "pool": MEMBER | {"has_answer": 0.625}},
        "agreement": {"members": ["backbone", "pool"], "matrix": [[1.0, 0.5], [0.5, 1.0]]},
        "errors": [ERROR],
    }
    layers, analysis = analysis_sections(Study("x", analysis=found), Album())
    assert [picture.name for picture in pictures(layers.blocks)] == ["layers"]
    assert [picture.name for picture in pictures(analysis.blocks)] == ["reliability", "agreement"]
    right, words, *_ = tables(analysis.blocks)
    assert texts(right.grid, "Right where there is an answer") == ["50.0 %", "62.5 %"]
    assert [line[1].best for line in right.grid.lines] == [False, True]
    assert texts(right.grid, "Only one to be right") == ["3", "3"] and texts(right.grid, "AUROC") == ["0.875"] * 2
    assert "Second-best right where the best is wrong" not in right.grid.heading  # nobody has one
    assert texts(words.grid, "who (1,200)") == ["71.2", "71.2"]
    (fold,) = [block for block in analysis.blocks if isinstance(block, Fold)]
    assert fold.label == "Where <is> it?"
    (passage,) = [block for block in fold.blocks if isinstance(block, Passage)]
    assert [text for text, kind in passage.pieces if kind == "right"] == ["Paris", "Paris"]
    assert [text for text, kind in passage.pieces if kind == "wrong"] == ["city of ", " Hilton"]
    assert "".join(text for text, _ in passage.pieces) == ERROR["context"]
    assert texts(tables([fold])[0].grid, "Says") == ["city of Paris Hilton", "no answer"]


@pytest.mark.parametrize("found", [{"members": {}}, {"members": {"pool": {}}, "errors": [{}], "agreement": None}])
def test_an_analysis_may_hold_next_to_nothing(found):
    for section in analysis_sections(Study("x", analysis=found), Album()):
        assert section.blocks


def test_analysis_of_classes():
    confusion = {"labels": ["no", "yes"], "matrix": [[5, 1], [2, 8]]}
    error = {"question": "a", "context": "no is no label here", "gold": ["no"], "answers": {"pool": "yes"}, "why": "x"}
    found = {"members": {"pool": {"confusion": confusion, "accuracy": 81.25}}, "errors": [error]}
    (section,) = analysis_sections(Study("x", analysis=found), Album())
    right, table, said = tables(section.blocks)
    assert texts(right.grid, "Accuracy") == ["81.25"]
    assert texts(table.grid, "Right label") == ["no", "yes"] and texts(table.grid, "said yes") == ["1", "8"]
    assert texts(said.grid, "Says") == ["yes"]
    (passage,) = [
        one for fold in section.blocks if isinstance(fold, Fold) for one in fold.blocks if type(one) is Passage
    ]
    assert passage.pieces == [("no is no label here", "")]  # a label is not a stretch of the text


def test_a_chosen_ensemble_is_shown_with_its_members():
    members = [{"member": "pool", "checkpoint": 1.0, "seed": 1, "weight": 0.25}]
    found = {"how": "mean, greedy", "members": members, "test": [row("ensemble (mean)", 77, "tune")]}
    (section,) = committee_section(Study("x", ensemble=found), [F1])
    weights, scores = tables(section.blocks)
    assert texts(weights.grid, "Weight") == ["0.250"] and texts(scores.grid, "F1") == ["77.00"]
    assert "chosen" not in section.blocks[1].text  # who says so?
    for chosen, said in (("greedy", "were chosen on the tuning set"), ("given", "named by hand")):
        (section,) = committee_section(Study("x", ensemble=found | {"chosen": chosen}), [F1])
        assert said in section.blocks[1].text
    assert committee_section(Study("x"), [F1]) == []


def test_greedy_ensembles_are_shown_with_their_weights():
    def chosen(seed, *members):
        named = [{"member": name, "weight": weight, "checkpoint": 1.0, "seed": seed} for name, weight in members]
        rows = [row("greedy ensemble", 70 + seed, kind, seed=seed, tune_f1=80.0 + seed) for kind in ("zero", "tune")]
        return {"how": "mean", "members": named, "test": rows}

    found = [chosen(1, ("backbone", 0.25), ("pool", 0.75)), chosen(2, ("pool", 1.0))]
    (section,) = greedy_section(Study("x", greedy=found), [F1])
    (table,) = tables(section.blocks)
    assert texts(table.grid, "Weights and members") == ["0.25 backbone + 0.75 pool", "pool alone"]
    assert texts(table.grid, "F1 on tune") == ["81.00", "82.00"] and texts(table.grid, "F1") == ["71.00", "72.00"]
    assert "which flatters it" in section.blocks[1].text
    assert greedy_section(Study("x"), [F1]) == greedy_section(Study("x", greedy=found), []) == []


def test_rows_may_say_something_about_themselves():
    said = {"note": "always says 'no'"}
    metrics = [row("pool", 1, kind, 0.3, **said) for kind in ("tune", "zero")] + [row("pool", 1, seed=2, **said)]
    expected = "pool (epoch 0.3, seed 1; epoch 1, seed 2): always says 'no'."
    assert row_notes([*metrics, row("pool", 70)]) == [expected]
    study = Study("x", rows=summarise(metrics), notes=row_notes(metrics))
    assert expected in [b.text for b in score_blocks(study, [F1], Album()) if isinstance(b, Note)]


def test_without_an_analysis_the_way_to_one_is_shown():
    (section,) = analysis_sections(Study("x", rows=summarise([row("pool", 1)])), Album())
    assert "bertvision analyze" in section.blocks[0].text
    assert analysis_sections(Study("x"), Album()) == []


def test_only_whole_answers_are_marked():
    assert marked("on one stone", ["on"], []) == [("on", "right"), (" one stone", "")]
    assert marked("C++ (fast)", ["C++"], ["(fast)"]) == [("C++", "right"), (" ", ""), ("(fast)", "wrong")]
    assert marked("", ["x"], []) == []


def test_no_two_figures_share_a_file():
    album = Album()
    figure = Figure(figsize=(1, 1))
    one, other = album.volume("a b"), album.volume("a/../b")
    assert [one.draw("x", "", figure).name, other.draw("x", "", figure).name, one.draw("x", "", figure).name] == [
        "a-b-x",
        "a-..-b-x",
        "a-b-x-2",
    ]
