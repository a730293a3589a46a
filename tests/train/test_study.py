"""A study: every cell is done once, in a directory of plain files that belongs to one recipe and one set of data."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from bertvision.backbone.backbone import Backbone
from bertvision.data.squad import write_articles
from bertvision.errors import UserError
from bertvision.heads.compress import Compress
from bertvision.recipe import load_recipe
from bertvision.report.page import write_report
from bertvision.tasks import Spans
from bertvision.train import study as study_module
from bertvision.train.bank import HeadBank
from bertvision.train.compare import analyze_run
from bertvision.train.ensembling import ensemble_run
from bertvision.train.evaluation import score_run
from bertvision.train.run_dir import RunDir
from bertvision.train.study import Study
from encoders import FAMILIES
from runs import articles, encoder, questions, recipe_of

KEYS = {
    *("seed", "checkpoint", "member", "role", "threshold", "threshold_from", "exact", "f1", "total", "tune_f1"),
    *("HasAns_exact", "HasAns_f1", "HasAns_total", "NoAns_exact", "NoAns_f1", "NoAns_total", "HasAns_spans_f1"),
    *("parameters", "total_parameters", "train_seconds", "tuning_seconds", "head_seconds", "infer_seconds"),
    *("ms_per_question", "disk_bytes"),
}

DERIVED = ("comparisons.json", "greedy.json", "analysis.json")
BRIEF = {"heads": [{"kind": "pool"}], "finetune": {"epochs": 0.4, "checkpoints": [0.2]}}


def run(directory: Path, **tables: object) -> list[dict]:
    return Study(recipe_of(**tables), directory, quiet=True).run()


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("study") / "run"
    run(directory, seeds=[1, 2])
    write_report(directory)
    return directory


def test_banks_at_chosen_checkpoints_only(tmp_path):
    rows = run(tmp_path / "run", finetune={"checkpoints": [0.25, 0.5]}, bank={"at": [0.5]})
    found = {epoch: {row["role"] for row in rows if row["checkpoint"] == epoch} for epoch in (0.25, 0.5, 1)}
    assert found == {0.25: {"backbone"}, 0.5: {"backbone", "head", "ensemble"}, 1: {"backbone"}}
    assert [path.name for path in (tmp_path / "run" / "seed-1").glob("heads-*")] == ["heads-0.5.safetensors"]
    assert "Not scored yet" not in write_report(tmp_path / "run").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"bank.at: 0.3 is no checkpoint; there are 0.5, 1"):
        recipe_of(bank={"at": [0.3]})


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("family", FAMILIES)
def test_end_to_end_on_every_family(family, tmp_path):
    layers = 0 if family == "albert" else 1  # ALBERT's blocks share their weights and cannot train apart
    tuning = {"epochs": 0.5, "checkpoints": [0], "train_layers": layers, "adapters": 2, "batch_size": 8}
    heads = [{"kind": "pool"}, {"kind": "cacnn"}]
    rows = run(tmp_path, backbone={"name": encoder(family)}, finetune=tuning, heads=heads)
    page = write_report(tmp_path)
    assert {(row["checkpoint"], row["member"], row["threshold_from"]) for row in rows} == {
        (checkpoint, member, origin)
        for checkpoint in (0.0, 0.5)
        for member in ("backbone", "pool", "cacnn", "backbone + best head")
        for origin in ("zero", "tune")
    }
    assert all(row.keys() >= KEYS for row in rows)
    assert json.loads((tmp_path / "metrics.json").read_text()) == rows
    text = page.read_text(encoding="utf-8")
    assert "backbone + best head" in text and "not complete" not in text
    assert (tmp_path / "report.md").is_file() and (tmp_path / "figures" / "score-tune.svg").is_file()


def test_the_files_of_a_run(finished):
    names = set(files(finished))
    members = ["backbone", "pool", "compress-size=8", "backbone+pool", "backbone+compress-size=8"]
    expected = {"recipe.toml", "study.json", "log.jsonl", "metrics.json", "comparisons.json", "analysis.json"}
    expected |= {"greedy.json"}
    expected |= {"report.md", "report.html"}
    for seed in (1, 2):
        for epoch in ("0.5", "1"):
            place = f"seed-{seed}"
            expected |= {f"{place}/checkpoint-{epoch}/{part}.safetensors" for part in ("backbone", "head")}
            expected |= {f"{place}/{file}-{epoch}.json" for file in ("scores", "sets")}
            expected.add(f"{place}/heads-{epoch}.safetensors")
            for split in ("tune", "test"):
                expected |= {f"{place}/predictions/{epoch}/{split}/{member}.json" for member in members}
                expected.add(f"{place}/predictions/{epoch}/{split}/logits.safetensors")
    assert {name for name in names if not name.startswith("figures/")} == expected


def test_every_line_of_the_log_is_json(finished):
    events = [json.loads(line) for line in (finished / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"data", "checkpoint", "tuning, seed 1", "heads on epoch 0.5, seed 2"} <= {one["event"] for one in events}
    assert all("time" in one for one in events)
    last = next(one for one in reversed(events) if one["event"].startswith("heads"))
    assert last["share"] == 1 and last["tokens_per_second"] > 0 and set(last["loss"]) == {"pool", "compress size=8"}


def test_what_the_run_was_is_noted(finished):
    facts = json.loads((finished / "study.json").read_text())
    assert facts["versions"]["torch"] == torch.__version__ and facts["machine"]["cores"]
    assert facts["started"] <= facts["finished"]
    assert 0.05 < facts["peak"]["memory_gib"] < 100
    assert facts["data"]["train"] == {"source": questions(48), "synthetic": False, "questions": 48, "windows": 48}
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "Peak" in page and "GiB" in page and facts["started"] in page and facts["finished"] in page


def test_rows_say_what_they_should(finished):
    rows = json.loads((finished / "metrics.json").read_text())
    assert len(rows) == 2 * 2 * 4 * 2
    for row in rows:
        assert row["total"] == 24 and 0 <= row["f1"] <= 100
        assert row["threshold"] == 0 or row["threshold_from"] == "tune"
        assert row["train_seconds"] > 0 and row["infer_seconds"] > 0
    sizes = {row.get("parts", row["member"]): row["parameters"] for row in rows if row["checkpoint"] == 1}
    assert sizes["pool"] == 4 + 1 + 32 * 2 + 2
    for name in ("pool", "compress size=8"):
        if f"backbone + {name}" in sizes:
            assert sizes[f"backbone + {name}"] == sizes["backbone"] + sizes[name]
    assert sizes["backbone"] > 40_000


def test_the_ensemble_reported_is_the_best_on_tune(finished):
    rows = json.loads((finished / "metrics.json").read_text())
    for row in rows:
        if row["role"] != "ensemble":
            assert "parts" not in row
            continue
        assert row["member"] == "backbone + best head"
        place = finished / f"seed-{row['seed']}" / "predictions" / f"{row['checkpoint']:g}" / "tune"
        tuned = {}
        for head in ("pool", "compress size=8"):
            predictions = json.loads((place / f"backbone+{head.replace(' ', '-')}.json").read_text())
            tuned[f"backbone + {head}"] = best_f1(predictions)
        assert row["parts"] in tuned
        assert row["tune_f1"] == pytest.approx(max(tuned.values()))
        assert tuned[row["parts"]] == pytest.approx(max(tuned.values()))


def best_f1(predictions: dict) -> float:
    """The best F1 on the tune set that any threshold gives, by trying them all."""
    from bertvision.evaluate.squad import score

    tune = articles(24, 1)
    spans = {key: one["nbest"][0]["text"] for key, one in predictions.items()}
    doubts = {key: one["no_answer_score"] for key, one in predictions.items()}
    cuts = [min(doubts.values()) - 1, *doubts.values()]
    return max(
        score(tune, {key: "" if doubts[key] > cut else text for key, text in spans.items()})["f1"] for cut in cuts
    )


def test_before_any_tuning_nothing_was_trained(tmp_path):
    rows = run(tmp_path, finetune={"epochs": 0, "checkpoints": []}, heads=[{"kind": "pool"}])
    assert {row["checkpoint"] for row in rows} == {0}
    sizes = {row["member"]: row["parameters"] for row in rows}
    assert sizes == {"backbone": 0, "pool": 71, "backbone + best head": 71}
    assert next(row for row in rows if row["member"] == "backbone")["train_seconds"] == 0


def test_without_heads_there_is_only_the_backbone_and_a_tune_set_is_split_off_if_none_is_given(tmp_path):
    data = {"tune": "", "tune_share": 0.25}
    rows = run(tmp_path, data=data, heads=[], finetune={"epochs": 0.2, "checkpoints": []})
    assert [row["member"] for row in rows] == ["backbone", "backbone"]
    sizes = json.loads((tmp_path / "study.json").read_text())["data"]
    assert sizes["train"]["questions"] + sizes["tune"]["questions"] == 48
    assert sizes["tune"]["questions"] == 10 and "25 %" in sizes["tune"]["source"]


def test_a_finished_study_is_left_alone_and_says_so(copy, capsys):
    before = files(copy)
    rows = Study(recipe_of(seeds=[1, 2]), copy).run()
    assert files(copy) == before
    assert rows == json.loads(before["metrics.json"])
    assert capsys.readouterr().err.replace("\n", "") == f"{copy}: already finished; nothing to do"


def test_a_finished_study_needs_neither_encoder_nor_data(copy, tmp_path):
    """Nothing is loaded: with the files gone, the rows are still there."""
    place = Path(shutil.copytree(encoder(), tmp_path / "encoder"))
    data = tmp_path / "train.json"
    shutil.copy(questions(48), data)
    tables = {**BRIEF, "backbone": {"name": str(place)}, "data": {"train": str(data)}}
    rows = run(tmp_path / "own", **tables)
    data.unlink()
    assert score_run(tmp_path / "own", data="", checkpoint=None, seed=None, member="", quiet=True)
    shutil.rmtree(place)
    assert run(tmp_path / "own", **tables) == rows
    assert write_report(tmp_path / "own").is_file()


def test_another_seed_runs_only_that_seed(copy):
    before = files(copy)
    rows = run(copy, seeds=[1, 2, 3])
    after = files(copy)
    assert {row["seed"] for row in rows} == {1, 2, 3}
    for name, content in before.items():
        if name.startswith(("seed-1/", "seed-2/")):
            assert after[name] == content, name
    added = after["log.jsonl"][len(before["log.jsonl"]) :].decode()
    assert "seed 3" in added and "seed 1" not in added and "seed 2" not in added
    facts = json.loads(after["study.json"])
    assert facts["started"] == json.loads(before["study.json"])["started"]
    assert json.loads(after["metrics.json"]) == rows
    assert load_recipe(copy / "recipe.toml").seeds == (1, 2, 3)


def test_while_a_seed_is_added_it_is_not_finished(copy):
    Study(recipe_of(seeds=[1, 2, 3]), copy, quiet=True).begin()
    assert "finished" not in json.loads((copy / "study.json").read_text())
    assert "The study has not finished" in write_report(copy).read_text(encoding="utf-8")


def test_a_cell_that_is_missing_is_done_again_and_no_other(copy):
    """Its numbers are those it had, for it is the same training."""
    before = files(copy)
    (copy / "seed-2" / "heads-1.safetensors").unlink()
    (copy / "seed-2" / "scores-1.json").unlink()
    for name in ("finetune", "heads-0.5"):  # as if the kill had come right after the results were written
        (copy / "seed-2" / f"{name}.snapshot.safetensors").write_bytes(b"stale")
    run(copy, seeds=[1, 2])
    after = files(copy)
    assert after.keys() == before.keys()
    log = after["log.jsonl"][len(before["log.jsonl"]) :].decode()
    assert "heads on epoch 1, seed 2" in log and "tuning" not in log and "epoch 0.5" not in log
    place = "seed-2/heads-1.safetensors"
    original = load(before[place])
    assert all(torch.equal(value, original[key]) for key, value in load(after[place]).items())


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"finetune": {"epochs": 2}}, "finetune.epochs"),
        ({"data": {"max_length": 48}}, "data.max_length"),
        ({"bank": {"learning_rate": 0.5}, "evaluate": {"nbest": 4}}, "bank.learning_rate, evaluate.nbest"),
        ({"heads": [{"kind": "pool"}]}, "heads"),
    ],
)
def test_a_run_of_another_recipe_is_refused_by_name_of_the_key(tables, key, copy):
    before = files(copy)
    with pytest.raises(UserError, match="holds a run of another recipe") as caught:
        run(copy, seeds=[1, 2], **tables)
    assert f"(it differs in {key})" in str(caught.value) and str(copy) in str(caught.value)
    assert files(copy) == before


def test_a_title_may_change(copy):
    run(copy, seeds=[1, 2], title="Another", snapshot_seconds=5)
    assert load_recipe(copy / "recipe.toml").title == "Another"


class TestChangedData:
    """Data or encoder are not what they were when the backbone was tuned."""

    @pytest.fixture
    def tuned(self, tmp_path) -> tuple[Path, dict, Path]:
        data = tmp_path / "train.json"
        write_articles(data, articles(48))
        tables = {**BRIEF, "data": {"train": str(data)}}
        study = Study(recipe_of(**tables), tmp_path / "run", quiet=True)
        study.begin()
        study.tune(1)
        write_articles(data, articles(48, seed=5))
        return tmp_path / "run", tables, data

    def test_heads_are_not_trained_on_other_data(self, tuned):
        directory, tables, data = tuned
        study = Study(recipe_of(**tables), directory, quiet=True)
        study.begin()
        with pytest.raises(
            UserError, match=r"checkpoint-0\.2: was tuned when .*train\.json or .* were not what"
        ) as caught:
            study.train(1, 0.2)
        assert "restore them, choose another --out, or delete the run" in str(caught.value)
        assert not (directory / "seed-1" / "heads-0.2.safetensors").exists()
        write_articles(data, articles(48))
        run(directory, **tables)

    def test_tuning_does_not_go_on_either(self, tuned):
        directory, tables, _ = tuned
        shutil.rmtree(directory / "seed-1" / "checkpoint-0.4")
        with pytest.raises(UserError, match=r"checkpoint-0\.2: was tuned when"):
            run(directory, **tables)
        assert not (directory / "seed-1" / "checkpoint-0.4").exists()

    def test_the_test_set_may_change(self, tmp_path):
        data = tmp_path / "test.json"
        write_articles(data, articles(24, 2))
        tables = {**BRIEF, "data": {"test": str(data)}}
        study = Study(recipe_of(**tables), tmp_path / "run", quiet=True)
        study.begin()
        study.tune(1)
        write_articles(data, articles(30, 3))
        assert run(tmp_path / "run", **tables)[0]["total"] == 30

    def test_scores_of_two_test_sets_are_never_mixed(self, tmp_path):
        """The same questions with other answers: nothing but their content tells."""
        data, place = tmp_path / "test.json", tmp_path / "run"
        write_articles(data, articles(20, 2))
        tables = {**BRIEF, "finetune": {"epochs": 0.2, "checkpoints": []}, "data": {"test": str(data)}}
        run(place, **tables)
        other = articles(20, 2)
        for qa in (qa for article in other for paragraph in article["paragraphs"] for qa in paragraph["qas"]):
            qa["answers"] = []
        write_articles(data, other)
        says = r"scores-0\.2\.json: was scored when the test set .*test\.json.* choose another --out, or delete"
        with pytest.raises(UserError, match=says):
            run(place, seeds=[1, 2], **tables)
        assert not (place / "seed-2").exists()
        for look in (analyze_run, ensemble_run):
            with pytest.raises(UserError, match=says):
                look(place)
        (place / "seed-1" / "scores-0.2.json").unlink()
        assert {row["NoAns_total"] for row in run(place, seeds=[1, 2], **tables)} == {20}

    def test_runs_from_before_sets_were_noted_can_be_opened(self, tmp_path):
        data, place = tmp_path / "test.json", tmp_path / "run"
        write_articles(data, articles(20, 2))
        run(place, **BRIEF, data={"test": str(data)})
        for path in place.rglob("sets-*.json"):
            path.unlink()
        assert analyze_run(place)["members"]
        write_articles(data, articles(30, 2))
        with pytest.raises(UserError, match=r"made from other questions than .* holds now"):
            analyze_run(place)


def compared(directory: Path) -> set[tuple]:
    return {(one["checkpoint"], tuple(one["seeds"])) for one in RunDir(directory).comparisons()}


def test_comparisons_are_of_the_seeds_that_are_reported(copy):
    run(copy, seeds=[1])
    assert compared(copy) == {(0.5, (1,)), (1.0, (1,))}
    assert "over the questions" in write_report(copy).read_text(encoding="utf-8")


def test_what_is_complete_is_compared_while_the_rest_goes_on(copy):
    for path in (copy / "seed-2").glob("scores-*.json"):
        path.unlink()
    study = Study(recipe_of(seeds=[1, 2]), copy, quiet=True)
    study.begin()
    study.score(2, 0.5)
    assert compared(copy) == {(0.5, (1, 2)), (1.0, (1,))}


def test_a_dropped_head_is_named_and_the_study_goes_on(tmp_path, monkeypatch):
    heads = [{"kind": "pool"}, {"kind": "compress", "size": 8, "learning_rate": 1e18, "name": "too fast"}]
    recipe = recipe_of(heads=heads, finetune={"epochs": 0.2, "checkpoints": []})
    write = study_module.write_json

    def killed(path, value, **how):
        if path.name == "scores-0.2.json":
            raise KeyboardInterrupt
        write(path, value, **how)

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patched:
        patched.setattr(study_module, "write_json", killed)
        Study(recipe, tmp_path, quiet=True).run()
    noted = json.loads((tmp_path / "study.json").read_text())["dropped"]  # before the checkpoint counts as scored
    rows = Study(recipe, tmp_path, quiet=True).run()
    assert {row["member"] for row in rows} == {"backbone", "pool", "backbone + best head"}
    (dropped,) = json.loads((tmp_path / "study.json").read_text())["dropped"]
    assert noted == [dropped]
    assert dropped["member"] == "too fast" and dropped["checkpoint"] == 0.2 and "became" in dropped["why"]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "Dropped at checkpoint 0.2 of seed 1: too fast (its" in page and "Not scored yet" not in page


def test_peak_memory_is_that_of_all_processes(copy):
    record = RunDir(copy)
    record.add_facts(peak={"memory_gib": 500.0})  # by a process that was killed after a stage
    (copy / "seed-2" / "scores-1.json").unlink()
    run(copy, seeds=[1, 2])
    assert record.peak == 500.0
    record.add_facts(peak=None)
    (copy / "seed-2" / "scores-1.json").unlink()
    study = Study(recipe_of(seeds=[1, 2]), copy, quiet=True)
    study.begin()
    study.score(2, 1.0)
    assert record.peak > 0.05  # though it has not finished


def test_a_head_that_breaks_just_before_it_is_kept_does_not_stop_the_study(tmp_path):
    fast = {"kind": "attend", "form": "encoder", "learning_rate": 1e15, "name": "too fast"}
    options = {"heads": [{"kind": "pool"}, fast], "finetune": {"epochs": 0.2, "checkpoints": []}}
    rows = run(tmp_path, bank={"checkpoints": [1 / 6], "learning_rate": 1e-2}, **options)
    assert {row["member"] for row in rows} == {"backbone", "pool", "pool, epoch 0.166667", "backbone + best head"}
    _, about = HeadBank.load(next(tmp_path.glob("seed-1/heads-*@*.safetensors")))
    assert list(about["stopped"]) == ["too fast"]


def test_a_head_that_breaks_on_other_data_is_dropped_and_everything_goes_on(tmp_path, monkeypatch):
    forward = Compress.forward

    def breaks(self, states):
        logits = forward(self, states)
        return logits if self.training else logits * math.nan

    monkeypatch.setattr(Compress, "forward", breaks)
    rows = run(tmp_path, finetune={"epochs": 0.2, "checkpoints": []})
    assert {row["member"] for row in rows} == {"backbone", "pool", "backbone + best head"}
    (dropped,) = json.loads((tmp_path / "study.json").read_text())["dropped"]
    assert dropped["member"] == "compress size=8" and "not finite" in dropped["why"]
    assert "Dropped at checkpoint 0.2 of seed 1: compress" in write_report(tmp_path).read_text(encoding="utf-8")
    assert {row["member"] for row in score_run(tmp_path, quiet=True)} == {row["member"] for row in rows}
    with pytest.raises(UserError, match="--member compress size=8: cannot be scored: its logits are not finite"):
        score_run(tmp_path, member="compress size=8", quiet=True)
    assert ensemble_run(tmp_path, greedy=True, quiet=True)[0]["role"] == "ensemble"
    assert "pool" in {entry["member"] for entry in RunDir(tmp_path).comparisons()}


def test_windows_longer_than_the_encoder_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"data\.max_length: 600 is more than .* has positions for \(512\)"):
        run(tmp_path, data={"max_length": 600})


def test_a_checkpoint_that_is_not_there(copy):
    study = Study.open(copy, quiet=True)
    shutil.rmtree(copy / "seed-1" / "checkpoint-1")
    for seed, epoch in ((1, 1.0), (7, 1.0), (1, 0.7)):
        with pytest.raises(UserError, match="no such checkpoint; `bertvision finetune` makes it"):
            study.checkpoint(seed, epoch)


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match="not the directory of a run"):
        Study.open(tmp_path)
    (tmp_path / "recipe.toml").write_text("seeds = [")
    with pytest.raises(UserError, match=r"recipe\.toml: not a TOML file"):
        Study.open(tmp_path)


def test_the_encoder_is_loaded_once_per_tuning_and_predictions_are_not_parsed_again(tmp_path, monkeypatch):
    loads, parsed = [], []
    load, read = Backbone.load, Spans.read_predictions
    monkeypatch.setattr(Backbone, "load", lambda *args: (loads.append(args), load(*args))[1])
    monkeypatch.setattr(Spans, "read_predictions", lambda *args: (parsed.append(args), read(*args))[1])
    study = Study(recipe_of(seeds=[1, 2]), tmp_path, quiet=True)
    rows = study.run()
    assert len(loads) == 2 and not parsed
    before = {name: content for name, content in files(tmp_path).items() if name in DERIVED}
    for name in DERIVED:
        (tmp_path / name).unlink()
    assert Study.open(tmp_path, quiet=True).run() == rows  # from the files
    assert parsed and {name: content for name, content in files(tmp_path).items() if name in DERIVED} == before
