"""Heads that learn along: they read the backbone's states, and it is tuned to the last bit as without them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.train.bank import HeadBank, at_fractions, bank_path
from bertvision.train.study import Study
from runs import recipe_of
from tunings import killed_at, tuned

ENTRIES = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.5}, {"kind": "last"}]


def tune(
    directory: Path, entries=ENTRIES, *, fractions=(1.0,), snapshot_seconds: float = 1e9, **options: object
) -> None:
    recipe = recipe_of(finetune=options, bank={"feed": "along", "learning_rate": 1e-2})
    tuned(recipe, directory, at_fractions(entries, fractions), snapshot_seconds)


def tensors(directory: Path, pattern: str) -> dict[str, torch.Tensor]:
    return {
        f"{path.relative_to(directory)} {key}": value
        for path in sorted(directory.glob(pattern))
        for key, value in load_file(path).items()
    }


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one and one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize(
    "options",
    [{}, {"head": {"kind": "conv", "dropout": 0.3}, "attention_dropout": 0.1}, {"train_layers": 1, "norms": "trained"}],
    ids=["all", "jointly with dropout", "frozen below"],
)
def test_the_backbone_does_not_notice(options, tmp_path):
    for part, entries in (("with", ENTRIES), ("without", [])):
        (tmp_path / part).mkdir()
        tune(tmp_path / part, entries, fractions=(1.0, 0.4), **options)
    assert_same(*(tensors(tmp_path / part, "checkpoint-*/*.safetensors") for part in ("with", "without")))
    assert not list((tmp_path / "without").glob("heads-*"))


def test_heads_are_saved_as_they_are_at_each_checkpoint(tmp_path):
    tune(tmp_path, checkpoints=[0, 0.5])
    banks = {epoch: HeadBank.load(bank_path(tmp_path, epoch)) for epoch in (0.0, 0.5, 1.0)}
    fresh = HeadBank(ENTRIES, **banks[0.0][0].shape, seed=1).state_dict()
    first, middle, end = (bank.state_dict() for bank, _ in banks.values())
    assert all(torch.equal(first[key], value) for key, value in fresh.items())
    assert not any(torch.equal(one[key], two[key]) for one, two in ((first, middle), (middle, end)) for key in first)
    for _, about in banks.values():
        assert about["feed_seconds"] == 0 and about["stopped"] == {} and about["identity"] == "this"
    assert all(0 < banks[0.5][1]["seconds"][name] < seconds for name, seconds in banks[1.0][1]["seconds"].items())


def test_a_head_does_not_notice_the_others(tmp_path):
    for part, entries in (("all", ENTRIES), ("one", ENTRIES[1:2])):
        (tmp_path / part).mkdir()
        tune(tmp_path / part, entries)
    together, alone = (HeadBank.load(bank_path(tmp_path / part, 1))[0] for part in ("all", "one"))
    name = alone.names[0]
    assert_same(alone[name].state_dict(), together[name].state_dict())


def test_a_head_that_breaks_is_dropped_at_the_checkpoint_where_it_did(tmp_path):
    bad = {"kind": "compress", "size": 4, "learning_rate": 1e30, "name": "too fast"}
    tune(tmp_path, [*ENTRIES, bad], checkpoints=[1 / 6])  # its first step is the last before that checkpoint
    for epoch in (1 / 6, 1.0):
        _, about = HeadBank.load(bank_path(tmp_path, epoch))
        assert list(about["stopped"]) == ["too fast"]


@pytest.mark.parametrize("step", [2, 4])
def test_killed_it_ends_the_same(step, tmp_path):
    for part in ("whole", "killed"):
        (tmp_path / part).mkdir()
    tune(tmp_path / "whole", fractions=(1.0, 0.4))
    with killed_at(step):
        tune(tmp_path / "killed", fractions=(1.0, 0.4), snapshot_seconds=0)
    tune(tmp_path / "killed", fractions=(1.0, 0.4), snapshot_seconds=0)
    assert_same(*(tensors(tmp_path / part, "**/*.safetensors") for part in ("killed", "whole")))


def test_a_study_along(tmp_path):
    study = Study(recipe_of(bank={"feed": "along"}), tmp_path / "run", quiet=True)
    rows = study.run()
    members = {(row["checkpoint"], row["member"]) for row in rows}
    assert {(epoch, name) for epoch in (0.5, 1.0) for name in ("backbone", "pool", "compress size=8")} <= members
    assert not any("heads on epoch" in line for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines())
