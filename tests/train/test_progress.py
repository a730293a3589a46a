"""Progress: the time left, computed by hand and for real studies; terminal view, plain lines, TensorBoard."""

import io
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bertvision.errors import UserError
from bertvision.train import progress
from bertvision.train.progress import SPEED, Journal, Stage, Stages, duration
from bertvision.train.study import Study
from bertvision.train.study_variants import VariantStudies
from bertvision.train.trackers import Scalars
from runs import bertvision, recipe_of, tiny_recipe

STATUS = {"step": 1, "of": 2, "loss": {"pool": 0.25, "last": 0.5}, "learning_rate": {"pool": 1e-3, "last": 2e-3}}
TUNING, HEADS, SCORING = "tuning, seed 1", "heads on epoch 1, seed 1", "scoring epoch 1 on tune, seed 1"
STAGES = [Stage(TUNING, "tuning", 1000), Stage(HEADS, "heads", 500), Stage(SCORING, "scoring", 300)]


def planned(stages=STAGES) -> Stages:
    made = Stages()
    made.plan(stages)
    return made


def test_what_was_not_measured_is_told_in_proportion_to_what_was():
    stages = planned()
    assert stages.outlook() == f"0 of 3 done · next: {TUNING}"
    stages.begin(TUNING, "", 1000, 0)
    assert stages.seconds_left is None and stages.outlook() == f"1 of 3 · next: {HEADS}"
    stages.advance(200, 2.0)  # 100 tokens/s: 8 s of it are left
    heads, scoring = 100 * SPEED["heads"], 100 * SPEED["scoring"]
    assert stages.seconds_left == pytest.approx(8 + 500 / heads + 300 / scoring)
    assert stages.outlook() == f"1 of 3 · next: {HEADS} · about 11 s left in all"
    stages.end()  # early: it is done all the same
    assert stages.outlook().startswith(f"1 of 3 done · next: {HEADS}")
    stages.begin(HEADS, "", 500, 0)
    stages.advance(100, 10.0)  # 10 tokens/s, and so scoring is at 12 by the proportion to what was measured last
    assert stages.seconds_left == pytest.approx(40 + 300 / (10 * SPEED["scoring"] / SPEED["heads"]))
    assert stages.outlook().startswith(f"2 of 3 · next: {SCORING} · about ")


def test_a_stage_goes_on_at_its_own_speed_and_length():
    stages = planned([Stage(name, "heads", 100) for name in "abc"])
    stages.begin("a", "", 100, 0)
    stages.advance(100, 10.0)
    stages.end()
    stages.begin("b", "", 100, 0)
    assert stages.seconds_left == pytest.approx(20)
    stages.advance(50, 20.0)  # four times slower than a: 20 s of it are left, and c is at the mean of both, 5 tokens/s
    assert stages.seconds_left == pytest.approx(20 + 20)
    longer = planned()
    longer.begin(TUNING, "", 2500, 500)  # more than planned, and some of it done before a kill
    longer.advance(1000, 10.0)
    assert longer.seconds_left == pytest.approx(10 + 5 / SPEED["heads"] + 3 / SPEED["scoring"])
    assert [duration(seconds) for seconds in (0.4, 59, 90, 5000, 9000)] == ["0 s", "59 s", "2 min", "83 min", "2.5 h"]


def test_what_is_not_planned_is_not_counted():
    for stages, expected in ((planned(), f"0 of 3 done · next: {TUNING}"), (Stages(), "")):
        stages.begin("storing states of train", "", 10, 0)
        stages.advance(10, 1.0)
        stages.end()
        assert stages.outlook() == expected


def test_parts_may_have_stages_of_the_same_name():
    stages = Stages()
    for part in ("L1", "L2"):
        stages.plan(STAGES[:1], part)
    stages.begin(TUNING, "L1", 1000, 0)
    stages.advance(500, 5.0)
    assert stages.outlook() == f"1 of 2 · next: L2: {TUNING} · about 15 s left in all"
    stages.end()
    stages.begin(TUNING, "L2", 1000, 0)
    assert stages.outlook() == "2 of 2 · about 10 s left in all"


@given(st.lists(st.tuples(st.sampled_from([*SPEED]), st.integers(0, 10**6)), min_size=1, max_size=8), st.data())
def test_time_left_falls_to_nothing(kinds, data):
    stages = [Stage(f"{number}", kind, tokens) for number, (kind, tokens) in enumerate(kinds)]
    plan = planned(stages)
    for number, stage in enumerate(stages):
        plan.begin(stage.name, "", stage.tokens, 0)
        half = data.draw(st.integers(0, stage.tokens))
        for tokens in (half, stage.tokens - half):
            plan.advance(tokens, tokens / SPEED[stage.kind])  # exactly as fast as foreseen
        left = sum(later.tokens / SPEED[later.kind] for later in stages[number + 1 :])
        if plan.seconds_left is not None:
            assert plan.seconds_left == pytest.approx(left, abs=1e-6)
        plan.end()
    assert all(stage.done for stage in plan.all)


def test_a_study_plans_all_it_does_and_knows_what_is_done(tmp_path):
    study = Study(recipe_of(seeds=[1, 2]), tmp_path / "run", quiet=True)
    study.begin()
    study.tune(1)
    study.train(1, 0.5)
    study.plan()
    stages = study.journal.stages.all
    assert [stage.name for stage in stages if stage.done] == [TUNING, "heads on epoch 0.5, seed 1"]
    assert [stage.kind for stage in stages] == ["tuning", *["heads", "scoring", "scoring"] * 2] * 2
    tokens = int(study.data["train"].windows.lengths.sum())
    assert [stage.tokens for stage in stages if stage.kind != "scoring"] == [tokens] * 6
    study.run()
    assert all(stage.done for stage in study.journal.stages.all)
    assert len(study.journal.stages.all) == len(stages)  # nothing was done under another name


def test_variants_share_one_agenda(tmp_path):
    variants = [{"name": "one"}, {"name": "two", "heads": [], "data": {"limit": 24}}]
    series = VariantStudies(recipe_of(finetune={"checkpoints": []}, variants=variants), tmp_path / "run", quiet=True)
    series.begin()
    series.plan()
    first, second = series.studies.values()
    shared = first.journal.stages
    assert shared is second.journal.stages
    assert [len(stages) for stages in shared.parts.values()] == [4, 3]
    assert shared.parts["two"][0].tokens == shared.parts["one"][0].tokens
    second.plan()  # as it begins to run: now its own data are known
    assert shared.parts["two"][0].tokens < shared.parts["one"][0].tokens


def journal(terminal: bool) -> tuple[Journal, io.StringIO]:
    made, out = Journal(), io.StringIO()
    made.console = Console(file=out, force_terminal=terminal, width=120, soft_wrap=True, legacy_windows=False)
    made.stages.plan([Stage(TUNING, "tuning", 100), Stage(HEADS, "heads", 100)])
    return made, out


def test_plain_lines_are_few_and_tell_how_the_whole_run_stands(monkeypatch):
    made, out = journal(terminal=False)
    with made.stage(TUNING, 100) as stage:
        for _ in range(100):
            stage.advance(1)
    assert len(out.getvalue().splitlines()) == 1
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    made, out = journal(terminal=False)
    with made.stage(TUNING, 100) as stage:
        stage.advance(50, STATUS)
    with made.stage(HEADS, 100, 40) as stage:
        stage.advance(60)
    first, second = out.getvalue().splitlines()
    assert first.startswith(f"{TUNING}:  50%  ") and "loss 0.250  (1 of 2 · next: heads on epoch 1" in first
    assert first.endswith(" left in all)")
    assert second.startswith(f"{HEADS}: 100%  ") and "(2 of 2 · about 0 s left in all)" in second


def test_a_terminal_shows_the_bar_and_the_outlook():
    made, out = journal(terminal=True)
    with made.stage(TUNING, 100) as stage:
        stage.advance(50, STATUS)
        made.say("a note meanwhile")
    shown = out.getvalue()
    assert TUNING in shown and "50%" in shown and "loss 0.250" in shown and "a note meanwhile" in shown
    assert f"1 of 2 · next: {HEADS} · about " in shown and " left in all" in shown
    assert "1 of 2" not in shown[shown.rindex("50%") :]  # only the bar remains when the stage has ended


def test_a_stage_that_fails_leaves_the_terminal_usable():
    made, out = journal(terminal=True)
    with pytest.raises(ZeroDivisionError), made.stage(TUNING, 100) as stage:
        stage.advance(10)
        raise ZeroDivisionError
    assert out.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert not any(stage.done for stage in made.stages.all)


def curves(directory) -> dict[str, list]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory)).Reload()
    return {tag: [(stages.step, stages.value) for stages in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_a_study_tells_its_progress_and_leaves_curves(tmp_path):
    recipe = tiny_recipe(tmp_path / "study.toml", finetune={"checkpoints": []})
    run = tmp_path / "run"
    done = bertvision("study", recipe, "--out", run, "--tensorboard", cwd=tmp_path)
    assert done.code == 0, done.err
    lines = [line for line in done.err.splitlines() if " tokens/s " in line]
    assert [line[line.index("(") + 1 :][:6] for line in lines] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert lines[-1].endswith("(4 of 4 · about 0 s left in all)")
    folders = {path.name: curves(path) for path in (run / "tensorboard").iterdir()}
    assert set(folders) == {"tuning-seed-1", "heads-on-epoch-1-seed-1", "scores-seed-1"}
    learnt, names = folders["heads-on-epoch-1-seed-1"], ["pool", "compress size=8"]
    assert set(learnt) == {"tokens per second"} | {f"{what}/{n}" for what in ("loss", "learning_rate") for n in names}
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(log) if line["event"] == HEADS)
    assert learnt["loss/pool"][-1] == (last["step"], pytest.approx(last["loss"]["pool"]))
    rows = json.loads((run / "metrics.json").read_text())
    expected = next(row for row in rows if row["member"] == "pool" and row["threshold_from"] == "tune")
    assert folders["scores-seed-1"]["f1/pool"] == [(100, pytest.approx(expected["f1"]))]


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


def test_curves_in_trackio(tmp_path):
    """In a process of its own: it reads where to write when it is imported."""
    pytest.importorskip("trackio")
    code = f"""if True:
        from pathlib import Path
        from bertvision.train.trackers import Scalars, TrackioWriter
        scalars = Scalars(Path({str(tmp_path)!r}) / "my-run" / "trackio", TrackioWriter)
        for step in (1, 2):
            scalars.learning("tuning, seed 1", {{**{STATUS!r}, "step": step}}, 100.0, last=True)
        scalars.close()
        import trackio
        (run,) = trackio.Api().runs("my-run")
        print(run.name, sorted({{p["step"] for p in trackio.SQLiteStorage.get_logs("my-run", run.name)}}))
    """
    kept = {**os.environ, "TRACKIO_DIR": str(tmp_path / "kept")}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=kept)
    assert done.stdout == "tuning-seed-1 [1, 2]\n", done.stderr
