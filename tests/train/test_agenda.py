"""What is left to do, and for how long: arithmetic by hand, and the plan of a real study."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.train.progress import SPEED, Agenda, Planned, duration, plan_study, plan_variants
from bertvision.train.series import Series
from bertvision.train.study import Study
from runs import recipe_of

STAGES = [
    Planned("tuning, seed 1", "tuning", 1000),
    Planned("heads on epoch 1, seed 1", "heads", 500),
    Planned("scoring epoch 1 on tune, seed 1", "scoring", 300),
]


def agenda(stages=STAGES) -> Agenda:
    made = Agenda()
    made.plan(stages)
    return made


def test_before_anything_is_measured_no_time_is_told():
    one = agenda()
    assert one.outlook() == "0 of 3 done · next: tuning, seed 1"
    one.begin("tuning, seed 1", "", 1000, 0)
    assert one.seconds_left is None
    assert one.outlook() == "1 of 3 · next: heads on epoch 1, seed 1"


def test_what_was_not_measured_is_told_in_proportion():
    one = agenda()
    one.begin("tuning, seed 1", "", 1000, 0)
    one.advance(200, 2.0)  # 100 tokens/s: 8 s of it are left
    heads, scoring = 100 * SPEED["heads"], 100 * SPEED["scoring"]
    assert one.seconds_left == pytest.approx(8 + 500 / heads + 300 / scoring)
    assert one.outlook() == "1 of 3 · next: heads on epoch 1, seed 1 · about 11 s left in all"


def test_what_was_measured_is_told_as_measured():
    one = agenda()
    one.begin("tuning, seed 1", "", 1000, 0)
    one.advance(1000, 10.0)
    one.end()
    one.begin("heads on epoch 1, seed 1", "", 500, 0)
    one.advance(100, 10.0)  # 10 tokens/s, and so scoring is at 12 by the proportion to what was measured last
    assert one.seconds_left == pytest.approx(40 + 300 / (10 * SPEED["scoring"] / SPEED["heads"]))
    assert one.outlook().startswith("2 of 3 · next: scoring epoch 1 on tune, seed 1 · about ")


def test_what_was_done_before_counts():
    one = agenda([Planned("tuning, seed 1", "tuning", 1000, done=True), *STAGES[1:]])
    one.begin("heads on epoch 1, seed 1", "", 500, 400)  # goes on after a kill
    assert one.outlook().startswith("2 of 3")
    one.advance(50, 1.0)
    assert one.seconds_left == pytest.approx(1 + 300 / (50 * SPEED["scoring"] / SPEED["heads"]))


def test_a_stage_goes_on_at_its_own_speed():
    one = agenda([Planned("a", "heads", 100), Planned("b", "heads", 100), Planned("c", "heads", 100)])
    one.begin("a", "", 100, 0)
    one.advance(100, 10.0)
    one.end()
    one.begin("b", "", 100, 0)
    assert one.seconds_left == pytest.approx(20)
    one.advance(50, 20.0)  # four times slower than a: 20 s of it are left, and c is at the mean of both, 5 tokens/s
    assert one.seconds_left == pytest.approx(20 + 20)


def test_a_stage_that_ends_early_is_done():
    one = agenda()
    one.begin("tuning, seed 1", "", 1000, 0)
    one.advance(10, 1.0)
    one.end()
    assert one.outlook().startswith("1 of 3 done · next: heads on epoch 1, seed 1")


def test_a_stage_is_as_long_as_it_turns_out():
    one = agenda()
    one.begin("tuning, seed 1", "", 2000, 0)
    one.advance(1000, 10.0)
    assert one.seconds_left == pytest.approx(10 + 5 / SPEED["heads"] + 3 / SPEED["scoring"])


def test_what_is_not_planned_is_not_counted():
    one = agenda()
    one.begin("storing states of train", "", 10, 0)
    one.advance(10, 1.0)
    one.end()
    assert one.outlook() == "0 of 3 done · next: tuning, seed 1"
    empty = Agenda()
    empty.begin("predicting", "", 10, 0)
    empty.advance(5, 1.0)
    assert empty.outlook() == ""


def test_parts_may_have_stages_of_the_same_name():
    one = Agenda()
    for part in ("L1", "L2"):
        one.plan(STAGES[:1], part)
    one.begin("tuning, seed 1", "L1", 1000, 0)
    one.advance(500, 5.0)
    assert one.outlook() == "1 of 2 · next: L2: tuning, seed 1 · about 15 s left in all"
    one.end()
    one.begin("tuning, seed 1", "L2", 1000, 0)
    assert one.outlook() == "2 of 2 · about 10 s left in all"


@given(st.lists(st.tuples(st.sampled_from([*SPEED]), st.integers(0, 10**6)), min_size=1, max_size=8), st.data())
def test_time_left_falls_to_nothing(kinds, data):
    stages = [Planned(f"{number}", kind, tokens) for number, (kind, tokens) in enumerate(kinds)]
    one = agenda(stages)
    for stage in stages:
        one.begin(stage.name, "", stage.tokens, 0)
        half = data.draw(st.integers(0, stage.tokens))
        for tokens in (half, stage.tokens - half):
            one.advance(tokens, tokens / SPEED[stage.kind])  # exactly as fast as foreseen
        left = sum(later.tokens / SPEED[later.kind] for later in stages[stages.index(stage) + 1 :])
        if one.seconds_left is not None:
            assert one.seconds_left == pytest.approx(left, abs=1e-6)
        one.end()
    assert all(stage.done for stage in one.stages)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (90, "2 min"), (5000, "83 min"), (9000, "2.5 h")]
)
def test_how_long_is_said(seconds, text):
    assert duration(seconds) == text


def test_a_study_plans_all_it_does_and_knows_what_is_done(tmp_path):
    recipe = recipe_of(seeds=[1, 2])
    study = Study(recipe, tmp_path / "run", quiet=True)
    study.begin()
    study.tune(1)
    study.train(1, 0.5)
    plan_study(study)
    stages = study.journal.agenda.stages
    assert [stage.name for stage in stages if stage.done] == ["tuning, seed 1", "heads on epoch 0.5, seed 1"]
    assert [stage.kind for stage in stages] == ["tuning", *["heads", "scoring", "scoring"] * 2] * 2
    tokens = int(study.data["train"].windows.lengths.sum())
    assert [stage.tokens for stage in stages if stage.kind != "scoring"] == [tokens] * 6
    study.run()
    assert all(stage.done for stage in study.journal.agenda.stages)
    assert len(study.journal.agenda.stages) == len(stages)  # nothing was done under another name


def test_variants_share_one_agenda(tmp_path):
    variants = [{"name": "one"}, {"name": "two", "heads": [], "data": {"limit": 24}}]
    series = Series(recipe_of(finetune={"checkpoints": []}, variants=variants), tmp_path / "run", quiet=True)
    series.begin()
    plan_variants(series.variants)
    one, two = series.studies
    shared = one.journal.agenda
    assert shared is two.journal.agenda
    assert [len(stages) for stages in shared.parts.values()] == [4, 3]
    assert shared.parts["two"][0].tokens == shared.parts["one"][0].tokens
    plan_study(two)  # as it begins to run: now its own data are known
    assert shared.parts["two"][0].tokens < shared.parts["one"][0].tokens
