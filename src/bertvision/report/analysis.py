"""The analysis of a study, from analysis.json: what members get right and wrong, how surely, and who agrees."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from bertvision.report.curves import reliability_figure
from bertvision.report.document import Album, Block, Fold, Heading, Note, Passage, Picture, Pictures, Section, Table
from bertvision.report.heat import agreement_figure, layer_figure
from bertvision.report.reading import Study
from bertvision.report.tables import NOTHING, Cell, column, grid_of

Plain = Mapping[str, Any]
SHARES = {
    "has_answer": "Right where there is an answer",
    "no_answer": "Right where there is none",
    "wrong_predicted_empty": "Of wrong answers where there is one: said there is none",
    "second_right": "Second-best right where the best is wrong",
}
GROUPS = {
    "by_question_word": "F1 by question word",
    "by_answer_length": "F1 by length of the answer",
    "by_context_length": "F1 by length of the context",
}
NUMBERS = {
    "accuracy": ("Accuracy", 2),
    "pearson": ("Pearson", 2),
    "spearman": ("Spearman", 2),
    "absolute_error": ("Mean absolute error", 3),
    "bias": ("Bias", 3),
}
BACKBONE = "backbone"
DRAWN = 6  # reliability curves that can be told apart in one figure
ABSENT = (
    "There is no analysis.json yet: bertvision analyze RUN writes it, from the predictions that the run has stored."
)


def analysis_sections(study: Study, album: Album) -> list[Section]:
    """Which layers heads look at, and the papers' analyses; a note where there is no analysis but could be one."""
    found = study.analysis
    if not found:
        return [Section("Analysis", [Note(ABSENT)])] if study.rows else []
    members = {str(name): one for name, one in (found.get("members") or {}).items() if isinstance(one, Mapping)}
    where = [f"epoch {found['checkpoint']:g}"] if _is_number(found.get("checkpoint")) else []
    where += [f"seed {found['seed']}"] if "seed" in found else []
    of = f"Of {', '.join(where)}." if where else ""
    sections = []
    if weights := {name: one["layer_weights"] for name, one in members.items() if one.get("layer_weights")}:
        picture = album.draw("layers", "Weight of each layer in what a head reads", layer_figure(weights))
        note = [Note(f"{of} Layer 0 is the output of the embeddings.".strip())]
        sections.append(Section("Which layers the heads read", [Pictures([picture]), *note]))
    blocks = [*_rights(members), *_groups(members), *_confusion(members)]
    if pictures := _pictures(found, members, album):
        blocks.append(Pictures(pictures))
    blocks += _errors(found.get("errors") or [], spans=any("has_answer" in one for one in members.values()))
    return [*sections, Section("Analysis", [*([Note(of)] if of else []), *blocks])] if blocks else sections


def _rights(members: Mapping[str, Plain]) -> list[Block]:
    columns = [column("Member", map(Cell, members))]
    for key, heading in SHARES.items():
        cells = [_share(one.get(key)) for one in members.values()]
        columns.append(column(heading, _best(cells) if heading.startswith("Right") else cells))
    for key, (heading, digits) in NUMBERS.items():
        columns.append(column(heading, [_plain(one.get(key), digits) for one in members.values()]))
    alone = [one.get("only_right") or {} for one in members.values()]
    columns.append(column("Only one to be right", (_plain(one.get("questions"), 0) for one in alone)))
    columns.append(column("Words of context there", (_plain(one.get("context_words"), 1) for one in alone)))
    columns.append(column("AUROC", _best(_plain(one.get("auroc"), 3) for one in members.values())))
    errors = (_plain(one.get("calibration_error"), 3) for one in members.values())
    columns.append(column("Calibration error", errors))
    grid = grid_of(columns)
    return [Heading("Right and wrong"), Table("Right and wrong", grid)] if len(grid.heading) > 1 else []


def _groups(members: Mapping[str, Plain]) -> list[Block]:
    """A table for each way to group questions: members down, groups across."""
    blocks: list[Block] = []
    for key, title in GROUPS.items():
        groups: dict[str, dict[str, Plain]] = {}  # group -> member -> its numbers
        for name, one in members.items():
            for entry in one.get(key) or []:
                groups.setdefault(str(entry.get("group")), {})[name] = entry
        columns = [column("Member", map(Cell, members))]
        for group, found in groups.items():
            questions = next(iter(found.values())).get("questions")
            heading = group if questions is None else f"{group} ({questions:,})"
            columns.append(column(heading, _best(_plain(found.get(name, {}).get("f1"), 1) for name in members)))
        if groups:
            blocks += [Heading(title), Table(title, grid_of(columns))]
    return [*blocks, Note("In brackets: how many questions. Bold: the highest of a column.")] if blocks else []


def _confusion(members: Mapping[str, Plain]) -> list[Block]:
    """What each member says against what is right, for tasks with classes: {"labels", "matrix"}, right ones down."""
    blocks: list[Block] = []
    for name, one in members.items():
        found = one.get("confusion") or {}
        if found.get("matrix"):
            labels = [str(label) for label in found.get("labels") or range(len(found["matrix"]))]
            columns = [column("Right label", map(Cell, labels))]
            for number, label in enumerate(labels):
                columns.append(column(f"said {label}", (_plain(line[number], 0) for line in found["matrix"])))
            blocks.append(Fold(f"Confusion of {name}", [Table(f"Confusion of {name}", grid_of(columns))]))
    return blocks


def _pictures(found: Plain, members: Mapping[str, Plain], album: Album) -> list[Picture]:
    pictures = []
    curved = [name for name, one in members.items() if one.get("reliability")]
    if curved:
        drawn, which = _drawn(curved, members)
        null = any("no_answer" in one for one in members.values())
        what = "of “no answer” against how often there is none" if null else "against how often the member is right"
        caption = f"Reliability: predicted probability {what}{which}"
        curves = {_with_auroc(name, members[name]): members[name]["reliability"] for name in drawn}
        pictures.append(album.draw("reliability", caption, reliability_figure(curves)))
    agreement = found.get("agreement") or {}
    if agreement.get("members") and agreement.get("matrix"):
        figure = agreement_figure([str(name) for name in agreement["members"]], agreement["matrix"])
        scored = any("pearson" in one for one in members.values())
        caption = "Correlation of two members' scores" if scored else "How often two members say the same"
        pictures.append(album.draw("agreement", caption, figure))
    return pictures


def _drawn(names: Sequence[str], members: Mapping[str, Plain]) -> tuple[list[str], str]:
    """The members whose curves are drawn, in their order, and words on which they are where some are not.

    The backbone is what the others are held against: it is always drawn.
    """
    if len(names) <= DRAWN:
        return list(names), ""
    known = all(_is_number(members[name].get("auroc")) for name in names)
    others = sorted(names, key=lambda name: (name != BACKBONE, -members[name]["auroc"] if known else 0))
    which = f", {'the backbone and ' if BACKBONE in names else ''}those with the highest AUROC" if known else ""
    return [name for name in names if name in others[:DRAWN]], f". {DRAWN} of {len(names)} members{which}"


def _errors(errors: Sequence[Plain], spans: bool) -> list[Block]:
    """Examples to learn from, each behind its own fold. spans: answers are marked where they stand in the context."""
    folds = [_error(error, spans) for error in errors]
    legend = "In the context the right answer is underlined once, what a member said instead twice."
    return [Heading("Errors to learn from"), *([Note(legend)] if spans else []), *folds] if folds else []


def _error(error: Plain, spans: bool) -> Fold:
    gold = [str(text) for text in error.get("gold") or [] if text]
    answers = {str(name): str(text or "") for name, text in (error.get("answers") or {}).items()}
    right = f"Right: {' / '.join(dict.fromkeys(gold)) or 'no answer'}"
    context = str(error.get("context") or "")
    wrong = [text for text in answers.values() if text not in gold]
    said = column("Says", (Cell(text or "no answer") for text in answers.values()))
    return Fold(
        str(error.get("question") or error.get("id") or "?"),
        [
            Note(f"{error['why']}. {right}" if error.get("why") else right),
            *([Passage(marked(context, gold, wrong) if spans else [(context, "")])] if context else []),
            *([Table("Answers", grid_of([column("Member", map(Cell, answers)), said]))] if answers else []),
        ],
    )


def marked(context: str, gold: Sequence[str], wrong: Sequence[str]) -> list[tuple[str, str]]:
    """The context in pieces (text, kind); kind is "right" or "wrong" wherever a whole gold or wrong answer stands.

    Where the two overlap, the right one is marked.
    """
    kinds = [""] * len(context)  # of each letter
    for kind, answers in (("wrong", wrong), ("right", gold)):
        for answer in filter(None, answers):
            for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", context):
                kinds[match.start() : match.end()] = [kind] * len(answer)
    runs = groupby(zip(context, kinds), key=itemgetter(1))
    return [("".join(letter for letter, _ in run), kind) for kind, run in runs]


def _with_auroc(name: str, one: Plain) -> str:
    return f"{name} (AUROC {one['auroc']:.3f})" if _is_number(one.get("auroc")) else name


def _best(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, the highest of them marked, if they differ."""
    found = list(cells)
    values = [cell.value for cell in found if cell.value is not None]
    top = max(values) if len(set(values)) > 1 else None
    return [Cell(cell.text, cell.value, cell.value is not None and cell.value == top) for cell in found]


def _share(value: Any) -> Cell:
    return Cell(f"{100 * value:.1f} %", value) if _is_number(value) else Cell(NOTHING)


def _plain(value: Any, digits: int) -> Cell:
    return Cell(f"{value:z,.{digits}f}", value) if _is_number(value) else Cell(NOTHING)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
