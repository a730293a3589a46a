"""The parts of a report, on rows and files whose numbers can be worked out by hand."""

import json

import pytest
from matplotlib.figure import Figure

from bertvision.evaluate.ensemble import BEST, GREEDY
from bertvision.report.analysis import analysis_sections, marked_passage, probe_blocks
from bertvision.report.page import compose
from bertvision.report.render import Album
from bertvision.report.rows import Metric, main_rows
from bertvision.report.sections import (
    cost_blocks,
    cost_grid,
    difference_blocks,
    ensemble_blocks,
    greedy_blocks,
    loss_blocks,
    score_blocks,
    tuning_losses,
)
from bertvision.report.sentences import row_notes, summary_sentences
from bertvision.train.bank import unique_names
from bertvision.train.run_contents import read_losses
from report.rows import comparison, row, scored, study, summarised

F1 = Metric("f1", "F1", 2)


def tuned(member, f1, kind="tune", **more):
    return row(member, f1, kind, tune_f1=float(f1), **more)


def of_kind(blocks, kind):
    """The contents of the blocks of a kind, those in folds included."""
    contents = [block.content for block in blocks if block.kind == kind]
    return contents + [content for block in blocks if block.kind == "fold" for content in of_kind(block.content, kind)]


def texts(grid, name):
    column = grid.heading.index(name)
    return [line[column].text for line in grid.lines]


def names(blocks):
    return [picture.name for pictures in of_kind(blocks, "pictures") for picture in pictures]


PUBLISHED = {"checkpoint": 1.0, "member": "pool", "f1": 1, "source": "A"}
NUMBERS = "(F1 71.00 against 70.00, +1.00, 95 % interval"


@pytest.mark.parametrize(
    ("pool", "conv", "said"),
    [
        ((0.25, 1.75), (-0.5, 0.7), f"pool, {{how}}, is above the backbone {NUMBERS} +0.25 to +1.75)."),
        ((-1.75, -0.25), (-0.5, 0.7), f"pool, {{how}}, is below the backbone {NUMBERS} -1.75 to -0.25)."),
        ((-0.25, 2.25), (-0.5, 0.7), "no member differs clearly from the backbone ({how}: pool, F1 71.00 against"),
        ((-0.25, 2.25), (-2.0, -0.1), f"pool, {{how}}, does not differ clearly from the backbone {NUMBERS} -0.25 to"),
    ],
)
def test_words_claim_what_the_intervals_allow(pool, conv, said):
    better = pool != (-1.75, -0.25)
    scores = [row("backbone", 70), row("pool", 71), row("conv", 69.0)]
    if not better:  # a seed that lies above the backbone would contradict the interval
        scores[1] |= {"f1": 69.5}
    known = [comparison(1.0, *pool), comparison(-1.0, *conv, member="conv")]
    _, second, third = summary_sentences(study([score | {"tune_f1": 1.0} for score in scores], known).rows, {})
    said = said.format(how="the best of 2 members on the tuning set").replace("71.00", "71.00" if better else "69.50")
    assert said in second and second.startswith("With the no-answer threshold chosen on the tuning set, at epoch 1 ")
    assert ("though 1 of the others does" in second) == (conv[1] < 0) and "paired bootstrap" in third


@pytest.mark.parametrize(("gains", "said"), [((3, 1), "is above the backbone"), ((5, -1), "no member differs clearly")])
def test_words_claim_what_the_seeds_allow(gains, said):
    scores = [tuned("backbone", 70, seed=seed) for seed in (1, 2)]
    scores += [tuned("pool", 70 + gain, seed=seed) for seed, gain in zip((1, 2), gains)]
    found = study(scores, [comparison(2.0, 0.5, 3.5, seeds=[1, 2])])
    _, second, third = summary_sentences(found.rows, {})
    higher = sum(gain > 0 for gain in gains)
    assert said in second and f"+0.50 to +3.50, higher in {higher} of 2 seeds)." in second
    assert "do not include the variation between training runs" in third


@pytest.mark.parametrize(
    ("more", "contents", "said"),
    [
        ({"total": 8, "NoAns_total": 2}, {}, "always answering “no answer” scores EM 25.00, F1 25.00 on this test"),
        ({}, {"facts": {"constant": {"says": "yes", "f1": 61.5}}}, "always answering “yes” scores F1 61.50 on"),
        ({}, {"recipe": {"data": {"tune": ""}}, "facts": {"data": {"tune": {"source": "a tenth"}}}}, "data: a tenth."),
        ({"note": "always says 'no'"}, {"facts": {"synthetic": True}}, "pool (epoch 1, seed 1): always says 'no'."),
        ({}, {"recipe": {"paper": [PUBLISHED]}}, "Paper: A."),
        ({}, {"recipe": {"paper": [PUBLISHED]}, "facts": {"synthetic": True}}, "not the level of the scores"),
    ],
)
def test_notes_of_the_scores(more, contents, said):
    found = " ".join(of_kind(score_blocks(study([row("pool", 71, **more)], **contents), Album()), "note"))
    assert said in found and ("not the level" in found) == ("not the level" in said)


def test_notes_of_rows_name_their_places_once():
    said = {"note": "always says 'no'"}
    rows = [row("pool", 1, kind, 0.3, **said) for kind in ("tune", "zero")] + [row("pool", 1, seed=2, **said)]
    assert row_notes(scored([*rows, row("pool", 70)])) == [
        "pool (epoch 0.3, seed 1; epoch 1, seed 2): always says 'no'."
    ]


def test_differences_by_source_at_the_checkpoint_and_at_equal_cost():
    rows = [
        row(member, f1 + plus, kind, HasAns_spans_f1=spans)
        for member, f1, spans in (("backbone", 70, 80), ("pool", 71, 80.5), ("backbone + pool", 74, 83))
        for kind, plus in (("zero", 0), ("tune", 1 if member == "backbone" else 0.5))
    ]
    known = [
        comparison(0.5, -0.1, 1.1, metric="HasAns_spans_f1"),
        comparison(1.0, 0.4, 1.6, threshold_from="zero"),
        comparison(0.5, -0.3, 1.3),
    ]
    cost = {"threshold_from": "zero", "by": "train_seconds", "cost": 9.0}
    equal = [
        comparison(-1.0, -2.0, -0.5, how="interpolated", epoch=1.25, **cost),
        comparison(3.0, 1.0, 5.0, "backbone + pool", how="beyond", epoch=1.5, **cost),
    ]
    found = study(rows, known, equal_cost=equal)
    grid, costly = of_kind(difference_blocks(found, Album()), "table")
    columns = ["Δ, threshold 0", "Δ, threshold tuned", "Δ, spans alone"]
    assert grid.heading == ["Epoch", "Member", *columns]
    assert texts(grid, columns[0]) == ["+1.00 (+0.40 to +1.60)", "+4.00"]
    assert texts(grid, columns[1]) == ["+0.50 (-0.30 to +1.30)", "+3.50"]
    assert texts(grid, columns[2]) == ["+0.50 (-0.10 to +1.10)", "+3.00"]
    assert [[cell.best for cell in line[2:]] for line in grid.lines] == [[True, False, False], [False] * 3]
    assert costly.heading == ["Epoch", "Member", "Backbone of equal cost", columns[0]]
    assert texts(costly, "Backbone of equal cost") == ["epoch 1.25, interpolated", "epoch 1.5, beyond the last"]
    assert texts(costly, columns[0]) == ["-1.00 (-2.00 to -0.50)", "+3.00 (+1.00 to +5.00)"]
    zero = [row_at_zero for row_at_zero in rows if row_at_zero["threshold_from"] == "zero"]
    sentences = summary_sentences(study(zero, known, equal_cost=equal).rows, {})
    assert (
        "At equal cost, against the backbone tuned for as many seconds as tuning and head together took, of 1 member "
        "(counted once per checkpoint) 0 are clearly better and 1 clearly worse; 1 more cost more than the last "
        "checkpoint."
    ) in sentences


def test_differences_without_intervals_are_never_clear():
    rows = [row(m, f1, "", seed=s) for m, f1 in (("backbone", 70), ("pool", 90)) for s in (1, 2)]
    blocks = difference_blocks(study(rows), Album())
    (grid,) = of_kind(blocks, "table")
    assert texts(grid, "Δ, F1") == ["+20.00 ± 0.00"] and not grid.lines[0][2].best
    text = " ".join(of_kind(blocks, "note"))
    assert "There are no intervals" in text and "no comparison at equal cost yet" in text
    assert difference_blocks(study([row("backbone", 70)]), Album()) == []


def test_costs_beside_the_score():
    costs = {"tuning_seconds": 90.0, "head_seconds": 10.0, "train_seconds": 100.0, "ms_per_question": 7.125}
    rows = [
        row("backbone", 70, parameters=1, total_parameters=1000, disk_bytes=999),
        row("pool", 71, parameters=1152, total_parameters=2152, disk_bytes=4608, **costs),
        row("huge", 40, parameters=10, disk_bytes=7_654_321_000),
    ]
    grid = cost_grid(summarised(rows), F1, [{"checkpoint": 1, "member": "pool", "parameters": 2076}])
    assert texts(grid, "Trained parameters") == ["1", "1,152", "10"]
    assert texts(grid, "Trained parameters, paper") == ["–", "2,076", "–"]
    assert texts(grid, "Tuning s")[1] == "90.0" and texts(grid, "ms per question")[1] == "7.12"
    assert texts(grid, "On disk") == ["999 B", "4.61 KB", "7.65 GB"]
    assert texts(grid, "Efficiency") == ["–", "6.86", "-10.00"]  # 21 / log10 1152, -10 / log10 10
    found = study(rows, facts={"peak": {"memory_gib": 1.5}})
    blocks = cost_blocks(main_rows(found.rows), found, Album())
    assert names(blocks) == ["front-parameters"]
    assert "Peak memory of the whole run: 1.5 GiB." in of_kind(blocks, "note")


def test_heads_that_saw_less_data_have_their_own_table_and_curve():
    rows = [row("backbone", 70), row("conv", 72), row("pool", 71), row("pool", 75, fraction=0.3), row(BEST, 71.5)]
    blocks = score_blocks(study(rows), Album())
    main, _, less = of_kind(blocks, "table")
    assert texts(main, "Member") == ["backbone", "conv", "pool", BEST]
    assert texts(less, "Member") == ["backbone", "pool", "pool @ 30 %"]
    assert main.lines[1][2].best  # among those that saw everything
    assert names(blocks) == ["share-tune"]
    assert f"{BEST}, chosen on the tuning set: at epoch 1 backbone + pool." in of_kind(blocks, "note")


def test_losses_along_training_are_drawn_from_the_log(tmp_path):
    lines = [{"event": "note", "text": "x"}]
    for seed, steps in ((1, (0.5, 1.0, 0.5, 0.75, 1.0)), (2, (1.0,))):  # seed 1 was killed after its end, and resumed
        lines += [
            {"event": f"tuning, seed {seed}", "share": s, "loss": {"backbone": 2 + n}} for n, s in enumerate(steps)
        ]
    lines += [{"event": "heads on epoch 1, seed 1", "share": s, "loss": {"pool": s}} for s in (0.5, 1.0)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"event": "tun', encoding="utf-8")
    losses = read_losses(tmp_path / "log.jsonl")
    assert losses["tuning, seed 1"] == {"backbone": [(0.5, 4.0), (0.75, 5.0), (1.0, 6.0)]}
    found = study([row("backbone", 70)], losses=losses, recipe={"seeds": [1, 2], "finetune": {"epochs": 2}})
    assert tuning_losses(found) == [(1.0, 4.0), (1.5, 5.0), (2.0, 6.0)]
    drawn = of_kind(loss_blocks(found, Album()), "pictures")[0]
    assert [picture.name for picture in drawn] == ["loss-tuning", "loss-heads"] and "seed 2" not in drawn[
        0
    ].svg  # one point
    assert loss_blocks(study([row("backbone", 70)]), Album()) == []


def test_probes_show_what_each_layer_knows_and_the_expected_layer():
    heads = [{"kind": "probe", "layer": n, **more} for more in ({}, {"cumulative": True}) for n in range(3)]
    scores = dict(zip(unique_names(heads), (40, 60, 55, 40, 60, 65)))
    rows = [row("backbone", 70), *(row(name, f1) for name, f1 in scores.items())]
    blocks = probe_blocks(study(rows, recipe={"heads": heads}), Album())
    (grid,) = of_kind(blocks, "table")
    assert texts(grid, "F1, the layer alone") == ["40.00", "60.00", "55.00"]
    assert texts(grid, "F1, the layers up to it") == ["40.00", "60.00", "65.00"]
    assert texts(grid, "Added by the layer")[1:] == ["+20.00", "+5.00"]
    assert of_kind(blocks, "note") == ["Expected layer, weighted by what each layer adds to those below: 1.20."]
    assert len(names(blocks)) == 1 and probe_blocks(study(rows), Album()) == []
    fewer = [head for head in heads if head != {"kind": "probe", "layer": 2, "cumulative": True}]
    (grid,) = of_kind(probe_blocks(study(rows[:-1], recipe={"heads": fewer}), Album()), "table")
    assert texts(grid, "Added by the layer") == ["–", "+20.00", "–"]


def test_greedy_ensembles_are_shown_with_their_weights():
    rows = [row("backbone", 70, seed=seed) for seed in (1, 2)]
    greedy = [tuned(GREEDY, 70 + s, kind, seed=s) for s in (2, 1) for kind in ("zero", "tune")]
    for single_row in greedy[:2]:  # of seed 2: one member
        single_row["ensemble"] |= {"members": single_row["ensemble"]["members"][1:], "weights": [1.0]}
    blocks = greedy_blocks(study([*rows, *greedy]))
    (grid,) = of_kind(blocks, "table")
    assert texts(grid, "Weights and members") == ["0.50 backbone + 0.50 pool", "pool alone"]
    assert texts(grid, "F1 on tune") == ["71.00", "72.00"] and texts(grid, "F1") == ["71.00", "72.00"]
    assert "a mean of probabilities" in of_kind(blocks, "note")[0] and greedy_blocks(study(rows)) == []


@pytest.mark.parametrize(("chosen", "said"), [("greedy", "were chosen on the tuning set"), ("given", "command line")])
def test_the_ensemble_of_the_command_is_shown_with_its_members(chosen, said):
    entry = row("pool", 77)
    entry["ensemble"] |= {"weights": [0.25], "how": "mean", "chosen": chosen}
    blocks = ensemble_blocks(study(ensemble=scored([entry])))
    weights, scores = of_kind(blocks, "table")
    assert texts(weights, "Weight") == ["0.250"] and texts(scores, "F1") == ["77.00"]
    assert said in of_kind(blocks, "note")[0] and ensemble_blocks(study()) == []


MEMBER = {
    "has_answer": 0.5,
    "no_answer": 0.75,
    "wrong_predicted_empty": 0.65,
    "second_right": None,
    "right": {"questions": 30, "tokens": 165.25},
    "only_right": {"questions": 3, "tokens": 120.5},
    "by_question_word": [{"group": "who", "questions": 1200, "f1": 71.25}],
    "reliability": [{"confidence": 0.1, "observed": 0.2, "questions": 9}],
    "auroc": 0.875,
    "layer_weights": [0.25, 0.75],
}
ERROR = {
    "id": "1",
    "question": "Where <is> it?",
    "context": "In the city of Paris Hilton, or Paris, Parisians say.",
    "gold": ["Paris", "Paris"],
    "answers": {"backbone": "city of Paris Hilton", "pool": None},
    "why": "only pool says so",
}


def test_analysis_shows_what_the_file_has():
    agreement = {"members": ["backbone", "pool"], "matrix": [[1.0, 0.5], [0.5, 1.0]]}
    members = {"backbone": MEMBER, "pool": MEMBER | {"has_answer": 0.625}}
    found = {"checkpoint": 1.0, "seed": 1, "members": members, "agreement": agreement, "errors": [ERROR]}
    paper = [{"checkpoint": 1.0, "member": "pool", "no_answer": 80.6, "has_answer": 59.2, "right_tokens": 164.5}]
    layers, analysis = analysis_sections(found, Album(), paper)
    assert names(layers.blocks) == ["layers"] and names(analysis.blocks) == ["types", "reliability"]
    right, words, same, answers = of_kind(analysis.blocks, "table")
    assert texts(right, "Right on answerable questions") == ["50.0 %", "62.5 %"]
    assert texts(right, "Right on answerable questions, paper") == ["–", "59.2 %"]
    assert texts(right, "Mean tokens of what is right") == ["165.2", "165.2"]
    assert texts(right, "Mean tokens of what is right, paper") == ["–", "164.5"]
    assert [line[1].best for line in right.lines] == [False, True]
    assert texts(right, "Questions that only this member gets right") == ["3", "3"]
    assert texts(right, "AUROC") == ["0.875"] * 2 and not any("Second" in heading for heading in right.heading)
    assert texts(words, "who (1,200)") == ["71.2", "71.2"]
    assert texts(same, "2") == ["50 %", "100 %"]
    _, fold = [block for block in analysis.blocks if block.kind == "fold"]
    assert fold.label == "Where <is> it?" and texts(answers, "Answer") == ["city of Paris Hilton", "no answer"]
    (passage,) = of_kind([fold], "passage")
    assert [text for text, kind in passage if kind == "right"] == ["Paris", "Paris"]
    assert [text for text, kind in passage if kind == "wrong"] == ["city of ", " Hilton"]
    assert "".join(text for text, _ in passage) == ERROR["context"]


def test_curves_that_are_not_drawn_are_counted():
    members = {f"head {n}": MEMBER | {"auroc": 0.5 + n / 100} for n in range(8)}

    def picture():
        (_, section) = analysis_sections({"members": members}, Album())
        return of_kind(section.blocks, "pictures")[0][-1]

    assert picture().caption.endswith("6 of 8 members, those with the highest AUROC")
    assert "head 7" in picture().svg and "head 1 " not in picture().svg
    members["backbone"] = MEMBER | {"auroc": 0.1}  # the others are compared with it
    assert picture().caption.endswith("6 of 9 members, the backbone and those with the highest AUROC")
    assert "backbone (AUROC" in picture().svg and "head 2 " not in picture().svg and "head 3 " in picture().svg


@pytest.mark.parametrize("found", [{"members": {}}, {"members": {"pool": {}}, "errors": [{}], "agreement": None}])
def test_an_analysis_may_be_almost_empty(found):
    for section in analysis_sections(found, Album()):
        assert section.blocks


def test_analysis_of_classes():
    confusion = {"labels": ["no", "yes"], "matrix": [[5, 1], [2, 8]]}
    error = {"question": "a", "context": "no is no label here", "gold": ["no"], "answers": {"pool": "yes"}, "why": "x"}
    found = {"members": {"pool": {"confusion": confusion, "accuracy": 81.25}}, "errors": [error]}
    (section,) = analysis_sections(found, Album())
    right, table, answers = of_kind(section.blocks, "table")
    assert texts(right, "Accuracy") == ["81.25"] and texts(answers, "Answer") == ["yes"]
    assert texts(table, "Right label") == ["no", "yes"] and texts(table, "predicted yes") == ["1", "8"]
    assert of_kind(section.blocks, "passage") == [[("no is no label here", "")]]  # a label is not a part of the text


def test_without_an_analysis_the_command_is_shown():
    (section,) = [part for part in compose(study([row("pool", 1)])).sections if part.title == "Analysis"]
    assert "bertvision analyze" in of_kind(section.blocks, "note")[0]
    assert not any(part.title == "Analysis" for part in compose(study()).sections)


def test_only_whole_answers_are_marked():
    assert marked_passage("on one stone", ["on"], []) == [("on", "right"), (" one stone", "")]
    assert marked_passage("C++ (fast)", ["C++"], ["(fast)"]) == [("C++", "right"), (" ", ""), ("(fast)", "wrong")]
    assert marked_passage("", ["x"], []) == []


def test_no_two_figures_share_a_file():
    album, figure = Album(), Figure(figsize=(1, 1))
    one, other = Album("a b", album.names), Album("a/../b", album.names)
    drawn = [one.draw("x", "", figure), other.draw("x", "", figure), one.draw("x", "", figure)]
    assert [picture.name for picture in drawn] == ["a-b-x", "a-..-b-x", "a-b-x-2"]
