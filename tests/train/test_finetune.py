"""Tuning: checkpoints where they were asked for, what moves and what does not, every plan with every head."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision.backbone import cpu_kernels
from bertvision.backbone.cpu_kernels import has_bf16
from bertvision.errors import UserError
from bertvision.heads import HEADS
from bertvision.recipe import Recipe
from bertvision.train.finetune import Checkpoint, checkpoint_epochs
from encoders import FAMILIES
from runs import encoder, load, recipe_of
from tunings import tuned


def tune(directory: Path, recipe: Recipe, seed: int = 1) -> dict[float, Checkpoint]:
    found = tuned(recipe, directory, seed=seed)
    (directory / "log.jsonl").unlink(missing_ok=True)
    return found


def brief(**finetune: object) -> Recipe:
    """Two steps."""
    return recipe_of(finetune={"epochs": 1 / 3, "checkpoints": [], **finetune})


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.directory / "backbone.safetensors")


def moved(directory: Path, recipe: Recipe) -> dict[str, float]:
    """How far each tensor of the encoder, and the head as "head", has moved at most between epoch 0 and the end."""
    found = list(tune(directory, recipe).values())
    before, after = ({**tensors(one), "head": _flat(one)} for one in (found[0], found[-1]))
    assert before.keys() == after.keys()
    return {key: (after[key] - value).abs().max().item() for key, value in before.items()}


def _flat(checkpoint: Checkpoint) -> torch.Tensor:
    return torch.cat([value.flatten() for value in load_file(checkpoint.directory / "head.safetensors").values()])


@pytest.mark.parametrize(
    ("epochs", "checkpoints", "expected"),
    [
        (1, (), [1.0]),
        (1, (0.3, 1.0), [0.3, 1.0]),
        (1, (0.5, 0, 0.5), [0.0, 0.5, 1.0]),
        (0.5, (0.3, 0.6, 2), [0.3, 0.5]),
        (0, (), [0.0]),
        (1, (0.3, 0.1 + 0.2), [0.3, 1.0]),
        (3, (0.1234567,), [0.123457, 3.0]),
    ],
)
def test_the_epochs_of_checkpoints(epochs, checkpoints, expected):
    assert checkpoint_epochs(recipe_of(finetune={"epochs": epochs, "checkpoints": checkpoints}).finetune) == expected


def test_checkpoints_at_fractions(tmp_path):
    recipe = recipe_of(finetune={"epochs": 2, "checkpoints": [0, 0.1, 0.5, 1]})
    found = tune(tmp_path, recipe)
    assert list(found) == [0, 0.1, 0.5, 1, 2]
    assert [one.about()["step"] for one in found.values()] == [0, 1, 3, 6, 12]
    seconds = [one.about()["seconds"] for one in found.values()]
    assert seconds[0] == 0 and seconds == sorted(seconds)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint-{epoch:g}" for epoch in found]
    _, task, _ = load(recipe)
    backbone, head, about = found[0.5].load(task, recipe.backbone.name)
    assert not backbone.training and not head.training
    assert about["epoch"] == 0.5 and about["seed"] == 1 and about["identity"] == "this"
    state = dict(backbone.model.named_parameters())
    assert all(torch.equal(state[key], value) for key, value in tensors(found[0.5]).items())


def test_epochs_that_fall_on_one_step_are_all_kept(tmp_path):
    found = tune(tmp_path, recipe_of(finetune={"epochs": 0.3, "checkpoints": [0.001, 0.02, 0.1]}))
    assert [one.about()["step"] for one in found.values()] == [0, 1, 1, 2]
    assert all(one.done for one in found.values())


def test_no_tuning_at_all(tmp_path):
    recipe = recipe_of(finetune={"epochs": 0, "checkpoints": []})
    (checkpoint,) = tune(tmp_path, recipe).values()
    backbone, task, _ = load(recipe)
    loaded, head, about = checkpoint.load(task, recipe.backbone.name)
    assert about["step"] == 0 and head.kind == "last"
    assert loaded.fingerprint == backbone.fingerprint


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    found = [tune(tmp_path / str(n), brief(), seed)[0.333333] for n, seed in enumerate((1, 1, 2))]
    first, again, other = map(tensors, found)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(_flat(found[0]), _flat(found[2]))
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_rates_of_head_adapters_and_the_rest(tmp_path):
    """The first step of Adam is as long as the rate."""
    recipe = recipe_of(
        finetune={
            "epochs": 0.16,
            "checkpoints": [0],
            "learning_rate": 1e-5,
            "head_learning_rate": 1e-2,
            "adapter_learning_rate": 1e-3,
            "adapters": 4,
            "train_layers": 0,
            "warmup": 0.0,
            "schedule": "constant",
            "weight_decay": 0.0,
        }
    )
    found = moved(tmp_path, recipe)
    adapters = [value for key, value in found.items() if ".adapter." in key]
    norms = [value for key, value in found.items() if "LayerNorm" in key]
    assert len(adapters) == 3 * 2 * 4 and len(norms) == 7 * 2 and len(found) == 24 + 14 + 1
    assert found["head"] == pytest.approx(1e-2, rel=1e-2)
    assert max(adapters) == pytest.approx(1e-3, rel=1e-2)
    assert max(norms) == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "restarts"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_schedules_and_optimisers_move_the_encoder(schedule, optimizer, tmp_path):
    recipe = brief(checkpoints=[0], schedule=schedule, optimizer=optimizer, restarts=2, train_layers=1, warmup=1)
    found = moved(tmp_path, recipe)
    assert found["head"] > 0
    assert found["encoder.layer.2.output.dense.weight"] > 0


@pytest.mark.parametrize("plan", [{"train_layers": 0}, {"train_layers": 1}, {}, {"train_layers": 0, "adapters": 4}])
@pytest.mark.parametrize("kind", sorted(HEADS))
def test_every_head_can_be_tuned_jointly_under_every_plan(kind, plan, tmp_path):
    found = moved(tmp_path, brief(head={"kind": kind}, checkpoints=[0], **plan))
    blocks = {key.split(".")[2] for key in found if key.startswith("encoder.layer.") and "dense.weight" in key}
    assert blocks == {0: set(), 1: {"2"}, "all": {"0", "1", "2"}}[plan.get("train_layers", "all")]
    assert any(".adapter." in key for key in found) is bool(plan.get("adapters"))
    assert found["head"] > 0
    assert found["encoder.layer.2.output.LayerNorm.weight"] > 0


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
def test_every_family_can_be_tuned(family, tmp_path):
    recipe = recipe_of(backbone={"name": encoder(family)}, finetune={"epochs": 0.16, "checkpoints": [0], "adapters": 2})
    found = moved(tmp_path, recipe)
    assert found["head"] > 0
    assert sum(value > 0 for value in found.values()) > 10


@pytest.mark.skipif(not has_bf16(), reason="this processor has no instructions for bf16")
def test_bf16_moves_the_same_weights_nearly_as_far(tmp_path):
    exact, found = (moved(tmp_path / name, brief(checkpoints=[0], precision=name)) for name in ("fp32", "bf16"))
    assert exact.keys() == found.keys()
    assert exact != found
    assert found["head"] == pytest.approx(exact["head"], rel=0.2)


def test_bf16_is_refused_where_it_would_be_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "has_bf16", lambda: False)
    with pytest.raises(UserError, match=r"finetune\.precision: this processor has no instructions for bf16"):
        tune(tmp_path, brief(precision="bf16"))


def test_lora_beside_the_rest(tmp_path):
    found = moved(tmp_path, brief(checkpoints=[0], train_layers=0, lora=2, warmup=0.0))
    assert max(value for key, value in found.items() if ".lora_" in key) > 0


def test_a_rate_that_is_much_too_high_is_an_error(tmp_path):
    with pytest.raises(
        UserError, match=r"finetune: its (loss|gradient) became (nan|inf) at step \d+; a lower learning"
    ):
        tune(tmp_path, brief(learning_rate=1e18, warmup=0.0))
    assert not (tmp_path / "checkpoint-0.333333").exists()  # not even if only the last step did it


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    recipe = brief()
    (checkpoint,) = tune(tmp_path, recipe).values()
    _, task, _ = load(recipe)
    for name in ("backbone.safetensors", "head.safetensors"):
        path = checkpoint.directory / name
        content = path.read_bytes()
        for damaged in (
            content[: len(content) // 2],
            b"",
            (checkpoint.directory / "backbone.safetensors").read_bytes(),
        ):
            if damaged == content:
                continue
            path.write_bytes(damaged)
            with pytest.raises(UserError, match=name) as caught:
                checkpoint.load(task, recipe.backbone.name)
            assert "\n" not in str(caught.value)
        path.write_bytes(content)
    checkpoint.load(task, recipe.backbone.name)


@pytest.mark.parametrize("plan", [{"train_layers": 0, "adapters": 4}, {"train_layers": 1}, {}])
def test_tuning_starts_where_another_has_ended(plan, tmp_path):
    (earlier,) = tune(tmp_path / "earlier", brief(**plan)).values()
    later = tune(tmp_path / "later", brief(**plan, checkpoints=[0], start=str(earlier.directory)))
    before, start, end = map(tensors, (earlier, *later.values()))
    assert before.keys() == start.keys() and all(torch.equal(before[key], start[key]) for key in before)
    assert any(not torch.equal(start[key], end[key]) for key in start)


def test_tuning_starts_from_no_other_plan_and_from_nothing_else(tmp_path):
    (earlier,) = tune(tmp_path / "earlier", brief(train_layers=0, adapters=4)).values()
    with pytest.raises(UserError, match=r"adapters = 4.* must be the same as here: .*adapters = 8"):
        tune(tmp_path / "a", brief(train_layers=0, adapters=8, start=str(earlier.directory)))
    with pytest.raises(UserError, match="holds no tuned encoder"):
        tune(tmp_path / "b", brief(start=str(tmp_path)))
