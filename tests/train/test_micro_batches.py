"""Steps in micro-batches, and processes that share them: the same bits however many there are."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import UserError
from bertvision.runtime import Runtime
from bertvision.states.store import live
from bertvision.train.bank import HeadBank, bank_learners
from bertvision.train.loop import Feed, plan_batches
from bertvision.train.micro_batches import Tree, branch, check_parts, learn_in_parts
from devices import DEVICE, RUNTIME
from runs import Command, Done, recipe_of, tiny_recipe, together
from tunings import assert_same, loaded, tensors

TABLES = {
    "runtime": {"accumulate": 4},
    "bank": {"states": "live", "patience": 1, "checks": 2, "fractions": [1.0, 0.5], "batch_size": 8},
    "heads": [{"kind": "pool"}, {"kind": "conv", "dropout": 0.2}],
    "snapshot_seconds": 0,
}
SMALL = {"SHARD_BYTES": "20000"}
ENDED = "another process of this job has ended; the same command continues from here"
MEASURED = ("infer_seconds", "ms_per_question")


def start(world: int, directory: Path, env: Mapping[str, str] = {}, **tables: object) -> list[Command]:
    directory.mkdir(exist_ok=True)
    recipe = tiny_recipe(directory / "study.toml", **(TABLES | tables))
    return together(world, "study", recipe, "--out", directory / "run", cwd=directory, env=env)


def finished(world: int, directory: Path, env: Mapping[str, str] = {}, **tables: object) -> list[Done]:
    done = [command.wait() for command in start(world, directory, env, **tables)]
    assert [one.code for one in done] == [0] * world, done
    return done


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    """A study in one process."""
    directory = tmp_path_factory.mktemp("whole")
    finished(1, directory)
    return directory / "run"


@pytest.fixture(scope="module")
def whole(whole_run) -> dict[str, torch.Tensor]:
    """All its tensors: checkpoints, heads, logits."""
    return tensors(whole_run)


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_end_in_the_bits_of_one(world, whole, tmp_path):
    main, *others = finished(world, tmp_path)
    assert len(whole) > 100
    assert_same(tensors(tmp_path / "run"), whole)
    assert "report:" in main.out and all(
        not process.out and not process.err for process in others
    )  # one alone prints and writes
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert events.count("checkpoint") == 2


def test_the_parts_of_a_study_end_in_the_bits_of_the_whole(whole, tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", **TABLES)
    for verb in ("finetune", "train", "study"):
        main, other = [command.wait() for command in together(2, verb, recipe, "--out", tmp_path / "run", cwd=tmp_path)]
        assert not main.code and not other.code and main.out and not other.out, (main, other)
    assert_same(tensors(tmp_path / "run"), whole)


def taps(world: int, run: Path, **slow: str) -> list[Command]:
    """Processes that store the states of a run's test set, in shards of a few windows."""
    command = ("tap", run / "recipe.toml", "--out", run, "--split", "test", "--json")
    return together(world, *command, cwd=run.parent, env=SMALL | slow)


def contents(run: Path) -> dict[str, bytes]:
    (store,) = (run / "states").iterdir()
    return {path.name: path.read_bytes() for path in store.iterdir() if not path.name.startswith(".")}


def test_stores_and_scores_are_those_of_one_process(whole_run, tmp_path):
    rows, stores = [], []
    for world in (1, 2, 4):
        run = shutil.copytree(whole_run, tmp_path / f"{world}")
        assert [command.wait().code for command in taps(world, run)] == [0] * world
        stores.append(contents(run))
        main, *others = [command.wait() for command in together(world, "evaluate", run, "--json", cwd=tmp_path)]
        assert all(not done.out and not done.err and not done.code for done in others), others
        rows.append([{k: v for k, v in row.items() if k not in MEASURED} for row in json.loads(main.out)])
    assert len(stores[0]) > 5 and stores[1] == stores[0] and stores[2] == stores[0]
    assert len(rows[0]) > 4 and rows[1] == rows[0] and rows[2] == rows[0]


def test_processes_write_and_read_one_store(tmp_path):
    found = []
    for world in (1, 2):
        tables = {"bank": TABLES["bank"] | {"states": "stored"}, "runtime": {"accumulate": 2}}
        tables |= {"finetune": {"norms": "trained", "train_layers": 1, "lower": "stored", "checkpoints": []}}
        finished(world, tmp_path / f"{world}", SMALL, **tables)
        found.append(tensors(tmp_path / f"{world}" / "run"))
    assert_same(found[1], found[0])


@pytest.mark.parametrize(("what", "rank"), [("scores", 0), ("scores", 1), ("store", 1)])
def test_a_process_killed_while_they_store_or_score(what, rank, whole_run, whole, tmp_path):
    run = shutil.copytree(whole_run, tmp_path / "run")
    if what == "store":
        commands, seen = taps(2, run, SLOW="0.3"), lambda: any(run.glob("states/*/shard-*"))
    else:
        (run / "seed-1" / "scores-1.json").unlink()
        shutil.rmtree(run / "seed-1" / "predictions" / "1")
        study = ("study", run / "recipe.toml", "--out", run)
        commands, seen = (
            together(2, *study, cwd=tmp_path, env={"SLOW": "0.3"}),
            (run / "seed-1" / "predictions" / "1").exists,
        )
    assert commands[rank].kill_when(seen)
    done = commands[1 - rank].wait()
    assert done.code == 2 and done.err.splitlines()[-1].endswith(ENDED), done
    again = taps(1, run) if what == "store" else together(1, *study, cwd=tmp_path)
    assert again[0].wait().code == 0
    if what == "scores":
        assert_same(tensors(run), whole)
        return
    assert [command.wait().code for command in taps(1, whole_run)] == [0]
    assert contents(run) == contents(whole_run)
    shutil.rmtree(whole_run / "states")


@pytest.mark.parametrize("moment", ["finetune", "heads-1"])
def test_a_killed_process_ends_the_job_and_another_number_of_them_goes_on(moment, whole, tmp_path):
    main, other = start(2, tmp_path, {"SLOW": "0.3"})
    seen = tmp_path / "run" / "seed-1" / f"{moment}.snapshot.safetensors"
    assert other.kill_when(seen.exists)
    done = main.wait()
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"bertvision: {ENDED}"
    finished(4 if moment == "finetune" else 1, tmp_path)
    assert_same(tensors(tmp_path / "run"), whole)


def test_the_fast_way_says_so(tmp_path):
    finished(2, tmp_path, runtime={"accumulate": 4, "reduce": "fast"}, heads=[])
    assert "gradients of 2 processes are added as fast as they can" in (tmp_path / "run" / "log.jsonl").read_text()


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        (
            Runtime(world=2),
            "runtime.accumulate: 2 processes share the 1 micro-batches of a step; set runtime.accumulate",
        ),
        (Runtime(world=3, accumulate=4), "torchrun: 3 processes; give 2, 4, 8, ..., or set runtime.reduce to fast"),
    ],
)
def test_what_cannot_be_shared_is_one_line(runtime, says):
    with pytest.raises(UserError) as error:
        check_parts(runtime)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize("late", ["0", "1"])
def test_a_search_is_one_process_and_one_of_two_says_so(late, tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", **TABLES)
    search = ("search", recipe, "--out", tmp_path / "run")
    done = [command.wait() for command in together(2, *search, cwd=tmp_path, env={"LATE": late})]
    (line,) = [line for process in done for line in process.err.splitlines()]  # whichever was first
    assert done[0].code == 2 and line.endswith(": search: runs in one process; start it without torchrun")


@given(st.lists(st.booleans(), min_size=1, max_size=9).filter(any), st.sampled_from([1, 2, 4]))
def test_branches_of_a_tree_add_up_to_the_tree(filled, world):
    numbers = torch.randn(len(filled), generator=torch.Generator().manual_seed(0)) * 1e3

    def summed(leaves: range) -> torch.Tensor | None:
        tree = Tree()
        for leaf in leaves:
            if leaf < len(filled) and filled[leaf]:
                tree.add(leaf, [numbers[leaf].clone()])
        return next(iter(tree.sum()), None)

    def by_hand(leaves: range) -> torch.Tensor | None:
        """As it is defined: halves, each by itself."""
        if len(leaves) == 1:
            return numbers[leaves[0]] if leaves[0] < len(filled) and filled[leaves[0]] else None
        left, right = (by_hand(half) for half in (leaves[: len(leaves) // 2], leaves[len(leaves) // 2 :]))
        return left + right if left is not None and right is not None else right if left is None else left

    parts = max(world, len(filled))
    whole = range(1 << (parts - 1).bit_length())
    branches = [summed(branch(Runtime(world=world, accumulate=parts, rank=rank))) for rank in range(world)]
    while len(branches) > 1:
        pairs = zip(branches[::2], branches[1::2])
        branches = [a + b if a is not None and b is not None else b if a is None else a for a, b in pairs]
    assert torch.equal(branches[0], by_hand(whole)) and torch.equal(summed(whole), by_hand(whole))


@pytest.mark.device
def test_micro_batches_add_up_to_the_batch():
    backbone, task, data = loaded()
    recipe, windows = recipe_of(bank={"batch_size": 8, "fractions": [1.0, 0.5]}).bank, data["train"].windows
    plan = plan_batches(windows, recipe, 1)
    found = []
    for parts in (1, 4):
        entries = [{"kind": "pool"}, {"kind": "pool", "name": "half", "fraction": 0.5}]
        bank = RUNTIME.to(HeadBank(entries, layers=4, width=32, task="spans", seed=1))
        learners, feed = bank_learners(bank, recipe, windows, plan, 1), Feed(windows, live(backbone), backbone.pad)
        for step in range(3):
            if parts > 1:
                learn_in_parts(learners, feed, task, plan[step], step, 1, Runtime(DEVICE, accumulate=parts))
                continue
            batch, states = feed(plan[step], RUNTIME)
            for learner in learners:
                own = (states, batch) if learner.share is None else learner.share.of(states, batch)
                learner.learn(*own, task, step, RUNTIME)
        # A bias that shifts all positions alike has no gradient but rounding errors.
        found.append({key: value.cpu() for key, value in bank.state_dict().items() if "readout.bias" not in key})
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
