"""The analysis of a study (analysis.json): tables for page and terminal, and the sections of the page."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from bertvision.evaluate.ensemble import BACKBONE
from bertvision.report import TEXTS
from bertvision.report.figures import agreement_figure, layer_figure, reliability_figure
from bertvision.report.grid import Cell, Column, Grid, grid_of, mark_best, numbers, words
from bertvision.report.render import Album, Block, Picture, Section, notes, pictures
from bertvision.report.rows import is_number

Plain = Mapping[str, Any]
CURVES = 6  # reliability curves that can be distinguished in one figure


def number_grid(members: Mapping[str, Plain], short: bool = False) -> Grid:
    """Members down, their numbers across. short: headings for the terminal."""
    columns: list[Column] = [("Member", words(members))]
    for key, (brief, heading, form, marked) in TEXTS["analysis"].items():
        cells = numbers((_number(one, key) for one in members.values()), form)
        columns.append((brief if short else heading, mark_best(cells) if marked else cells))
    return grid_of(*columns)


def group_grids(members: Mapping[str, Plain]) -> dict[str, Grid]:
    """Title -> grid, for each way to group questions: members down, groups across."""
    grids = {}
    for key, title in TEXTS["analysis_groups"].items():
        groups: dict[str, dict[str, Plain]] = {}  # group -> member -> its numbers
        for name, one in members.items():
            for entry in one.get(key) or []:
                groups.setdefault(str(entry.get("group")), {})[name] = entry
        columns: list[Column] = [("Member", words(members))]
        for group, found in groups.items():
            count = next(iter(found.values())).get("questions")
            cells = numbers((found.get(name, {}).get("f1") for name in members), ".1f")
            columns.append((group if count is None else f"{group} ({count:,})", mark_best(cells)))
        if groups:
            grids[title] = grid_of(*columns)
    return grids


def analysis_sections(found: Plain, album: Album) -> list[Section]:
    """Layer weights of heads, and the analyses."""
    members = {str(name): one for name, one in (found.get("members") or {}).items() if isinstance(one, Mapping)}
    where = [f"epoch {found['checkpoint']:g}"] if is_number(found.get("checkpoint")) else []
    where += [f"seed {found['seed']}"] if "seed" in found else []
    of = f"Of {', '.join(where)}." if where else ""
    sections = []
    if weights := {name: one["layer_weights"] for name, one in members.items() if one.get("layer_weights")}:
        picture = album.draw("layers", "Weight of each layer in a head's input", layer_figure(weights))
        note = notes(f"{of} Layer 0 is the output of the embeddings.".strip())
        sections.append(Section("Layer weights of the heads", [*pictures(picture), *note]))
    grids = {"Right and wrong": number_grid(members)} | (grouped := group_grids(members))
    blocks = []
    for title, grid in grids.items():
        if len(grid.heading) > 1:
            blocks += [Block("heading", title), Block("table", grid, title)]
    blocks += [*(notes(TEXTS["groups"]) if grouped else []), *_confusion(members)]
    blocks += pictures(*_pictures(found, members, album))
    blocks += _errors(found.get("errors") or [], spans=any("has_answer" in one for one in members.values()))
    return [*sections, Section("Analysis", [*(notes(of) if of else []), *blocks])] if blocks else sections


def marked_passage(context: str, gold: Sequence[str], wrong: Sequence[str]) -> list[tuple[str, str]]:
    """The context in pieces (text, mark); the mark is "right" or "wrong" where a whole gold or wrong answer occurs.

    Where the two overlap, "right" wins.
    """
    kinds = [""] * len(context)  # of each letter
    for kind, answers in (("wrong", wrong), ("right", gold)):
        for answer in filter(None, answers):
            for match in re.finditer(rf"(?<!\w){re.escape(answer)}(?!\w)", context):
                kinds[match.start() : match.end()] = [kind] * len(answer)
    runs = groupby(zip(context, kinds), key=itemgetter(1))
    return [("".join(letter for letter, _ in run), kind) for kind, run in runs]


def _number(member: Plain, key: str) -> Any:
    alone = member.get("only_right") or {}
    return {"only_right": alone.get("questions"), "context_words": alone.get("context_words")}.get(key, member.get(key))


def _confusion(members: Mapping[str, Plain]) -> list[Block]:
    """Predicted against right labels, for tasks with classes: {"labels", "matrix"}, right ones down."""
    blocks = []
    for name, one in members.items():
        found = one.get("confusion") or {}
        if found.get("matrix"):
            labels = [str(label) for label in found.get("labels") or range(len(found["matrix"]))]
            columns = [
                (f"predicted {label}", numbers((line[number] for line in found["matrix"]), ",d"))
                for number, label in enumerate(labels)
            ]
            title, grid = f"Confusion matrix of {name}", grid_of(("Right label", words(labels)), *columns)
            blocks.append(Block("fold", [Block("table", grid, title)], title))
    return blocks


def _pictures(found: Plain, members: Mapping[str, Plain], album: Album) -> list[Picture]:
    drawn = []
    if curved := [name for name, one in members.items() if one.get("reliability")]:
        names, which = _curves(curved, members)
        null = any("no_answer" in one for one in members.values())
        what = "of “no answer” against the share of unanswerable questions" if null else "against the share of hits"
        caption = f"Reliability: predicted probability {what}{which}"
        aurocs = {name: members[name].get("auroc") for name in names}
        labels = [f"{name} (AUROC {value:.3f})" if is_number(value) else name for name, value in aurocs.items()]
        curves = {label: members[name]["reliability"] for label, name in zip(labels, names)}
        drawn.append(album.draw("reliability", caption, reliability_figure(curves)))
    agreement = found.get("agreement") or {}
    if agreement.get("members") and agreement.get("matrix"):
        figure = agreement_figure([str(name) for name in agreement["members"]], agreement["matrix"])
        scored = any("pearson" in one for one in members.values())
        caption = "Correlation of two members' scores" if scored else "Share of questions with the same answer"
        drawn.append(album.draw("agreement", caption, figure))
    return drawn


def _curves(names: Sequence[str], members: Mapping[str, Plain]) -> tuple[list[str], str]:
    """The members whose curves are drawn, always with the backbone, and words on which they are if not all."""
    if len(names) <= CURVES:
        return list(names), ""
    known = all(is_number(members[name].get("auroc")) for name in names)
    others = sorted(names, key=lambda name: (name != BACKBONE, -members[name]["auroc"] if known else 0))
    which = f", {'the backbone and ' if BACKBONE in names else ''}those with the highest AUROC" if known else ""
    return [name for name in names if name in others[:CURVES]], f". {CURVES} of {len(names)} members{which}"


def _errors(errors: Sequence[Plain], spans: bool) -> list[Block]:
    """Examples of errors, each in a fold. spans: answers are marked where they occur in the context."""
    folds = []
    for error in errors:
        gold = [str(text) for text in error.get("gold") or [] if text]
        answers = {str(name): str(text or "") for name, text in (error.get("answers") or {}).items()}
        right = f"Right: {' / '.join(dict.fromkeys(gold)) or 'no answer'}"
        blocks = notes(f"{error['why']}. {right}" if error.get("why") else right)
        if context := str(error.get("context") or ""):
            wrong = [text for text in answers.values() if text not in gold]
            blocks.append(Block("passage", marked_passage(context, gold, wrong) if spans else [(context, "")]))
        if answers:
            said = [Cell(text or "no answer") for text in answers.values()]
            blocks.append(Block("table", grid_of(("Member", words(answers)), ("Answer", said)), "Answers"))
        folds.append(Block("fold", blocks, str(error.get("question") or error.get("id") or "?")))
    return [Block("heading", "Examples of errors"), *(notes(TEXTS["errors"]) if spans else []), *folds] if folds else []
