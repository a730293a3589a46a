import json

import pytest

from bertvision import toml
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.evaluate.score import Score
from bertvision.files import write_json, write_text
from bertvision.train.run_dir import RunDir
from runs import recipe_of


def row(seed: int, epoch: float, head: str = "", f1: float = 50.0, chosen: str = "") -> Score:
    ensemble = Ensemble((Member(head, seed, epoch),), chosen=chosen)
    return Score(ensemble, 0.0, "tune", {"f1": f1}, main="f1", tune=f1)


@pytest.fixture
def run(tmp_path) -> RunDir:
    """A run whose second seed has one of two checkpoints scored."""
    made = RunDir(tmp_path)
    write_text(made.recipe_file, toml.write(recipe_of(seeds=[1, 2])))
    for seed, epoch in ((1, 0.5), (1, 1.0), (2, 0.5)):
        made.seed(seed).mkdir(exist_ok=True)
        rows = [row(seed, epoch), row(seed, epoch, "a + b")]
        write_json(made.scores_file(seed, epoch), [score.to_json() for score in rows])
    chosen = [{"test": [row(seed, epoch, "pool", chosen="greedy").to_json()]} for seed, epoch in ((1, 1.0), (2, 1.0))]
    write_json(made.greedy_file, {"made_from": made.digest(), "ensembles": chosen, "comparisons": []})
    made.write_metrics()
    made.add_facts(started="today")
    return made


def test_rows_of_all_cells_and_of_one(run):
    assert run.scored() == [(1, 0.5), (1, 1.0), (2, 0.5)]
    assert [(score.seed, score.epoch, score.name) for score in run.rows((2, 0.5))] == [
        (2, 0.5, "backbone"),
        (2, 0.5, "a + b"),
    ]
    assert run.rows() == [Score.from_json(score, "") for score in json.loads(run.metrics_file.read_text())]
    assert [score.cell for score in run.greedy()] == [(1, 1.0)]  # the other has no scores
    assert run.scores() == run.rows() + run.greedy()
    assert (run.cell(), run.cell(seed=2), run.cell(epoch=0.5)) == ((1, 1.0), (2, 0.5), (1, 0.5))
    with pytest.raises(UserError, match=r"there is: seed 1 epoch 0\.5, seed 1 epoch 1, seed 2 epoch 0\.5"):
        run.cell(1.0, 2)


def test_content_decides_what_is_current(run):
    assert run.is_current(run.greedy_file)
    before = run.digest(), run.digest(epoch=1.0), run.digest(choices=True)
    path = run.scores_file(1, 0.5)
    path.touch()
    assert run.is_current(run.greedy_file)
    write_json(path, [row(1, 0.5, f1=60.0).to_json()])
    assert not run.is_current(run.greedy_file)
    assert run.digest() != before[0] and run.digest(epoch=1.0) == before[1] and run.digest(choices=True) != before[2]
    run.greedy_file.write_text("{")
    assert not run.is_current(run.greedy_file)


def test_facts_are_added_and_removed(run):
    run.add_facts(started=None, finished="now")
    facts = run.facts()
    assert facts["finished"] == "now" and "started" not in facts and facts["versions"]["torch"]
    run.note_peak()
    assert run.peak > 0


def test_contents_of_a_whole_run(run):
    contents = run.contents()
    assert (contents.scores, contents.greedy, contents.problems) == (run.scores(), run.greedy(), [])
    assert contents.recipe["seeds"] == [1, 2] and contents.facts["started"] == "today" and contents.is_run


@pytest.mark.parametrize(
    "file, text, problem",
    [
        ("metrics.json", "[{", "metrics.json is left out"),
        ("metrics.json", "{}", "metrics.json is left out: it holds no list of score rows"),
        ("metrics.json", "[3, {}]", "metrics.json is left out where rows are damaged: [0]"),
        ("greedy.json", '{"ensembles": [3]}', "greedy.json is left out: it holds no list of score rows"),
        ("greedy.json", '{"comparisons": [{"low": "x"}]}', "greedy.json is left out where it does not hold"),
        ("study.json", "[]", "study.json is left out: it holds no table"),
        ("study.json", '{"peak": 3}', "study.json is left out where it does not hold what belongs there: peak"),
        ("recipe.toml", "= 3", "recipe.toml is not TOML"),
        ("ensemble.json", '{"test": 3}', "ensemble.json is left out"),
        ("analysis.json", "nonsense", "analysis.json is left out"),
        ("greedy.json", None, "greedy.json is left out: is a directory"),
    ],
)
def test_damage_costs_no_more_than_itself(run, file, text, problem):
    if text is None:
        (run.path / file).unlink(missing_ok=True)
        (run.path / file).mkdir()
    else:
        (run.path / file).write_text(text)
    contents = run.contents()
    assert any(problem_found.startswith(problem) for problem_found in contents.problems), contents.problems
    assert [score.cell for score in contents.scores][:2] == [(1, 0.5)] * 2  # where need be from the seeds' own files


def test_no_run_is_said_so(tmp_path):
    assert not RunDir(tmp_path).contents().is_run
    with pytest.raises(UserError, match="not the directory of a run"):
        RunDir.open(tmp_path)


def test_variants_are_runs_within(tmp_path):
    variants = [{"name": "one", "seeds": [1]}, {"name": "two", "seeds": [1]}]
    run = RunDir(tmp_path)
    write_text(run.recipe_file, toml.write(recipe_of(variants=variants)))
    variant = run.variants()["one"]
    variant.seed(1).mkdir(parents=True)
    write_text(variant.recipe_file, toml.write(recipe_of()))
    write_json(variant.scores_file(1, 1.0), [row(1, 1.0).to_json()])
    assert [(score.variant, score.name) for score in run.rows()] == [("one", "backbone")]
    contents = run.contents().variants
    assert list(contents) == ["one", "two"]
    assert contents["one"].scores == variant.rows() and contents["two"].recipe["seeds"] == [1]
    with pytest.raises(UserError, match=r"holds a run for each variant; name one of them: .*one, .*two"):
        RunDir.open(tmp_path, variants=False)
