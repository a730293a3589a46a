"""The report of a study: complete, honest about what is missing, one file, and the same each time."""

import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from bertvision.errors import UserError
from bertvision.evaluate.ensemble import GREEDY
from bertvision.report.page import write_report
from bertvision.report.sentences import summary_sentences
from report.rows import comparison, summarised, with_ensemble

RECIPE = """
title = "Heads & <tails>"
seeds = [1, 2]
[backbone]
name = "minilm"
[data]
train = "train.json"
test = "test.json"
[finetune]
epochs = 1.0
checkpoints = [0.3, 2.0]
[[heads]]
kind = "pool"
[[paper]]
checkpoint = 0.3
member = "backbone"
f1 = 70.2
source = "Somebody 2020"
"""
SHOWN = ["bertvision study &#39;a&amp;b.toml&#39;", "memory 16 GiB", "1:30:05", "torch 2.6", "70.2", "Somebody 2020"]
FACTS = {
    "versions": {"python": "3.11", "torch": "2.6"},
    "machine": {"cores": 2, "memory_gib": 16},
    "data": {"train": {"source": "train.json", "synthetic": False, "questions": 4000}},
    "started": "2025-01-01T10:00:00+00:00",
    "finished": "2025-01-01T11:30:05+00:00",
    "command": "bertvision study 'a&b.toml'",
}
VOID = {"meta", "br", "link", "img", "input", "hr"}


def rows(seeds=(1, 2), checkpoints=(0.3, 1.0), head="pool"):
    return [
        with_ensemble(
            {"seed": s, "checkpoint": c, "member": m, "role": role, "threshold_from": kind, "threshold": t, "total": 99}
            | {"exact": 50 + 10 * c + gain + t, "f1": 60 + 10 * c + gain + t + s, "parameters": 1000}
        )
        for s in seeds
        for c in checkpoints
        for m, role, gain in (("backbone", "backbone", 0), (head, "head", 2 if c < 1 else -1))
        for kind, t in (("zero", 0.0), ("tune", 0.5))
    ]


def write(directory, metrics=None, recipe=RECIPE, facts=FACTS):
    for name, content in (("metrics.json", metrics), ("study.json", facts)):
        if content is not None:
            (directory / name).write_text(json.dumps(content), encoding="utf-8")
    if recipe is not None:
        (directory / "recipe.toml").write_text(recipe, encoding="utf-8")
    return write_report(directory).read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Fails on a tag that is closed out of turn; keeps attributes and ids."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    ids = [value for _, key, value in parser.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    for _, key, value in parser.attributes:
        if key in ("src", "href", "xlink:href"):
            assert value.startswith("#") and value[1:] in ids
    assert all(name in ids for name in re.findall(r"url\(#([^)]*)\)", page))
    assert not re.search(r"https?://|@import", page)
    return parser


def test_complete_study(tmp_path):
    page = write(tmp_path, rows())
    check_page(page)
    assert "not complete" not in page and "Synthetic" not in page
    assert "<h1>Heads &amp; &lt;tails&gt;</h1>" in page
    assert page.count("<svg ") == 2 and page.count("<table>") == 5  # main, differences, costs; in folds two thresholds
    assert all(text in page for text in SHOWN) and "kind = &#34;pool&#34;" in page  # the recipe as it was written
    stems = ("score-tune", "score-zero")
    names = {f"{stem}.{form}" for stem in stems for form in ("svg", "png")}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Heads &amp; &lt;tails&gt;\n")
    assert "| 0.3 | pool | **55.00 / 66.50** | – | **67.00 ± 0.71** | +2.00 ± 0.00 | 1,000 |" in text
    assert "| 0.3 | pool | **67.00 ± 0.71** | – | **55.50 ± 0.00** | 0.50 |" in text
    assert all(f"(figures/{name})" in text for name in names if name.endswith(".svg"))


def test_sentences_by_hand():
    first, second, third = summary_sentences(summarised(rows()), {"backbone": {"name": "minilm"}})
    assert first == (
        "minilm was compared with 1 head on the states of all its layers after 0.3 and 1 epochs of fine-tuning, "
        "on 99 questions."
    )
    assert second == (
        "With the no-answer threshold chosen on the tuning set, at epoch 0.3 pool, the highest, has "
        "F1 67.00 against 65.00 for the backbone (+2.00, higher in 2 of 2 seeds); at epoch 1 pool, the "
        "highest, has F1 71.00 against 72.00 for the backbone (-1.00, lower in 2 of 2 seeds)."
    )
    assert third.startswith("Scores are means over 2 seeds") and "picked on the reported data" in third
    assert "no interval was computed" in third
    half = [row for row in rows() if row["seed"] == 1 or row["checkpoint"] == 0.3]
    assert summary_sentences(summarised(half), {})[2].startswith("Scores are means over 1 to 2 seeds")
    assert summary_sentences(summarised(rows(seeds=[7])), {})[2].startswith("This is a single run (seed 7)")
    assert summary_sentences([], {}) == ["There are no scores yet."]


def test_the_best_member_is_chosen_on_the_tuning_set_and_is_not_the_greedy_ensemble():
    found = [row | {"tune_f1": 80.0 if row["role"] == "head" else 79.0} for row in rows(checkpoints=[1.0])]
    greedy = [with_ensemble(row | {"f1": 99.0, "tune_f1": 99.0}, GREEDY) for row in found if row["role"] == "head"]
    first, second, third = summary_sentences(summarised([*found, *greedy]), {})
    assert "1 head on the states of all its layers and 1 ensemble" in first
    assert "at epoch 1 pool, the best on the tuning set, has F1 71.00 against 72.00" in second
    assert third.endswith("the best member was picked on the tuning set, never on the reported data.")


def test_other_tasks_need_no_thresholds(tmp_path):
    found = [
        with_ensemble({"member": name, "accuracy": accuracy}) for name, accuracy in (("backbone", 0.5), ("pool", 0.75))
    ]
    page = write(tmp_path, found, recipe=None)
    check_page(page)
    assert "At epoch 1 pool, the highest, has accuracy 0.7500 against 0.5000 for the backbone (+0.2500)." in page
    assert not (tmp_path / "figures").exists()
    assert "The backbone was compared with 1 head on the states of all its layers after 1 epoch" in page


@pytest.mark.parametrize(
    ("recipe", "facts"),
    [
        (RECIPE.replace('"test.json"', '"sample:test"'), FACTS),
        (RECIPE, FACTS | {"data": {"train": {"source": "mine.json", "synthetic": True}}}),
        (RECIPE, FACTS | {"data": "synthetic sample"}),
    ],
)
def test_synthetic_data_is_said_aloud(tmp_path, recipe, facts):
    page = write(tmp_path, rows(), recipe, facts)
    check_page(page)
    assert "Synthetic data" in page.split("</header>")[0]
    assert "**Synthetic data" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_names_are_escaped_everywhere(tmp_path):
    evil = "<script>alert(\"1\")</script> | `x` & 'y' $z$"
    member = {"layer_weights": [0.5, 0.5], "by_question_word": [{"group": evil, "questions": 3, "f1": 5.0}]}
    error = {"question": evil, "context": f"so {evil} it is", "gold": [evil], "answers": {evil: evil}, "why": evil}
    agreement = {"members": [evil], "matrix": [[1.0]]}
    analysis = {"members": {evil: member}, "agreement": agreement, "errors": [error], "seed": evil}
    (tmp_path / "analysis.json").write_text(json.dumps(analysis), encoding="utf-8")
    compared = {"comparisons": [comparison(1, 0, 2, evil)]}
    (tmp_path / "comparisons.json").write_text(json.dumps(compared))
    found = [row | {"variant": variant} for row in rows(head=evil) for variant in ("plain", evil)]
    for place, metrics in ((tmp_path, rows(head=evil)), (tmp_path / "variants", found)):
        place.mkdir(exist_ok=True)
        page = write(place, metrics, facts=FACTS | {"note": evil})
        check_page(page)
        assert "<script>alert" not in page and "&lt;script&gt;alert" in page
        text = (place / "report.md").read_text(encoding="utf-8")
        assert "<script>" not in text
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()
    grids = itertools.groupby(lines, lambda line: line.startswith("|"))
    for grid in (list(grid) for inside, grid in grids if inside):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in grid}) == 1  # a name adds no column


def test_half_a_study_says_what_is_missing(tmp_path):
    half = [row for row in rows() if row["seed"] == 1 and row["checkpoint"] == 0.3 and row["role"] == "backbone"]
    page = write(tmp_path, half, facts=FACTS | {"finished": None})
    check_page(page)
    for sentence in (
        "The study has not finished.",
        "Not scored yet: seed 2 of 2.",
        "Not scored yet: checkpoint 1 of seed 1.",  # 2.0 lies past the end of tuning and is never reached
        "Not scored yet: 1 of 1 heads at checkpoint 0.3 of seed 1.",
    ):
        assert sentence in page
    assert "checkpoint 2" not in page


def test_any_file_may_be_missing_but_not_all(tmp_path):
    for place, why in ((tmp_path, "holds none of"), (tmp_path / "nowhere", "no such directory")):
        with pytest.raises(UserError, match=why):
            write_report(place)
    page = write(tmp_path, None)
    check_page(page)
    assert "metrics.json has no scores yet" in page and "There are no scores yet." in page and "torch 2.6" in page

    (tmp_path / "bare").mkdir()
    page = write(tmp_path / "bare", rows(), recipe=None, facts=None)
    check_page(page)
    assert "<h1>bare</h1>" in page and "recipe.toml is missing" in page and "study.json is missing" in page

    (tmp_path / "broken").mkdir()
    assert "recipe.toml is not TOML" in write(tmp_path / "broken", rows(), recipe="x = ")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("study.json", "{", "study.json is left out"),
        ("study.json", '{"finished": "x", "peak": 3, "dropped": 4, "variants": 5}', "belongs there: peak, dropped, v"),
        ("metrics.json", '[{"member": "pool"', "metrics.json is left out"),
        ("metrics.json", '{"member": "pool"}', "metrics.json is left out"),
        ("metrics.json", "[3]", "metrics.json is left out"),
        ("metrics.json", '[{"seed": []}]', "metrics.json has no scores: they are those of seed-N/scores-E.json"),
        ("recipe.toml", "data = 3\nseeds = 1\nfinetune = {epochs = 'x'}", "belongs there: data, seeds, finetune.e"),
        ("recipe.toml", "variants = [1]\nheads = [2]\npaper = 'x'", "belongs there: variants[0], heads[0], paper"),
        ("comparisons.json", '{"comparisons": [1, 2]}', "comparisons.json is left out where"),
        ("comparisons.json", '{"comparisons": [{"member": 1, "checkpoint": "x"}]}', "comparisons[0].member, comp"),
        ("analysis.json", '{"errors": ["a"]}', "analysis.json is left out"),
        ("analysis.json", '{"members": {"pool": {"reliability": [1]}}}', "analysis.json is left out"),
        ("greedy.json", '{"ensembles": [3], "comparisons": {}}', "greedy.json is left out"),
        ("greedy.json", '{"ensembles": [{"members": [{}], "test": [{"f1": 3}]}]}', "greedy.json is left out"),
        ("ensemble.json", '{"members": [{"member": "a"}], "test": [3]}', "ensemble.json is left out"),
    ],
)
def test_a_damaged_file_costs_no_more_than_itself(name, content, says, tmp_path):
    found = rows()
    for seed, point in itertools.product((1, 2), (0.3, 1.0)):
        path = tmp_path / f"seed-{seed}" / f"scores-{point:g}.json"
        path.parent.mkdir(exist_ok=True)
        mine = [row for row in found if (row["seed"], row["checkpoint"]) == (seed, point)]
        path.write_text(json.dumps(mine), encoding="utf-8")
    write(tmp_path, found)
    (tmp_path / name).write_text(content, encoding="utf-8")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    check_page(page)
    assert says in page
    assert "+2.00 ± 0.00" in page  # the scores are there


def test_the_greedy_ensemble_stands_in_the_main_table_over_all_seeds(tmp_path):
    scores = rows(checkpoints=(1.0,))
    base = [row for row in scores if row["role"] == "backbone"]
    greedy = [with_ensemble(row | {"f1": row["f1"] + 3}, GREEDY) for row in base]
    absent = with_ensemble(base[0] | {"seed": 3, "f1": 0.0}, GREEDY)  # of a seed without scores
    ensembles = [{"test": [row]} for row in [*greedy, absent]]
    compared = [comparison(3.0, 1.25, 4.5, GREEDY, seeds=[1, 2])]
    (tmp_path / "greedy.json").write_text(json.dumps({"ensembles": ensembles, "comparisons": compared}))
    paper = '[[paper]]\ncheckpoint = 1.0\nmember = "ensemble"\nf1 = 79.8\n'
    write(tmp_path, scores, RECIPE + paper)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| 1 | {GREEDY} | **60.00 / 74.50**"))
    assert "| **75.00 ± 0.71** | **+3.00 (+1.25 to +4.50)** |" in line
    assert "79.8" not in line  # a paper's ensemble is one of two
    assert "0.50 backbone + 0.50 pool" in text


def test_same_files_same_bytes_and_no_litter(tmp_path):
    write(tmp_path, rows())
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    write(tmp_path, rows())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert {path.name for path in tmp_path.iterdir()} == {
        *("metrics.json", "study.json", "recipe.toml", "figures", "report.md", "report.html")
    }
