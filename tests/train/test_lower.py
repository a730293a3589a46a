"""The frozen lower part, stored: tuning ends where it ends with everything run in every epoch."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.errors import UserError
from bertvision.tasks import Spans
from bertvision.train import feed
from bertvision.train.bank import HeadBank, bank_path
from bertvision.train.finetune import Checkpoint
from encoders import FAMILIES
from runs import encoder, recipe_of
from tunings import Killed, killed_at, tuned


def tune(
    directory: Path, lower: str, family: str = "bert", *, heads=(), snapshot_seconds: float = 1e9, **options: object
) -> Checkpoint:
    directory.mkdir(exist_ok=True)
    plan = {"epochs": 2, "checkpoints": [], "train_layers": 1, "norms": "trained", "lower": lower, **options}
    recipe = recipe_of(backbone={"name": encoder(family)}, finetune=plan)
    last = tuned(recipe, directory, heads, snapshot_seconds)[2.0]
    assert not (directory / "finetune.states").exists()
    last.load(Spans(), recipe.backbone.name)
    return last


def assert_close(one: Checkpoint, other: Checkpoint, within: float) -> None:
    for name in ("backbone.safetensors", "head.safetensors"):
        a, b = (load_file(checkpoint.directory / name) for checkpoint in (one, other))
        assert a.keys() == b.keys()
        for key in a:
            # biases that shift all tokens or all keys alike have no gradient but rounding, which Adam makes a step of
            if not key.endswith("bias"):
                torch.testing.assert_close(a[key], b[key], rtol=0, atol=within, msg=key)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_the_same_result_for_every_family(family, tmp_path):
    live, stored = (tune(tmp_path / lower, lower, family, attention_dropout=0.1) for lower in ("live", "stored"))
    assert_close(live, stored, 1e-4)
    assert "storing the frozen part" in (tmp_path / "stored" / "log.jsonl").read_text()
    assert "storing the frozen part" not in (tmp_path / "live" / "log.jsonl").read_text()


@pytest.mark.parametrize("train_layers", [0, 2])
@pytest.mark.parametrize("head", ["last", "pool"])
def test_the_same_result_for_heads_of_one_layer_and_of_all(head, train_layers, tmp_path):
    live, stored = (tune(tmp_path / lower, lower, head=head, train_layers=train_layers) for lower in ("live", "stored"))
    assert_close(live, stored, 1e-4)


def test_with_heads_along(tmp_path):
    for lower in ("live", "stored"):
        tune(tmp_path / lower, lower, heads=[{"kind": "attend"}])
    live, stored = (HeadBank.load(bank_path(tmp_path / lower, 2))[0].state_dict() for lower in ("live", "stored"))
    for key, value in live.items():
        torch.testing.assert_close(stored[key], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("moment", ["storing", 7])
def test_killed_it_ends_the_same(moment, tmp_path, monkeypatch):
    whole = tune(tmp_path / "whole", "stored")
    write = feed.write_store

    def stop(tokens):
        raise Killed

    def half(*args, **options):
        return write(*args, **{**options, "batch_tokens": 64, "advance": stop})

    with killed_at(moment), monkeypatch.context() as patched:
        if moment == "storing":
            patched.setattr(feed, "write_store", half)
        tune(tmp_path / "killed", "stored", snapshot_seconds=0)
    assert (tmp_path / "killed" / "finetune.states" / "manifest.json").is_file()
    killed = tune(tmp_path / "killed", "stored", snapshot_seconds=0)
    assert_close(killed, whole, 0)


@pytest.mark.parametrize(
    "plan", [{"norms": "all"}, {"train_layers": "all"}, {"train_layers": 3}, {"adapters": 2}, {"lora": 2}]
)
def test_what_is_not_entirely_frozen_cannot_be_stored(plan, tmp_path):
    with pytest.raises(UserError, match=r'finetune\.lower: "stored" needs ') as caught:
        tune(tmp_path, "stored", **plan)
    assert "\n" not in str(caught.value)


def test_albert_cannot_be_stored(tmp_path):
    with pytest.raises(UserError, match=r"finetune.lower: the layers of AlbertModel share"):
        tune(tmp_path, "stored", "albert", train_layers=0)
