"""The catalogue tells all that a recipe may say about a head, and how large the head would be."""

import json

from bertvision.heads import HEADS, build_head
from bertvision.heads.catalog import catalog


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
    assert entries["last"]["options"] == []
    assert entries["pool"]["options"] == [
        {
            "name": "weights",
            "type": "one of 'learned', 'mean'",
            "default": "learned",
            "values": ["learned", "mean"],
            "limit": None,
        }
    ]
    conv = {option["name"]: option for option in entries["conv"]["options"]}
    assert conv["dropout"]["type"] == "a number"
    assert conv["dropout"]["limit"] == "at least 0 and below 1"
    assert conv["form"]["values"] == ["row", "grid", "inception", "xception"]
    assert conv["dilated"]["default"] is False
