"""Tables of short texts in words that the tiny tokenizers know, for tests of labels, scores and tokens.

from tables import alike, conll, glue_folder, labelled, scored, text_recipe
"""

import random
from pathlib import Path

from bertvision.data.glue import GLUE
from bertvision.recipe import Recipe
from encoders import WORDS
from runs import encoder, recipe_of

NAMES = ("north", "south")
SPLITS = ("train", "dev", "dev_matched", "dev_mismatched")


def labelled(path: Path, count: int, seed: int = 0) -> str:
    """A .csv of pairs, labelled by the word the first begins with."""
    chance = random.Random(seed)
    rows = [(chance.choice(NAMES), _words(chance), _words(chance)) for _ in range(count)]
    path.write_text("first,second,label\n" + "".join(f"{y} {a},{b},{y}\n" for y, a, b in rows))
    return str(path)


def alike(path: Path, count: int, seed: int = 0) -> str:
    """A .csv of pairs, labelled by whether both texts say the same word."""
    chance, words = random.Random(seed), sorted(set(WORDS.split()))
    lines = ["first,second,label"]
    for _ in range(count):
        one, other = chance.sample(words, 2)
        same = chance.random() < 0.5
        lines.append(f"{one} {one},{one if same else other},{'same' if same else 'other'}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def scored(path: Path, count: int, seed: int = 0) -> str:
    """A .jsonl of single texts, scored 10 to 20 by how often they say `king`."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        kings = chance.randint(0, 5)
        words = ["king"] * kings + ["river"] * (5 - kings)
        lines.append(f'{{"text": "{" ".join(words)}", "y": {10 + 2 * kings}}}')
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def conll(path: Path, count: int, seed: int = 0) -> str:
    """Sentences in which `king` is a person, `old city` a place, and nothing else has a name."""
    chance = random.Random(seed)
    parts = [
        [("king", "B-PER")],
        [("old", "B-LOC"), ("city", "I-LOC")],
        [("the", "O")],
        [("river", "O")],
        [("in", "O")],
    ]
    lines = []
    for number in range(count):
        found = [
            pair for _ in range(chance.randint(1, 9)) for pair in chance.choice(parts[2:] if number % 5 == 0 else parts)
        ]
        lines += [*(f"{word} {label}" for word, label in found), ""]
    path.write_text("\n".join(lines))
    return str(path)


def text_recipe(train: str, test: str, task: str = "labels", **tables: object) -> Recipe:
    """A study of a second on tables made by `labelled` or `scored`; no tune set, so that one is split off."""
    columns = {"text": ["first", "second"], "label": "label"} if task == "labels" else {"text": ["text"], "label": "y"}
    data = {"train": train, "tune": "", "test": test, "tune_share": 0.2, "max_length": 32, "overlap": 8, **columns}
    own = tables.pop("data", {})
    tuning = {"epochs": 1, "checkpoints": [], "batch_size": 8, "learning_rate": 1e-3}
    settings = {"backbone": {"name": encoder()}, "finetune": tuning, "bank": {"epochs": 3, "batch_size": 16}}
    return recipe_of(task=task, data=data | own, **(settings | tables))


def _words(chance: random.Random) -> str:
    plain = [word for word in WORDS.split() if word not in NAMES]
    return " ".join(chance.choices(plain, k=chance.randint(1, 8)))


def glue_folder(path: Path, count: int, splits: tuple[str, ...] = SPLITS) -> str:
    """All nine tasks of GLUE in the official layout, `count` made-up examples in each file."""
    for name, task in GLUE.items():
        (path / name).mkdir(parents=True)
        for split in splits:
            chance = random.Random(f"{name}/{split}")
            lines = []
            for number in range(count):
                label = task.labels[number % len(task.labels)] if task.labels else f"{number % 6}.000"
                texts = [_words(chance) for _ in task.text]
                cells = ["x", label, "", *texts] if name == "CoLA" else [*texts, label]
                lines.append("\t".join(cells))
            header = [] if name == "CoLA" else ["\t".join([*task.text, task.label])]
            (path / name / f"{split}.tsv").write_text("\n".join([*header, *lines]) + "\n")
    return str(path)
