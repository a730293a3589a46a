"""Tuning: its checkpoints, what is trained and what is not, heads along, and the frozen part stored."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.utils import parameters_to_vector

from bertvision import devices
from bertvision.errors import UserError
from bertvision.heads import HEADS
from bertvision.recipe import Recipe, reached
from bertvision.serve.build import Wanted, build_reader
from bertvision.serve.reader import Reader
from bertvision.tasks import Spans
from bertvision.tasks.labels import ANSWERABILITY
from bertvision.train.bank import HeadBank, at_fractions
from bertvision.train.finetune import Checkpoint
from bertvision.train.study import Study
from encoders import FAMILIES
from runs import encoder, load, recipe_of
from tunings import assert_same, killed_at, tensors, tuned

ENTRIES = [{"kind": "pool"}, {"kind": "conv", "dropout": 0.5}, {"kind": "last"}]


def brief(**finetune: object) -> Recipe:
    """Two steps."""
    return recipe_of(finetune={"epochs": 1 / 3, "checkpoints": [], **finetune})


def moved(directory: Path, recipe: Recipe) -> dict[str, float]:
    """How far each tensor of the encoder, and the head as "head", has moved at most between epoch 0 and the end."""
    checkpoints = list(tuned(recipe, directory).values())
    before, after = (tensors(checkpoint.directory) for checkpoint in (checkpoints[0], checkpoints[-1]))
    assert before.keys() == after.keys()
    moves = {key: (after[key] - value).abs().max().item() for key, value in before.items()}
    own = {key.split()[1]: value for key, value in moves.items() if key.startswith("backbone")}
    return own | {"head": max(value for key, value in moves.items() if key.startswith("head"))}


@pytest.mark.parametrize(
    ("epochs", "checkpoints", "expected"),
    [
        (1, (), [1.0]),
        (1, (0.5, 0, 0.5), [0.0, 0.5, 1.0]),
        (0.5, (0.3, 0.6, 2), [0.3, 0.5]),
        (0, (), [0.0]),
        (1, (0.3, 0.1 + 0.2), [0.3, 1.0]),
        (3, (0.1234567,), [0.123457, 3.0]),
    ],
)
def test_the_epochs_of_checkpoints(epochs, checkpoints, expected):
    assert reached(epochs, checkpoints) == expected


def test_checkpoints_at_fractions(tmp_path):
    recipe = recipe_of(finetune={"epochs": 2, "checkpoints": [0, 0.1, 0.12, 0.5, 1]})
    checkpoints = tuned(recipe, tmp_path)
    assert list(checkpoints) == [0, 0.1, 0.12, 0.5, 1, 2]
    assert [checkpoint.about()["step"] for checkpoint in checkpoints.values()] == [
        0,
        1,
        1,
        3,
        6,
        12,
    ]  # two at one step are both kept
    seconds = [checkpoint.about()["seconds"] for checkpoint in checkpoints.values()]
    assert seconds[0] == 0 and seconds == sorted(seconds)
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{epoch:g}" for epoch in checkpoints} | {
        "log.jsonl"
    }
    backbone, head, about = checkpoints[0.5].load(Spans(), recipe.backbone.name)
    assert not backbone.training and not head.training
    assert about["epoch"] == 0.5 and about["seed"] == 1 and about["identity"] == "this"
    state = dict(backbone.model.named_parameters())
    saved = load_file(checkpoints[0.5].directory / "backbone.safetensors")
    assert saved and all(torch.equal(state[key], value) for key, value in saved.items())


def test_no_tuning_at_all(tmp_path):
    recipe = recipe_of(finetune={"epochs": 0, "checkpoints": []})
    (checkpoint,) = tuned(recipe, tmp_path).values()
    loaded, head, about = checkpoint.load(Spans(), recipe.backbone.name)
    assert about["step"] == 0 and head.kind == "last"
    assert loaded.fingerprint == load(recipe)[0].fingerprint


@pytest.mark.device
@pytest.mark.parametrize("parts", [1, 2])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(parts, tmp_path):
    recipe = dataclasses.replace(brief(), runtime=recipe_of(runtime={"accumulate": parts}).runtime)
    first, again, other = (
        tensors(tuned(recipe, tmp_path / str(n), seed=seed)[0.333333].directory) for n, seed in enumerate((1, 1, 2))
    )
    assert_same(first, again)
    for part in ("backbone", "head"):
        assert any(not torch.equal(value, other[key]) for key, value in first.items() if key.startswith(part))


def test_rates_of_head_adapters_and_the_rest(tmp_path):
    """The first step of Adam is as long as the rate."""
    rates = {"learning_rate": 1e-5, "head_learning_rate": 1e-2, "adapter_learning_rate": 1e-3, "schedule": "constant"}
    plan = {"epochs": 0.16, "checkpoints": [0], "adapters": 4, "train_layers": 0, "warmup": 0.0, "weight_decay": 0.0}
    moves = moved(tmp_path, recipe_of(finetune=rates | plan))
    adapters = [value for key, value in moves.items() if ".adapter." in key]
    norms = [value for key, value in moves.items() if "LayerNorm" in key]
    assert len(adapters) == 3 * 2 * 4 and len(norms) == 7 * 2 and len(moves) == 24 + 14 + 1
    assert moves["head"] == pytest.approx(1e-2, rel=1e-2)
    assert max(adapters) == pytest.approx(1e-3, rel=1e-2)
    assert max(norms) == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("plan", [{"train_layers": 0}, {"train_layers": 1}, {}, {"train_layers": 0, "adapters": 4}])
@pytest.mark.parametrize("kind", sorted(HEADS))
def test_every_head_can_be_tuned_jointly_under_every_plan(kind, plan, tmp_path):
    moves = moved(
        tmp_path, brief(head={"kind": kind} | ({"layer": 3} if kind == "probe" else {}), checkpoints=[0], **plan)
    )
    blocks = {key.split(".")[2] for key in moves if key.startswith("encoder.layer.") and "dense.weight" in key}
    assert blocks == {0: set(), 1: {"2"}, "all": {"0", "1", "2"}}[plan.get("train_layers", "all")]
    assert any(".adapter." in key for key in moves) is bool(plan.get("adapters"))
    assert moves["head"] > 0
    assert moves["encoder.layer.2.output.LayerNorm.weight"] > 0


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
def test_every_family_can_be_tuned(family, tmp_path):
    recipe = recipe_of(backbone={"name": encoder(family)}, finetune={"epochs": 0.16, "checkpoints": [0], "adapters": 2})
    moves = moved(tmp_path, recipe)
    assert moves["head"] > 0 and sum(value > 0 for value in moves.values()) > 10


POOLED = {
    "task": "labels",
    "finetune": {"train_layers": 0, "head": {"kind": "last", "pooled": True}, "checkpoints": [0]},
    "bank": {"epochs": 2, "states": "stored", "patience": 1},
    "heads": [
        {"kind": "conv", "form": "xception", "pooled": True},
        {"kind": "compress", "size": 4, "tokens": "all", "places": 64},
        {"kind": "pool"},
        {"kind": "last", "pooled": True},
    ],
}


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_pooler_trains_with_the_head_that_reads_it(family, tmp_path):
    Study(recipe_of(**POOLED, backbone={"name": encoder(family)}), tmp_path, quiet=True).run()
    before, after = (load_file(tmp_path / f"seed-1/checkpoint-{e}/backbone.safetensors") for e in (0, 1))
    pooler = [key for key in before if "pooler" in key]
    assert len(pooler) == 2 and all(not torch.equal(before[key], after[key]) for key in pooler)
    assert all("norm" in key.lower() for key in before.keys() - pooler)  # and nothing else of the encoder
    build_reader(tmp_path, tmp_path / "reader", Wanted(members=["conv form=xception pooled"]))
    assert Reader.from_pretrained(tmp_path / "reader").classify(["the king"])[0]["label"] in ANSWERABILITY


def test_heads_with_running_means_killed_end_the_same(tmp_path):
    recipe = recipe_of(**POOLED, snapshot_seconds=0)
    Study(recipe, tmp_path / "whole", quiet=True).run()
    with killed_at(3):
        Study(recipe, tmp_path / "killed", quiet=True).run()
    Study(recipe, tmp_path / "killed", quiet=True).run()
    assert_same(*(tensors(tmp_path / part) for part in ("killed", "whole")))


def test_an_encoder_without_a_pooler_is_refused_before_tuning(tmp_path):
    for name, tables in {"bank": {"heads": POOLED["heads"][:1]}, "joint": {"finetune": POOLED["finetune"]}}.items():
        recipe = recipe_of(task="labels", backbone={"name": encoder("distilbert")}, **tables)
        with pytest.raises(UserError, match=r"^(heads|finetune\.head): pooled: .* has no trained pooler; leave it out"):
            Study(recipe, tmp_path / name, quiet=True).run()
    assert not list(tmp_path.glob("*/seed-*/checkpoint*"))


@pytest.mark.device
def test_lora_beside_the_rest(tmp_path):
    moves = moved(tmp_path, brief(checkpoints=[0], train_layers=0, lora=2, warmup=0.0))
    assert max(value for key, value in moves.items() if ".lora_" in key) > 0


def test_bf16(tmp_path, monkeypatch):
    if devices.has_bf16():
        exact, rounded = (moved(tmp_path / name, brief(checkpoints=[0], precision=name)) for name in ("fp32", "bf16"))
        assert exact.keys() == rounded.keys() and exact != rounded
        assert rounded["head"] == pytest.approx(exact["head"], rel=0.2)
    monkeypatch.setattr(devices, "has_bf16", lambda device: False)
    with pytest.raises(UserError, match=r"finetune\.precision: this processor has no instructions for bf16"):
        tuned(brief(precision="bf16"), tmp_path)


def test_a_rate_that_is_much_too_high_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"finetune: its (loss|gradient) became (nan|inf) at step \d+; a lower"):
        tuned(brief(learning_rate=1e18, warmup=0.0), tmp_path)
    assert not (tmp_path / "checkpoint-0.333333").exists()  # not even if only the last step did it


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    recipe = brief()
    (checkpoint,) = tuned(recipe, tmp_path).values()
    other = (checkpoint.directory / "backbone.safetensors").read_bytes()
    for name in ("backbone.safetensors", "head.safetensors"):
        path = checkpoint.directory / name
        content = path.read_bytes()
        for damaged in {content[: len(content) // 2], b"", other} - {content}:
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=name) as caught:
                checkpoint.load(Spans(), recipe.backbone.name)
            assert "\n" not in str(caught.value)
        path.write_bytes(content)
    checkpoint.load(Spans(), recipe.backbone.name)


@pytest.mark.parametrize("plan", [{"train_layers": 0, "adapters": 4}, {"train_layers": 1}, {}])
def test_tuning_starts_where_another_has_ended(plan, tmp_path):
    (earlier,) = tuned(brief(**plan), tmp_path / "earlier").values()
    later = tuned(brief(**plan, checkpoints=[0], start=str(earlier.directory)), tmp_path / "later")
    before, start, end = (tensors(one.directory, "*") for one in (earlier, *later.values()))
    assert any("head" in key for key in before)
    assert_same(before, start)
    assert any(not torch.equal(start[key], end[key]) for key in start)


def test_tuning_starts_from_no_other_plan_and_from_nothing_else(tmp_path):
    (earlier,) = tuned(brief(train_layers=0, adapters=4), tmp_path / "earlier").values()
    with pytest.raises(UserError, match=r"adapters = 4.* must be the same as here: .*adapters = 8"):
        tuned(brief(train_layers=0, adapters=8, start=str(earlier.directory)), tmp_path / "a")
    with pytest.raises(UserError, match="holds no tuned encoder"):
        tuned(brief(start=str(tmp_path)), tmp_path / "b")


def along(directory: Path, entries=ENTRIES, *, fractions=(1.0,), snapshot_seconds: float = 1e9, **options) -> None:
    recipe = recipe_of(finetune=options, bank={"feed": "along", "learning_rate": 1e-2})
    tuned(recipe, directory, at_fractions(entries, fractions), snapshot_seconds)


@pytest.mark.parametrize(
    "options",
    [{}, {"head": {"kind": "conv", "dropout": 0.3}, "attention_dropout": 0.1}, {"train_layers": 1, "norms": "trained"}],
    ids=["all", "jointly with dropout", "frozen below"],
)
def test_heads_along_do_not_change_the_backbone(options, tmp_path):
    for part, entries in (("with", ENTRIES), ("without", [])):
        along(tmp_path / part, entries, fractions=(1.0, 0.4), **options)
    assert_same(*(tensors(tmp_path / part, "checkpoint-*/*.safetensors") for part in ("with", "without")))
    assert not list((tmp_path / "without").glob("heads-*"))


def test_heads_along_are_saved_as_they_are_at_each_checkpoint(tmp_path):
    along(tmp_path, checkpoints=[0, 0.5])
    banks = {epoch: HeadBank.load(tmp_path / f"heads-{epoch:g}.safetensors") for epoch in (0.0, 0.5, 1.0)}
    fresh = HeadBank(ENTRIES, **banks[0.0][0].shape, seed=1).state_dict()
    first, middle, end = (bank.state_dict() for bank, _ in banks.values())
    assert_same(first, fresh)
    assert not any(torch.equal(one[key], two[key]) for one, two in ((first, middle), (middle, end)) for key in first)
    for _, about in banks.values():
        assert about["feed_seconds"] == 0 and about["stopped"] == {} and about["identity"] == "this"
    assert all(0 < banks[0.5][1]["seconds"][name] < seconds for name, seconds in banks[1.0][1]["seconds"].items())


def test_a_head_along_does_not_depend_on_the_others_and_is_dropped_where_it_breaks(tmp_path):
    bad = {"kind": "compress", "size": 4, "learning_rate": 1e30, "name": "too fast"}
    along(tmp_path / "all", [*ENTRIES, bad], checkpoints=[1 / 6])  # its first step is the last before that checkpoint
    along(tmp_path / "one", ENTRIES[1:2], checkpoints=[1 / 6])
    together, alone = (HeadBank.load(tmp_path / part / "heads-1.safetensors")[0] for part in ("all", "one"))
    assert_same(alone[alone.names[0]].state_dict(), together[alone.names[0]].state_dict())
    for epoch in (1 / 6, 1.0):
        assert list(HeadBank.load(tmp_path / "all" / f"heads-{epoch:g}.safetensors")[1]["stopped"]) == ["too fast"]


@pytest.mark.device
@pytest.mark.parametrize("step", [2, 4])
def test_heads_along_killed_end_the_same(step, tmp_path):
    along(tmp_path / "whole", fractions=(1.0, 0.4))
    with killed_at(step):
        along(tmp_path / "killed", fractions=(1.0, 0.4), snapshot_seconds=0)
    along(tmp_path / "killed", fractions=(1.0, 0.4), snapshot_seconds=0)
    assert_same(*(tensors(tmp_path / part) for part in ("killed", "whole")))


def test_a_study_along(tmp_path):
    Study(recipe_of(bank={"feed": "along"}), tmp_path / "run", quiet=True).run()
    for epoch in ("0.5", "1"):
        names = {path.stem for path in (tmp_path / "run" / "seed-1" / "predictions" / epoch / "test").glob("*.json")}
        assert {"backbone", "pool", "compress-size=8"} <= names
    assert "heads on epoch" not in (tmp_path / "run" / "log.jsonl").read_text()


def test_heads_along_are_finished_on_the_final_states(tmp_path):
    """They go on from where tuning left them, cost what both took, and end the same after a kill."""
    settled = recipe_of(bank={"feed": "along", "settle": 0.5}, snapshot_seconds=0)
    Study(recipe_of(bank={"feed": "along"}), tmp_path / "plain", quiet=True).run()
    Study(settled, tmp_path / "run", quiet=True).run()
    killed = Study(settled, tmp_path / "killed", quiet=True)
    killed.begin()
    killed.tune(1)
    with killed_at(2):
        killed.run()
    Study(settled, tmp_path / "killed", quiet=True).run()
    assert_same(tensors(tmp_path / "killed"), tensors(tmp_path / "run"))
    for epoch in ("0.5", "1"):
        left, before = (tmp_path / name for name in (f"plain/seed-1/heads-{epoch}", f"run/seed-1/along-{epoch}"))
        left, before = (HeadBank.load(path.with_name(f"{path.name}.safetensors")) for path in (left, before))
        after, notes = HeadBank.load(tmp_path / "run" / "seed-1" / f"heads-{epoch}.safetensors")
        assert all(torch.equal(value, left[0].state_dict()[key]) for key, value in before[0].state_dict().items())
        assert not torch.equal(parameters_to_vector(after.parameters()), parameters_to_vector(left[0].parameters()))
        assert before[1]["feed_seconds"] == 0 < notes["feed_seconds"]
        assert all(notes["seconds"][name] > before[1]["seconds"][name] for name in after.names)
        assert all(notes["flops"][name] > before[1]["flops"][name] for name in after.names)
    (tmp_path / "run" / "seed-1" / "heads-1.safetensors").unlink()
    (tmp_path / "run" / "seed-1" / "along-1.safetensors").unlink()
    (tmp_path / "run" / "seed-1" / "scores-1.json").unlink()
    with pytest.raises(UserError, match=r"along-1\.safetensors: is gone, and its heads learn only while"):
        Study(settled, tmp_path / "run", quiet=True).run()


def test_only_heads_that_learnt_along_are_finished():
    with pytest.raises(UserError, match=r'bank\.settle: finishes heads that learn along; set bank\.feed = "along"'):
        recipe_of(bank={"settle": 0.1})


def lower(directory: Path, how: str, family: str = "bert", *, heads=(), seconds: float = 1e9, **options) -> Checkpoint:
    plan = {"epochs": 2, "checkpoints": [], "train_layers": 1, "norms": "trained", "lower": how, **options}
    recipe = recipe_of(backbone={"name": encoder(family)}, finetune=plan)
    last = tuned(recipe, directory, heads, seconds)[2.0]
    assert not (directory / "finetune.states").exists()
    last.load(Spans(), recipe.backbone.name)
    return last


def assert_close(one: Path, other: Path, within: float) -> None:
    a, b = (tensors(directory) for directory in (one, other))
    assert a and a.keys() == b.keys()
    for key in a:
        # biases that shift all tokens or all keys alike have no gradient but rounding, which Adam makes a step of
        if not key.endswith("bias"):
            torch.testing.assert_close(a[key], b[key], rtol=0, atol=within, msg=key)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_the_frozen_part_stored_gives_the_same_result(family, tmp_path):
    for how in ("live", "stored"):
        lower(tmp_path / how, how, family, attention_dropout=0.1)
        assert ("storing the frozen part" in (tmp_path / how / "log.jsonl").read_text()) is (how == "stored")
    assert_close(tmp_path / "live", tmp_path / "stored", 1e-4)


@pytest.mark.parametrize("train_layers", [0, 2])
@pytest.mark.parametrize("head", ["last", "pool"])
def test_the_frozen_part_stored_for_heads_of_one_layer_and_of_all(head, train_layers, tmp_path):
    for how in ("live", "stored"):
        lower(tmp_path / how, how, head=head, train_layers=train_layers, heads=[{"kind": "attend"}])
    assert_close(tmp_path / "live", tmp_path / "stored", 1e-4)


@pytest.mark.device
@pytest.mark.parametrize("moment", ["storing", 7])
def test_the_frozen_part_stored_and_killed_ends_the_same(moment, tmp_path):
    whole = lower(tmp_path / "whole", "stored")
    with killed_at(moment):
        lower(tmp_path / "killed", "stored", seconds=0)
    assert (tmp_path / "killed" / "finetune.states" / "manifest.json").is_file()
    killed = lower(tmp_path / "killed", "stored", seconds=0)
    assert_same(tensors(killed.directory), tensors(whole.directory))


@pytest.mark.parametrize(
    "plan", [{"norms": "all"}, {"train_layers": "all"}, {"train_layers": 3}, {"adapters": 2}, {"lora": 2}]
)
def test_what_is_not_entirely_frozen_cannot_be_stored(plan, tmp_path):
    with pytest.raises(UserError, match=r'finetune\.lower: "stored" needs ') as caught:
        lower(tmp_path, "stored", **plan)
    assert "\n" not in str(caught.value)


def test_albert_cannot_be_stored(tmp_path):
    with pytest.raises(UserError, match=r"finetune.lower: the layers of AlbertModel share"):
        lower(tmp_path, "stored", "albert", train_layers=0)
