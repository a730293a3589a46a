"""The nine tasks of GLUE: columns, labels and metrics; official files, the hub, submissions."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bertvision.data.sources import GLUE as PREFIX
from bertvision.data.tables import Row, read_columns
from bertvision.errors import UserError, nearest
from bertvision.files import write_text

HUB = "nyu-mll/glue"
SCALE = (0.0, 5.0)  # of STS-B
COLA_HEADER = ("source", "label", "original", "sentence")  # train.tsv and dev.tsv have no header


class GlueTask(NamedTuple):
    """text, label: columns of the official files; hub_text: of the hub. splits: the official files and their numbers of
    examples. labels: as the files spell them, in the order of the hub's numbers; none where the label is a number from
    0 to 5. metrics: the official ones, the last decides. CoLA also has accuracy, which shows whether a Matthews of 0 is
    chance or a constant."""

    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: dict[str, int]
    hub_text: tuple[str, ...]


_TABLE = json.loads(Path(__file__).with_name("glue.json").read_text(encoding="utf-8"))
_LISTS = ("text", "labels", "metrics", "hub_text")
GLUE = {name: GlueTask(**entry | {key: tuple(entry[key]) for key in _LISTS}) for name, entry in _TABLE.items()}


def parse(source: str) -> tuple[str, str]:
    """(task, split) of `glue:TASK/SPLIT`, both known."""
    name, slash, split = source.removeprefix(PREFIX).partition("/")
    if name not in GLUE:
        raise UserError(f"{source}: GLUE has no task {name!r}; {nearest(name, GLUE)}")
    if split not in GLUE[name].splits:
        hint = nearest(split, GLUE[name].splits) if slash else f"write {PREFIX}{name}/train"
        raise UserError(f"{source}: {name} has no split {split!r}; {hint}")
    return name, split


def is_labelled(split: str) -> bool:
    """Whether a split has labels; GLUE does not publish those of the test sets."""
    return not split.startswith("test")


def _columns(name: str, split: str) -> list[str]:
    return [*GLUE[name].text, *([GLUE[name].label] if is_labelled(split) else [])]


def read(source: str, folder: str = "data/glue", left_out: list[int] | None = None) -> tuple[str, list[Row]]:
    """Where `glue:TASK/SPLIT` was found, and its rows: the texts, then the label (not for test sets).

    Looked for in `folder`, in the folder `glue` of $BERTVISION_DATA, and on the hub. left_out: as in `read_columns`.
    """
    name, split = parse(source)
    folders = [Path(folder)]
    if "BERTVISION_DATA" in os.environ:
        folders.append(Path(os.environ["BERTVISION_DATA"]) / "glue")
    path = next((path for candidate in folders if (path := candidate / name / f"{split}.tsv").exists()), None)
    if path is None:
        fetch_it = f"run `bertvision data fetch {PREFIX}{name}` where you are online"
        return source, hub_rows(name, split, f"{fetch_it}, or put the official files into {folder}")
    header = COLA_HEADER if name == "CoLA" and is_labelled(split) else None
    return str(path), read_columns(path, _columns(name, split), header, left_out)


def hub_rows(name: str, split: str, way_out: str = "try later") -> list[Row]:
    """The rows of a split from the hub, labels spelt as in the official files."""
    from bertvision.data.download import load_hub

    config, task = name.lower().replace("-", ""), GLUE[name]
    rows: list[Row] = []
    for row in load_hub(f"{PREFIX}{name}/{split}", (HUB, config), split.replace("dev", "validation"), way_out):
        gold = [task.labels[row["label"]] if task.labels else f"{row['label']:.3f}"] if is_labelled(split) else []
        rows.append((len(rows) + 1, (*(row[column] for column in task.hub_text), *gold)))
    return rows


def fetch(name: str, directory: Path, rows_of: Callable[[str, str], list[Row]] = hub_rows) -> list[Path]:
    """Writes the splits of a task from the hub into `directory`/TASK, in the layout of the official files.

    They appear only when all of them have as many rows as the official files. rows_of: (task, split) -> rows.
    """
    if name not in GLUE:
        raise UserError(f"GLUE has no task {name!r}; {nearest(name, GLUE)}")
    texts = {}
    for split, count in GLUE[name].splits.items():
        rows = rows_of(name, split)
        if len(rows) != count:
            raise UserError(f"{PREFIX}{name}/{split}: has {len(rows)} rows, not {count}; nothing was kept, try again")
        if wrong := next(
            (number for number, cells in rows if any(mark in cell for cell in cells for mark in "\t\n")), None
        ):
            raise UserError(f"{PREFIX}{name}/{split}: row {wrong} has a tab or a line break; a .tsv cannot")
        lines = [["index", *_columns(name, split)], *([str(index), *cells] for index, (_, cells) in enumerate(rows))]
        if name == "CoLA" and is_labelled(split):
            lines = [["hub", label, "", text] for _, (text, label) in rows]
        texts[directory / name / f"{split}.tsv"] = "".join("\t".join(line) + "\n" for line in lines)
    for path, text in texts.items():
        write_text(path, text)
    return [*texts]


def check_submission(source: str, count: int) -> None:
    """UserError unless `glue:TASK/SPLIT` is a test set and `count` the number of its examples."""
    name, split = parse(source)
    if is_labelled(split):
        tests = " or ".join(
            f"{PREFIX}{name}/{test_split}" for test_split in GLUE[name].splits if not is_labelled(test_split)
        )
        raise UserError(f"{source}: GLUE takes predictions of test sets; name {tests}")
    if count != GLUE[name].splits[split]:
        raise UserError(
            f"{source}: has {count:,} rows here; GLUE takes predictions of all {GLUE[name].splits[split]:,} of them; "
            f"get the whole file with `bertvision data fetch {PREFIX}{name}`"
        )


def write_submission(directory: Path, source: str, predictions: Sequence[str | float]) -> Path:
    """Writes predictions for a whole test set, `glue:TASK/SPLIT`, as GLUE takes them: index, tab, prediction.

    Labels are spelt as in the official files; scores are clipped to 0..5.
    """
    check_submission(source, len(predictions))
    name, split = parse(source)
    labels = GLUE[name].labels
    if wrong := next(
        (value for value in predictions if (value not in labels if labels else isinstance(value, str))), None
    ):
        right = f"its labels are {', '.join(labels)}" if labels else "it needs numbers"
        raise UserError(f"{source}: {wrong!r} is not a prediction for {name}; {right}")
    ending = {"matched": "-m", "mismatched": "-mm"}.get(split.partition("_")[2], "")
    shown = [value if isinstance(value, str) else f"{min(max(value, SCALE[0]), SCALE[1]):.3f}" for value in predictions]
    path = directory / f"{name}{ending}.tsv"
    write_text(path, "index\tprediction\n" + "".join(f"{index}\t{value}\n" for index, value in enumerate(shown)))
    return path
