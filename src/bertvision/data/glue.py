"""The nine tasks of GLUE: columns, labels and metrics; official files, the hub, submissions."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertvision.data.download import load_hub
from bertvision.data.tables import Row, read_columns
from bertvision.errors import UserError, nearest
from bertvision.files import write_text

PREFIX = "glue:"
HUB = "nyu-mll/glue"
BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
PAIR = ("sentence1", "sentence2")
QUESTIONS = ("question1", "question2")
SCALE = (0.0, 5.0)  # of STS-B
COLA_HEADER = ("source", "label", "original", "sentence")  # train.tsv and dev.tsv have no header


@dataclass(frozen=True, slots=True)
class GlueTask:
    """text, label: columns of the official files. labels: as the files spell them, in the order of the hub's numbers;
    none where the label is a number from 0 to 5. metrics: the official ones, the last decides. CoLA also has accuracy,
    which shows whether a Matthews of 0 is chance or a constant."""

    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]


GLUE: dict[str, GlueTask] = {
    "CoLA": GlueTask(("sentence",), "label", BINARY, ("accuracy", "matthews")),
    "SST-2": GlueTask(("sentence",), "label", BINARY, ("accuracy",)),
    "MRPC": GlueTask(("#1 String", "#2 String"), "Quality", BINARY, ("accuracy", "f1")),
    "QQP": GlueTask(QUESTIONS, "is_duplicate", BINARY, ("accuracy", "f1")),
    "STS-B": GlueTask(PAIR, "score", (), ("pearson", "spearman")),
    "MNLI": GlueTask(PAIR, "gold_label", ("entailment", "neutral", "contradiction"), ("accuracy",)),
    "QNLI": GlueTask(("question", "sentence"), "label", ENTAILMENT, ("accuracy",)),
    "RTE": GlueTask(PAIR, "label", ENTAILMENT, ("accuracy",)),
    "WNLI": GlueTask(PAIR, "label", BINARY, ("accuracy",)),
}
HUB_TEXT = {"MRPC": PAIR, "MNLI": ("premise", "hypothesis")}  # text columns with other names on the hub
SPLITS = {
    "CoLA": {"train": 8_551, "dev": 1_043, "test": 1_063},
    "SST-2": {"train": 67_349, "dev": 872, "test": 1_821},
    "MRPC": {"train": 3_668, "dev": 408, "test": 1_725},
    "QQP": {"train": 363_846, "dev": 40_430, "test": 390_965},
    "STS-B": {"train": 5_749, "dev": 1_500, "test": 1_379},
    "MNLI": {
        "train": 392_702,
        "dev_matched": 9_815,
        "dev_mismatched": 9_832,
        "test_matched": 9_796,
        "test_mismatched": 9_847,
    },
    "QNLI": {"train": 104_743, "dev": 5_463, "test": 5_463},
    "RTE": {"train": 2_490, "dev": 277, "test": 3_000},
    "WNLI": {"train": 635, "dev": 71, "test": 146},
}
"""The official files and how many examples each holds."""


def parse(source: str) -> tuple[str, str]:
    """(task, split) of `glue:TASK/SPLIT`, both known."""
    name, slash, split = source.removeprefix(PREFIX).partition("/")
    if name not in GLUE:
        raise UserError(f"{source}: GLUE has no task {name!r}; {nearest(name, GLUE)}")
    if split not in SPLITS[name]:
        hint = nearest(split, SPLITS[name]) if slash else f"write {PREFIX}{name}/train"
        raise UserError(f"{source}: {name} has no split {split!r}; {hint}")
    return name, split


def is_labelled(split: str) -> bool:
    """Whether a split has labels; GLUE does not publish those of the test sets."""
    return not split.startswith("test")


def read(source: str, folder: str = "data/glue", left_out: list[int] | None = None) -> tuple[str, list[Row]]:
    """Where `glue:TASK/SPLIT` was found, and its rows: the texts, then the label (not for test sets).

    Looked for in `folder`, in the folder `glue` of $BERTVISION_DATA, and on the hub. left_out: as in `read_columns`.
    """
    name, split = parse(source)
    task = GLUE[name]
    places = [Path(folder)]
    if "BERTVISION_DATA" in os.environ:
        places.append(Path(os.environ["BERTVISION_DATA"]) / "glue")
    path = next((path for place in places if (path := place / name / f"{split}.tsv").exists()), None)
    if path is None:
        fetch_it = f"run `bertvision data fetch {PREFIX}{name}` where you are online"
        return source, hub_rows(name, split, f"{fetch_it}, or put the official files into {folder}")
    header = COLA_HEADER if name == "CoLA" and is_labelled(split) else None
    columns = (*task.text, *([task.label] if is_labelled(split) else []))
    return str(path), read_columns(path, columns, header, left_out)


def hub_rows(name: str, split: str, way_out: str = "try later") -> list[Row]:
    """The rows of a split from the hub, labels spelt as in the official files."""
    config, columns, labels = name.lower().replace("-", ""), HUB_TEXT.get(name, GLUE[name].text), GLUE[name].labels
    found = load_hub(f"{PREFIX}{name}/{split}", (HUB, config), split.replace("dev", "validation"), way_out)
    rows = []
    for number, row in enumerate(found, start=1):
        gold = [labels[row["label"]] if labels else f"{row['label']:.3f}"] if is_labelled(split) else []
        rows.append((number, (*(row[column] for column in columns), *gold)))
    return rows


def fetch(name: str, directory: Path, rows_of: Callable[[str, str], list[Row]] = hub_rows) -> list[Path]:
    """Writes the splits of a task from the hub into `directory`/TASK, in the layout of the official files.

    They appear only when all of them have as many rows as the official files. rows_of: (task, split) -> rows.
    """
    if name not in GLUE:
        raise UserError(f"GLUE has no task {name!r}; {nearest(name, GLUE)}")
    texts = {}
    for split, count in SPLITS[name].items():
        rows = rows_of(name, split)
        if len(rows) != count:
            raise UserError(f"{PREFIX}{name}/{split}: has {len(rows)} rows, not {count}; nothing was kept, try again")
        texts[directory / name / f"{split}.tsv"] = _official(name, split, rows)
    for path, text in texts.items():
        write_text(path, text)
    return [*texts]


def _official(name: str, split: str, rows: Sequence[Row]) -> str:
    task = GLUE[name]
    for number, cells in rows:
        if any(mark in cell for cell in cells for mark in "\t\n"):
            raise UserError(f"{PREFIX}{name}/{split}: row {number} has a tab or a line break; a .tsv cannot")
    if name == "CoLA" and is_labelled(split):
        return "".join(f"hub\t{label}\t\t{text}\n" for _, (text, label) in rows)
    header = ["index", *task.text, *([task.label] if is_labelled(split) else [])]
    lines = [header, *([str(place), *cells] for place, (_, cells) in enumerate(rows))]
    return "".join("\t".join(line) + "\n" for line in lines)


def check_submission(source: str, count: int) -> None:
    """UserError unless `glue:TASK/SPLIT` is a test set and `count` the number of its examples."""
    name, split = parse(source)
    if is_labelled(split):
        tests = " or ".join(f"{PREFIX}{name}/{one}" for one in SPLITS[name] if not is_labelled(one))
        raise UserError(f"{source}: GLUE takes predictions of test sets; name {tests}")
    if count != SPLITS[name][split]:
        raise UserError(
            f"{source}: has {count:,} rows here; GLUE takes predictions of all {SPLITS[name][split]:,} of them; "
            f"get the whole file with `bertvision data fetch {PREFIX}{name}`"
        )


def write_submission(directory: Path, source: str, predictions: Sequence[str | float]) -> Path:
    """Writes predictions for a whole test set, `glue:TASK/SPLIT`, as GLUE takes them: index, tab, prediction.

    Labels are spelt as in the official files; scores are clipped to 0..5.
    """
    check_submission(source, len(predictions))
    name, split = parse(source)
    known = GLUE[name].labels
    if wrong := next((one for one in predictions if (one not in known if known else isinstance(one, str))), None):
        right = f"its labels are {', '.join(known)}" if known else "it needs numbers"
        raise UserError(f"{source}: {wrong!r} is not a prediction for {name}; {right}")
    ending = {"matched": "-m", "mismatched": "-mm"}.get(split.partition("_")[2], "")
    low, high = SCALE
    shown = [value if isinstance(value, str) else f"{min(max(value, low), high):.3f}" for value in predictions]
    lines = ["index\tprediction", *(f"{index}\t{value}" for index, value in enumerate(shown))]
    path = directory / f"{name}{ending}.tsv"
    write_text(path, "\n".join(lines) + "\n")
    return path
