"""GLUE: the official files, complete and as they stand; the hub's rows; files that GLUE takes."""

import sys
from types import SimpleNamespace

import pytest

from bertvision.data import glue
from bertvision.data.sources import read_examples
from bertvision.data.tables import label_numbers, score_numbers
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe
from real import DATA

needs_glue = pytest.mark.skipif(not (DATA / "glue").is_dir(), reason="needs the official GLUE files (BERTVISION_DATA)")
FILES = sorted(path for path in DATA.glob("glue/*/*.tsv") if path.parent.name in glue.GLUE and path.stem != "test")


@needs_glue
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_row_of_the_real_files_is_read(path):
    name, task = path.parent.name, glue.GLUE[path.parent.name]
    examples = read_examples(f"glue:{name}/{path.stem}", DataRecipe(glue=str(DATA / "glue"))).examples
    assert len(examples) == path.read_bytes().rstrip().count(b"\n") + (name == "CoLA")  # which has no header
    assert {len(example.texts) for example in examples} == {len(task.text)}
    if task.labels:
        assert set(label_numbers(examples, task.labels).tolist()) == set(range(len(task.labels)))
    else:
        values = score_numbers(examples)
        assert (values.min(), values.max()) == glue.SCALE


@needs_glue
def test_rows_are_read_exactly():
    folder = str(DATA / "glue")
    origin, rows = glue.read("glue:MRPC/dev", folder)
    assert origin.endswith("MRPC/dev.tsv")
    assert rows[0][0] == 2 and rows[0][1][1].startswith('" The foodservice') and rows[0][1][2] == "1"
    _, rows = glue.read("glue:CoLA/dev", folder)
    assert rows[0] == (1, ("The sailors rode the breeze clear of the rocks.", "1"))


@needs_glue
def test_parts_are_joined(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTVISION_DATA", str(DATA))
    monkeypatch.chdir(tmp_path)  # no data/glue here: the folder named by the variable
    found = read_examples("glue:WNLI/train+glue:WNLI/dev", DataRecipe()).examples
    assert len(found) == 635 + 71
    assert len({example.id for example in found}) == len(found)
    assert found[635].place.endswith("dev.tsv: line 2")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("glue:cola/train", "GLUE has no task 'cola'; there is: CoLA, MNLI"),
        ("glue:MNLI/dev", "MNLI has no split 'dev'; there is: dev_matched"),
        ("glue:RTE", "write glue:RTE/train"),
    ],
)
def test_unknown_names(source, says):
    with pytest.raises(UserError, match=says):
        glue.parse(source)


def test_a_test_set_has_no_labels_and_may_be_in_the_other_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BERTVISION_DATA", str(tmp_path / "other"))
    (tmp_path / "own" / "CoLA").mkdir(parents=True)  # a folder, but not with this task
    (tmp_path / "own" / "CoLA" / "test.tsv").write_text("index\tsentence\n0\tA b.\n")
    (tmp_path / "other" / "glue" / "RTE").mkdir(parents=True)
    (tmp_path / "other" / "glue" / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
    data = DataRecipe(glue=str(tmp_path / "own"))
    found = read_examples("glue:RTE/test", data).examples
    assert [(example.texts, example.target) for example in found] == [(("a", "b"), None), (("c", "d"), None)]
    assert read_examples("glue:CoLA/test", data).examples[0].texts == ("A b.",)


def test_no_files_and_no_hub(tmp_path, monkeypatch):
    monkeypatch.delenv("BERTVISION_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    says = r"glue:RTE/dev: needs `datasets`.*`bertvision data fetch glue:RTE` .*put the official files into"
    with pytest.raises(UserError, match=says):
        glue.read("glue:RTE/dev", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("source", "row", "asked", "expected"),
    [
        (
            "glue:MNLI/dev_mismatched",
            {"premise": "a", "hypothesis": "b", "label": 2, "idx": 0},
            ("mnli", "validation_mismatched"),
            ("a", "b", "contradiction"),
        ),
        (
            "glue:STS-B/train",
            {"sentence1": "a", "sentence2": "b", "label": 3.7999999523162842},
            ("stsb", "train"),
            ("a", "b", "3.800"),
        ),
        ("glue:SST-2/test", {"sentence": "a", "label": -1}, ("sst2", "test"), ("a",)),
    ],
)
def test_the_hub_is_asked_for_what_no_place_has(source, row, asked, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("BERTVISION_DATA", raising=False)

    def load_dataset(*words: str, split: str) -> list[dict]:
        assert (*words, split) == ("nyu-mll/glue", *asked)
        return [row]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert glue.read(source, str(tmp_path)) == (source, [(1, expected)])


def test_a_hub_that_does_not_answer(monkeypatch):
    def load_dataset(*words: str, split: str) -> list[dict]:
        raise ConnectionError("no way\nthere")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(
        UserError, match=r"^glue:STS-B/dev: cannot be loaded from the hub \(no way\); go online, or try later"
    ):
        glue.hub_rows("STS-B", "dev")


def test_broken_lines_of_an_official_file(tmp_path):
    folder = tmp_path / "QQP"
    folder.mkdir()
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    (folder / "train.tsv").write_text(header + '1\t2\t3\ta\tb\t0\n4\t5\t6\tc\n"\td\t0\n7\t8\t9\te\tf\t1\n')
    with pytest.raises(UserError, match=r"2 lines are broken: line 3 has 4 columns, .*data\.broken = \"leave out\""):
        read_examples("glue:QQP/train", DataRecipe(glue=str(tmp_path)))
    found = read_examples("glue:QQP/train", DataRecipe(glue=str(tmp_path), broken="leave out"))
    assert [example.texts for example in found.examples] == [("a", "b"), ("e", "f")]
    assert found.notes == (f"{folder / 'train.tsv'}: 2 of 4 lines are broken and left out",)


@pytest.mark.parametrize("name", ["CoLA", "WNLI"])
def test_fetched_files_read_like_the_official_ones(name, tmp_path):
    def rows_of(task: str, split: str) -> list[glue.Row]:
        texts = tuple(f'"text" {n}' for n in range(len(glue.GLUE[task].text)))
        cells = (*texts, "1") if glue.is_labelled(split) else texts
        return [(n, cells) for n in range(glue.GLUE[task].splits[split])]

    paths = glue.fetch(name, tmp_path, rows_of)
    assert [path.stem for path in paths] == ["train", "dev", "test"]
    for split in glue.GLUE[name].splits:
        _, rows = glue.read(f"glue:{name}/{split}", str(tmp_path))
        assert [cells for _, cells in rows] == [cells for _, cells in rows_of(name, split)]
    with pytest.raises(UserError, match=r"test: has 0 rows, not 146; nothing was kept"):
        glue.fetch("WNLI", tmp_path / "short", lambda task, split: [] if split == "test" else rows_of(task, split))
    assert not (tmp_path / "short").exists()


@pytest.mark.parametrize(
    ("source", "name"),
    [("CoLA/test", "CoLA"), ("MNLI/test_matched", "MNLI-m"), ("MNLI/test_mismatched", "MNLI-mm"), ("RTE/test", "RTE")],
)
def test_submissions(source, name, tmp_path):
    source = f"glue:{source}"
    task, split = glue.parse(source)
    first, second = glue.GLUE[task].labels[:2]
    path = glue.write_submission(tmp_path / "out", source, [first] + [second] * (glue.GLUE[task].splits[split] - 1))
    assert path == tmp_path / "out" / f"{name}.tsv"
    assert path.read_text().startswith(f"index\tprediction\n0\t{first}\n1\t{second}\n")
    assert path.read_text().count("\n") == glue.GLUE[task].splits[split] + 1


def test_scores_are_clipped_for_submission(tmp_path):
    path = glue.write_submission(tmp_path, "glue:STS-B/test", [-0.2, 2.34567, 5.1] + [1.0] * 1376)
    assert path.read_text().startswith("index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n")


@pytest.mark.parametrize(
    ("source", "predictions", "says"),
    [
        ("glue:WNLI/dev", ["0"] * 71, "GLUE takes predictions of test sets; name glue:WNLI/test"),
        ("glue:WNLI/test", ["0"] * 71, "has 71 rows here; GLUE takes predictions of all 146"),
        ("glue:WNLI/test", ["0"] * 145 + ["neutral"], "'neutral' is not a prediction for WNLI; its labels are 0, 1"),
        ("glue:WNLI/test", [0.3] * 146, "0.3 is not a prediction for WNLI"),
        ("glue:STS-B/test", ["entailment"] * 1379, "'entailment' is not a prediction for STS-B; it needs numbers"),
    ],
)
def test_what_glue_would_not_take(source, predictions, says, tmp_path):
    with pytest.raises(UserError, match=says):
        glue.write_submission(tmp_path / "out", source, predictions)
    assert not (tmp_path / "out").exists()
