"""The page at the end of `fit`: what was tried, the score on test, mistakes worth reading, size and speed."""

from pathlib import Path
from typing import Any

from bertvision.auto.look import Looked
from bertvision.backbone.loading import tokenizer_of
from bertvision.evaluate.bootstrap import score_interval
from bertvision.evaluate.score import Score
from bertvision.report.analysis import analysis_sections
from bertvision.report.grid import grid_of, mark_best, numbers, words
from bertvision.report.render import Album, Block, Report, Section, notes, write_files
from bertvision.tasks.base import Judged
from bertvision.train.progress import duration
from bertvision.train.run_dir import RunDir
from bertvision.train.run_results import task_of


def summarise(
    directory: Path, run: RunDir, reported: tuple[Score, Any], looked: Looked, facts: dict[str, Any]
) -> tuple[float, float]:
    """Writes report.html; the 95 % interval of the main metric. reported: the row on test, and predictions of it."""
    task, recipe, (score, predictions) = task_of(run), run.recipe(), reported
    dataset = task.dataset(recipe.data.test, tokenizer_of(recipe.backbone.name), recipe.data)
    points = task.points(predictions, dataset, score.threshold)
    low, high = score_interval(points, score.main)
    analysis = task.analyse(dataset, {score.ensemble.parts: Judged(predictions, score.threshold, True)})
    analysis.pop("agreement", None)  # of one member with itself
    value, count = score.metrics[score.main], len(dataset.records)
    sentences = [
        f"{score.main} {value:.2f} on {count:,} examples of test (95 % of a bootstrap: {low:.2f} to {high:.2f}).",
        f"The model is {score.ensemble.parts} of step {facts['best']}, the best on tune ({score.tune:.2f}).",
    ]
    if facts.get("final"):
        sentences.append("After it was chosen, it learnt once more, from train and tune together.")
    constant = task.constant(dataset)
    if score.main in constant:
        sentences.append(f"Always saying “{constant['says']}” has {constant[score.main]:.2f}.")
    model = directory / "model"
    size = sum(path.stat().st_size for path in model.glob("*"))
    about: dict[str, Any] = {"speed": f"{score.cost.ms_per_question or 0.0:.1f} ms per example on this machine"}
    about |= {"files": f"{size / 2**20:.1f} MB beside the encoder {recipe.backbone.name}"}
    about |= {"parameters": score.cost.total_parameters, "sets": looked.sizes, "task": looked.task}
    sections = [
        Section("What was tried", [_tried(facts, score.main), *notes("Each step is a study in steps/.")]),
        Section("The model", [Block("facts", about), _use(model, looked)]),
        *analysis_sections(analysis, Album()),
        Section("The data", notes(*looked.notes)),
        Section("Again", [Block("code", f"bertvision study {directory / 'recipe.toml'} --out {directory / 'again'}")]),
    ]
    write_files(Report(f"fit: {directory.name}", [], sentences, sections), directory)
    return low, high


def _tried(facts: dict[str, Any], metric: str) -> Block:
    """The steps with their scores, in the order in which they were taken."""
    steps: dict[str, dict[str, Any]] = facts["steps"]
    rows = [step["score"] for step in steps.values()]
    grid = grid_of(
        ("Step", words(steps)),
        ("What", words(step["words"] for step in steps.values())),
        ("Best on tune", words(row.get("parts", row["member"]) for row in rows)),
        (f"{metric}, tune", mark_best(numbers((step["tune"] for step in steps.values()), ".2f"))),
        (f"{metric}, test", numbers((row[metric] for row in rows), ".2f")),
        ("Time", words(duration(step["seconds"]) for step in steps.values())),
    )
    return Block("table", grid, "Steps")


def _use(model: Path, looked: Looked) -> Block:
    """Commands that use the model."""
    task, texts = looked.task, "first, second" if len(looked.data.get("text", ())) == 2 else "texts"
    lines = [f'bertvision ask "Who …?" FILE --reader {model}'] if task == "spans" else []
    call = {
        "spans": '(question="Who …?", context="…")',
        "labels": f".classify({texts})",
        "score": f".similarity({texts})",
        "tokens": ".entities(texts)",
    }
    lines += [f"bertvision serve {model}", "", "from bertvision import Reader"]
    return Block("code", "\n".join([*lines, f'Reader.from_pretrained("{model}"){call[task]}']))
