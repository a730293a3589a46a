"""The analysis of a study (analysis.json) and its probes: tables for page and terminal, and sections of the page."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from bertvision.evaluate.ensemble import BACKBONE
from bertvision.report import TEXTS
from bertvision.report.figures import curve_figure, layer_figure, reliability_figure, type_figure
from bertvision.report.grid import Cell, Column, Grid, grid_of, mark_best, numbers, words
from bertvision.report.reading import Study
from bertvision.report.render import Album, Block, Picture, Section, notes, pictures
from bertvision.report.rows import Entry, Metric, is_number, main_metric, main_rows
from bertvision.train.bank import unique_names

Plain = Mapping[str, Any]
SCORED = ("accuracy", "pearson", "spearman")  # scores, shown in the tables of scores
CURVES = 6  # reliability curves that can be distinguished in one figure
ALONE, UP_TO = "the layer alone", "the layers up to it"
Scores = dict[int, float]  # by layer


def published_grid(members: Mapping[str, Plain], paper: Sequence[Entry]) -> Grid:
    """Numbers of the analysis that were published, one a line, ours beside them."""
    entries = {str(entry.get("member")): entry for entry in paper}
    lines = [
        (name, heading, numbers([_number(member, key)], form)[0], _published_cell(value, form))
        for name, member in members.items()
        for key, (_, heading, form, _) in TEXTS["analysis"].items()
        if is_number(value := entries.get(name, {}).get(key.replace(".", "_"))) and key not in SCORED
    ]
    return grid_of(
        ("Member", words(name for name, *_ in lines)),
        ("Number", words(heading for _, heading, *_ in lines)),
        ("Ours", [own for *_, own, _ in lines]),
        ("Paper", [value for *_, value in lines]),
    )


def number_grid(
    members: Mapping[str, Plain], short: bool = False, published: Mapping[str, Entry] | None = None
) -> Grid:
    """Members down, their numbers across. short: headings for the terminal. published: published numbers of members,
    shares in percent."""
    columns: list[Column] = [("Member", words(members))]
    paper_entries = [(published or {}).get(name, {}) for name in members]
    for key, (brief, heading, form, marked) in TEXTS["analysis"].items():
        cells = numbers((_number(member, key) for member in members.values()), form)
        columns.append((brief if short else heading, mark_best(cells) if marked else cells))
        cells = [_published_cell(entry.get(key.replace(".", "_")), form) for entry in paper_entries]
        columns.append((f"{brief if short else heading}, paper", cells))
    return grid_of(*columns)


def group_grids(members: Mapping[str, Plain]) -> dict[str, Grid]:
    """Title -> grid, for each way to group questions: members down, groups across."""
    grids = {}
    for key, title in TEXTS["analysis_groups"].items():
        groups: dict[str, dict[str, Plain]] = {}  # group -> member -> its numbers
        for name, member in members.items():
            for entry in member.get(key) or []:
                groups.setdefault(str(entry.get("group")), {})[name] = entry
        columns: list[Column] = [("Member", words(members))]
        for group, by_member in groups.items():
            count = next(iter(by_member.values())).get("questions")
            cells = numbers((by_member.get(name, {}).get("f1") for name in members), ".1f")
            columns.append((group if count is None else f"{group} ({count:,})", mark_best(cells)))
        if groups:
            grids[title] = grid_of(*columns)
    return grids


def agreement_grid(agreement: Plain) -> Grid:
    """How often two members give the same answer, or how their scores correlate. Members are numbered across."""
    names, matrix = agreement["members"], agreement["matrix"]
    member = ("Member", words(f"{number} {name}" for number, name in enumerate(names, 1)))
    return grid_of(member, *((str(n + 1), numbers((row[n] for row in matrix), ".0%")) for n in range(len(names))))


def analysis_sections(analysis: Plain, album: Album, paper: Sequence[Entry] = ()) -> list[Section]:
    """Layer weights of heads, and the analyses, with published numbers beside them."""
    members = {
        str(name): member for name, member in (analysis.get("members") or {}).items() if isinstance(member, Mapping)
    }
    checkpoint = [f"epoch {analysis['checkpoint']:g}"] if is_number(analysis.get("checkpoint")) else []
    checkpoint += [f"seed {analysis['seed']}"] if "seed" in analysis else []
    caption = f"Of {', '.join(checkpoint)}." if checkpoint else ""
    sections = []
    if weights := {name: member["layer_weights"] for name, member in members.items() if member.get("layer_weights")}:
        picture = album.draw("layers", "Weight of each layer in a head's input", layer_figure(weights))
        note = notes(f"{caption} Layer 0 is the output of the embeddings.".strip())
        sections.append(Section("Layer weights of the heads", [*pictures(picture), *note]))
    published = {
        str(entry.get("member")): entry for entry in paper if entry.get("checkpoint") == analysis.get("checkpoint")
    }
    grids = {"Right and wrong": number_grid(members, published=published)} | (grouped := group_grids(members))
    blocks = []
    for title, grid in grids.items():
        if len(grid.heading) > 1:
            blocks += [Block("heading", title), Block("table", grid, title)]
    blocks += [*(notes(TEXTS["groups"]) if grouped else []), *_confusion(members)]
    agreement = analysis.get("agreement") or {}
    if len(agreement.get("members") or []) > 1 and agreement.get("matrix"):
        scored = any("pearson" in member for member in members.values())
        title = "Correlation of two members' scores" if scored else "Share of questions with the same answer"
        blocks.append(Block("fold", [Block("table", agreement_grid(agreement), title)], title))
    blocks += pictures(*_by_type(members, published, album), *_reliability_pictures(members, album))
    blocks += _errors(analysis.get("errors") or [], spans=any("has_answer" in member for member in members.values()))
    return [*sections, Section("Analysis", [*(notes(caption) if caption else []), *blocks])] if blocks else sections


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


def _published_cell(value: Any, form: str) -> Cell:
    """A published number, shares in percent, with the decimals it was published with."""
    return Cell(f"{value:,} %" if form.endswith("%") else f"{value:,}", value) if is_number(value) else Cell()


def _number(member: Plain, key: str) -> Any:
    """A number of a member; a key with dots leads into the tables it holds."""
    value: Any = member
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _confusion(members: Mapping[str, Plain]) -> list[Block]:
    """Predicted against right labels, for tasks with classes: {"labels", "matrix"}, right ones down."""
    blocks = []
    for name, member in members.items():
        confusion = member.get("confusion") or {}
        if confusion.get("matrix"):
            labels = [str(label) for label in confusion.get("labels") or range(len(confusion["matrix"]))]
            columns = [
                (f"predicted {label}", numbers((line[number] for line in confusion["matrix"]), ",d"))
                for number, label in enumerate(labels)
            ]
            title, grid = f"Confusion matrix of {name}", grid_of(("Right label", words(labels)), *columns)
            blocks.append(Block("fold", [Block("table", grid, title)], title))
    return blocks


def _by_type(members: Mapping[str, Plain], published: Mapping[str, Entry], album: Album) -> list[Picture]:
    """Shares of right answers to questions with and without an answer."""
    keys = {"no_answer": "without an answer", "has_answer": "with an answer"}
    typed = {name: member for name, member in members.items() if all(is_number(member.get(key)) for key in keys)}
    if not typed:
        return []
    shares = {name: {label: 100 * member[key] for key, label in keys.items()} for name, member in typed.items()}
    paper_shares = {
        name: {label: published[name][key] for key, label in keys.items() if is_number(published[name].get(key))}
        for name in typed
        if name in published
    }
    return [album.draw("types", "Right answers by type of question, in percent", type_figure(shares, paper_shares))]


def _reliability_pictures(members: Mapping[str, Plain], album: Album) -> list[Picture]:
    drawn = []
    if curved := [name for name, member in members.items() if member.get("reliability")]:
        names, which = _members_drawn(curved, members)
        null = any("no_answer" in member for member in members.values())
        compared = "of “no answer” against the share of unanswerable questions" if null else "against the share of hits"
        caption = f"Reliability: predicted probability {compared}{which}"
        aurocs = {name: members[name].get("auroc") for name in names}
        labels = [f"{name} (AUROC {value:.3f})" if is_number(value) else name for name, value in aurocs.items()]
        curves = {label: members[name]["reliability"] for label, name in zip(labels, names)}
        drawn.append(album.draw("reliability", caption, reliability_figure(curves)))
    return drawn


def _members_drawn(names: Sequence[str], members: Mapping[str, Plain]) -> tuple[list[str], str]:
    """The members whose curves are drawn, always with the backbone, and words on which they are if not all."""
    if len(names) <= CURVES:
        return list(names), ""
    ranked = all(is_number(members[name].get("auroc")) for name in names)
    others = sorted(names, key=lambda name: (name != BACKBONE, -members[name]["auroc"] if ranked else 0))
    which = f", {'the backbone and ' if BACKBONE in names else ''}those with the highest AUROC" if ranked else ""
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
            cells = [Cell(text or "no answer") for text in answers.values()]
            blocks.append(Block("table", grid_of(("Member", words(answers)), ("Answer", cells)), "Answers"))
        folds.append(Block("fold", blocks, str(error.get("question") or error.get("id") or "?")))
    return [Block("heading", "Examples of errors"), *(notes(TEXTS["errors"]) if spans else []), *folds] if folds else []


def probe_blocks(study: Study, album: Album) -> list[Block]:
    """Scores of the `probe` heads of every checkpoint by layer, a figure each; nothing without such heads."""
    rows = [row for row in main_rows(study.rows) if row.role == "head"]
    if (metric := main_metric(rows)) is None:
        return []
    blocks: list[Block] = []
    for epoch in dict.fromkeys(row.epoch for row in rows):
        scored = [row for row in rows if row.epoch == epoch and metric.key in row.scores]
        if by_layer := _by_layer(study, {row.name: row.scores[metric.key].mean for row in scored}):
            blocks += _probe_checkpoint(by_layer, metric, epoch, album)
    return blocks


def _by_layer(study: Study, scores: dict[str, float]) -> dict[str, Scores]:
    entries = study.recipe.get("heads", [])
    by_kind: dict[str, Scores] = {}
    for name, entry in zip(unique_names(entries), entries):
        if entry.get("kind") == "probe" and name in scores:
            kind = UP_TO if entry.get("cumulative") else ALONE
            by_kind.setdefault(kind, {})[int(entry.get("layer", 0))] = scores[name]
    return {kind: dict(sorted(by_kind[kind].items())) for kind in (ALONE, UP_TO) if kind in by_kind}


def _probe_checkpoint(by_kind: dict[str, Scores], metric: Metric, epoch: float, album: Album) -> list[Block]:
    cumulative = by_kind.get(UP_TO, {})
    whole = len(cumulative) > 1 and list(cumulative) == list(range(len(cumulative)))  # differences need every layer
    expected = expected_layer(list(cumulative.values())) if whole else None
    grid = _layer_grid(by_kind, gains_of_layers(list(cumulative.values())) if whole else [], metric)
    text = f"Expected layer, weighted by what each layer adds to those below: {expected:.2f}." if expected else ""
    curves = {kind: list(scores.items()) for kind, scores in by_kind.items()}
    figure = curve_figure(curves, "layer (0: embedding output)", metric.label, marked=True, expected=expected)
    caption = f"{metric.label} of probes by layer at epoch {epoch:g}"
    picture = album.draw(f"probe {epoch:g}", caption, figure)
    return [Block("table", grid, caption), *notes(*([text] if text else [])), *pictures(picture)]


def _layer_grid(by_kind: dict[str, Scores], gains: list[float], metric: Metric) -> Grid:
    layers = sorted({layer for scores in by_kind.values() for layer in scores})
    form = f".{metric.digits}f"
    columns = [(f"{metric.label}, {kind}", numbers(map(scores.get, layers), form)) for kind, scores in by_kind.items()]
    added = [("Added by the layer", numbers(map(dict(enumerate(gains, 1)).get, layers), f"+{form}"))] if gains else []
    return grid_of(("Layer", numbers(layers, "d")), *columns, *added)


def gains_of_layers(scores: Sequence[float]) -> list[float]:
    """The gain of each layer from 1 on: the score of the layers 0 ... l minus that of 0 ... l - 1."""
    return [after - before for before, after in pairwise(scores)]


def expected_layer(scores: Sequence[float]) -> float | None:
    """The mean layer, weighted by what each adds: sum_l l gain_l / sum_l gain_l; None where they add nothing.

    scores: of probes that read the layers 0 ... l, for l = 0, 1, ... in order (edge probing, Tenney et al. 2019).
    """
    gains = gains_of_layers(scores)
    total = sum(gains)
    return sum(layer * gain for layer, gain in enumerate(gains, 1)) / total if total > 0 else None
