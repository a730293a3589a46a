"""What a person sees: one live view on a terminal, plain lines elsewhere; and curves for TensorBoard."""

import io
import json
import sys

import pytest
from rich.console import Console

from bertvision.errors import UserError
from bertvision.train import progress
from bertvision.train.progress import Journal, Planned, Scalars
from bertvision.train.study import Study
from runs import bertvision, recipe_of, tiny_recipe

STATUS = {"step": 1, "of": 2, "loss": {"pool": 0.25, "last": 0.5}, "learning_rate": {"pool": 1e-3, "last": 2e-3}}


def journal(terminal: bool) -> tuple[Journal, io.StringIO]:
    made, out = Journal(), io.StringIO()
    made.console = Console(file=out, force_terminal=terminal, width=120, soft_wrap=True, legacy_windows=False)
    made.agenda.plan([Planned("tuning, seed 1", "tuning", 100), Planned("heads on epoch 1, seed 1", "heads", 100)])
    return made, out


def test_plain_lines_tell_how_the_whole_run_stands(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    made, out = journal(terminal=False)
    with made.stage("tuning, seed 1", 100) as stage:
        stage.advance(50, STATUS)
    with made.stage("heads on epoch 1, seed 1", 100, 40) as stage:
        stage.advance(60)
    first, second = out.getvalue().splitlines()
    assert first.startswith("tuning, seed 1:  50%  ") and "loss 0.250  (1 of 2 · next: heads on epoch 1" in first
    assert first.endswith(" left in all)")
    assert second.startswith("heads on epoch 1, seed 1: 100%  ") and "(2 of 2 · about 0 s left in all)" in second


def test_plain_lines_are_few():
    made, out = journal(terminal=False)
    with made.stage("tuning, seed 1", 100) as stage:
        for _ in range(100):
            stage.advance(1)
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_shows_the_bar_and_under_it_what_comes():
    made, out = journal(terminal=True)
    with made.stage("tuning, seed 1", 100) as stage:
        stage.advance(50, STATUS)
        made.say("a note meanwhile")
    shown = out.getvalue()
    assert "tuning, seed 1" in shown and "50%" in shown and "loss 0.250" in shown and "a note meanwhile" in shown
    assert "1 of 2 · next: heads on epoch 1, seed 1 · about " in shown and " left in all" in shown
    assert "1 of 2" not in shown[shown.rindex("50%") :]  # what stays when the stage has ended is its bar


def test_a_stage_that_fails_leaves_the_terminal_usable():
    made, out = journal(terminal=True)
    with pytest.raises(ZeroDivisionError), made.stage("tuning, seed 1", 100) as stage:
        stage.advance(10)
        raise ZeroDivisionError
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert not any(stage.done for stage in made.agenda.stages)


def test_a_study_says_how_it_stands(tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", finetune={"checkpoints": []})
    done = bertvision("study", recipe, "--out", tmp_path / "run", "--tensorboard", cwd=tmp_path)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if " tokens/s " in line]
    assert [line[line.index("(") + 1 :][:6] for line in lines] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert lines[-1].endswith("(4 of 4 · about 0 s left in all)")
    assert (tmp_path / "run" / "tensorboard" / "tuning-seed-1").is_dir()


def curves(directory) -> dict[str, list]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory)).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_curves_can_be_read_back(tmp_path):
    recipe = recipe_of(finetune={"checkpoints": []})
    study = Study(recipe, tmp_path, quiet=True)
    study.journal.scalars = Scalars(tmp_path / "tensorboard")
    rows = study.run()
    folders = {path.name for path in (tmp_path / "tensorboard").iterdir()}
    assert folders == {"tuning-seed-1", "heads-on-epoch-1-seed-1", "scores-seed-1"}
    learnt = curves(tmp_path / "tensorboard" / "heads-on-epoch-1-seed-1")
    names = ["pool", "compress size=8"]
    assert set(learnt) == {"tokens per second"} | {f"{what}/{n}" for what in ("loss", "learning_rate") for n in names}
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(log) if line["event"] == "heads on epoch 1, seed 1")
    assert learnt["loss/pool"][-1] == (last["step"], pytest.approx(last["loss"]["pool"]))
    assert learnt["learning_rate/pool"][0] == (1, pytest.approx(recipe.bank.learning_rate, rel=0.01))
    scores = curves(tmp_path / "tensorboard" / "scores-seed-1")
    expected = next(row for row in rows if row["member"] == "pool" and row["threshold_from"] == "tune")
    assert scores["f1/pool"] == [(100, pytest.approx(expected["f1"]))]


def test_curves_go_on_after_a_kill(tmp_path):
    for steps in ([1, 2, 3], [2, 3, 4]):  # the second time from the snapshot after step 1
        scalars = Scalars(tmp_path)
        for step in steps:
            scalars.learning("tuning", {**STATUS, "step": step}, 100.0, last=True)
        scalars.close()
    assert [step for step, _ in curves(tmp_path / "tuning")["loss/pool"]] == [1, 2, 3, 4]


def test_without_tensorboard_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"bertvision\[tensorboard\]"):
        Scalars(tmp_path)
