"""Scores outside a study: of a finished run's members on any data, or of a file of predictions."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from bertvision.data.source import load_articles
from bertvision.errors import UserError, nearest
from bertvision.evaluate.decode import RULES
from bertvision.evaluate.squad import score
from bertvision.files import read_json
from bertvision.train.members import ENSEMBLE, Members, score_rows
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
    study = Study.open(directory, quiet=quiet)
    seed = study.recipe.seeds[0] if seed is None else seed
    epoch = study.epochs[-1] if checkpoint is None else checkpoint
    if seed not in study.recipe.seeds or epoch not in study.epochs:
        raise UserError(f"{directory}: has seeds {list(study.recipe.seeds)} and checkpoints {study.epochs}")
    rule: Any = decoding or study.recipe.evaluate.decoding
    if rule not in RULES:
        raise UserError(f"--decoding {rule}: {nearest(rule, RULES)}")
    chosen = [row for row in study.rows() if _is(row, seed, epoch)]
    best_pair = next((row["parts"] for row in chosen if row["member"] == ENSEMBLE), "")
    members = study.members(seed, epoch)
    wanted = _wanted(members, member, best_pair)
    needed = {part for name in wanted for part in members.pairs.get(name, (name,))}
    source = data or study.recipe.data.test
    dataset = study.task.dataset(source, load_articles(source), members.backbone.tokenizer, study.recipe.data)
    found = predict(
        members.backbone,
        {name: head for name, head in members.heads.items() if name in needed},
        study.task,
        dataset,
        dataclasses.replace(study.recipe.evaluate, decoding=rule),
        Journal(quiet=quiet),
        ensembles={name: pair for name, pair in members.pairs.items() if name in wanted},
        stage="scoring",
    )
    shown = Pass({name: found.predictions[name] for name in wanted}, found.seconds)
    fits = rule == study.recipe.evaluate.decoding
    tuned = {row.get("parts", row["member"]): row["threshold"] for row in chosen if fits}
    rows = score_rows(members, shown, study.task, dataset, tuned, best_pair)
    return [{"seed": seed, "checkpoint": epoch, **row} for row in rows]


def _wanted(members: Members, member: str, best_pair: str) -> list[str]:
    """The heads and pairs to score: the one asked for, or all heads and the ensemble that the study reports."""
    names = {name: name for name in (*members.heads, *members.pairs)} | ({ENSEMBLE: best_pair} if best_pair else {})
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


def _is(row: dict[str, Any], seed: int, epoch: float) -> bool:
    return row["seed"] == seed and row["checkpoint"] == epoch and row["threshold_from"] == "tune"
