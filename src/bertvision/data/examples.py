"""Texts and pairs of texts with a label or a score: from GLUE or from a table of one's own, split, described."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data import glue
from bertvision.data.source import parts
from bertvision.data.squad import word_lengths
from bertvision.data.table import SUFFIXES, is_table, read_columns
from bertvision.errors import UserError, nearest
from bertvision.recipe import DataRecipe


@dataclass(frozen=True, slots=True)
class Example:
    """One text or pair. target: label or score as it stands in the file, None where there is none."""

    id: str
    texts: tuple[str, ...]
    target: str | None
    origin: str
    line: int

    @property
    def content(self) -> tuple[Any, ...]:
        """What is asked and what is right."""
        return self.id, self.texts, self.target

    @property
    def place(self) -> str:
        """Where it stands, for an error."""
        return f"{self.origin}: line {self.line}"


def is_text(source: str) -> bool:
    """Whether a source holds texts with labels or scores rather than questions on paragraphs; all its parts must."""
    found = [part.startswith(glue.PREFIX) or is_table(part) for part in parts(source)]
    for part in parts(source):
        whole = re.sub(r"[*#][\d/]+$", "", part)
        if whole != part and is_table(whole) and not Path(part).exists():
            raise UserError(f"{part}: only files of questions on paragraphs can be parted or repeated; name {whole}")
    if any(found) != all(found):
        raise UserError(f"{source}: joins questions on paragraphs with tables of texts; name one kind")
    return all(found)


def load_examples(
    source: str, data: DataRecipe, labelled: bool = True, notes: list[str] | None = None
) -> list[Example]:
    """The examples of a source: `glue:TASK/SPLIT`, a .csv, .tsv or .jsonl file, or several joined with `+`.

    In a table of one's own, data.text names one or two columns and data.label the one to learn. labelled: whether
    targets are wanted; without, there need be none. notes: takes what is worth knowing, a sentence each.
    """
    examples: list[Example] = []
    for part in parts(source):
        left_out: list[int] = []
        broken = left_out if data.broken == "leave out" else None
        if part.startswith(glue.PREFIX):
            name, split = glue.parse(part)
            columns, has = len(glue.GLUE[name].text), glue.is_labelled(split)
            origin, rows = glue.read(part, data.glue, broken)
        else:
            _check_table(part, data, labelled)
            columns, has, origin = len(data.text), labelled, part
            rows = read_columns(Path(part), (*data.text, *([data.label] if has else [])), None, broken)
        if not rows:
            raise UserError(f"{origin}: has no examples, only a line of column names")
        if left_out and notes is not None:
            count = len(rows) + len(left_out)
            notes.append(f"{origin}: {len(left_out):,} of {count:,} lines are broken and left out")
        examples += [
            Example(str(number), cells[:columns], cells[columns] if has and labelled else None, origin, line)
            for number, (line, cells) in enumerate(rows, start=len(examples))
        ]
    return examples


def _check_table(path: str, data: DataRecipe, labelled: bool) -> None:
    if not is_table(path):
        raise UserError(f"{path}: holds no texts with labels; name glue:TASK/SPLIT, or a {', '.join(SUFFIXES)} file")
    if not 1 <= len(data.text) <= 2:
        raise UserError('data.text: name the one or two columns that hold the text, such as ["question", "answer"]')
    if labelled and not data.label:
        raise UserError("data.label: name the column that holds the label or the score")


def found_labels(examples: Sequence[Example]) -> tuple[str, ...]:
    """The labels of these examples, sorted; UserError unless there are at least two."""
    labels = tuple(sorted({example.target for example in examples if example.target}))
    if len(labels) < 2:
        seen = f"every label is {labels[0]!r}" if labels else "there are no labels"
        raise UserError(f"{examples[0].origin}: {seen}; a classifier needs at least two")
    if len(labels) > max(2, len(examples) // 2) and len(labels) > 100:
        raise UserError(f'{examples[0].origin}: has {len(labels)} labels; if they are numbers, use task = "score"')
    spelt: dict[object, str] = {}
    for label in labels:
        other = spelt.setdefault(_meant(label), label)
        if other != label:
            raise UserError(
                f"{examples[0].origin}: the labels {other!r} and {label!r} look like one; spell them alike, or list "
                "both in data.labels if they are two"
            )
    return labels


def _meant(label: str) -> object:
    """A label but for spaces around it, and for how a number is written."""
    try:
        return float(label)
    except ValueError:
        return label.strip()


def label_numbers(examples: Sequence[Example], labels: Sequence[str]) -> NDArray[np.int64]:
    """(n,) the place of each example's label among `labels`; -1 where it has none."""
    number = {label: place for place, label in enumerate(labels)}
    try:
        return np.array([-1 if e.target is None else number[e.target] for e in examples], dtype=np.int64)
    except KeyError:
        wrong = next(e for e in examples if e.target is not None and e.target not in number)
        said = "is empty" if not wrong.target else f"{wrong.target!r} is not among those known"
        raise UserError(f"{wrong.place}: the label {said}; {nearest(wrong.target or '', labels)}") from None


def score_numbers(examples: Sequence[Example]) -> NDArray[np.float64]:
    """(n,) the scores as numbers, all finite; NaN where there is none."""
    values = np.full(len(examples), np.nan)
    for place, example in enumerate(examples):
        if example.target is None:
            continue
        try:
            values[place] = float(example.target)
        except ValueError:
            raise UserError(f"{example.place}: the score {example.target!r} is not a number") from None
        if not math.isfinite(values[place]):
            raise UserError(f"{example.place}: the score {example.target!r} is not a finite number")
    return values


def split_off(strata: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted numbers of the examples that stay and of those split off: `share` of them, and of every stratum alike.

    strata: (n,) the stratum of each. Both parts get at least one example, and what stays keeps one of every stratum.
    """
    count = len(strata)
    if count < 2:
        raise UserError("data.train: one example alone cannot be split; name a set for data.tune")
    order = np.random.default_rng([seed, 0x7E57]).permutation(count)
    order = order[np.argsort(strata[order], kind="stable")]  # stratum by stratum, in random order within each
    steps = np.floor(np.arange(count + 1) * share)
    taken = np.zeros(count, dtype=bool)
    taken[order[np.diff(steps) > 0]] = True  # every (1 / share)-th of them
    for stratum in np.unique(strata[taken]):
        own = np.flatnonzero(strata == stratum)
        if taken[own].all():
            taken[own[0]] = False
    if not taken.any():
        largest = np.bincount(np.unique(strata, return_inverse=True)[1]).argmax()
        taken[order[np.flatnonzero(strata[order] == np.unique(strata)[largest])[-1]]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def example_statistics(examples: Sequence[Example]) -> dict[str, Any]:
    """Counts, labels and lengths in words, ready for JSON; of more than 20 labels the range, if they are numbers, else
    the number and the most frequent."""
    targets = Counter(example.target for example in examples if example.target is not None)
    found: dict[str, Any] = {"examples": len(examples), "texts": len(examples[0].texts)}
    for place in range(len(examples[0].texts)):
        found[f"text_{place + 1}_words"] = word_lengths(example.texts[place] for example in examples)
    if len(targets) <= 20:
        return found | {"labels": dict(sorted(targets.items()))}
    try:
        values = score_numbers(examples)
    except UserError:
        return found | {"different_labels": len(targets), "labels": dict(targets.most_common(20))}
    return found | {
        "scores": {
            "lowest": float(np.nanmin(values)),
            "mean": round(float(np.nanmean(values)), 3),
            "highest": float(np.nanmax(values)),
        }
    }
