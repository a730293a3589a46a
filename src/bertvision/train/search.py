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
        self._check_directory()
        self._plan()
        self.study.tune(self.seed)
        number = first = 0
        while (trial_round := self._round(number, first)).trials:
            first = trial_round.trials[-1].number + 1
            if trial_round.trials[-1].number >= len(self.trials):
                if elsewhere:
                    outcomes = elsewhere(trial_round)
                else:
                    outcomes = self._train_and_score(trial_round, trial_round.trials)
                self._note_outcomes(trial_round, outcomes)
                self._write_results()
            trial_round.bank.unlink(missing_ok=True)
            remove(trial_round.parts)
            self._job(trial_round).clear()
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
        trials = self.trials.ask(min(self.size, self.wanted - len(self.trials)))
        if not trials and len(self.trials) < self.wanted:
            self.journal.note(f"search: after {len(self.trials)} trials there is nothing new left to try")
        trial_round = Round(path, trials)
        if trials:
            trial_round.bank.unlink(missing_ok=True)  # of a round whose file is gone
            trial_round.write()
        return trial_round

    def part(self, name: str, rank: int, world: int) -> Outcomes:
        """Does every `world`-th trial of a round that another process has begun, in a directory of its own."""
        begun, journal = self.directory / f"{name}.json", self.directory / "optuna.jsonl"
        self.directory = Round.read(begun).parts / f"{rank}-of-{world}"
        for file in (begun, journal):
            if not (self.directory / file.name).exists():
                write_text(self.directory / file.name, file.read_text(encoding="utf-8"))
        trial_round = Round.read(self.directory / begun.name)
        return self._train_and_score(trial_round, trial_round.trials[rank::world])

    def _train_and_score(self, trial_round: "Round", trials: Sequence[Trial]) -> Outcomes:
        """Trains and scores some trials of a round."""
        self._train(trial_round, [trial.name for trial in trials])
        return self._score(trial_round, trials)

    def _train(self, trial_round: "Round", names: Sequence[str]) -> None:
        """Trains these heads of a round's bank, unless that is done."""
        if trial_round.bank.exists():
            return
        data = self.study.data
        entries = [trial.head for trial in trial_round.trials]
        bank = HeadBank(entries, **head_shape(self.backbone, self.task), seed=self.seed)
        feeds = self._feeds_of(bank)
        windows = data["train"].windows
        last_step = len(plan_batches(windows, self.recipe.bank, self.seed, feeds.selection.lengths(windows)))

        def prune(step: int, losses: Mapping[str, float]) -> dict[str, str]:
            trial_round.losses[step] = dict(losses)
            pruned = [name for name in losses if self.trials.behind(trial_round.losses_of(name, step))]
            if step == last_step:  # what is trained to its end is scored
                pruned = []
            why = f"worse on tune at step {step} than half of those completed before"
            trial_round.pruned |= dict.fromkeys(pruned, why)
            trial_round.write()
            return {name: trial_round.pruned[name] for name in pruned}

        job = dataclasses.replace(self._job(trial_round), identity=_digest(self.study.identity, bank.entries))
        train_bank(bank, feeds, self.task, data, job, prune=prune, only=names)

    def _job(self, trial_round: "Round") -> Job:
        seconds, name = self.recipe.snapshot_seconds, trial_round.name if trial_round.trials else ""
        return Job(self.directory, trial_round.path.stem, self.seed, self.study.identity, seconds, self.journal, name)

    def _score(self, trial_round: "Round", trials: Sequence[Trial]) -> Outcomes:
        """Scores those of the trials that were trained to their end, in one pass over tune."""
        bank, notes = HeadBank.load(trial_round.bank)
        dropped = dict(notes["stopped"])
        trained = [trial.name for trial in trials if trial.name not in dropped and trial.name not in trial_round.pruned]
        tune = self.study.data["tune"]
        heads = {Member(name, self.seed, self.epoch): bank[name] for name in trained}
        setting = Setting(self.task, self.recipe.evaluate, self.journal)
        singles, result = [*map(Ensemble.of, heads)], Pass({}, {})
        if heads:
            result = predict(self.backbone, heads, singles, tune, setting, stage=f"scoring {trial_round.name} on tune")
        dropped |= {member.head: why for member, why in result.dropped.items()}
        predicted = {ensemble.name: predictions for ensemble, predictions in result.predictions.items()}
        outcomes: Outcomes = {}
        for name in (trial.name for trial in trials):
            about: dict[str, Any] = {
                "why": dropped.get(name) or trial_round.pruned.get(name, ""),
                "parameters": bank[name].parameter_count(),
                "seconds": round(notes["feed_seconds"] + notes["seconds"][name], 3),
            }
            score = None
            if name in predicted:
                about["threshold"] = self.task.choose(predicted[name], tune)
                score = float(self.task.scores(predicted[name], tune, about["threshold"])[self.metric])
            state: State = "dropped" if name in dropped else "pruned" if name in trial_round.pruned else "complete"
            outcomes[name] = {"state": state, "score": score, "losses": trial_round.losses_of(name), "about": about}
        return outcomes

    def _note_outcomes(self, trial_round: "Round", outcomes: Outcomes) -> None:
        """Takes note of every trial of a round."""
        noted = len(self.trials) - trial_round.trials[0].number  # some may be, before a kill
        for trial in trial_round.trials[noted:]:
            outcome = outcomes[trial.name]
            self.trials.add(trial, outcome["state"], outcome["score"], outcome["losses"], outcome["about"])
            score = {f"tune_{self.metric}": outcome["score"]}
            self.journal.log("trial", trial=trial.number, state=outcome["state"], **score)

    def _write_results(self) -> None:
        """trials.json, and best.toml once a trial is complete."""
        rows = self.trials.rows(self.metric)
        write_json(self.directory / "trials.json", rows)
        if heads := best_heads(rows, self.metric):
            write_text(self.best, toml.write(dataclasses.replace(self.recipe, heads=heads, search=())))

    def _check_directory(self) -> None:
        """UserError if the directory holds a search of another kind: its trials would not be comparable."""
        spaces = {kind: {key: str(space[key]) for key in space} for kind, space in self.trials.spaces.items()}
        contents = {"identity": _digest(self.study.identity, spaces), "round": self.size}
        path = self.directory / "search.json"
        if path.is_file() and read_json(path, "note of a search") != contents:
            raise UserError(
                f"{self.directory}: holds a search with another --round, over other options or on other data; "
                "choose another --out, or delete it"
            )
        write_json(path, contents)

    def _plan(self) -> None:
        """Plans the rounds. Of a search that was extended, not all are of the same size."""
        tokens = self.study.tokens
        paths = sorted(self.directory.glob("round-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        stages = planned_stages(self.study.run_dir, tokens)[:1]  # the tuning of the first seed
        begun = [Round.read(path).trials for path in paths]
        rounds = [(trials[0].number, trials[-1].number) for trials in begun]
        next_trial = rounds[-1][1] + 1 if rounds else 0
        starts = range(max(next_trial, len(self.trials)), self.wanted, self.size)
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
            directory, seconds = self.directory / STATES, self.recipe.snapshot_seconds
            job = Job(directory, key, self.seed, self.study.identity, seconds, self.journal)
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
        contents = read_json(path, "round of a search")
        with fitting(path, "round of a search"):
            trials = [Trial(**trial) for trial in contents["trials"]]
            losses = {int(step): by_trial for step, by_trial in contents["losses"].items()}
            return cls(path, trials, losses, contents["pruned"])

    def take(self, outcomes: Outcomes) -> None:
        """Notes losses and pruned trials of a round that others have done."""
        for name, outcome in outcomes.items():
            for step, loss in outcome["losses"].items():
                self.losses.setdefault(step, {})[name] = loss
            if outcome["state"] == "pruned":
                self.pruned[name] = outcome["about"]["why"]
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
