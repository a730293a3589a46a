"""What must hold on every device; tests of whole trainings are where they belong, marked `device` too."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from bertvision import cli
from bertvision.backbone import flops
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.cpu_kernels import frozen
from bertvision.backbone.plan import Tuning
from bertvision.backbone.states import States
from bertvision.backbone.tuning import apply
from bertvision.data.batches import Batch, collate
from bertvision.devices import find_device, find_precision, has_bf16
from bertvision.errors import UserError
from bertvision.heads import HEADS, build_head
from bertvision.recipe import RuntimeRecipe, from_table
from bertvision.registry import TASKS
from bertvision.runtime import CPU, Runtime, start_runtime
from bertvision.train import loop
from bertvision.train.bank import HeadBank, bank_learners
from bertvision.train.learner import fetch_losses
from bertvision.train.loop import plan_batches
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import tuning_of
from devices import DEVICE, RUNTIME
from runs import encoder, recipe_of, tiny_recipe
from tunings import assert_same, loaded, tensors, tuned

pytestmark = pytest.mark.device
TARGETS = {"spans": (6, 2), "labels": (6,), "score": (6,), "tokens": (6, 5, 1)}
only_ghost = pytest.mark.skipif(DEVICE != "ghost", reason="counts what only the test device counts")


def batch_of(task: str) -> Batch:
    ids = torch.arange(30).view(6, 5)
    mask = torch.arange(5) < torch.tensor([[5], [4], [3], [5], [2], [1]])
    targets = torch.zeros(TARGETS[task], dtype=torch.float32 if task == "score" else torch.int64)
    return Batch(np.arange(6), ids, torch.zeros_like(ids), mask, targets)


@pytest.mark.parametrize("task", sorted(TARGETS))
@pytest.mark.parametrize("kind", sorted(HEADS))
def test_heads_and_losses_are_those_of_the_cpu(kind, task):
    if HEADS[kind].needs_tokens and task in ("labels", "score"):
        pytest.skip("reads no [CLS] alone")
    batch, found = batch_of(task), []
    states = States(torch.randn(6, 4, 5, 32, generator=torch.Generator().manual_seed(0)), batch.mask)
    for runtime in (CPU, RUNTIME):
        with CPU.seed("head"):
            head = runtime.to(build_head({"kind": kind}, layers=4, width=32, task=task, outputs=2).eval())
        loss = TASKS[task]().loss(head.logits(runtime.to(states)), runtime.to(batch))
        loss.backward()
        found.append([loss.detach().cpu(), *(p.grad.cpu() for p in head.parameters() if p.grad is not None)])
    assert len(found[0]) > 1
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


def test_states_are_those_of_the_cpu():
    _, _, data = loaded()
    here, there = (Backbone.load(encoder(), device) for device in ("cpu", RUNTIME))
    assert here.fingerprint == there.fingerprint
    batch = collate(data["train"].windows, np.arange(8), here.pad)
    wanted, found = (frozen(one)(batch, "all").layers.cpu() for one in (here, there))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    if has_bf16(DEVICE):
        lower = Backbone.load(encoder(), Runtime(DEVICE, "bf16"))
        rounded = frozen(lower)(batch, "all").layers.cpu()
        assert not torch.equal(rounded, found) and rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, found, atol=0.1, rtol=0.1)


def test_random_numbers_come_from_the_seed_on_the_device_too():
    dropout, ones = torch.nn.Dropout(0.5), RUNTIME.to(torch.ones(64))
    torch.manual_seed(1)
    expected = dropout(ones).cpu()
    with RUNTIME.seed(1, "pool", 0):
        first = dropout(ones).cpu()
    torch.manual_seed(1)
    with RUNTIME.seed(1, "pool", 0):
        assert torch.equal(dropout(ones).cpu(), first)
    assert torch.equal(dropout(ones).cpu(), expected)  # as if nothing had been drawn
    with RUNTIME.seed(1, "pool", 1):
        assert not torch.equal(dropout(ones).cpu(), first)


def test_what_is_drawn_on_the_cpu_leaves_the_device_alone():
    dropout, ones, name = torch.nn.Dropout(0.5), RUNTIME.to(torch.ones(64)), encoder()
    found = []
    for drawn in (False, True):
        torch.manual_seed(1)
        if drawn:
            with CPU.seed(2):
                apply(Backbone.load(name).model, Tuning(lora=2), 3)
        found.append(dropout(ones).cpu())
    assert torch.equal(*found)


def test_flops_are_counted_on_no_device(monkeypatch):
    found = []
    for device in ("cpu", RUNTIME):
        model = Backbone.load(encoder(), device).model
        monkeypatch.setattr(flops, "_counted_work", {})
        if device is RUNTIME and DEVICE == "ghost":
            monkeypatch.setattr("ghost.ghost.room", 0)  # whatever is made there fails
        found.append(flops.encoder_work(model))
    assert found[0] == found[1] and found[0].forward


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_checkpointing_changes_no_bit(precision, tmp_path):
    if precision == "bf16" and not has_bf16(DEVICE):
        pytest.skip("no bf16 here")
    brief = {"finetune": {"epochs": 0.5, "checkpoints": [], "batch_size": 8, "precision": precision}}
    tuned(recipe_of(**brief), tmp_path / "plain")
    tuned(recipe_of(**brief, runtime={"gradient_checkpointing": True}), tmp_path / "lean")
    assert_same(tensors(tmp_path / "lean"), tensors(tmp_path / "plain"))


@only_ghost
def test_no_head_is_waited_for_in_a_step():
    from ghost import ghost

    backbone, task, data = loaded()
    recipe, windows = recipe_of(bank={"batch_size": 8}).bank, data["train"].windows
    plan = plan_batches(windows, recipe, 1)
    bank = HeadBank([{"kind": "pool"}, {"kind": "conv"}], layers=4, width=32, task="spans")
    learners = bank_learners(RUNTIME.to(bank), recipe, windows, plan, 1)
    batch = RUNTIME.to(collate(windows, plan[0], backbone.pad))
    states = frozen(backbone)(batch, "all")
    before = ghost.fetches, ghost.waits
    for step in range(3):
        for learner in learners:
            learner.learn(states, batch, task, step, RUNTIME)
    assert (ghost.fetches, ghost.waits) == before
    fetch_losses(learners)
    assert ghost.fetches == before[0] + 1  # all of them at once
    assert all(learner.loss > 0 and learner.seconds > 0 for learner in learners)


@only_ghost
def test_out_of_memory_is_one_line_and_the_same_command_goes_on(tmp_path, monkeypatch, capsys):
    from ghost import ghost

    recipe = tiny_recipe(tmp_path / "study.toml", snapshot_seconds=0, heads=[])
    command = ["bertvision", "finetune", str(recipe), "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", command)
    save = loop._save

    def fill(*args: object) -> None:
        """After the first snapshot no tensor fits any more."""
        save(*args)
        ghost.room = 0

    monkeypatch.setattr(loop, "_save", fill)
    monkeypatch.setattr(ghost, "room", ghost.room)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2
    assert said[-1].startswith("bertvision: out of memory; the same command with --set runtime.gradient_checkpointing")
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", [*command, "--set", "runtime.gradient_checkpointing=true"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code and (tmp_path / "run" / "seed-1" / "checkpoint-1").is_dir()
    assert "going on at step 1 of 6" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_one_line():
    assert find_device(DEVICE) == DEVICE and find_device("cpu") == "cpu"
    with pytest.raises(UserError, match=r"^device: there is no 'tpu' here that torch can use; there is: cpu"):
        Backbone.load(encoder(), "tpu")
    with pytest.raises(UserError, match=r"runtime\.device: there is no 'cpu:1'"):
        start_runtime(RuntimeRecipe(device="cpu:1"))
    code = "import sys, torch; from bertvision import cli; sys.argv[1:] = ['ask', '--device', 'xpu:7', 'Who?', "
    code += "'--context', 'Ada did.']; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("bertvision: device: there is no 'xpu:7' here")


@pytest.mark.parametrize(
    ("instructions", "quicker", "found"), [(True, True, "bf16"), (True, False, "fp32"), (False, True, "fp32")]
)
def test_auto_takes_bf16_where_it_is_quicker(instructions, quicker, found, monkeypatch):
    monkeypatch.delenv("BERTVISION_PRECISION")
    monkeypatch.setattr("bertvision.devices.has_bf16", lambda device: instructions)
    monkeypatch.setattr("bertvision.devices._quicker_in_bf16", lambda: quicker)
    assert find_precision("auto", "cpu") == found and find_precision("fp32", "cpu") == "fp32"
    assert start_runtime(RuntimeRecipe(device="cpu", precision="auto"), {"precision": "fp32"}).precision == "fp32"


def test_auto_means_what_the_environment_says(monkeypatch):
    monkeypatch.setattr("bertvision.devices.has_bf16", lambda device: True)
    for name in ("fp32", "bf16"):
        monkeypatch.setenv("BERTVISION_PRECISION", name)
        assert find_precision("auto", "cpu") == name
    monkeypatch.setenv("BERTVISION_PRECISION", "fp16")
    with pytest.raises(UserError, match="BERTVISION_PRECISION"):
        find_precision("auto", "cpu")


def test_tuning_takes_the_precision_that_its_run_has_noted(tmp_path, monkeypatch):
    """`auto` is decided once; a stored lower part has fp32 alone."""
    monkeypatch.setattr("bertvision.devices.has_bf16", lambda device: True)
    monkeypatch.setenv("BERTVISION_PRECISION", "bf16")
    for lower, norms, expected in (("live", "all", "bf16"), ("stored", "trained", "fp32")):
        recipe = from_table({"finetune": {"lower": lower, "norms": norms, "train_layers": 1}})
        run = RunDir(tmp_path / lower, recipe)
        assert recipe.finetune.precision == "auto" and tuning_of(run, CPU).precision == expected
    monkeypatch.setenv("BERTVISION_PRECISION", "fp32")
    run = RunDir(tmp_path / "live", from_table({}))
    run.path.mkdir()
    run.add_facts(runtime={"tuning": "bf16"})
    assert tuning_of(run, CPU).precision == "bf16"
