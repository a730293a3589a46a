"""README.md of a reader: what it is, what it was trained on, how good it is, under which licences."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision import __version__
from bertvision.data.glue import PREFIX
from bertvision.serve.config import ReaderConfig, TaskConfig

PIPELINES = {"spans": "question-answering", "labels": "text-classification", "score": "sentence-similarity"}
PURPOSE = {
    "spans": "It finds the answer to a question in a text of any length, and says so where there is none.",
    "labels": "It puts a text, or a pair of texts, into one of these classes: {labels}.",
    "score": "It gives a text, or a pair of texts, a score from {low:g} to {high:g}.",
}
USE = {
    "spans": 'reader(question="Who wrote it?", context="Ada Lovelace wrote it in 1843.")',
    "labels": 'reader.classify("A text to be classified.")',
    "score": 'reader.similarity("A plane is taking off.", "An aeroplane takes off.")',
}
LICENCES = {"minilm": "apache-2.0", "marco": "apache-2.0"}  # of backbones by name
DEEDS = {"cc-by-sa-4.0": "CC BY-SA 4.0", "cc-by-4.0": "CC BY 4.0"}


def write_card(name: str, config: ReaderConfig, row: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The model card. name: of the run; row: the scores of what was chosen; facts: the study's, with its data."""
    (task,) = config.tasks.values()
    sections = [
        _front_matter(config, task, facts),
        f"# {name}\n\n{_purpose(task)} Made with bertvision {__version__}.",
        f"## Use\n\n```python\nfrom bertvision import Reader\n\n"
        f'reader = Reader.from_pretrained("path/to/this/directory")\n{USE[task.task]}\n```',
        f"## What it is\n\n{_anatomy(config, task, row)}",
        f"## Data\n\n{_data(facts)}",
        f"## Scores\n\n{_scores(row, facts)}",
        f"## Licence\n\n{_licence(config, facts)}",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(config: ReaderConfig, task: TaskConfig, facts: Mapping[str, Any]) -> str:
    base = [] if Path(config.backbone).is_absolute() else [f"base_model: {config.backbone}"]
    licence = next(iter(_data_licences(facts).values()), LICENCES.get(config.backbone, "other"))
    lines = ["library_name: bertvision", f"pipeline_tag: {PIPELINES[task.task]}", *base, f"license: {licence}"]
    return "\n".join(["---", *lines, "---"])


def _purpose(task: TaskConfig) -> str:
    low, high = task.scale
    return PURPOSE[task.task].format(labels=", ".join(task.labels), low=low, high=high)


def _anatomy(config: ReaderConfig, task: TaskConfig, row: Mapping[str, Any]) -> str:
    encoder = Path(config.backbone).name
    tuned = ", ".join(f"{key} = {value}" for key, value in config.tuning.items()) or "not tuned"
    heads = f"the {task.ensemble.how} of " if len(task.heads) > 1 else ""
    lines = [
        f"- backbone: {encoder} (fingerprint {config.fingerprint[:12]}), {tuned}",
        f"- heads: {heads}{' and '.join(task.heads)}",
        f"- checkpoint {row['checkpoint']:g}, seed {row['seed']}",
        f"- windows of {task.windows.max_length} tokens"
        + (f" that share {task.windows.overlap}" if task.windows.too_long == "windows" else ""),
    ]
    if task.task == "spans":
        lines.append(
            f"- threshold {task.threshold:.4g} on null score minus best span score, {task.decoding.rule} decoding"
        )
    if "threshold_data" in row:
        lines.append(f"- the threshold is the best on {row['threshold_data']} (F1 {row['threshold_score']:.2f} there)")
    if "parameters" in row:
        lines.append(f"- {row['parameters']:,} parameters trained")
    return "\n".join(lines)


def _data(facts: Mapping[str, Any]) -> str:
    lines = []
    for split, about in (facts.get("data") or {}).items():
        size = f", {about['questions']:,} examples" if "questions" in about else ""
        synthetic = " (**synthetic**: made by a program, not by people)" if about.get("synthetic") else ""
        lines.append(f"- {split}: {about.get('source', 'not recorded')}{size}{synthetic}")
    return "\n".join(lines) or "Not recorded."


def _scores(row: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    main = next((key.removeprefix("tune_") for key in row if key.startswith("tune_")), "")
    if not main:
        return "Not scored as it is."
    shown = [key for key in (*METRICS, main) if key in row]
    lines = [f"| {key} | {row[key]:.2f} |" for key in dict.fromkeys(shown)]
    note = "Synthetic data: these numbers say nothing about real questions. " if _is_synthetic(facts) else ""
    at = f" at the threshold {row['threshold']:.4g}" if "threshold_data" in row else ""
    chosen = f"{note}Chosen on the tune set ({main} {row[f'tune_{main}']:.2f} there), scored on the test set{at}."
    return "\n".join([chosen, "", "| metric (%) | test |", "|---|---|", *lines])


METRICS = ("exact", "f1", "HasAns_f1", "NoAns_f1", "accuracy", "matthews", "pearson", "spearman")


def _is_synthetic(facts: Mapping[str, Any]) -> bool:
    return any(about.get("synthetic") for about in (facts.get("data") or {}).values())


def _sources(facts: Mapping[str, Any]) -> str:
    return " ".join(str(about.get("source", "")) for about in (facts.get("data") or {}).values()).lower()


def _data_licences(facts: Mapping[str, Any]) -> dict[str, str]:
    """{data set: the licence of its text}, the strictest first: what is trained on it is to be used under that."""
    named = set(re.findall(r"squad(?:shifts)?", _sources(facts)))
    known = {"SQuAD": ("squad", "cc-by-sa-4.0"), "SQuADShifts": ("squadshifts", "cc-by-4.0")}
    return {name: licence for name, (word, licence) in known.items() if word in named}


def _licence(config: ReaderConfig, facts: Mapping[str, Any]) -> str:
    known = LICENCES.get(config.backbone)
    lines = [
        f"- backbone: {known}" if known else "- backbone: its own licence holds for what was made from its weights"
    ]
    sources = _sources(facts)
    lines += [f"- {name}: {DEEDS[licence]}" for name, licence in _data_licences(facts).items()]
    if PREFIX in sources:
        lines.append("- GLUE: every task under the licence of its own authors")
    if "sample:" in sources:
        lines.append("- sample set: Apache-2.0, as bertvision")
    return "\n".join(lines)


FRONT = re.compile(r"\A---\n.*?^---$", re.DOTALL | re.MULTILINE)
LICENCE = re.compile(r"^license: (.+)$", re.MULTILINE)
HEADING = re.compile(r"^(?=#)", re.MULTILINE)


def join_cards(cards: Mapping[str, str]) -> str:
    """One card of several, {name of a task: a reader's card}: all that they say, each under its task."""
    found = {name: FRONT.sub("", card).strip() for name, card in cards.items()}
    licences = sorted({licence for card in cards.values() for licence in LICENCE.findall(card)})
    front = ["library_name: bertvision", *(f"license: {one}" for one in licences if len(licences) == 1)]
    if len(licences) > 1:
        front += ["license: other", f"license_name: {' and '.join(licences)}"]
    parts = [f"# {name}\n\n{HEADING.sub('#', text)}" for name, text in found.items()]
    return "\n".join(["---", *front, "---\n\n"]) + "\n\n".join(parts) + "\n"
