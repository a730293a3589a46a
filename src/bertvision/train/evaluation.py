"""Scores outside a study: of a run's members on any data, or of a file of predictions."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.data import glue
from bertvision.data.sources import load_articles
from bertvision.errors import UserError, nearest
from bertvision.evaluate.ensemble import Ensemble
from bertvision.evaluate.score import Score
from bertvision.evaluate.squad import score
from bertvision.files import read_json, write_text
from bertvision.runtime import is_main
from bertvision.tasks import Dataset
from bertvision.tasks.decode import RULES
from bertvision.train.progress import Journal
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import load_members, runtime_of, task_of
from bertvision.train.scoring import Pass, Setting, predict, score_rows


def score_file(path: Path, source: str, no_answer_scores: Path | None = None) -> dict[str, float]:
    """Official scores of predictions {question id: answer} (or of a member's file in a run) on a SQuAD file."""
    if not path.exists():
        raise UserError(f"{path}: no such run and no such predictions file")
    if not source:
        raise UserError("--data: name the SQuAD file that the predictions belong to")
    texts: dict[str, str] = {}
    for key, value in _object(path, "predictions file").items():
        text = value.get("answer") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise UserError(f"{path}: the answer of {key!r} is not a string")
        texts[key] = text
    null_scores = None
    if no_answer_scores is not None:
        null_scores = _object(no_answer_scores, "file of no-answer scores")
        for key, null_score in null_scores.items():
            if not isinstance(null_score, int | float) or isinstance(null_score, bool) or not math.isfinite(null_score):
                raise UserError(f"{no_answer_scores}: the score of {key!r} is not a number")
    return score(load_articles(source), texts, null_scores)


def score_run(
    directory: Path,
    *,
    data: str = "",
    checkpoint: float | None = None,
    seed: int | None = None,
    member: str = "",
    decoding: str = "",
    device: str = "",
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Rows like those of metrics.json for the members of one checkpoint, on `data` or on the run's own test set.

    checkpoint, seed, member: the last, the first and all unless told. The tuned thresholds, and which pair is scored,
    are those the study chose on its tune set. Nothing is written. Of several processes the main one has the rows.
    decoding: another rule than the recipe's ("joint" or "independent"); thresholds tuned under the recipe's do not fit
    it and are left out. device: another than the recipe's.
    """
    run = _LoadedRun(directory, checkpoint, seed, quiet, device)
    rule: Any = decoding or run.recipe.evaluate.decoding
    if rule not in RULES:
        raise UserError(f"--decoding {rule}: {nearest(rule, RULES)}")
    dataset = run.dataset(data or run.recipe.data.test)
    result = run.predict(dataset, run.wanted(member), rule)
    fits = rule == run.recipe.evaluate.decoding
    tuned = {row.ensemble: row.threshold for row in run.chosen if fits}
    return [row.to_json() for row in score_rows(run.loaded.costs, result, run.task, dataset, tuned)]


def submit_run(directory: Path, out: Path, *, data: str, member: str = "", **wanted: Any) -> tuple[Path, str]:
    """Writes one member's predictions for a test set, `glue:TASK/SPLIT`, as GLUE takes them; the file, and the member.

    member: the best on tune unless told. wanted: `checkpoint`, `seed`, `device` and `quiet`, as in `score_run`.
    """
    if not data.startswith(glue.PREFIX):
        raise UserError(f"--data {data or 'is missing'}: name what to predict, such as glue:RTE/test")
    run = _LoadedRun(directory, **wanted)
    dataset = run.dataset(data, labelled=False)
    glue.check_submission(data, len(dataset.records))
    predictions, name = run.predict_best(dataset, member)
    if predictions is None:
        return out, name
    return glue.write_submission(out, data, predictions.values()), name


def predict_run(directory: Path, out: Path, *, data: str, member: str = "", **wanted: Any) -> tuple[Path, str]:
    """Writes one member's predictions for `data`, which needs no labels, as JSON lines; the file, and the member.

    One line per row, in its order: its `id` and what the task predicts. member, wanted: as in `submit_run`.
    """
    if not data:
        raise UserError("--data is missing: name what to predict, such as new.csv")
    run = _LoadedRun(directory, **wanted)
    predictions, name = run.predict_best(run.dataset(data, labelled=False), member)
    if predictions is None:
        return out, name
    rows = [{"id": key, **prediction} for key, prediction in predictions.to_json().items()]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, "\n".join(lines) + "\n")
    return out, name


class _LoadedRun:
    """One checkpoint of a run, loaded. chosen: its score rows at what was chosen on tune."""

    def __init__(
        self,
        directory: Path,
        checkpoint: float | None = None,
        seed: int | None = None,
        quiet: bool = False,
        device: str = "",
    ) -> None:
        run = RunDir.open(directory, variants=False)
        self.run = run
        self.recipe, self.task, self.journal = run.recipe(), task_of(run), Journal(quiet=quiet or not is_main())
        seed = self.recipe.seeds[0] if seed is None else seed
        epoch = run.epochs[-1] if checkpoint is None else checkpoint
        if seed not in self.recipe.seeds or epoch not in run.epochs:
            raise UserError(f"{directory}: has seeds {list(self.recipe.seeds)} and checkpoints {run.epochs}")
        if not run.checkpoint(seed, epoch).is_dir():
            raise UserError(f"{run.checkpoint(seed, epoch)}: no such checkpoint; `bertvision finetune` makes it")
        encoder = Backbone.load(self.recipe.backbone.name, runtime_of(run, device))
        self.loaded = load_members(run, self.task, seed, epoch, encoder)
        origin = self.task.thresholds(0.0)[-1][0]
        rows: list[Score] = run.rows((seed, epoch)) if (seed, epoch) in run.scored() else []
        self.chosen = [row for row in rows if row.threshold_from == origin]

    def dataset(self, source: str, labelled: bool = True) -> Dataset:
        """A source as the task reads it; its notes are shown."""
        dataset = self.task.dataset(source, self.loaded.backbone.tokenizer, self.recipe.data, labelled)
        for note in dataset.notes:
            self.journal.say(note)
        return dataset

    def wanted(self, member: str) -> list[Ensemble]:
        """The ensembles to score: the one asked for, or all members and the pair that the study reports."""
        best = [row.ensemble for row in self.chosen if row.ensemble.chosen == "best"]
        pairs = self.loaded.pairs(self.recipe.evaluate.ensembles)
        for gone in [one for ensemble in best for one in ensemble.members if one not in self.loaded.heads]:
            raise UserError(f"{self.run.seed(gone.seed)}: the head {gone.name!r} is gone; run the study again")
        if not member:
            return [*self.loaded.singles, *best]
        names = {ensemble.name: ensemble for ensemble in [*self.loaded.singles, *pairs]}
        names |= {name: ensemble for ensemble in best for name in (ensemble.parts, ensemble.name)}
        if member not in names:
            raise UserError(f"--member {member}: {nearest(member, names)}")
        return [names[member]]

    def predict(self, dataset: Dataset, ensembles: Sequence[Ensemble], rule: Any) -> Pass:
        setting = Setting(self.task, replace(self.recipe.evaluate, decoding=rule), self.journal)
        result = predict(self.loaded.backbone, self.loaded.heads, ensembles, dataset, setting, stage="scoring")
        if not result.predictions and is_main():
            why = next(iter(result.dropped.values()))
            raise UserError(f"--member {ensembles[0].parts}: cannot be scored: {why}")
        return result

    def predict_best(self, dataset: Dataset, member: str) -> tuple[Any, str]:
        """Predictions of the member asked for, or of the best on tune, None but in the main process; and its name."""
        best = max(self.chosen, key=lambda row: row.tune or 0.0, default=None)
        ensemble = best.ensemble if best else self.loaded.singles[0]
        if member:
            (ensemble,) = self.wanted(member)
        result = self.predict(dataset, [ensemble], self.recipe.evaluate.decoding)
        return result.predictions.get(ensemble), ensemble.parts


def _object(path: Path, what: str) -> dict[str, Any]:
    contents = read_json(path, what)
    if not isinstance(contents, dict):
        raise UserError(f"{path}: not an object with an entry per question id")
    return contents
