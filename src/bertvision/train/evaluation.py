"""Scores outside a study: of a finished run's members on any data, or of a file of predictions."""

from pathlib import Path
from typing import Any

from bertvision.data.source import load_articles
from bertvision.errors import UserError, nearest
from bertvision.evaluate.squad import score
from bertvision.files import read_json
from bertvision.train.finetune import checkpoint_epochs
from bertvision.train.predict import predict
from bertvision.train.study import Study


def score_file(path: Path, source: str, no_answer_scores: Path | None = None) -> dict[str, float]:
    """Official scores of predictions {question id: answer} (or of a member's file in a run) on a SQuAD file."""
    if not source:
        raise UserError("--data: name the SQuAD file that the predictions belong to")
    predictions = read_json(path, "predictions file")
    if not isinstance(predictions, dict):
        raise UserError(f"{path}: not an object of question ids and answers")
    texts = {key: value.get("answer") if isinstance(value, dict) else value for key, value in predictions.items()}
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise UserError(f"{path}: the answer of {wrong[0]!r} is not a string")
    doubts = read_json(no_answer_scores, "file of no-answer scores") if no_answer_scores else None
    return score(load_articles(source), texts, doubts)


def score_run(
    directory: Path, *, data: str, checkpoint: float | None, seed: int | None, member: str, quiet: bool = False
) -> list[dict[str, Any]]:
    """Rows like those of metrics.json for the members of one checkpoint, on `data` or on the run's own test set.

    The tuned thresholds are those the study chose on its tune set.
    """
    study = Study.open(directory, quiet=quiet)
    epochs = checkpoint_epochs(study.recipe.finetune)
    seed = study.recipe.seeds[0] if seed is None else seed
    epoch = epochs[-1] if checkpoint is None else checkpoint
    if seed not in study.recipe.seeds or epoch not in epochs:
        raise UserError(f"{directory}: has seeds {list(study.recipe.seeds)} and checkpoints {epochs}")
    tuned = {row["member"]: row["threshold"] for row in study.rows() if _is(row, seed, epoch)}
    loaded = study.members(seed, epoch)
    if member and member not in loaded.heads:
        raise UserError(f"--member {member}: {nearest(member, loaded.heads)}")
    chosen = {member: loaded.heads[member]} if member else loaded.heads
    if data:
        articles = load_articles(data)
        dataset = study.task.dataset(data, articles, loaded.backbone.tokenizer, study.recipe.data)
    else:
        dataset = study.data["test"]
    found = predict(loaded.backbone, chosen, study.task, dataset, study.recipe.evaluate, study.journal, stage="scoring")
    return [
        {
            "seed": seed,
            "checkpoint": epoch,
            "member": name,
            "role": "backbone" if name == "backbone" else "head",
            "threshold": threshold,
            "threshold_from": origin,
            **study.task.scores(predictions, dataset, threshold),
            "parameters": loaded.parameters[name],
            "train_seconds": round(loaded.seconds[name], 3),
            "infer_seconds": round(found.seconds[name], 3),
        }
        for name, predictions in found.predictions.items()
        for origin, threshold in study.task.thresholds(tuned.get(name, 0.0))
        if origin == "zero" or name in tuned
    ]


def _is(row: dict[str, Any], seed: int, epoch: float) -> bool:
    return row["seed"] == seed and row["checkpoint"] == epoch and row["threshold_from"] == "tune"
