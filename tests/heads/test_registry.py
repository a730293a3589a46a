"""What a recipe may say about heads: wrong names, types, values and combinations are one clear line."""

import json
from typing import Any

import pytest
import torch

from bertvision.errors import UserError
from bertvision.heads import HEADS, SPECS, Head, build_head, check_spec, head_name, options, register, saved_spec
from bertvision.heads.catalog import catalog


@pytest.mark.parametrize(
    ("spec", "says"),  # the key, and what is wrong
    [
        ({}, "head: a head needs a kind; there is: attend, cacnn, compress, conv, last, pool, probe"),
        (["pool"], "head: a head needs a kind"),
        ({"kind": "pol"}, "head.kind: no head is called 'pol'; did you mean 'pool'?"),
        (
            {"kind": "xyz"},
            "head.kind: no head is called 'xyz'; there is: attend, cacnn, compress, conv, last, pool, probe",
        ),
        ({"kind": ["pool"]}, "head.kind: no head is called ['pool']"),
        ({"kind": "compress", "sise": 3}, "head.sise: 'compress' has no such option; did you mean 'size'?"),
        ({"kind": "last", "size": 3}, "head.size: 'last' has no such option; there is: pooled"),
        ({"kind": "compress", "task": "spans"}, "head.task: 'compress' has no such option"),
        ({"kind": "compress", "size": "64"}, "head.size: must be a whole number, not '64'"),
        ({"kind": "compress", "size": 64.0}, "head.size: must be a whole number, not 64.0"),
        ({"kind": "compress", "size": True}, "head.size: must be a whole number, not True"),
        ({"kind": "compress", "skip": 1}, "head.skip: must be true or false, not 1"),
        ({"kind": "pool", "weights": "max"}, "head.weights: must be 'learned' or 'mean', not 'max'"),
        ({"kind": "conv", "dropout": "no"}, "head.dropout: must be a number, not 'no'"),
        ({"kind": "compress", "size": 0}, "head.size: must be at least 1, not 0"),
        ({"kind": "conv", "dropout": 1}, "head.dropout: must be below 1, not 1"),
        ({"kind": "conv", "dropout": -0.1}, "head.dropout: must be at least 0, not -0.1"),
        ({"kind": "conv", "dropout": float("nan")}, "head.dropout: must be "),
        ({"kind": "cacnn", "kernel": 4}, "head.kernel: must be an odd number, at least 1, not 4"),
        ({"kind": "cacnn", "kernel": -1}, "head.kernel: must be an odd number, at least 1, not -1"),
        ({"kind": "pool", "depth": 0}, "head.depth: must be at least 1, not 0"),
        ({"kind": "pool", "reduce": "max"}, "head.reduce: must be 'first', 'mean', 'sum' or 'compare', not 'max'"),
    ],
)
def test_wrong_spec_is_refused_before_anything_is_built(spec: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        check_spec(spec)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError):
        build_head(spec, layers=3, width=32, task="spans")


@pytest.mark.parametrize(
    ("spec", "task", "option"),
    [
        ({"kind": "compress", "tokens": "all"}, "spans", "tokens"),
        ({"kind": "pool", "reduce": "mean"}, "tokens", "reduce"),
        ({"kind": "compress", "weights": "mean"}, "spans", "weights"),
        ({"kind": "compress", "places": 9}, "labels", "places"),
        ({"kind": "probe", "layer": 3}, "spans", "layer"),
        ({"kind": "last", "pooled": True}, "spans", "pooled"),
        ({"kind": "last", "depth": 3}, "spans", "depth"),
        ({"kind": "last", "depth": 1, "pooled": True}, "labels", "depth"),
        ({"kind": "conv", "pooled": True}, "labels", "pooled"),
        ({"kind": "conv", "form": "xception", "pooled": True}, "tokens", "pooled"),
        ({"kind": "conv", "form": "grid"}, "labels", "form"),
        ({"kind": "conv", "form": "inception", "dilated": True}, "spans", "dilated"),
        ({"kind": "conv", "form": "xception", "filters": 4}, "spans", "filters"),
        ({"kind": "conv", "weights": "mean"}, "spans", "weights"),
        ({"kind": "conv", "form": "xception", "network": "full"}, "spans", "network"),
        ({"kind": "conv", "form": "row", "network": "full"}, "score", "network"),
        ({"kind": "attend", "form": "dot", "heads": 4}, "spans", "heads"),
        ({"kind": "attend", "form": "encoder", "heads": 5}, "spans", "heads"),
        ({"kind": "cacnn", "context": False, "fill": "mean", "filters": 5}, "spans", "filters"),
        ({"kind": "cacnn", "context": False, "fill": "tile"}, "spans", "fill"),
        ({"kind": "cacnn", "fill": "mean"}, "spans", "fill"),
    ],
)
def test_options_that_do_not_go_together_are_named(spec: dict, task: str, option: str) -> None:
    check_spec(spec)
    with pytest.raises(UserError, match=rf"^head\.{option}: "):
        build_head(spec, layers=3, width=32, task=task)


def test_the_place_of_an_error_is_named() -> None:
    with pytest.raises(UserError, match=r"^study\.toml: heads\[2\]\.size: "):
        check_spec({"kind": "compress", "size": 0}, where="study.toml: heads[2]")


def test_impossible_tasks_and_shapes() -> None:
    with pytest.raises(UserError, match="no task is called 'span'; did you mean 'spans'"):
        build_head({"kind": "pool"}, layers=3, width=8, task="span")
    with pytest.raises(UserError, match=r"head 'cacnn' cannot read .* 'labels' .* reduce"):
        build_head({"kind": "cacnn"}, layers=3, width=8, task="labels")
    with pytest.raises(UserError, match="must be positive"):
        build_head({"kind": "pool"}, layers=0, width=8, task="spans")
    with pytest.raises(UserError, match="outputs must be at least 1, not 0"):
        build_head({"kind": "pool"}, layers=3, width=8, task="labels", outputs=0)


@pytest.mark.parametrize(("task", "outputs"), [("spans", 2), ("score", 1), ("labels", 5)])
def test_outputs_follow_the_task(task: str, outputs: int) -> None:
    head = build_head({"kind": "last"}, layers=3, width=8, task=task, outputs=5)
    assert head.parameter_count() == outputs * 9


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"kind": "pool"}, "pool"),
        ({"kind": "compress", "size": 386, "shared": True, "skip": True}, "compress size=386 shared skip"),
        ({"kind": "compress", "shared": False, "skip": False}, "compress shared=false"),
        ({"kind": "conv", "form": "grid", "dropout": 0.1}, "conv form=grid dropout=0.1"),
        ({"kind": "cacnn", "context": False}, "cacnn context=false"),
    ],
)
def test_head_name(spec: dict, name: str) -> None:
    assert head_name(spec) == name


def test_options_have_plain_types_and_defaults() -> None:
    known = options("compress")
    names = "size shared skip pool_first beside squeezed_mix weights tokens places"
    assert list(known) == names.split()
    assert (known["size"].type, known["size"].default) == (int, 386)
    assert (known["skip"].type, known["skip"].default) == (bool, False)


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ({"kind": "attend", "form": "dot"}, {"embedding": True}),
        ({"kind": "cacnn"}, {"fill": "dense", "readout": True}),
        ({"kind": "cacnn", "context": False}, {"fill": "mean", "readout": True}),
        ({"kind": "compress", "size": 8}, {}),
    ],
)
def test_specs_saved_by_earlier_versions_mean_what_they_meant(spec: dict, meant: dict) -> None:
    assert saved_spec(spec, {}) == spec | meant
    assert saved_spec(spec, {"specs": SPECS}) == spec


def test_a_new_head_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEADS, "added", dict(HEADS.added))

    @register("first-unit")
    class FirstUnit(Head):
        def __init__(self, layers: int, width: int, outputs: int, *, scale: float = 1.0) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(float(scale)))

    built = build_head({"kind": "first-unit", "scale": 2}, layers=2, width=4, task="spans")
    assert built.parameter_count() == 1
    assert FirstUnit.kind == "first-unit"
    with pytest.raises(ValueError, match="two heads are called 'first-unit'"):
        register("first-unit")(FirstUnit)
    with pytest.raises(TypeError, match="FirstUnit must define forward"):
        FirstUnit(2, 4, 2)(None)


def test_one_complete_entry_per_kind() -> None:
    entries = catalog(13, 768, "labels", 3)
    assert [entry["kind"] for entry in entries] == sorted(HEADS)
    for entry in entries:
        assert "logit" in entry["summary"] and "\n" not in entry["summary"]
        assert "Parameters:" in entry["description"] or "Parameters," in entry["description"]
        if "labels" in entry["tasks"]:
            head = build_head({"kind": entry["kind"]}, layers=13, width=768, task="labels", outputs=3)
            assert entry["parameters"] == head.parameter_count()
        else:
            assert entry["parameters"] is None
    json.dumps(entries)


def test_options_are_listed_as_they_are_checked() -> None:
    entries = {entry["kind"]: entry for entry in catalog(25, 1024, "spans", None)}
    assert entries["compress"]["parameters"] == 414_952
    assert [one["name"] for one in entries["last"]["options"]] == ["pooled"]
    assert entries["pool"]["options"][0] == {
        "name": "weights",
        "type": "one of 'learned', 'mean'",
        "default": "learned",
        "values": ["learned", "mean"],
        "limit": None,
    }
    assert [one["name"] for one in entries["pool"]["options"]] == ["weights", "lowest"]
    conv = {option["name"]: option for option in entries["conv"]["options"]}
    assert conv["dropout"]["type"] == "a number"
    assert conv["dropout"]["limit"] == "at least 0 and below 1"
    assert conv["form"]["values"] == ["row", "grid", "inception", "xception"]
    assert conv["dilated"]["default"] is False
