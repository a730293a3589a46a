"""What `fit` finds in a file: task, columns, encodings, duplicates, leaks; and the sets it makes."""

import json

import numpy as np
import pytest

from bertvision.auto import decoding
from bertvision.auto.look import look
from bertvision.errors import UserError
from runs import articles

NAMES = ("good", "bad")


def reviews(count: int, first: int = 0) -> list[tuple[str, str]]:
    return [(f"the {number} old city was great", NAMES[number % 2]) for number in range(first, first + count)]


def csv(path, rows, heading="review,stars", mark=",", encoding="utf-8"):
    lines = [heading.replace(",", mark), *(mark.join(row) for row in rows)]
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return str(path)


def test_a_table_is_split_by_label_the_same_way_every_time(tmp_path):
    path = csv(tmp_path / "a.csv", reviews(200))
    found, again = look({"train": path}), look({"train": path})
    assert (found.task, found.data["text"], found.data["label"]) == ("labels", ["review"], "stars")
    assert found.sizes == {"train": 100, "test": 50, "tune": 50}
    assert found.sets == again.sets
    for items in found.sets.values():
        assert sum(item.target == "good" for item in items) == len(items) // 2
    texts = [item.texts for items in found.sets.values() for item in items]
    assert len(texts) == len(set(texts)) == 200


def test_a_number_with_many_values_is_a_score_and_a_pair_has_two_texts(tmp_path):
    rows = [{"id": n, "a": f"the old king {n}", "b": "a new river of the city", "sim": n / 7} for n in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = look({"train": str(tmp_path / "a.jsonl")}, label="sim")
    assert (found.task, found.data["text"]) == ("score", ["a", "b"])
    assert any("a number from 0.0 to 8.4" in note for note in found.notes)


def test_sets_are_written_as_a_study_reads_them(tmp_path):
    found = look({"train": csv(tmp_path / "a.csv", reviews(100))})
    files = found.write(tmp_path / "data")
    lines = [json.loads(line) for line in (tmp_path / "data" / "train.jsonl").read_text().splitlines()]
    assert files["train"].endswith("train.jsonl")
    assert lines == [{"review": item.texts[0], "stars": item.target} for item in found.sets["train"]]


@pytest.mark.parametrize(
    ("encoding", "said"), [("utf-8", ""), ("utf-8-sig", ""), ("utf-16", "UTF-16"), ("utf-16-le", "UTF-16")]
)
def test_encodings(tmp_path, encoding, said):
    rows = [(f"{text} für Ärzte", label) for text, label in reviews(40)]
    found = look({"train": csv(tmp_path / "a.csv", rows, encoding=encoding)})
    assert all("für Ärzte" in item.texts[0] for item in found.sets["train"])
    assert any(said in note for note in found.notes)


def test_mixed_encodings_are_read_line_by_line(tmp_path):
    rows = reviews(38)
    path = tmp_path / "a.csv"
    csv(path, [*rows, ("naïve utf", "good")])
    path.write_bytes(path.read_bytes() + "naïve latin,bad\n".encode("latin-1"))
    found = look({"train": str(path)})
    texts = {item.texts[0] for items in found.sets.values() for item in items}
    assert {"naïve utf", "naïve latin"} <= texts
    assert any("1 of 42 lines are not UTF-8" in note for note in found.notes)


def test_what_is_wrong_with_rows_is_said_and_left_out(tmp_path):
    rows = reviews(60)
    rows = [*rows, *rows[:5], *[("no label here", "")] * 7, ("the 0 old city was great", "bad"), ("broken",)]
    found = look({"train": csv(tmp_path / "a.csv", rows, mark=";")})
    said = " | ".join(found.notes)
    assert sum(found.sizes.values()) == 60
    for words in (
        "separated by ';'",
        "1 of 74 lines are broken",
        "rows without a text or a label: 7 of 73",
        "repeated examples: 6 of 66",
        "1 texts come with different labels",
    ):
        assert words in said


def test_a_leak_between_given_sets_is_taken_out_of_train(tmp_path):
    train, test = csv(tmp_path / "a.csv", reviews(60)), csv(tmp_path / "b.csv", reviews(30, 50))
    found = look({"train": train, "test": test})
    seen = {item.texts for item in found.sets["test"]}
    assert len(seen) == 30
    assert not any(item.texts in seen for name in ("train", "tune") for item in found.sets[name])
    assert any("a leak" in note and "10 of 60" in note for note in found.notes)


def test_texts_that_differ_in_case_and_space_alone_are_one(tmp_path):
    shouted = [(f" {text.upper().replace(' ', '  ')}", label) for text, label in reviews(30)]
    found = look({"train": csv(tmp_path / "a.csv", [*reviews(60), *shouted])})
    assert sum(found.sizes.values()) == 60
    assert any("repeated examples: 30 of 90" in note for note in found.notes)
    test = csv(tmp_path / "b.csv", shouted)
    found = look({"train": csv(tmp_path / "a.csv", reviews(60)), "test": test})
    assert any("a leak" in note and "30 of 60" in note for note in found.notes)


def test_a_file_of_two_gigabytes_costs_no_more_than_its_beginning(tmp_path):
    path = tmp_path / "a.csv"
    csv(path, reviews(60))
    with path.open("ab") as file:
        file.truncate(2 << 30)  # sparse: it takes no room on disk
    found = look({"train": str(path)})
    assert sum(found.sizes.values()) == 60
    assert any("of its 2,048 MB the first 256 MB are read" in note for note in found.notes)


def test_a_tenth_of_the_labels_may_be_empty(tmp_path):
    rows = [(text, label if number % 10 else "") for number, (text, label) in enumerate(reviews(100))]
    found = look({"train": csv(tmp_path / "a.csv", rows)})
    assert sum(found.sizes.values()) == 90
    assert any("rows without a text or a label: 10 of 100 left out" in note for note in found.notes)


def test_unknown_labels_of_test_are_left_out(tmp_path):
    test = csv(tmp_path / "b.csv", [*reviews(12, 90), ("a great war", "odd")])
    found = look({"train": csv(tmp_path / "a.csv", reviews(60)), "test": test})
    assert found.sizes["test"] == 12
    assert any("a label that train does not have: 1 of 13" in note for note in found.notes)


def test_notes_on_balance_and_on_texts_that_say_their_label(tmp_path):
    rows = [(f"{'good' if n % 10 else 'bad'} it was, {n} times", "good" if n % 10 else "bad") for n in range(100)]
    found = look({"train": csv(tmp_path / "a.jsonl.tsv", rows, mark="\t")})
    said = " | ".join(found.notes)
    assert "the text contains its label in 100% of the examples" in said
    assert found.data["metric"] == "matthews"
    assert "are 'good': chosen by Matthews' correlation" in said


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (reviews(3), "has 3 usable examples, and fit needs at least 10"),
        (reviews(1) * 50, "all its 50 rows have the same text"),
        (reviews(2) * 50, "has 2 usable examples"),
        ([(text, "good") for text, _ in reviews(40)], "every label in 'stars' is 'good'"),
        ([("the old city was great", label) for label in NAMES] * 20, "all its 40 rows have the same text"),
        ([], "has no rows"),
    ],
)
def test_too_little_is_an_error_of_one_line(tmp_path, rows, words):
    with pytest.raises(UserError, match=words):
        look({"train": csv(tmp_path / "a.csv", rows)})


def test_cells_without_a_number_are_left_out_of_scores(tmp_path):
    texts = [text for text, _ in reviews(60)]
    rows = [(text, "NaN" if place % 6 == 0 else f"{place / 7:.2f}") for place, text in enumerate(texts)]
    found = look({"train": csv(tmp_path / "a.csv", rows)})
    assert found.task == "score" and sum(found.sizes.values()) == 50
    assert any("rows without a text or a number: 10 of 60 left out" in note for note in found.notes)
    test = csv(tmp_path / "b.csv", [*rows[1:6], ("the new river", "good")])
    assert look({"train": csv(tmp_path / "a.csv", rows), "test": test}).sizes["test"] == 5


def test_decimal_commas_are_said(tmp_path):
    rows = [(text, f"{place / 7:.2f}".replace(".", ",")) for place, (text, _) in enumerate(reviews(60))]
    with pytest.raises(UserError, match="its numbers have a decimal comma; write them with a point"):
        look({"train": csv(tmp_path / "a.csv", rows, mark=";")})


def test_a_quote_that_is_never_closed_is_an_error_with_its_line(tmp_path):
    rows = reviews(60)
    path = csv(tmp_path / "a.csv", [*rows[:30], ('"the old city', "good"), *rows[30:]])
    with pytest.raises(UserError, match="line 32: a quote is opened and not closed, and the 31 lines from there on"):
        look({"train": path})
    whole = csv(tmp_path / "b.csv", [*rows, ('"the old\ncity, ""quoted"" "', "good")])
    assert sum(look({"train": whole}).sizes.values()) == 61


def test_one_class_under_a_name_of_ones_own_is_said_so(tmp_path):
    rows = [(text, "yes") for text, _ in reviews(40)]
    with pytest.raises(UserError, match="every label in 'liked' is 'yes'; a classifier needs at least two"):
        look({"train": csv(tmp_path / "a.csv", rows, heading="review,liked")})


def test_a_table_without_column_names_is_refused(tmp_path):
    (text, label), *rows = reviews(40)
    with pytest.raises(UserError, match="its first line seems to be an example"):
        look({"train": csv(tmp_path / "a.csv", rows, heading=f"{text},{label}")})


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(UserError, match="is no text"):
        look({"train": str(tmp_path / "a.csv")})
    (tmp_path / "a.json").write_text(json.dumps([{"review": "the old city", "stars": 1}]))
    with pytest.raises(UserError, match=r"a table of rows belongs into a \.jsonl file"):
        look({"train": str(tmp_path / "a.json")})


def test_a_test_file_that_holds_all_of_train_is_an_error_that_says_so(tmp_path):
    path = csv(tmp_path / "a.csv", reviews(40))
    with pytest.raises(UserError, match="all 40 examples are in tune or test"):
        look({"train": path, "test": path})


def test_a_label_too_rare_to_be_tested_is_noted(tmp_path):
    found = look({"train": csv(tmp_path / "a.csv", [*reviews(40), ("a new war", "odd")])})
    assert any("rare labels, which tune or test do not have: odd" in note for note in found.notes)


def test_a_missing_column_or_file_is_an_error(tmp_path):
    path = csv(tmp_path / "a.csv", reviews(40))
    with pytest.raises(UserError, match="has no column 'reviw'; did you mean 'review'"):
        look({"train": path}, text=["reviw"])
    with pytest.raises(UserError, match="no such file"):
        look({"train": str(tmp_path / "b.csv")})
    with pytest.raises(UserError, match="fit reads"):
        look({"train": str(tmp_path / "b.xlsx")})


def test_a_huge_file_is_not_read_whole(tmp_path, monkeypatch):
    path = csv(tmp_path / "a.csv", reviews(400))
    monkeypatch.setattr(decoding, "LARGEST", 4000)
    found = look({"train": path})
    assert 80 < sum(found.sizes.values()) < 140
    assert any("the first" in note for note in found.notes)
    (tmp_path / "q.json").write_text(json.dumps({"data": articles(60)}))
    with pytest.raises(UserError, match=r"^\S+q\.json: has 0 MB, more than the"):
        look({"train": str(tmp_path / "q.json")})


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_of_very_many_rows_the_first_are_read(tmp_path, monkeypatch, name):
    if name == "a.jsonl":
        rows = [json.dumps({"review": text, "stars": label}) for text, label in reviews(400)]
        (tmp_path / name).write_text("\n".join(rows))
    else:
        csv(tmp_path / name, reviews(400), heading="review,stars", mark="\t" if name == "a.tsv" else ",")
    monkeypatch.setattr(decoding, "ROWS", 100)
    found = look({"train": str(tmp_path / name)})
    assert sum(found.sizes.values()) == 100
    assert any("the first 100 rows are read" in note for note in found.notes)


@pytest.mark.parametrize("by_article", [True, False])
def test_questions_are_split_by_article_or_paragraph(tmp_path, by_article):
    data = articles(80)
    if not by_article:
        data = [{"title": "one", "paragraphs": [p for article in data for p in article["paragraphs"]]}]
    (tmp_path / "q.json").write_text(json.dumps({"data": data}))
    found = look({"train": str(tmp_path / "q.json")})
    assert (found.task, sum(found.sizes.values())) == ("spans", 80)
    sets = [{p["context"] for a in one for p in a["paragraphs"]} for one in found.sets.values()]
    assert all(sets)
    assert not any(a & b for a, b in ((sets[0], sets[1]), (sets[0], sets[2]), (sets[1], sets[2])))


def test_questions_without_answers_are_refused(tmp_path):
    data = articles(30)
    for article in data:
        for paragraph in article["paragraphs"]:
            paragraph["qas"][0]["answers"] = []
    (tmp_path / "q.json").write_text(json.dumps({"data": data}))
    with pytest.raises(UserError, match="no question has an answer"):
        look({"train": str(tmp_path / "q.json")})


def test_sentences_with_nothing_to_find_are_refused(tmp_path):
    (tmp_path / "a.conll").write_text("\n\n".join(f"city{n} O" for n in range(20)))
    with pytest.raises(UserError, match="every label is O"):
        look({"train": str(tmp_path / "a.conll")})


def test_numbers_of_sets_are_whole(tmp_path):
    found = look({"train": csv(tmp_path / "a.csv", reviews(16)), "test": csv(tmp_path / "b.csv", reviews(20, 50))})
    assert found.sizes == {"train": 12, "test": 20, "tune": 4}
    assert np.isin(["good", "bad"], [item.target for item in found.sets["train"]]).all()


def test_with_little_time_fewer_examples_choose_and_report(tmp_path):
    path = csv(tmp_path / "a.csv", reviews(9000))
    whole = look({"train": path}).sizes
    part = look({"train": path}, share=0.2).sizes
    assert (whole["tune"], whole["test"]) == (1000, 1350)
    assert (part["tune"], part["test"]) == (200, 400)
    assert part["train"] > whole["train"]
