"""What is scored at one checkpoint: the backbone with its own head, the heads of the bank, and their ensembles."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.heads import Head
from bertvision.tasks import Dataset, Spans
from bertvision.train.bank import HeadBank
from bertvision.train.finetune import Checkpoint
from bertvision.train.predict import Pass

BACKBONE = "backbone"
ENSEMBLE = "backbone + best head"  # one name over all seeds, whichever head is best


@dataclass(frozen=True, slots=True)
class Members:
    """Heads by name ("backbone" is the one it was tuned with), the training seconds each would have taken alone, and
    the parameters trained. dropped: why heads of the bank are not among them."""

    backbone: Backbone
    heads: dict[str, Head]
    seconds: dict[str, float]
    parameters: dict[str, int]
    dropped: dict[str, str]

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """The ensembles: the backbone with each head."""
        return {f"{BACKBONE} + {name}": (BACKBONE, name) for name in self.heads if name != BACKBONE}


def load_members(checkpoint: Checkpoint, bank_path: Path, task: Spans, name: str) -> Members:
    """The members of a checkpoint of the encoder `name`, loaded; bank_path: the bank trained on it, if there is one."""
    backbone, head, about = checkpoint.load(task, name)
    heads, seconds = {BACKBONE: head}, {BACKBONE: float(about["seconds"])}
    dropped: dict[str, str] = {}
    if bank_path.exists():
        bank, notes = HeadBank.load(bank_path)
        dropped = notes["stopped"]
        alive = {name: one for name, one in bank.items() if name not in dropped}
        heads |= alive
        seconds |= {name: notes["feed_seconds"] + notes["seconds"][name] for name in alive}
    parameters = {name: one.parameter_count() for name, one in heads.items()}
    parameters[BACKBONE] += sum(p.numel() for p in backbone.model.parameters() if p.requires_grad)
    if about["step"] == 0:
        parameters[BACKBONE] = 0  # the encoder as it came, and a head of random numbers: nothing was trained
    return Members(backbone, heads, seconds, parameters, dropped)


def score_rows(
    members: Members, found: Pass, task: Spans, dataset: Dataset, tuned: Mapping[str, float], best_pair: str = ""
) -> Iterator[dict[str, Any]]:
    """Rows of scores of a pass over `dataset`: every member at the thresholds its task reports.

    tuned: {member: the threshold chosen for it elsewhere}; a member without one is scored at zero alone.
    best_pair: the ensemble that goes by the name of ENSEMBLE; `parts` says what any of them consists of.
    """
    for name, predictions in found.predictions.items():
        parts = members.pairs.get(name, (name,))
        called = {"member": name, "role": BACKBONE if name == BACKBONE else "head"}
        if name in members.pairs:
            called = {"member": ENSEMBLE if name == best_pair else name, "role": "ensemble", "parts": name}
        for origin, threshold in task.thresholds(tuned.get(name, 0.0)):
            if origin == "tune" and name not in tuned:
                continue
            yield {
                **called,
                "threshold": threshold,
                "threshold_from": origin,
                **task.scores(predictions, dataset, threshold),
                "parameters": sum(members.parameters[part] for part in parts),
                "train_seconds": round(sum(members.seconds[part] for part in parts), 3),
                "infer_seconds": round(found.seconds[name], 3),
            }


def report_rows(
    members: Members, tune: Pass, test: Pass, task: Spans, data: Mapping[str, Dataset]
) -> Iterator[dict[str, Any]]:
    """The rows of a study: scored on test, with everything chosen on tune: thresholds, and which ensemble to report."""
    main = task.metrics[-1]
    tuned = {name: task.choose(found, data["tune"]) for name, found in tune.predictions.items()}
    on_tune = {n: task.scores(found, data["tune"], tuned[n])[main] for n, found in tune.predictions.items()}
    best_pair = max(members.pairs, key=on_tune.__getitem__, default="")
    reported = {n: found for n, found in test.predictions.items() if n == best_pair or n not in members.pairs}
    for row in score_rows(members, Pass(reported, test.seconds), task, data["test"], tuned, best_pair):
        yield row | {f"tune_{main}": on_tune[row.get("parts", row["member"])]}
