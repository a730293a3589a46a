"""Search: heads and their training varied by Optuna, a round of trials trained at once, judged on tune alone."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bertvision import toml
from bertvision.backbone.backbone import Backbone
from bertvision.backbone.states import spelt
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.files import fitting, read_json, remove, write_json, write_text
from bertvision.heads import build_head
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.feed import Feeds
from bertvision.train.finetune import head_shape
from bertvision.train.loop import Job, plan_batches
from bertvision.train.progress import Stage, planned_stages
from bertvision.train.scoring import Pass, Setting, predict
from bertvision.train.study import Study
from bertvision.train.trials import State, Trial, Trials

STATES = "states"  # of all rounds, where they are stored; removed in the end
Outcomes = dict[str, dict[str, Any]]  # by name of a trial, what `Trials.add` takes: state, score, losses, about


class Search:
    """A search for heads on the last checkpoint of a study's first seed, in the study's directory.

    directory/search/ search.json, optuna.jsonl (finished trials), round-K.json (what a round tries, and its losses on
    tune so far), trials.json, best.toml. The test set plays no part. Killed at any moment, it goes on where it was.

    trials: how many in all. size: of a round: that many heads share each pass of the backbone.
    """

    def __init__(self, study: Study, *, trials: int, size: int = 8) -> None:
        self.study, self.recipe, self.task, self.journal = study, study.recipe, study.task, study.journal
        self.wanted, self.size = trials, size
        self.directory = study.run_dir.search
        self.seed, self.epoch = self.recipe.seeds[0], study.run_dir.epochs[-1]
        if not self.recipe.heads:
            raise UserError("heads: there are none to vary; add [[heads]] with a kind to the recipe")
        if self.recipe.bank.along:
            raise UserError('bank.feed: a search trains its heads on a finished checkpoint; set it to "after"')
        self._feeds: dict[str, Feeds] = {}

    @property
    def metric(self) -> str:
        """The metric that is maximised, on tune."""
        return self.task.metrics[-1]

    @property
    def best(self) -> Path:
        """The recipe with the best heads."""
        return self.directory / "best.toml"

    def run(self, elsewhere: "Callable[[Round], Outcomes] | None" = None) -> list[dict[str, Any]]:
        """All trials that are not done yet; the rows of trials.json. elsewhere: has other processes do a round; the
        checkpoint is there then."""
        if self.study.runtime.world > 1:
            raise UserError("search: runs in one process; start it without torchrun")
        self.study.begin(elsewhere is not None)
        self._settle()
        self._plan()
        self.study.tune(self.seed)
        number = first = 0
        while (found := self._round(number, first)).trials:
            first = found.trials[-1].number + 1
            if found.trials[-1].number >= len(self.trials):
                self._note(found, elsewhere(found) if elsewhere else self._do(found, found.trials))
                self._write()
            found.bank.unlink(missing_ok=True)
            remove(found.parts)
            self._job(found).clear()
            number += 1
        remove(self.directory / STATES)
        return self.trials.rows(self.metric)

    def _round(self, number: int, first: int) -> "Round":
        """A round as it was begun, or a new one if there is to be another. first: its first trial."""
        path = self.directory / f"round-{number}.json"
        if path.is_file():
            return Round.read(path)
        if len(self.trials) > first:
            raise UserError(f"{path}: is gone; delete {self.directory} to search again")
        asked = self.trials.ask(min(self.size, self.wanted - len(self.trials)))
        if not asked and len(self.trials) < self.wanted:
            self.journal.note(f"search: after {len(self.trials)} trials there is nothing new left to try")
        found = Round(path, asked)
        if asked:
            found.bank.unlink(missing_ok=True)  # of a round whose file is gone
            found.write()
        return found

    def part(self, name: str, rank: int, world: int) -> Outcomes:
        """Does every `world`-th trial of a round that another process has begun, in a directory of its own."""
        begun, journal = self.directory / f"{name}.json", self.directory / "optuna.jsonl"
        self.directory = Round.read(begun).parts / f"{rank}-of-{world}"
        for file in (begun, journal):
            if not (self.directory / file.name).exists():
                write_text(self.directory / file.name, file.read_text(encoding="utf-8"))
        found = Round.read(self.directory / begun.name)
        return self._do(found, found.trials[rank::world])

    def _do(self, found: "Round", trials: Sequence[Trial]) -> Outcomes:
        """Trains and scores some trials of a round."""
        self._train(found, [trial.name for trial in trials])
        return self._score(found, trials)

    def _train(self, found: "Round", names: Sequence[str]) -> None:
        """Trains these heads of a round's bank, unless that is done."""
        if found.bank.exists():
            return
        data = self.study.data
        heads = HeadBank([trial.head for trial in found.trials], **head_shape(self.backbone, self.task), seed=self.seed)
        feeds = self._feeds_of(heads)
        windows = data["train"].windows
        last = len(plan_batches(windows, self.recipe.bank, self.seed, feeds.selection.lengths(windows)))

        def prune(step: int, losses: Mapping[str, float]) -> dict[str, str]:
            found.losses[step] = dict(losses)
            ended = step == last  # what is trained to its end is scored
            behind = [] if ended else [name for name in losses if self.trials.behind(found.losses_of(name, step))]
            why = f"worse on tune at step {step} than half of those completed before"
            found.pruned |= dict.fromkeys(behind, why)
            found.write()
            return {name: found.pruned[name] for name in behind}

        job = dataclasses.replace(self._job(found), identity=_digest(self.study.identity, heads.entries))
        train_bank(heads, feeds, self.task, data, job, prune=prune, only=names)

    def _job(self, found: "Round") -> Job:
        seconds, name = self.recipe.snapshot_seconds, found.name if found.trials else ""
        return Job(self.directory, found.path.stem, self.seed, self.study.identity, seconds, self.journal, name)

    def _score(self, found: "Round", trials: Sequence[Trial]) -> Outcomes:
        """Scores those of the trials that were trained to their end, in one pass over tune."""
        bank, notes = HeadBank.load(found.bank)
        dropped = dict(notes["stopped"])
        ended = [one.name for one in trials if one.name not in dropped and one.name not in found.pruned]
        tune = self.study.data["tune"]
        heads = {Member(name, self.seed, self.epoch): bank[name] for name in ended}
        setting = Setting(self.task, self.recipe.evaluate, self.journal)
        singles, passed = [*map(Ensemble.of, heads)], Pass({}, {})
        if heads:
            passed = predict(self.backbone, heads, singles, tune, setting, stage=f"scoring {found.name} on tune")
        dropped |= {one.head: why for one, why in passed.dropped.items()}
        predicted = {one.name: predictions for one, predictions in passed.predictions.items()}
        outcomes: Outcomes = {}
        for name in (trial.name for trial in trials):
            about: dict[str, Any] = {
                "why": dropped.get(name) or found.pruned.get(name, ""),
                "parameters": bank[name].parameter_count(),
                "seconds": round(notes["feed_seconds"] + notes["seconds"][name], 3),
            }
            score = None
            if name in predicted:
                about["threshold"] = self.task.choose(predicted[name], tune)
                score = float(self.task.scores(predicted[name], tune, about["threshold"])[self.metric])
            state: State = "dropped" if name in dropped else "pruned" if name in found.pruned else "complete"
            outcomes[name] = {"state": state, "score": score, "losses": found.losses_of(name), "about": about}
        return outcomes

    def _note(self, found: "Round", outcomes: Outcomes) -> None:
        """Takes note of every trial of a round."""
        for trial in found.trials[len(self.trials) - found.trials[0].number :]:  # a kill may have come among them
            one = outcomes[trial.name]
            self.trials.add(trial, one["state"], one["score"], one["losses"], one["about"])
            self.journal.log("trial", trial=trial.number, state=one["state"], **{f"tune_{self.metric}": one["score"]})

    def _write(self) -> None:
        """trials.json, and best.toml once a trial is complete."""
        rows = self.trials.rows(self.metric)
        write_json(self.directory / "trials.json", rows)
        if heads := best_heads(rows, self.metric):
            write_text(self.best, toml.write(dataclasses.replace(self.recipe, heads=heads, search=())))

    def _settle(self) -> None:
        """Refuses a directory that holds a search of another kind: its trials would not be comparable."""
        spaces = {kind: {key: str(one) for key, one in space.items()} for kind, space in self.trials.spaces.items()}
        wanted = {"identity": _digest(self.study.identity, spaces), "round": self.size}
        path = self.directory / "search.json"
        if path.is_file() and read_json(path, "note of a search") != wanted:
            raise UserError(
                f"{self.directory}: holds a search with another --round, over other options or on other data; "
                "choose another --out, or delete it"
            )
        write_json(path, wanted)

    def _plan(self) -> None:
        """Plans the rounds. Of a search that was extended, not all are of the same size."""
        tokens = self.study.tokens
        paths = sorted(self.directory.glob("round-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        stages = planned_stages(self.study.run_dir, tokens)[:1]  # the tuning of the first seed
        rounds = [(found.trials[0].number, found.trials[-1].number) for found in map(Round.read, paths)]
        begun = rounds[-1][1] + 1 if rounds else 0
        starts = range(max(begun, len(self.trials)), self.wanted, self.size)
        rounds += [(first, min(first + self.size, self.wanted) - 1) for first in starts]
        for first, last in rounds:
            name, done = f"trials {first} to {last}", last < len(self.trials)
            stages.append(Stage(name, "heads", round(self.recipe.bank.epochs * tokens["train"]), done))
            stages.append(Stage(f"scoring {name} on tune", "scoring", tokens["tune"], done))
        self.journal.stages.plan(stages)

    @cached_property
    def trials(self) -> Trials:
        return Trials(self.directory / "optuna.jsonl", self.recipe, self.seed, self._build)

    def _build(self, spec: dict[str, Any]) -> None:
        shape = head_shape(self.backbone, self.task)
        with torch.device("meta"):  # whether it can be built; no numbers are needed for that
            build_head(spec, **shape)

    @cached_property
    def backbone(self) -> Backbone:
        return self.study.tuned(self.seed, self.epoch)

    def _feeds_of(self, bank: HeadBank) -> Feeds:
        """The feeds of a round. Rounds that read the same states share them: a store pays off sooner."""
        key = f"{spelt(bank.reads)}-{bank.positions}"
        if key not in self._feeds:
            place, seconds = self.directory / STATES, self.recipe.snapshot_seconds
            job = Job(place, key, self.seed, self.study.identity, seconds, self.journal)
            tapped, rounds = self.study.run_dir.states, -(-self.wanted // self.size)
            self._feeds[key] = bank_feeds(bank, self.backbone, self.recipe.bank, job, tapped=tapped, rounds=rounds)
        return self._feeds[key]


@dataclass
class Round:
    """Trials that are trained together. losses: {step: {trial: loss on tune}}; pruned: {trial: why it goes no further}.

    All of it is in the file at `path`; the bank lies beside it until its trials are noted.
    """

    path: Path
    trials: list[Trial]
    losses: dict[int, dict[str, float]] = field(default_factory=dict)
    pruned: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Round":
        found = read_json(path, "round of a search")
        with fitting(path, "round of a search"):
            trials = [Trial(**trial) for trial in found["trials"]]
            return cls(path, trials, {int(step): losses for step, losses in found["losses"].items()}, found["pruned"])

    def take(self, outcomes: Outcomes) -> None:
        """Notes losses and pruned trials of a round that others have done."""
        for name, one in outcomes.items():
            for step, loss in one["losses"].items():
                self.losses.setdefault(step, {})[name] = loss
            if one["state"] == "pruned":
                self.pruned[name] = one["about"]["why"]
        self.write()

    def write(self) -> None:
        trials = [dataclasses.asdict(trial) for trial in self.trials]
        write_json(self.path, {"trials": trials, "losses": self.losses, "pruned": self.pruned}, durable=True)

    @property
    def name(self) -> str:
        return f"trials {self.trials[0].number} to {self.trials[-1].number}"

    @property
    def bank(self) -> Path:
        return self.path.with_suffix(".safetensors")

    @property
    def parts(self) -> Path:
        """Where processes that share the round work."""
        return self.path.with_suffix(".parts")

    def losses_of(self, name: str, until: float = math.inf) -> dict[int, float]:
        """{step: loss on tune} of a trial, up to a step."""
        return {step: losses[name] for step, losses in self.losses.items() if name in losses and step <= until}


def best_heads(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[dict[str, Any], ...]:
    """The best head of each kind on tune, the best of all first. A head keeps the name of its trial: its starting
    values come from that, so that a study of it with the same seed ends where the trial did."""
    complete = [row for row in rows if row["state"] == "complete"]
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(complete, key=lambda row: -row[f"tune_{metric}"]):  # of equals the earlier
        best.setdefault(row["head"]["kind"], row["head"])
    return tuple(best.values())


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
