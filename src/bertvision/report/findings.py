"""An analysis (analysis.json) for the terminal: who is right on what, who agrees with whom, and the first mistakes."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

SHOWN = 5  # mistakes; all are in the file
WORDS = 60  # of a context
NOTHING = "–"
SHARES = {
    "has_answer": ("HasAns", "answerable questions answered rightly"),
    "no_answer": ("NoAns", 'unanswerable ones of which it says "no answer"'),
    "wrong_predicted_empty": ("Empty", 'of its wrong HasAns answers, those that are "no answer"'),
    "second_right": ("Next", "of all its wrong answers, those where the one it held next is right"),
    "auroc": ("AUROC", "how well its score parts what happened from what did not"),
    "calibration_error": ("ECE", "by how much its probabilities are off"),
}
NUMBERS = {
    "accuracy": ("Accuracy", "labels that are right"),
    "pearson": ("Pearson", "correlation"),
    "spearman": ("Spearman", "correlation of the ranks"),
    "absolute_error": ("Error", "mean distance from the right score"),
}
ALONE = ("Alone", "questions that only it gets right, ensembles aside; in brackets, their words of context")
GROUPS = {
    "by_question_word": "F1 by question word",
    "by_answer_length": "F1 by length of the answer",
    "by_context_length": "F1 by length of the context",
}


def print_analysis(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints an analysis; what a task does not have is left out."""
    console = console or Console(highlight=False)
    members = found["members"]
    console.print(f"Epoch {found['checkpoint']:g}, seed {found['seed']}, on the test set; shares in percent\n")
    for part in _members(members):
        console.print(part)
    for key, title in GROUPS.items():
        if any(key in member for member in members.values()):
            console.print(title)
            console.print(_groups(members, key))
    if len(found["agreement"]["members"]) > 1:
        console.print("Agreement")
        console.print(_agreement(found["agreement"]))
    for name, member in members.items():
        if member.get("layer_weights"):
            shares = "  ".join(f"{weight:.0%}" for weight in member["layer_weights"])
            console.print(Text(f"Layers of {name}, from the embeddings up: {shares}"))
    _mistakes(found["errors"], console)


def _members(members: Mapping[str, Mapping[str, Any]]) -> list[Table | Text]:
    known = {key for member in members.values() for key in member}
    numbers = {key: words for key, words in NUMBERS.items() if key in known}
    shares = {key: words for key, words in SHARES.items() if key in known}
    columns = [*numbers.values(), *shares.values(), *([ALONE] if "only_right" in known else [])]
    table = _table("", *(heading for heading, _ in columns))
    for name, member in members.items():
        cells = [_number(member.get(key)) for key in numbers] + [_share(member.get(key)) for key in shares]
        if alone := member.get("only_right"):
            length = f" ({alone['context_words']:.0f})" if alone["questions"] else ""
            cells.append(f"{alone['questions']}{length}")
        table.add_row(Text(name), *cells)
    return [table, Text("".join(f"{heading}: {meaning}\n" for heading, meaning in columns))]


def _groups(members: Mapping[str, Mapping[str, Any]], key: str) -> Table:
    """Members down, groups across, each with its number of questions."""
    rows = {name: {row["group"]: row for row in member.get(key, ())} for name, member in members.items()}
    groups = {group: row["questions"] for found in rows.values() for group, row in found.items()}
    table = _table("", *(f"{group.removesuffix(' words')}\n{count}" for group, count in groups.items()))
    for name, found in rows.items():
        table.add_row(Text(name), *(_number(found.get(group, {}).get("f1"), 1) for group in groups))
    return table


def _agreement(found: Mapping[str, Any]) -> Table:
    """Members are numbered, so that many fit."""
    table = _table("", *(str(number + 1) for number in range(len(found["members"]))))
    for number, (name, row) in enumerate(zip(found["members"], found["matrix"])):
        table.add_row(Text(f"{number + 1} {name}"), *(f"{share:.0%}" for share in row))
    return table


def _mistakes(errors: Sequence[Mapping[str, Any]], console: Console) -> None:
    if errors:
        console.print(f"\nMistakes, {min(SHOWN, len(errors))} of {len(errors)} in analysis.json\n")
    for error in errors[:SHOWN]:
        console.print(Text(error["question"], "bold"))
        answers = "; ".join(f"{name}: {text or 'no answer'}" for name, text in error["answers"].items())
        for line in (
            _short(error["context"]),
            f"right: {' / '.join(error['gold']) or 'no answer'}",
            answers,
            error["why"],
        ):
            if line:
                console.print(Padding(Text(line), (0, 0, 0, 2)))
        console.print()


def _table(*headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if number else "left", no_wrap=number > 0)
    return table


def _short(text: str) -> str:
    words = text.split()
    return " ".join(words[:WORDS]) + (" …" if len(words) > WORDS else "")


def _share(value: float | None) -> str:
    """A share as a percentage, without its sign: most of the table is made of them."""
    return NOTHING if value is None else f"{100 * value:.1f}"


def _number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"
