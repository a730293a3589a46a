"""Scores outside a study: of a finished run's members on any data, or of a file of predictions."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertvision.data import glue
from bertvision.data.sources import load_articles
from bertvision.errors import UserError, nearest
from bertvision.evaluate.squad import score
from bertvision.files import read_json, write_text
from bertvision.tasks import Dataset
from bertvision.tasks.decode import RULES
from bertvision.train.members import BACKBONE, ENSEMBLE, Members, score_rows
from bertvision.train.predict import Pass, predict
from bertvision.train.progress import Journal
from bertvision.train.study import Study


def score_file(path: Path, source: str, no_answer_scores: Path | None = None) -> dict[str, float]:
    """Official scores of predictions {question id: answer} (or of a member's file in a run) on a SQuAD file."""
    if not path.exists():
        raise UserError(f"{path}: no such run and no such predictions file")
    if not source:
        raise UserError("--data: name the SQuAD file that the predictions belong to")
    predictions = _object(path, "predictions file")
    texts: dict[str, str] = {}
    for key, value in predictions.items():
        text = value.get("answer") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise UserError(f"{path}: the answer of {key!r} is not a string")
        texts[key] = text
    doubts = None
    if no_answer_scores is not None:
        doubts = _object(no_answer_scores, "file of no-answer scores")
        for key, doubt in doubts.items():
            if not isinstance(doubt, int | float) or isinstance(doubt, bool) or not math.isfinite(doubt):
                raise UserError(f"{no_answer_scores}: the score of {key!r} is not a number")
    return score(load_articles(source), texts, doubts)


def score_run(
    directory: Path,
    *,
    data: str = "",
    checkpoint: float | None = None,
    seed: int | None = None,
    member: str = "",
    decoding: str = "",
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Rows like those of metrics.json for the members of one checkpoint, on `data` or on the run's own test set.

    The tuned thresholds, and which ensemble is scored, are those the study chose on its tune set. Nothing is written,
    and of the data only those scored need to be there. decoding: another rule than the recipe's ("joint" or
    "independent"); thresholds tuned under the recipe's do not fit it and are left out.
    """
    study, seed, epoch = _cell(directory, checkpoint, seed, quiet)
    rule: Any = decoding or study.recipe.evaluate.decoding
    if rule not in RULES:
        raise UserError(f"--decoding {rule}: {nearest(rule, RULES)}")
    chosen = _chosen(study, seed, epoch)
    best_pair = next((row["parts"] for row in chosen if row["member"] == ENSEMBLE), "")
    members = study.members(seed, epoch)
    dataset = _dataset(study, members, data or study.recipe.data.test)
    shown = _predict(study, members, dataset, _wanted(members, member, best_pair), rule, quiet)
    fits = rule == study.recipe.evaluate.decoding
    tuned = {row.get("parts", row["member"]): row["threshold"] for row in chosen if fits}
    rows = score_rows(members, shown, study.task, dataset, tuned, best_pair)
    return [{"seed": seed, "checkpoint": epoch, **row} for row in rows]


def submit_run(
    directory: Path,
    out: Path,
    *,
    data: str,
    checkpoint: float | None = None,
    seed: int | None = None,
    member: str = "",
    quiet: bool = False,
) -> tuple[Path, str]:
    """Writes one member's predictions for a test set, `glue:TASK/SPLIT`, as GLUE takes them; the file, and the member.

    The member is the one asked for, or the best on the study's tune set.
    """
    if not data.startswith(glue.PREFIX):
        raise UserError(f"--data {data or 'is missing'}: name what to predict, such as glue:RTE/test")
    found, name = _best(
        directory,
        data,
        checkpoint,
        seed,
        member,
        quiet,
        lambda dataset: glue.check_submission(data, len(dataset.records)),
    )
    return glue.write_submission(out, data, found.values()), name


def predict_run(
    directory: Path,
    out: Path,
    *,
    data: str,
    checkpoint: float | None = None,
    seed: int | None = None,
    member: str = "",
    quiet: bool = False,
) -> tuple[Path, str]:
    """Writes one member's predictions for `data`, which needs no labels, as JSON lines; the file, and the member.

    One line per row, in its order: what the predictions of the task say of one, and its `id`. The member is the one
    asked for, or the best on the study's tune set.
    """
    if not data:
        raise UserError("--data is missing: name what to predict, such as new.csv")
    found, name = _best(directory, data, checkpoint, seed, member, quiet)
    lines = [json.dumps({"id": key, **one}, ensure_ascii=False) for key, one in found.to_json().items()]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, "\n".join(lines) + "\n")
    return out, name


def _best(
    directory: Path,
    data: str,
    checkpoint: float | None,
    seed: int | None,
    member: str,
    quiet: bool,
    check: Callable[[Dataset], None] = lambda dataset: None,
) -> tuple[Any, str]:
    """Predictions for `data` of the member asked for, or of the best on the study's tune set; and its name.

    check: may refuse the data before they are predicted.
    """
    study, seed, epoch = _cell(directory, checkpoint, seed, quiet)
    main = f"tune_{study.task.metrics[-1]}"
    best = max(_chosen(study, seed, epoch), key=lambda row: row[main], default={"member": ""})
    members = study.members(seed, epoch)
    (name,) = _wanted(members, member or best.get("parts", best["member"]) or BACKBONE, best.get("parts", ""))
    dataset = _dataset(study, members, data, labelled=False)
    check(dataset)
    found = _predict(study, members, dataset, [name], study.recipe.evaluate.decoding, quiet)
    return found.predictions[name], name


def _dataset(study: Study, members: Members, source: str, labelled: bool = True) -> Dataset:
    """A source as the task of a study reads it; what is worth knowing about it is said."""
    dataset = study.task.dataset(source, members.backbone.tokenizer, study.recipe.data, labelled)
    for note in dataset.notes:
        study.journal.say(note)
    return dataset


def _cell(directory: Path, checkpoint: float | None, seed: int | None, quiet: bool) -> tuple[Study, int, float]:
    """A study with one of its seeds and checkpoints: the first and the last unless told otherwise."""
    study = Study.open(directory, quiet=quiet)
    if study.recipe.variants:
        raise UserError(f"{directory}: holds one study per variant; name the directory of one of them")
    seed = study.recipe.seeds[0] if seed is None else seed
    epoch = study.epochs[-1] if checkpoint is None else checkpoint
    if seed not in study.recipe.seeds or epoch not in study.epochs:
        raise UserError(f"{directory}: has seeds {list(study.recipe.seeds)} and checkpoints {study.epochs}")
    return study, seed, epoch


def _chosen(study: Study, seed: int, epoch: float) -> list[dict[str, Any]]:
    """The rows of one checkpoint at what was chosen on tune."""
    origin = study.task.thresholds(0.0)[-1][0]
    here = [row for row in study.rows() if row["seed"] == seed and row["checkpoint"] == epoch]
    return [row for row in here if row["threshold_from"] == origin]


def _predict(study: Study, members: Members, dataset: Dataset, wanted: Sequence[str], rule: Any, quiet: bool) -> Pass:
    """A pass for the wanted heads and pairs alone."""
    pairs = {name: joined for name, joined in members.pairs.items() if name in wanted}
    needed = {*wanted, *(part for joined in pairs.values() for part in joined.parts)}
    found = predict(
        members.backbone,
        {name: head for name, head in members.heads.items() if name in needed},
        study.task,
        dataset,
        dataclasses.replace(study.recipe.evaluate, decoding=rule),
        Journal(quiet=quiet),
        ensembles=pairs,
        stage="scoring",
    )
    if not any(name in found.predictions for name in wanted):
        raise UserError(f"--member {wanted[0]}: cannot be scored: {next(iter(found.dropped.values()))}")
    return Pass({name: found.predictions[name] for name in wanted if name in found.predictions}, found.seconds)


def _wanted(members: Members, member: str, best_pair: str) -> list[str]:
    """The heads and pairs to score: the one asked for, or all heads and the ensemble that the study reports."""
    names = {name: name for name in (*members.heads, *members.pairs)}
    names |= {ENSEMBLE: best_pair} if best_pair in members.pairs else {}
    if not member:
        return [*members.heads, *([best_pair] if best_pair in members.pairs else [])]
    if member not in names:
        raise UserError(f"--member {member}: {nearest(member, names)}")
    return [names[member]]


def _object(path: Path, what: str) -> dict[str, Any]:
    found = read_json(path, what)
    if not isinstance(found, dict):
        raise UserError(f"{path}: not an object with an entry per question id")
    return found
