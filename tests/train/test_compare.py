import json

import numpy as np
import pytest

from bertvision.evaluate.bootstrap import Mean, Points
from bertvision.train.compare import compare, join_comparisons, write_comparisons
from bertvision.train.stored import open_run
from finished import EPOCHS, SEEDS, copy_of, finished_run, finished_texts


def points(*scores: float) -> Points:
    return Points(np.array(scores, float)[:, None], {"score": Mean(0)})


@pytest.fixture(scope="module")
def entries():
    return write_comparisons(open_run(finished_run(), quiet=True))


def test_every_member_kind_and_metric_is_compared(entries):
    found = {(one["checkpoint"], one["member"], one["threshold_from"], one["metric"]) for one in entries}
    metrics = ("exact", "f1", "HasAns_f1", "NoAns_f1", "HasAns_spans_f1")
    members = ("pool", "last", "backbone + best head")
    assert found == {(e, m, k, name) for e in EPOCHS for m in members for k in ("zero", "tune") for name in metrics}
    assert len(found) == len(entries)
    assert all(one["seeds"] == SEEDS and one["questions"] == 20 and one["draws"] == 1000 for one in entries)
    assert json.loads((finished_run() / "comparisons.json").read_text(encoding="utf-8")) == entries


def test_the_differences_are_those_of_the_scores(entries):
    rows = open_run(finished_run(), quiet=True).rows()
    for one in entries:
        ours, theirs = (
            [
                row[one["metric"]]
                for row in rows
                if (row["checkpoint"], row["threshold_from"]) == (one["checkpoint"], one["threshold_from"])
                and row["member"] == member
            ]
            for member in (one["member"], "backbone")
        )
        assert len(ours) == len(SEEDS)
        assert one["difference"] == pytest.approx(np.mean(ours) - np.mean(theirs), abs=1e-9)
        assert one["low"] <= one["difference"] + 1e-9
        assert one["high"] >= one["difference"] - 1e-9


def test_spans_do_not_depend_on_the_threshold(entries):
    found = {}
    for one in entries:
        if one["metric"] == "HasAns_spans_f1":
            found.setdefault((one["checkpoint"], one["member"]), set()).add(
                (one["difference"], one["low"], one["high"])
            )
    assert all(len(values) == 1 for values in found.values())


def test_what_is_not_scored_yet_is_not_compared(tmp_path):
    run = copy_of(finished_run(), tmp_path)
    for path in (run / "seed-2").glob("scores-*.json"):
        path.unlink()
    (run / "seed-1" / "scores-1.json").unlink()
    found = write_comparisons(open_run(run, quiet=True))
    assert {(one["checkpoint"], tuple(one["seeds"])) for one in found} == {(0.5, (1,))}


@pytest.mark.parametrize(
    "task, metrics", [("labels", {"accuracy", "f1", "matthews"}), ("score", {"pearson", "spearman"})]
)
def test_texts_have_no_threshold(task, metrics):
    found = write_comparisons(open_run(finished_texts(task), quiet=True))
    assert {one["metric"] for one in found} == metrics
    assert {one["threshold_from"] for one in found} == {""}
    assert {one["member"] for one in found} == {"pool", "backbone + best head"}


def test_a_member_is_compared_over_the_seeds_it_has():
    base = {1: points(0, 0), 2: points(1, 1)}
    found = compare({("", "backbone"): base, ("", "whole"): base, ("", "dropped"): {2: points(1, 0)}}, draws=50)
    assert [(one["member"], one["seeds"]) for one in found] == [("whole", [1, 2]), ("dropped", [2])]
    assert found[0]["difference"] == found[0]["low"] == found[0]["high"] == 0.0
    assert found[1]["difference"] == -50.0


def test_without_a_backbone_there_is_nothing_to_compare_with():
    assert compare({("", "head"): {1: points(1)}}) == []


def test_a_series_joins_those_of_its_variants(tmp_path):
    for name, entries in {"L1": [{"member": "pool"}], "L3": [{"member": "pool"}, {"member": "last"}]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparisons.json").write_text(json.dumps(entries), encoding="utf-8")
    found = join_comparisons(tmp_path, {name: tmp_path / name for name in ("L1", "L3", "not yet")})
    assert found == [
        {"member": "pool", "variant": "L1"},
        {"member": "pool", "variant": "L3"},
        {"member": "last", "variant": "L3"},
    ]
    assert json.loads((tmp_path / "comparisons.json").read_text(encoding="utf-8")) == found
