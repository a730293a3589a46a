"""What is scored at one checkpoint: the backbone with its own head, the heads of the bank, and their ensembles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision.backbone.backbone import Backbone
from bertvision.evaluate.ensemble import How
from bertvision.heads import Head
from bertvision.tasks import Dataset, Task
from bertvision.train.bank import HeadBank
from bertvision.train.finetune import Checkpoint
from bertvision.train.predict import BACKBONE, Joined, Pass

ENSEMBLE = "backbone + best head"  # one name over all seeds, whichever head is best
WEIGHT_BYTES = 4  # heads are kept in fp32


@dataclass(frozen=True, slots=True)
class Cost:
    """What a member took: its seconds of training alone, states included, and the parameters trained for it.

    about: what else tells it from others: `fraction`, the share of the training set it saw; `head_epochs`, after how
    many epochs of its training it was taken, where that was not the last.
    """

    seconds: float
    parameters: int
    about: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Members:
    """Heads by name ("backbone" is the one it was tuned with), and what each cost beside the tuning.

    tuning: the cost of the backbone with its own head. total: parameters of the encoder, trained or not. disk: bytes of
    what tuning changed of it. dropped: why heads of the bank are not among them. hows: the ways members are joined.
    """

    backbone: Backbone
    heads: dict[str, Head]
    costs: dict[str, Cost]
    tuning: Cost
    total: int
    disk: int
    dropped: dict[str, str]
    hows: tuple[How, ...] = ("max",)

    @property
    def pairs(self) -> dict[str, Joined]:
        """The ensembles: the backbone with each head, as it was in the end, joined in each of the ways.

        Heads that saw a share of the training set are for the curve over shares, and join nobody.
        """
        whole = [name for name in self.heads if name != BACKBONE and not self.costs[name].about]
        return {
            f"{BACKBONE} + {name}{'' if how == 'max' else f', {how}'}": Joined((BACKBONE, name), how)
            for how in self.hows
            for name in whole
        }

    def without(self, dropped: Mapping[str, str]) -> "Members":
        """The same but for members that were dropped: {name: why}."""
        heads = {name: head for name, head in self.heads.items() if name not in dropped}
        return replace(self, heads=heads, dropped={**self.dropped, **dropped})

    def price(self, parts: Sequence[str]) -> dict[str, Any]:
        """The columns of a row that say what a member, or an ensemble of `parts`, takes.

        parameters: those trained. Heads learn on a tuned backbone: its tuning is part of what they take.
        """
        head_seconds = sum(self.costs[part].seconds for part in parts)
        read = sum(self.heads[part].parameter_count() for part in parts)
        return {
            "parameters": sum(self.costs[part].parameters for part in parts),
            "total_parameters": self.total + read,
            "tuning_seconds": round(self.tuning.seconds, 3),
            "head_seconds": round(head_seconds, 3),
            "train_seconds": round(self.tuning.seconds + head_seconds, 3),
            "disk_bytes": self.disk + WEIGHT_BYTES * read,
        }


def load_members(
    checkpoint: Checkpoint, bank_path: Path, task: Task, name: str, hows: Sequence[How] = ("max",)
) -> Members:
    """The members of a checkpoint of the encoder `name`, loaded; bank_path: the bank trained on it, if there is one.

    Beside it, `heads-E@K.safetensors` is the same bank after K epochs of its training.
    """
    backbone, head, about = checkpoint.load(task, name)
    moved = sum(p.numel() for p in backbone.model.parameters() if p.requires_grad)
    # At step 0 the encoder is as it came, with a head of random numbers: nothing was trained.
    tuning = Cost(float(about["seconds"]), moved + head.parameter_count() if about["step"] else 0)
    heads, costs = {BACKBONE: head}, {BACKBONE: Cost(0.0, tuning.parameters)}
    dropped: dict[str, str] = {}
    for path in [bank_path, *sorted(bank_path.parent.glob(f"{bank_path.stem}@*.safetensors"), key=_epochs)]:
        if not path.exists():
            continue
        bank, notes = HeadBank.load(path)
        early = {} if path == bank_path else {"head_epochs": _epochs(path)}
        dropped |= {} if early else notes["stopped"]
        for (called, one), entry in zip(bank.items(), bank.entries):
            if called not in notes["stopped"]:
                full = f"{called}, epoch {early['head_epochs']:g}" if early else called
                share = {"fraction": float(entry["fraction"])} if "fraction" in entry else {}
                heads[full] = one
                seconds = notes["feed_seconds"] + notes["seconds"][called]
                costs[full] = Cost(seconds, one.parameter_count(), early | share)
    total = sum(p.numel() for p in backbone.model.parameters())
    disk = (checkpoint.directory / "backbone.safetensors").stat().st_size
    return Members(backbone, heads, costs, tuning, total, disk, dropped, tuple(hows))


def _epochs(path: Path) -> float:
    """K of heads-E@K.safetensors."""
    return float(path.stem.partition("@")[2])


def score_rows(
    members: Members, found: Pass, task: Task, dataset: Dataset, tuned: Mapping[str, float], best_pair: str = ""
) -> Iterator[dict[str, Any]]:
    """Rows of scores of a pass over `dataset`: every member at the thresholds its task reports.

    tuned: {member: the threshold chosen for it elsewhere}; a member without one is scored at zero alone.
    best_pair: the ensemble that goes by the name of ENSEMBLE; `parts` says what any of them consists of.
    """
    for name, predictions in found.predictions.items():
        parts: tuple[str, ...] = (name,)
        called: dict[str, Any] = {"member": name, "role": BACKBONE if name == BACKBONE else "head"}
        if name in members.pairs:
            parts, how = members.pairs[name]
            shown = ENSEMBLE if name == best_pair else name
            called = {"member": shown, "role": "ensemble", "parts": name, "how": how}
        called |= members.costs[parts[-1]].about
        for origin, threshold in task.thresholds(tuned.get(name, 0.0)):
            if origin == "tune" and name not in tuned:
                continue
            yield {
                **called,
                "threshold": threshold,
                "threshold_from": origin,
                **task.scores(predictions, dataset, threshold),
                **members.price(parts),
                "infer_seconds": round(found.seconds[name], 3),
                "ms_per_question": round(1000 * found.seconds[name] / max(len(dataset.records), 1), 4),
            }


def report_rows(
    members: Members, passes: Mapping[str, Pass], task: Task, data: Mapping[str, Dataset]
) -> Iterator[dict[str, Any]]:
    """The rows of a study: scored on test, with everything chosen on tune: thresholds, and which ensemble to report.

    members: those that went through all passes.
    passes: over `tune`, `test` and, where there is a second set to report, `also`; its metrics are called `also_...`.
    """
    main, tune, test = task.metrics[-1], passes["tune"], passes["test"]
    tuned = {name: task.choose(found, data["tune"]) for name, found in tune.predictions.items()}
    on_tune = {n: task.scores(found, data["tune"], tuned[n])[main] for n, found in tune.predictions.items()}
    best_pair = max(members.pairs, key=on_tune.__getitem__, default="")
    reported = {n: test.predictions[n] for n in (*members.heads, best_pair) if n}
    for row in score_rows(members, Pass(reported, test.seconds), task, data["test"], tuned, best_pair):
        name, more = row.get("parts", row["member"]), {}
        if "also" in passes:
            scores = task.scores(passes["also"].predictions[name], data["also"], row["threshold"])
            more = {f"also_{metric}": scores[metric] for metric in task.metrics}
        yield row | {f"tune_{main}": on_tune[name]} | more
