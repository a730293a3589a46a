"""README.md of a reader, the model card: what it is, its data, scores and licences."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template

from bertvision import __version__
from bertvision.data.sources import GLUE
from bertvision.serve.config import ReaderConfig

TEMPLATE = Path(__file__).parent / "templates" / "card.md"
BACKBONES = {"minilm": "apache-2.0", "marco": "apache-2.0"}  # licences of backbones by name
# Licences of the text of data sets, the strictest first: what is trained on it must be used under it.
TEXTS = {
    "SQuAD": ("cc-by-sa-4.0", "CC BY-SA 4.0", r"squad(?!shifts)"),
    "SQuADShifts": ("cc-by-4.0", "CC BY 4.0", "squadshifts"),
}
HUB = {  # what a source is on the hub: known by a pattern; all are English
    "rajpurkar/squad_v2": r"squad[_-]?v?2",
    "rajpurkar/squad": r"squad(1|\b(?!_v2|shifts))",
    "squadshifts": "squadshifts",
    "nyu-mll/glue": GLUE,
}
TYPES = {"exact": "exact_match", "matthews": "matthews_correlation", "pearson": "pearsonr", "spearman": "spearmanr"}
METRICS = ("exact", "f1", "HasAns_f1", "NoAns_f1", "accuracy", "matthews", "pearson", "spearman")
PIPELINES = {
    "answer": "question-answering",
    "classify": "text-classification",
    "similarity": "sentence-similarity",
    "entities": "token-classification",
}
FRONT = re.compile(r"\A---\n.*?^---$", re.DOTALL | re.MULTILINE)  # the YAML block of a card
LICENCE = re.compile(r"^license: (.+)$", re.MULTILINE)
HEADING = re.compile(r"^(?=#)", re.MULTILINE)
SPECIAL = re.compile(r"([\\`*_\[\]<>|#])")  # characters that mean something in Markdown or HTML


def write_card(name: str, config: ReaderConfig, row: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The model card. name: of the run; row: the scores of what was chosen; facts: the study's, with its data."""
    (task,) = config.tasks.values()
    data = facts.get("data") or {}
    sources = " ".join(str(about.get("source", "")) for about in data.values()).lower()
    texts = {name: text for name, text in TEXTS.items() if re.search(text[2], sources)}
    deeds = {name: deed for name, (_, deed, _) in texts.items()}
    deeds |= {"GLUE": "every task under the licence of its own authors"} if GLUE in sources else {}
    deeds |= {"sample set": "Apache-2.0, as bertvision"} if "sample:" in sources else {}
    backbone_licence = BACKBONES.get(config.backbone)
    main = next((key.removeprefix("tune_") for key in row if key.startswith("tune_")), "")
    metrics = [key for key in dict.fromkeys((*METRICS, main)) if key in row]
    learnt = _hub_names(str((data.get("train") or {}).get("source", "")))
    card = Template(TEMPLATE.read_text(encoding="utf-8")).render(
        base_model="" if Path(config.backbone).is_absolute() else config.backbone,
        licence=next((licence for licence, _, _ in texts.values()), backbone_licence or "other"),
        name=SPECIAL.sub(r"\\\1", " ".join(name.split())),
        version=__version__,
        config=config,
        encoder=Path(config.backbone).name,
        task=task,
        pipeline=PIPELINES[task.verb],
        row=row,
        data=data,
        synthetic=any(about.get("synthetic") for about in data.values()),
        main=main,
        metrics=metrics,
        title=" ".join(name.split()),
        datasets=learnt,
        language="en" if learnt or "sample:" in sources else "",
        # Scores before compression, or at another threshold, are not those of this reader.
        results=None
        if not main or row.get("compressed") or row.get("threshold_data")
        else _results(data, metrics, row),
        backbone_licence=backbone_licence,
        deeds=deeds,
    )
    return f"{card.rstrip()}\n"


def _hub_names(source: str) -> list[str]:
    """The data sets of the hub that a source is made of, as far as its name shows."""
    return [name for name, pattern in HUB.items() if re.search(pattern, source.lower())]


def _results(data: Mapping[str, Any], metrics: Sequence[str], row: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of `model-index`: the test set and the scores on it."""
    source = str((data.get("test") or {}).get("source", "")) or "test set"
    values = [
        {
            "type": TYPES.get(key, key.lower().removeprefix("hasans_").removeprefix("noans_")),
            "name": key,
            "value": row[key],
        }
        for key in metrics
    ]
    return {"type": next(iter(_hub_names(source)), "custom"), "name": source, "metrics": values}


def join_cards(cards: Mapping[str, str]) -> str:
    """One card of several, {name of a task: a reader's card}: the text of each under its task."""
    bodies = {name: FRONT.sub("", card).strip() for name, card in cards.items()}
    licences = sorted({licence for card in cards.values() for licence in LICENCE.findall(card)})
    front = {"library_name": "bertvision"} | ({"license": licences[0]} if len(licences) == 1 else {})
    if len(licences) > 1:
        front |= {"license": "other", "license_name": " and ".join(licences)}
    parts = [f"# {name}\n\n{HEADING.sub('#', text)}" for name, text in bodies.items()]
    lines = [f"{key}: {value}" for key, value in front.items()]
    return "\n".join(["---", *lines, "---\n\n"]) + "\n\n".join(parts) + "\n"
