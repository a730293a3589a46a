"""The command line as a user meets it: real processes, their exit codes and what stands on which stream."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertvision import __version__
from bertvision.cli import app, data_app, main
from bertvision.cli.options import print_table
from bertvision.evaluate.ensemble import GREEDY
from bertvision.heads import HEADS
from bertvision.report.lists import download_bar
from runs import Command, Done, bertvision, encoder, questions, tiny_recipe

VERBS = [[command.callback.__name__] for command in app.registered_commands]
VERBS += [["data"], *(["data", command.callback.__name__] for command in data_app.registered_commands)]
SHORT = {"finetune": {"epochs": 0.2, "checkpoints": []}, "heads": [{"kind": "pool"}]}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with a recipe, study.toml, and its finished run, run/."""
    directory = tmp_path_factory.mktemp("cli")
    recipe = tiny_recipe(directory / "study.toml", **SHORT)
    done = bertvision("study", recipe, "--out", "run", cwd=directory)
    assert done.code == 0, done.err
    return directory


@pytest.fixture
def work(place, tmp_path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(place, tmp_path / "work"))


def answer(*args: object, cwd: Path) -> dict | list:
    """What a command prints with --json: JSON on stdout and nothing else anywhere."""
    done = bertvision(*args, "--json", cwd=cwd)
    assert done.code == 0 and done.err == "", done.err
    return json.loads(done.out)


def refusal(*args: object, cwd: Path) -> str:
    """The one line in which a command says what is wrong."""
    done = bertvision(*args, cwd=cwd)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("bertvision: ") and done.err.count("\n") == 1 and done.err.endswith("\n"), done.err
    assert "Traceback" not in done.err
    return done.err.removeprefix("bertvision: ").rstrip("\n")


def test_a_recipe_called_by_dots_does_not_write_outside_runs(tmp_path):
    tiny_recipe(tmp_path / "...toml", **SHORT)
    assert "give --out" in refusal("study", "...toml", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["...toml"]


def test_a_disk_that_is_full_is_one_line_and_the_same_command_continues(place, tmp_path):
    """A checkpoint of the tiny encoder has more bytes than all files before it, and so has a reader."""
    study = ("study", place / "study.toml", "--out", "run", "--json")
    for args, file in ((study, "backbone.safetensors"), (("reader", "run", "--out", "mine"), "encoder.safetensors")):
        done = bertvision(*args, cwd=tmp_path, largest=40_000)
        assert done.code == 2 and done.out == "", done
        assert f"{file}: no room for it (File too large); make room and run the same command" in done.err
        assert "Traceback" not in done.err and done.err.splitlines()[-1].startswith("bertvision: ")
        assert not list(tmp_path.rglob("*.safetensors.*")) and not list(tmp_path.rglob(".*.part"))
        assert bertvision(*args, cwd=tmp_path).code == 0
    assert same_tensors(tmp_path / "run", place / "run") == ["backbone", "head", "heads-0.2"]
    assert (tmp_path / "mine" / "config.json").is_file()


def same_tensors(one: Path, other: Path) -> list[str]:
    """Names of the files of weights of seed 1 that hold the same tensors in two runs."""
    paths = sorted(path.relative_to(one) for path in (one / "seed-1").rglob("*.safetensors"))
    pairs = [
        (path, load_file(one / path), load_file(other / path)) for path in paths if "predictions" not in path.parts
    ]
    return [path.stem for path, a, b in pairs if all(torch.equal(a[key], b[key]) for key in a.keys() | b.keys())]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help(verb, tmp_path):
    done = bertvision(*verb, "--help", cwd=tmp_path)
    assert done.code == 0 and done.err == ""
    assert " ".join(["Usage: bertvision", *verb]) in done.out and "--help" in done.out


def test_without_a_verb_there_is_help_and_the_module_runs_too(tmp_path):
    for words in ([], ["data"]):
        done = bertvision(*words, cwd=tmp_path)
        assert done.code == 0 and "Commands" in done.out
    assert bertvision("--version", cwd=tmp_path) == Done(0, f"bertvision {__version__}\n", "")
    command = [sys.executable, "-m", "bertvision", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout == f"bertvision {__version__}\n"


@pytest.mark.parametrize(("words", "more"), [(["--help"], {"pydantic"}), (["ask", "--help"], set())])
def test_help_imports_nothing_heavy(words, more):
    code = f"import sys; from bertvision.cli import app; app({words}, standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "safetensors"} | more
    assert not heavy & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("verb", ["heads", "params", "recipe"])
def test_a_list_imports_no_encoder_and_draws_nothing(verb):
    code = f"import sys; from bertvision.cli import app; app([{verb!r}], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"transformers", "matplotlib", "scipy"} & set(done.stdout.splitlines()[-1].split())


def test_recipe_prints_the_reference_and_the_schema(tmp_path):
    assert "| `seeds` |" in bertvision("recipe", cwd=tmp_path).out
    assert json.loads(bertvision("recipe", "--schema", cwd=tmp_path).out)["properties"]["seeds"]["type"] == "array"


OWN = """
from torch import nn
from bertvision.heads import Head, register

@register("mine")
class Mine(Head):
    \"\"\"logits = W h_L + b.\"\"\"

    def __init__(self, layers, width, outputs, *, doubled: bool = False):
        super().__init__()
        self.readout = nn.Linear(width, outputs)

    def forward(self, states):
        return self.readout(states.layers[:, -1])
"""


def test_a_head_of_the_users_own_file(place, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    head = "heads=[{kind = 'mine', doubled = true}]"
    words = ("train", place / "study.toml", "--set", head, "--set", "finetune.epochs=0", "--out", "own")
    assert "heads.0.kind: no head is called 'mine'" in refusal(*words, cwd=tmp_path)
    bertvision("finetune", *words[1:], "--code", "own.py", cwd=tmp_path)
    assert answer(*words, "--code", "own.py", cwd=tmp_path) == ["own/seed-1/heads-0.safetensors"]
    assert "mine" in [entry["kind"] for entry in answer("heads", "--code", "own.py", cwd=tmp_path)]
    assert "--code" in refusal("heads", "--code", "gone.py", cwd=tmp_path)


def test_what_rows_say_about_themselves_stands_under_the_table(capsys):
    ensemble = {"members": [{"head": "", "seed": 1, "epoch": 1.0}]}
    row = {"ensemble": ensemble, "threshold": 0.0, "matthews": 0.0, "note": "always says 'no'"}
    print_table([row | {"variant": name} for name in ("CoLA", "RTE")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"{name}: backbone (epoch 1, seed 1): always says 'no'." for name in ("CoLA", "RTE")]


def test_a_study_prints_a_table_and_where_the_report_is(place, tmp_path):
    done = bertvision("study", place / "study.toml", "--out", tmp_path / "out", cwd=tmp_path)
    assert done.code == 0
    assert done.out.splitlines()[-2:] == [f"report: {tmp_path}/out/report.html", f"reader: {tmp_path}/out/reader"]
    for member in ("backbone", "pool", "backbone + best head"):
        assert member in done.out
    stages = [line.split(":")[0] for line in done.err.splitlines()]
    assert stages == [
        "tuning, seed 1",
        "states",  # that they are live, and why
        "heads on epoch 0.2, seed 1",
        "scoring epoch 0.2 on tune, seed 1",
        "scoring epoch 0.2 on test, seed 1",
        "choosing ensembles on tune",
    ]
    again = bertvision("study", place / "study.toml", "--out", tmp_path / "out", cwd=tmp_path)
    assert again.code == 0 and again.out == done.out
    assert again.err == f"{tmp_path}/out: already finished; nothing to do\n"


def test_runs_go_by_the_name_of_the_recipe(place, tmp_path):
    checkpoints = answer("finetune", place / "study.toml", "--set", "finetune.epochs=0", cwd=tmp_path)
    assert checkpoints == {"1": {"0": "runs/study/seed-1/checkpoint-0"}}
    assert (tmp_path / "runs" / "study" / "seed-1" / "checkpoint-0").is_dir()


def test_the_parts_of_a_study_and_then_the_whole(place, tmp_path):
    settings = ("--set", "seeds=[3]", "--out", "parts")
    recipe = place / "study.toml"
    assert answer("finetune", recipe, *settings, cwd=tmp_path) == {"3": {"0.2": "parts/seed-3/checkpoint-0.2"}}
    assert answer("train", recipe, *settings, cwd=tmp_path) == ["parts/seed-3/heads-0.2.safetensors"]
    rows = answer("study", recipe, *settings, cwd=tmp_path)
    assert {row["seed"] for row in rows} == {3}
    scored = json.loads((tmp_path / "parts" / "metrics.json").read_text())
    assert rows[: len(scored)] == scored
    assert [row["member"] for row in rows[len(scored) :]] == [GREEDY] * 2  # chosen from what is stored
    assert bertvision("train", recipe, *settings, cwd=tmp_path).out == "parts/seed-3/heads-0.2.safetensors\n"


def test_evaluate_and_report(place):
    rows = answer("report", "run", cwd=place)
    scored = json.loads((place / "run" / "metrics.json").read_text())
    assert rows[: len(scored)] == scored and {row["member"] for row in rows[len(scored) :]} == {GREEDY}
    assert "report: run/report.html" in bertvision("report", "run", cwd=place).out
    evaluated = answer("evaluate", "run", cwd=place)
    assert [(row["member"], row["f1"]) for row in evaluated] == [(row["member"], row["f1"]) for row in scored]
    one = ("evaluate", "run", "--member", "pool", "--data", questions(9, 8), "--checkpoint", "0.2", "--seed", "1")
    assert [row["total"] for row in answer(*one, cwd=place)] == [9, 9]
    assert "pool" in bertvision(*one, cwd=place).out


def test_evaluate_a_predictions_file(place):
    path = "run/seed-1/predictions/0.2/test/backbone.json"
    (scores,) = answer("evaluate", path, "--data", questions(24, 2), cwd=place)
    assert list(scores)[:3] == ["exact", "f1", "total"] and "best_f1" not in scores
    doubts = {key: one["no_answer_score"] for key, one in json.loads((place / path).read_text()).items()}
    (place / "doubts.json").write_text(json.dumps(doubts))
    words = ("evaluate", path, "--data", questions(24, 2), "--no-answer-scores", "doubts.json")
    (scores,) = answer(*words, cwd=place)
    assert {"best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"} <= scores.keys()
    lines = dict(line.split() for line in bertvision(*words, cwd=place).out.splitlines())
    assert {key: float(value) for key, value in lines.items()} == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--backbone bert-base-cased --train-layers 6 --head last", "trainable", 42_548_738),
        ("--backbone bert-base-cased --train-layers 0 --adapters 768", "trainable", 28_388_354),
        ('--backbone bert-large-uncased --head {"kind":"compress","size":386}', "head", 414_952),
        ("--backbone minilm --task labels --outputs 3", "head", 384 * 3 + 3),
    ],
)
def test_params(words, key, value, tmp_path):
    assert answer("params", *words.split(), cwd=tmp_path)[key] == value
    shown = dict(line.split() for line in bertvision("params", *words.split(), cwd=tmp_path).out.splitlines())
    assert shown[key] == f"{value:,}"


def test_heads(tmp_path):
    entries = answer("heads", cwd=tmp_path)
    assert [entry["kind"] for entry in entries] == sorted(HEADS)
    for words in ([], ["--task", "labels", "--outputs", "3"], ["--backbone", "bert-large-uncased"]):
        done = bertvision("heads", *words, cwd=tmp_path)
        assert done.code == 0 and done.err == ""
        for entry in answer("heads", *words, cwd=tmp_path):
            size = entry["parameters"]
            assert f"{entry['kind']}  " + ("not for" if size is None else f"{size:,} parameters") in done.out
            assert " ".join(entry["summary"].split()[:4]) in done.out
            for option in entry["options"]:
                assert f"{option['name']} = " in done.out
    assert (
        'weights = "learned"' in done.out and "shared = true" in done.out and "on 25 layers of width 1024" in done.out
    )


def test_data_verbs(tmp_path):
    done = bertvision("data", "sample", "test", "made.json", "--questions", "20", cwd=tmp_path)
    assert done.code == 0 and done.out == "made.json: 20 synthetic questions\n"
    statistics = answer("data", "stats", "made.json", cwd=tmp_path)
    assert statistics["questions"] == 20 and statistics["synthetic"] is False
    statistics = answer("data", "stats", "sample:test:20", cwd=tmp_path)
    assert statistics["synthetic"] is True and statistics["answerable"] + statistics["unanswerable"] == 20
    assert "unanswerable" in bertvision("data", "stats", "made.json", cwd=tmp_path).out


def test_a_download_shows_nothing_where_there_is_no_terminal(capfd):
    with download_bar("a.json") as progress:
        progress(1, 2)
        progress(2, 2)
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal_is_a_bar(place, tmp_path):
    """stderr of the command is a terminal, stdout is not: the table is still all there is on stdout."""
    ours, theirs = pty.openpty()
    script = "import sys; sys.argv[0] = 'bertvision'; from bertvision.cli import main; main()"
    command = [sys.executable, "-c", script, "study", str(place / "study.toml"), "--out", str(tmp_path / "out")]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert "tokens/s" in shown.decode() and "100%" in shown.decode() and "loss" in shown.decode()
    assert out.splitlines()[-1].startswith("reader: ") and "tokens/s" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("study nowhere.toml", "nowhere.toml: no such recipe; see recipes/ for examples"),
        ("study broken.toml", "broken.toml: not a TOML file"),
        ("study study.toml --set finetune.epoch=2", "finetune.epoch: unknown key; did you mean 'epochs'?"),
        ("study study.toml --set data.train=gone.json --out new", "gone.json"),
        ("study study.toml --set data.train=other.json --out new", "other.json: not a SQuAD file"),
        ("study study.toml --set backbone.name=truncated --out new", "truncated: its weight file is damaged"),
        ("study study.toml --set finetune.train_layers=9 --out new", "train_layers: 9 is too many"),
        ("study study.toml --set finetune.learning_rate=1e18 --out new", "finetune: its "),
        ("study study.toml --out study.toml", "study.toml: cannot be written"),
        ("train study.toml --out new", "no such checkpoint; `bertvision finetune` makes it"),
        ("train study.toml --set heads=[] --out new", "heads: there are none to train"),
        ("evaluate gone", "gone: no such run and no such predictions file"),
        ("evaluate .", ".: not the directory of a run (no recipe.toml)"),
        ("evaluate run --member pol", "--member pol: did you mean 'pool'?"),
        ("report gone", "gone: not the directory of a run"),
        ("heads --task label", "task: no task is called 'label'; did you mean 'labels'?"),
        ("heads --backbone bert-huge", "bert-huge"),
        ("params --backbone gone", "gone"),
        ("params --head {", "--head {: not JSON"),
        ("params --train-layers some", "train_layers: 'some' is neither 'all' nor a whole number"),
        ("params --adapters -1", "adapters: -1 is not a whole number from 0 up"),
        ("data sample tran made.json", "no split 'tran'; did you mean 'train'?"),
        ("data sample test study.toml/below.json", "study.toml/below.json: cannot be written"),
        ("data sample test", "'out'"),
        ("data fetch dev-v3.json", "no official file is called 'dev-v3.json'; did you mean"),
        ("stdy study.toml", "No such command 'stdy'"),
        ("study", "'recipe'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, message, spoilt):
    before = sorted(path.name for path in spoilt.iterdir())
    assert message in refusal(*words.split(), cwd=spoilt)
    if "--out new" not in words:
        assert sorted(path.name for path in spoilt.iterdir()) == before


@pytest.fixture
def spoilt(work) -> Path:
    """The run, and beside it files with all kinds of things wrong."""
    (work / "broken.toml").write_text("seeds = [")
    (work / "other.json").write_text('{"rows": []}')
    truncated = Path(shutil.copytree(encoder(), work / "truncated"))
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return work


@pytest.mark.parametrize(
    "name",
    [
        "seed-1/checkpoint-0.2/backbone.safetensors",
        "seed-1/checkpoint-0.2/head.safetensors",
        "seed-1/heads-0.2.safetensors",
        "seed-1/scores-0.2.json",
        "recipe.toml",
    ],
)
def test_a_truncated_file_in_a_run_is_named(name, work):
    path = work / "run" / name
    path.write_bytes(path.read_bytes()[:-10])
    assert Path(name).name in refusal("evaluate", "run", cwd=work)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    script = "import sys; sys.argv = ['bertvision', 'heads']; from bertvision.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_an_interrupted_study_says_how_to_go_on(place, tmp_path):
    endless = ("--set", "finetune.epochs=5000", "--set", "snapshot_seconds=0")  # never over before the interrupt
    command = Command("study", place / "study.toml", *endless, "--out", tmp_path / "out", cwd=tmp_path)
    while not (tmp_path / "out" / "seed-1" / "finetune.snapshot.safetensors").exists():
        assert command.running
    os.kill(command.process.pid, signal.SIGINT)
    done = command.wait()
    assert done.code == 130
    assert done.err.splitlines()[-1] == "stopped; the same command continues from here"
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("verb", "out_of_memory", "stopped"),
    [
        (
            "study",
            "the same command with --set runtime.gradient_checkpointing=true",
            "stopped; the same command continues from here\n",
        ),
        ("ask", "give shorter texts, fewer at once", "stopped\n"),
        ("serve", "lower --batch-tokens\n", "stopped\n"),
        ("heads", "close other programs", "stopped\n"),
    ],
)
def test_what_is_said_in_the_end_fits_the_verb(verb, out_of_memory, stopped, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bertvision", verb])

    def ending(act) -> str:
        monkeypatch.setattr("bertvision.cli.app", act)
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().err

    def fail(**options):
        raise MemoryError

    assert f"out of memory; {out_of_memory}" in ending(fail)
    assert ending(lambda **options: 130) == stopped


def test_a_shell_can_complete_verbs_and_options():
    code = "import sys; sys.argv = ['bertvision']; from bertvision.cli import main; main()"
    for typed, wanted in (("bertvision as", "ask"), ("bertvision ask --answ", "--answerable")):
        words = {"_BERTVISION_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **words})
        assert done.stdout.split() == [wanted]
