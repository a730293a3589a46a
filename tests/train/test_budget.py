"""Forecast of a study: the counter's FLOPs, numbers of the published recipe, ways to use several devices."""

import json
import re
from pathlib import Path

import pytest
import yaml

from bertvision.errors import UserError
from bertvision.recipe import load_recipe
from bertvision.train import make_run
from bertvision.train.budget import Machine, budget
from bertvision.train.cells import Cells
from runs import bertvision, recipe_of, tiny_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_flops_are_those_a_study_counts_and_measured_hours_stand_beside(tmp_path):
    recipe = recipe_of()
    cells = Cells(make_run(recipe, tmp_path / "run", quiet=True))
    before = budget(cells, Machine.named("a100"))
    assert not (tmp_path / "run").exists()
    assert {row["measured_hours"] for row in before["cells"]} == {None}
    cells.whole.run()
    tuning, _, last = budget(cells, Machine.named("a100"))["cells"]
    costs = {row.ensemble.members[0].name: row.cost for row in cells.whole.run_dir.rows() if row.ensemble.is_single}
    heads = [cost for cost in costs.values() if cost.head_flops]
    assert tuning["flops"] == heads[0].tuning_flops
    assert last["parts"]["states"]["flops"] == heads[0].feed_flops
    assert last["parts"]["heads"]["flops"] == sum(cost.head_flops - cost.feed_flops for cost in heads)
    assert tuning["measured_hours"] == pytest.approx(heads[0].tuning_seconds / 3600)
    assert last["measured_hours"] > 0


def test_the_published_table_on_one_gpu_and_on_eight(tmp_path, monkeypatch):
    recipe = load_recipe(RECIPES / "bertvision-table1.toml", ["heads=[{kind='pool'}]", "runtime.accumulate=8"])
    monkeypatch.chdir(tmp_path)  # where there are no data
    cells = Cells(make_run(recipe, tmp_path / "run", quiet=True))
    single = budget(cells, Machine.named("a100", price=2))
    tuning, bank = single["cells"]
    questions = 130_319 - round(0.02 * 130_319)
    assert (tuning["windows"], tuning["tokens"]) == (round(0.3 * questions), round(0.3 * questions * 174))
    encoder = 24 * 12 * 1024**2  # parameters in products
    assert tuning["flops"] == pytest.approx(6 * encoder * tuning["tokens"], rel=0.05)  # the rest is attention
    assert bank["store_bytes"] == pytest.approx(questions * 174 * 25 * 1024 * 2, rel=1e-3)
    assert tuning["memory_bytes"] == pytest.approx(16 * 335e6, rel=0.01)
    assert tuning["hours"] == pytest.approx(tuning["flops"] / (312e12 * 0.35) / 3600)  # bf16 is the default of tuning
    assert single["total"]["dollars"] == pytest.approx(2 * single["total"]["hours"])
    assert "assumed" in single["notes"][0]
    eight = budget(cells, Machine.named("a100", 8))["wall_hours"]
    assert eight["cells"] == pytest.approx(single["total"]["hours"])  # heads wait for their checkpoint
    shares = {"states": 1}  # live ones are made by every process; all else they share
    parts = [part for row in single["cells"] for part in row["parts"].items()]
    assert eight["torchrun"] == pytest.approx(sum(of["seconds"] / shares.get(name, 8) for name, of in parts) / 3600)


def test_the_manifest_for_kuberay_is_one():
    page = (RECIPES.parent / "docs" / "scale.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    found = yaml.safe_load(text)
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    cluster, words = found["spec"]["rayClusterSpec"], found["spec"]["entrypoint"].split()
    assert words[:2] == ["bertvision", "study"] and "--gpus-per-cell" in words
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]} == {"shared"}
    assert (
        "nvidia.com/gpu" in cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"]["limits"]
    )


def test_a_device_without_bf16_is_refused_for_it(tmp_path):
    recipe = recipe_of(finetune={"precision": "bf16"})
    with pytest.raises(UserError, match="t4 has no bf16"):
        budget(Cells(make_run(recipe, tmp_path / "run", quiet=True)), Machine.named("t4"))
    with pytest.raises(UserError, match="a100"):
        Machine.named("a10")


def test_the_verb_prints_json_and_lines(tmp_path):
    tiny_recipe(tmp_path / "tiny.toml")
    done = bertvision("forecast", "tiny.toml", "--device", "l4", "--gpus", "2", "--json", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [row["id"] for row in found["cells"]] == ["seed-1", "seed-1/epoch-0.5", "seed-1/epoch-1"]
    assert found["wall_hours"]["cells"] < found["total"]["hours"]  # two checkpoints side by side
    assert "total, one device" in bertvision("forecast", "tiny.toml", "--device", "l4", cwd=tmp_path).out
