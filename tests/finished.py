"""Finished runs that tests only read: made once, when the first of them asks.

from finished import finished_run, finished_texts
"""

import random
import shutil
from functools import cache
from pathlib import Path

from bertvision.train.study import Study
from encoders import WORDS
from runs import _place, questions, recipe_of

EPOCHS = [0.5, 1.0]
SEEDS = [1, 2]


@cache
def finished_run() -> Path:
    """Spans: two seeds, two checkpoints, the backbone and two heads."""
    sets = {"train": questions(24), "tune": questions(16, 1), "test": questions(20, 2)}
    return _run("finished-spans", seeds=SEEDS, data=sets, heads=[{"kind": "pool"}, {"kind": "last"}])


@cache
def finished_texts(task: str) -> Path:
    """Labels or scores of short texts: one seed, one checkpoint, the backbone and a head."""
    sets = {split: _table(split, count, task) for split, count in (("train", 24), ("tune", 12), ("test", 18))}
    columns = {"text": ["text"], "label": "target"}
    return _run(
        f"finished-{task}", task=task, data=sets | columns, finetune={"checkpoints": []}, heads=[{"kind": "pool"}]
    )


def copy_of(run: Path, place: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(run, place / run.name))


def _run(name: str, **tables: object) -> Path:
    study = Study(recipe_of(**tables), _place() / name, quiet=True)
    study.run()
    return study.directory


def _table(split: str, count: int, task: str) -> str:
    """A tab-separated file of texts; the label is whether the second word is long, the score its length."""
    chance, words = random.Random(split), WORDS.split()
    lines = ["text\ttarget"]
    for _ in range(count):
        text = chance.choices(words, k=6)
        lines.append(
            f"{' '.join(text)}\t{len(text[1]) if task == 'score' else ('long' if len(text[1]) > 4 else 'short')}"
        )
    path = _place() / f"{task}-{split}.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
