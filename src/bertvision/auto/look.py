"""What is in a user's file: task, columns, duplicates, leaks, balance. Ends in three clean sets."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertvision.auto.columns import Columns, choose_columns, number
from bertvision.auto.decoding import Rows, check_suffix, decode, read_rows
from bertvision.data.conll import load_conll
from bertvision.data.splits import nested_strata, split_by_article, split_off
from bertvision.data.squad import Articles, check_articles, questions, write_articles
from bertvision.errors import UserError
from bertvision.files import write_text

FEWEST = 10  # examples to learn, choose and report with
SHARE = 0.15  # of the examples, for tune and again for test, where they are not given
MOST = {"train": 100_000, "tune": 1000, "test": 2000}  # texts of a set
MOST_QUESTIONS = {"tune": 200, "test": 400}  # a question costs as many tokens as ten texts
UNBALANCED = 0.8  # share of the most frequent label from which on accuracy says little
ENDINGS = {"labels": ".jsonl", "score": ".jsonl", "tokens": ".conll", "spans": ".json"}


class Item(NamedTuple):
    """An example: texts, or words of a sentence, and what is to be learnt about it."""

    texts: tuple[str, ...]
    target: str | tuple[str, ...]


@dataclass
class Looked:
    """What was found. data: keys of a recipe's [data]. sets: Items, or articles of questions, by name.

    notes: sentences for the user. sizes: examples of each set.
    """

    task: str
    data: dict[str, Any]
    sets: dict[str, list[Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def sizes(self) -> dict[str, int]:
        count: Callable[[Any], int] = (lambda items: len([*questions(items)])) if self.task == "spans" else len
        return {name: count(items) for name, items in self.sets.items()}

    def write(self, directory: Path) -> dict[str, str]:
        """Writes the sets; {name of a set: its file}."""
        paths = {name: directory / f"{name}{ENDINGS[self.task]}" for name in self.sets}
        for name, path in paths.items():
            if self.task == "spans":
                write_articles(path, self.sets[name])
            else:
                write_text(path, "\n".join(map(self._line, self.sets[name])) + "\n")
        return {name: str(path) for name, path in paths.items()}

    def _line(self, item: Item) -> str:
        if self.task == "tokens":
            return "\n".join([*(f"{word}\t{label}" for word, label in zip(item.texts, item.target)), ""])
        columns = [*self.data["text"], self.data["label"]]
        return json.dumps(dict(zip(columns, [*item.texts, item.target])), ensure_ascii=False)


def look(files: dict[str, str], text: Sequence[str] = (), label: str = "", seed: int = 0, share: float = 1.0) -> Looked:
    """files: `train` and, if there are such, `tune` and `test`. text, label: columns of a table, if they are known.

    share: of the most examples that tune and test have; less where there is little time.
    """
    paths = {name: Path(file) for name, file in files.items() if file}
    kinds = {name: check_suffix(path) for name, path in paths.items()}
    if len(set(kinds.values())) > 1:
        raise UserError(f"{', '.join(map(str, paths.values()))}: are of different kinds; give files of one kind")
    if kinds["train"] != "table" and (text or label):
        raise UserError(f"{paths['train']}: has no columns; leave --text and --label out")
    if kinds["train"] == "squad":
        return _look_at_questions(paths, seed, share)
    if kinds["train"] == "conll":
        return _look_at_sentences(paths, seed, share)
    return _look_at_table(paths, text, label, seed, share)


def _look_at_table(paths: dict[str, Path], text: Sequence[str], label: str, seed: int, share: float) -> Looked:
    notes: list[str] = []
    rows = {name: read_rows(path, notes) for name, path in paths.items()}
    chosen = choose_columns(paths["train"], rows["train"], text, label, notes)
    sets = {name: _items(paths[name], own, chosen, notes) for name, own in rows.items()}
    sets["train"] = _alike(paths["train"], sets["train"], notes)
    _part(sets, notes)
    labels = {item.target for item in sets["train"]}
    if chosen.task == "labels":
        if len(labels) < 2:
            seen = f"every label in {chosen.label!r} is {labels.pop()!r}" if labels else "there are no labels"
            raise UserError(f"{paths['train']}: {seen}; a classifier needs at least two")
        for name in [name for name in sets if name != "train"]:
            learnt = [item for item in sets[name] if item.target in labels]
            _note_fewer(notes, sets[name], learnt, f"{paths[name].name}: rows with a label that train does not have")
            sets[name] = learnt
    _set_aside(paths["train"], sets, lambda items: _strata(items, chosen.task), notes, seed, share)
    words = [sum(len(each.split()) for each in item.texts) for item in sets["train"]]
    longest = int(np.clip(32 * np.ceil((1.5 * np.percentile(words, 98) + 8) / 32), 32, 256))
    data: dict[str, Any] = {"text": list(chosen.text), "label": chosen.label, "max_length": longest, "overlap": 8}
    if chosen.task == "labels":
        counts = Counter(item.target for item in sets["train"])
        notes.append("labels: " + ", ".join(f"{name} {count:,}" for name, count in counts.most_common(12)))
        if (most := max(counts.values()) / counts.total()) > UNBALANCED:
            data["metric"] = "matthews"
            notes.append(f"{most:.0%} are {counts.most_common(1)[0][0]!r}: chosen by Matthews' correlation instead")
        held = [{item.target for item in sets[name]} for name in ("tune", "test")]
        rare = [str(name) for name in counts if any(name not in seen for seen in held)]
        if rare:
            notes.append(f"rare labels, which tune or test do not have: {', '.join(rare[:12])}")
        _note_leakage(sets["train"], notes)
    return Looked(chosen.task, data, sets, notes)


def _items(path: Path, rows: Rows, columns: Columns, notes: list[str]) -> list[Item]:
    """The rows that have a text and a label, or a number."""
    texts = [tuple(row.get(column, "").strip() for column in columns.text) for row in rows]
    items = [Item(each, row.get(columns.label, "").strip()) for each, row in zip(texts, rows)]
    if columns.task == "score":
        whole = [item for item in items if math.isfinite(number(str(item.target))) and any(item.texts)]
    else:
        whole = [item for item in items if item.target and any(item.texts)]
    what = "number" if columns.task == "score" else "label"
    _note_fewer(notes, items, whole, f"{path.name}: rows without a text or a {what}")
    return whole


def _alike(path: Path, items: list[Item], notes: list[str]) -> list[Item]:
    """Every text once, as it is written first, with the target that it has most often."""
    targets: dict[tuple[str, ...], Counter[Any]] = {}
    texts: dict[tuple[str, ...], tuple[str, ...]] = {}
    for item in items:
        targets.setdefault(_key(item), Counter())[item.target] += 1
        texts.setdefault(_key(item), item.texts)
    disputed = sum(len(counts) > 1 for counts in targets.values())
    kept = [Item(texts[key], counts.most_common(1)[0][0]) for key, counts in targets.items()]
    if len(kept) == 1 < len(items):
        raise UserError(f"{path}: all its {len(items):,} rows have the same text; there is nothing to learn")
    _note_fewer(notes, items, kept, f"{path.name}: repeated examples")
    if disputed:
        notes.append(f"{path.name}: {disputed:,} texts come with different labels; the most frequent is kept")
    return kept


def _key(item: Item) -> tuple[str, ...]:
    """The same for texts that differ in case and space alone: in two sets, one would give the other away."""
    return tuple(" ".join(text.split()).casefold() for text in item.texts)


def _part(sets: dict[str, list[Item]], notes: list[str]) -> None:
    """Takes out of train what is in tune or test, and out of tune what is in test."""
    for name, others in (("train", ("tune", "test")), ("tune", ("test",))):
        seen = {_key(item) for other in others for item in sets.get(other, ())}
        if name in sets and seen:
            kept = [item for item in sets[name] if _key(item) not in seen]
            if not kept and sets[name]:
                raise UserError(f"{name}: all {len(sets[name])} examples are in {' or '.join(others)} too; give others")
            _note_fewer(notes, sets[name], kept, f"a leak: examples of {name} that are in {' or '.join(others)} too")
            sets[name] = kept


def _set_aside(
    path: Path,
    sets: dict[str, list[Item]],
    strata: Callable[[list[Item]], NDArray[np.int64]],
    notes: list[str],
    seed: int,
    share: float,
) -> None:
    """Splits tune and test off where they are not given, and cuts down what is too large."""
    if (count := len(sets["train"])) < FEWEST:
        raise UserError(f"{path}: has {count} usable examples, and fit needs at least {FEWEST}; collect more")
    limits = {name: round(most * (1.0 if name == "train" else share)) for name, most in MOST.items()}
    for name in ("test", "tune"):
        if name not in sets:
            size = min(limits[name], max(SHARE * count, min(50, 0.25 * count))) / len(sets["train"])
            stay, off = split_off(strata(sets["train"]), size, seed)
            sets[name] = [sets["train"][i] for i in off]
            sets["train"] = [sets["train"][i] for i in stay]
        elif not sets[name]:
            raise UserError(f"{name}: the file has no usable examples; leave it out, and {name} is split off {path}")
    for name, most in limits.items():
        if len(sets[name]) > most:
            kept = nested_strata(strata(sets[name]), most / len(sets[name]), seed)
            notes.append(f"{name}: {most:,} of its {len(sets[name]):,} examples, drawn at random, are used")
            sets[name] = [sets[name][i] for i in kept]
    if len(sets["test"]) < 100:
        notes.append(f"test: {len(sets['test'])} examples are few; mind the interval beside the score")


def _strata(items: Iterable[Item], task: str) -> NDArray[np.int64]:
    """(n,) of labels their number, of scores their tenth."""
    if task == "score":
        values = np.array([number(str(item.target)) for item in items])
        return np.searchsorted(np.quantile(values, np.arange(0.1, 1, 0.1)), values).astype(np.int64)
    return np.unique([str(item.target) for item in items], return_inverse=True)[1].astype(np.int64)


def _note_leakage(items: Sequence[Item], notes: list[str]) -> None:
    """A note where nearly every text says its label."""
    named = [item for item in items if str(item.target).isalpha() and len(item.target) > 2]
    said = sum(str(item.target).lower() in " ".join(item.texts).lower().split() for item in named)
    if named and said / len(items) > 0.9:
        notes.append(f"the text contains its label in {said / len(items):.0%} of the examples: is it known beforehand?")


def _note_fewer(notes: list[str], before: Sequence[Any], after: Sequence[Any], what: str) -> None:
    if less := len(before) - len(after):
        notes.append(f"{what}: {less:,} of {len(before):,} left out")


def _look_at_sentences(paths: dict[str, Path], seed: int, share: float) -> Looked:
    notes: list[str] = []
    sets = {}
    for name, path in paths.items():
        sentences = load_conll(path, decode(path, notes))
        sets[name] = [Item(one.words, one.labels) for one in sentences]
    sets["train"] = _alike(paths["train"], sets["train"], notes)
    _part(sets, notes)
    types = Counter(label[2:] for item in sets["train"] for label in item.target if label.startswith("B-"))
    if not types:
        raise UserError(f"{paths['train']}: every label is O; there is nothing to learn")
    notes.append("entities: " + ", ".join(f"{name} {count:,}" for name, count in types.most_common(12)))

    def strata(items: list[Item]) -> NDArray[np.int64]:
        return np.array([any(label != "O" for label in item.target) for item in items]).astype(np.int64)

    _set_aside(paths["train"], sets, strata, notes, seed, share)
    return Looked("tokens", {"max_length": 128, "overlap": 32}, sets, notes)


def _look_at_questions(paths: dict[str, Path], seed: int, share: float) -> Looked:
    notes: list[str] = []
    sets = {name: _once(path, _articles(path, notes), notes) for name, path in paths.items()}
    for name, others in (("train", ("tune", "test")), ("tune", ("test",))):
        seen = {p["context"] for other in others for article in sets.get(other, ()) for p in article["paragraphs"]}
        if name in sets and seen:
            what = f"a leak: questions of {name} on paragraphs that are in {' or '.join(others)} too"
            sets[name] = _without(sets[name], _in(seen), notes, what)
    count = len([*questions(sets["train"])])
    if count < FEWEST or len(_by_paragraph(sets["train"])) < 3:
        way_out = f"fit needs at least {FEWEST} on three paragraphs; collect more"
        raise UserError(f"{paths['train']}: has {count} usable questions; {way_out}")
    answerable = sum(bool(qa["answers"]) for qa in questions(sets["train"]))
    if not answerable:
        raise UserError(f"{paths['train']}: no question has an answer; there is nothing to learn")
    notes.append(f"questions: {answerable:,} with an answer, {count - answerable:,} without")
    if len(sets["train"]) < 6:  # too few to set whole articles aside
        sets["train"] = _by_paragraph(sets["train"])
    for name in ("test", "tune"):
        most = round(share * MOST_QUESTIONS[name])
        if name not in sets:
            size = min(most, max(SHARE * count, min(50, 0.25 * count))) / len([*questions(sets["train"])])
            sets["train"], sets[name] = split_by_article(sets["train"], size, seed)
        elif (there := len([*questions(sets[name])])) > most:
            sets[name] = split_by_article(_by_paragraph(sets[name]), most / there, seed)[1]
            notes.append(f"{name}: about {most:,} of its {there:,} questions, drawn by paragraph, are used")
    return Looked("spans", {"max_length": 384, "overlap": 128}, sets, notes)


def _articles(path: Path, notes: list[str]) -> Articles:
    text = decode(path, notes, whole=True)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: broken JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        way_out = "a table of rows belongs into a .jsonl file, a row to a line"
        raise UserError(f'{path}: not a SQuAD file, whose top level is {{"data": [articles], ...}}; {way_out}')
    check_articles(content["data"], str(path))
    return content["data"]


def _once(path: Path, articles: Articles, notes: list[str]) -> Articles:
    """Every question on a paragraph once."""
    seen: set[tuple[str, str]] = set()

    def again(qa: Any, paragraph: Any) -> bool:
        key = qa["question"].strip(), paragraph["context"]
        repeated = key in seen
        seen.add(key)
        return repeated

    return _without(articles, again, notes, f"{path.name}: repeated questions")


def _in(contexts: set[str]) -> Callable[[Any, Any], bool]:
    return lambda _, paragraph: paragraph["context"] in contexts


def _without(articles: Articles, leave: Callable[[Any, Any], bool], notes: list[str], what: str) -> Articles:
    """The articles without the questions that `leave`(question, paragraph) says, and what is empty then."""
    kept = []
    for article in articles:
        parts = [{**p, "qas": [qa for qa in p["qas"] if not leave(qa, p)]} for p in article["paragraphs"]]
        parts = [p for p in parts if p["qas"]]
        kept += [{**article, "paragraphs": parts}] if parts else []
    _note_fewer(notes, [*questions(articles)], [*questions(kept)], what)
    return kept


def _by_paragraph(articles: Articles) -> Articles:
    """An article for each paragraph; those with the same text stay together."""
    by_text: dict[str, dict[str, Any]] = {}
    for article in articles:
        for p in article["paragraphs"]:
            by_text.setdefault(p["context"], {**article, "paragraphs": []})["paragraphs"].append(p)
    return list(by_text.values())
