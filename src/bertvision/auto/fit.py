"""`fit`: takes the steps of the ladder, one study each, and keeps the best so far as a finished reader."""

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bertvision import toml
from bertvision.auto.ladder import SPARE, Clock, Rung, ladder, next_rung, undecided, with_tune, worthwhile
from bertvision.auto.look import Looked, look
from bertvision.backbone.loading import tokenizer_of
from bertvision.errors import UserError, nearest
from bertvision.evaluate.score import Score
from bertvision.files import claim, read_json, write_json, write_text
from bertvision.serve.build import build_reader
from bertvision.serve.reader import Reader
from bertvision.train.ensembling import EnsembleScorer, has_readout
from bertvision.train.progress import Journal, Stages, duration
from bertvision.train.run_dir import RunDir, checked
from bertvision.train.run_results import SPLITS, StoredResults, task_of
from bertvision.train.study import Study

OVER = 1.1  # a step that goes on for longer than this share of the whole time is broken off
CLOSING = 0.5  # of what a step takes beside its passes: the page at the end
ENOUGH = 5.0  # minutes; with less time there are fewer examples to choose and to report on
BETTER = 2  # examples of tune that something must get more right to be taken instead of what is simpler


@dataclass(frozen=True)
class Options:
    """text, label: columns of a table. minutes: how long to go on; steps: take exactly so many of the ladder instead.

    tune, test: files to choose and to report on, split off the data if not given. out: the directory of the result.
    encoder: minilm, marco, pocket (questions only), a directory or a hub name.
    """

    text: str | Sequence[str] = ()
    label: str = ""
    minutes: float = 10.0
    steps: int | None = None
    tune: str = ""
    test: str = ""
    out: str | Path = ""
    encoder: str = ""
    seed: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class Fitted:
    """What `fit` leaves. model: the reader's directory. step: the best one's name.

    metric: what decided; tune: its value there; test, low, high: on test, with the 95 % interval of a bootstrap.
    """

    directory: Path
    model: Path
    step: str
    metric: str
    tune: float
    test: float
    low: float
    high: float
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def reader(self) -> Reader:
        """The model, loaded."""
        return Reader.from_pretrained(self.model)


class OutOfTime(Exception):
    """A step took far longer than expected."""


class Outlook(Stages):
    """The stages of all steps; also says the best score so far, what is next, and how much time is left."""

    def __init__(self) -> None:
        super().__init__()
        self.best = self.step = self.following = ""
        self.until: float | None = None  # by time.monotonic()
        self.limit: float | None = None

    def advance(self, tokens: int, seconds: float) -> None:
        super().advance(tokens, seconds)
        if self.limit is not None and time.monotonic() > self.limit:
            raise OutOfTime

    def outlook(self) -> str:
        words = [self.step, f"best so far: {self.best}" if self.best else "no model yet"]
        words += [f"next: {self.following}"] if self.following else []
        words += [f"{duration(max(0.0, self.until - time.monotonic()))} left"] if self.until is not None else []
        return " · ".join(words)


def fit(data: str | Path, **options: Any) -> Fitted:
    """The best model for a file in the time there is; options: see `Options`. Ctrl-C keeps the best so far.

    The same call goes on where it stopped: steps that are done are not done again.
    """
    names = [option.name for option in fields(Options)]
    if wrong := [name for name in options if name not in names]:
        raise UserError(f"fit: {wrong[0]}: {nearest(wrong[0], names)}")
    return _Fit(Path(data), Options(**options)).run()


class _Fit:
    def __init__(self, data: Path, options: Options) -> None:
        self.began = time.monotonic()
        if (options.steps is not None and options.steps < 1) or not options.minutes > 0:
            raise UserError("fit: minutes and steps must be above 0")
        directory = options.out or Path("runs") / checked(
            data.stem, f"{data}: its name as that of the run", "give --out"
        )
        self.data, self.options, self.directory = data, options, Path(directory)
        self.journal = Journal(self.directory / "log.jsonl", quiet=options.quiet)
        self.outlook = Outlook()
        self.facts_file = self.directory / "fit.json"

    def run(self) -> Fitted:
        looked, rungs = self._prepare()
        self.clock = Clock(self.outlook, looked.sizes, self.facts.get("tokens", {}), self.facts.get("fixed", 0.0))
        self.outlook.spent |= {kind: tuple(spent) for kind, spent in self.facts.get("spent", {}).items()}
        if self.options.steps is None:
            self.outlook.until = self.began + 60 * self.options.minutes
        try:
            while (rung := self._choose(rungs)) is not None:
                self._step(rung, rungs)
            self._learn_from_all(rungs)
        except KeyboardInterrupt:
            if not self.facts.get("best"):
                raise
            self.journal.note(f"stopped; the best so far is kept: {self.outlook.best}")
        except OutOfTime:
            self.journal.note("out of time: the step is broken off; the same command goes on with it")
        return self._finish(looked)

    def _prepare(self) -> tuple[Looked, list[Rung]]:
        """Reads the data, says what it found, writes the sets; refuses a directory that was begun with others."""
        o = self.options
        text = [o.text] if isinstance(o.text, str) else list(o.text)
        files = {"train": str(self.data), "tune": o.tune, "test": o.test}
        share = 1.0 if o.steps is not None else min(1.0, o.minutes / ENOUGH)
        looked = look(files, [name for name in text if name], o.label, o.seed, share)
        claim(self.directory)
        sets = looked.write(self.directory / "data")
        rungs = ladder(looked, sets, o.encoder, o.seed)
        digest = hashlib.sha256(json.dumps([toml.write(rung.recipe) for rung in rungs]).encode())
        for path in sets.values():
            digest.update(Path(path).read_bytes())
        self.facts: dict[str, Any] = read_json(self.facts_file, "fit file") if self.facts_file.is_file() else {}
        if self.facts and self.facts["made_from"] != digest.hexdigest():
            raise UserError(f"{self.directory}: holds the fit of other data or options; choose another --out")
        for note in looked.notes:
            self.journal.note(note)
        sizes = ", ".join(f"{name} {size:,}" for name, size in looked.sizes.items())
        self.journal.note(f"task: {looked.task}; examples: {sizes}; encoder: {rungs[0].recipe.backbone.name}")
        self.facts = {"steps": {}} | self.facts | {"made_from": digest.hexdigest(), "notes": looked.notes}
        self._say_best()
        return looked, rungs

    def _choose(self, rungs: Sequence[Rung]) -> Rung | None:
        """The next step; with `steps`, simply the next of so many."""
        todo = [rung for rung in rungs if rung.name not in self.facts["steps"]]
        if self.options.steps is not None or not self.clock.tokens:
            todo = [rung for rung in todo if rung in rungs[: self.options.steps or 1]]
            self.outlook.following = todo[1].name if len(todo) > 1 else ""
            return todo[0] if todo else None
        scores = {name: taken["tune"] for name, taken in self.facts["steps"].items()}
        todo, decisive = worthwhile(rungs, scores), undecided(rungs, scores)
        expected = {rung.name: self.clock.seconds(rung, self._place(rung)) for rung in todo}
        left = self._left - self._again(rungs)[1]
        fits = decisive is not None and SPARE * expected[decisive.name] <= left
        chosen = decisive if fits else next_rung(todo, expected, left)
        shown = {name: round(seconds, 1) for name, seconds in expected.items()}
        self.journal.log("plan", left=round(left, 1), expected=shown, chosen=chosen.name if chosen else None)
        if chosen is None:
            return None
        then = [rung for rung in todo if rung is not chosen]
        following = next_rung(then, expected, left - expected[chosen.name])
        self.outlook.following = following.name if following else ""
        self.journal.say(f"{chosen.name}: {chosen.words}; about {duration(expected[chosen.name])}")
        return chosen

    def _place(self, rung: Rung) -> Path:
        return self.directory / "steps" / rung.name

    @property
    def _left(self) -> float:
        """Seconds; some are kept for the page."""
        until = float("inf") if self.outlook.until is None else self.outlook.until
        return until - time.monotonic() - CLOSING * self.clock.fixed

    def _again(self, rungs: Sequence[Rung]) -> tuple[Rung | None, float]:
        """The best step so far on train and tune together, and the seconds that it takes; none where it cannot be."""
        best = self.facts.get("best")
        rung = next((with_tune(step, self.clock.sizes["tune"]) for step in rungs if step.name == best), None)
        return rung, self.clock.seconds(rung, self._place(rung)) if rung else 0.0

    def _run(self, rung: Rung) -> Study:
        study = Study(rung.recipe, self._place(rung), quiet=self.options.quiet)
        study.journal.stages, study.journal.part, self.outlook.step = self.outlook, rung.name, rung.name
        if self.outlook.until is not None and self.facts.get("best"):
            self.outlook.limit = self.began + OVER * 60 * self.options.minutes
        study.run()
        return study

    def _learn_from_all(self, rungs: Sequence[Rung]) -> None:
        """Takes the best step once more, on train and tune together, if that fits. What was chosen there is kept."""
        rung, seconds = self._again(rungs)
        if rung is None or self.facts.get("final") == rung.name or seconds > self._left:
            return
        self.outlook.following = ""
        self.journal.say(f"{rung.name}: the best step once more, with the examples it was chosen on")
        study = self._run(rung)
        chosen = best_of(RunDir.open(self._place(rung).with_name(self.facts["best"])), self.clock.sizes["tune"])
        self._put(rung, study, replace(report(study.run_dir, chosen)[0], tune=chosen.tune))
        self.facts["final"] = rung.name
        write_json(self.facts_file, self.facts)

    def _put(self, rung: Rung, study: Study, score: Score) -> None:
        """Makes a run the result."""
        put_model(study.directory, self.directory / "model", score)
        write_text(self.directory / "recipe.toml", _recipe(rung, self.directory))

    def _step(self, rung: Rung, rungs: Sequence[Rung]) -> None:
        """Runs a step; if it is the best on tune, its reader becomes the model."""
        began, measured = time.monotonic(), sum(seconds for _, seconds in self.outlook.spent.values())
        study = self._run(rung)
        size = self.clock.sizes["tune"]
        score = best_of(study.run_dir, size)
        entry = {"score": score.to_json(), "words": rung.words, "metric": score.main, "tune": score.tune}
        best = next((one for one in rungs if one.name == self.facts.get("best")), None)
        if best is None or is_better(rung, score.tune or 0.0, best, self.facts["steps"][best.name]["tune"], size):
            self.facts["best"] = rung.name
            self.facts.pop("final", None)
            self._put(rung, study, score)
        taken = time.monotonic() - began
        if not self.clock.tokens:
            self.clock.tokens |= {
                name: int(dataset.windows.lengths.sum()) / max(1, len(dataset.records))
                for name, dataset in study.data.items()
            }
        work = sum(seconds for _, seconds in self.outlook.spent.values()) - measured
        self.clock.fixed = max(self.clock.fixed, taken - work)
        self.facts["steps"][rung.name] = entry | {"seconds": round(taken, 1)}
        self.facts |= {"tokens": self.clock.tokens, "fixed": self.clock.fixed, "spent": self.outlook.spent}
        write_json(self.facts_file, self.facts)  # last: with it the step is done
        self._say_best()
        self.journal.note(f"{rung.name}: {score.main} {score.tune:.2f} on tune; best so far: {self.outlook.best}")

    def _say_best(self) -> None:
        if name := self.facts.get("best"):
            best = self.facts["steps"][name]
            self.outlook.best = f"{best['metric']} {best['tune']:.2f} on tune ({name})"

    def _finish(self, looked: Looked) -> Fitted:
        from bertvision.auto.summary import summarise

        best = RunDir.open(self.directory / "steps" / self.facts["best"])
        chosen = best_of(best, looked.sizes["tune"])
        run = RunDir.open(self.directory / "steps" / self.facts.get("final", self.facts["best"]))
        score, predictions = report(run, chosen)
        model = self.directory / "model"
        low, high = summarise(self.directory, run, (replace(score, tune=chosen.tune), predictions), looked, self.facts)
        test = score.metrics[score.main]
        self.journal.log("test", metric=score.main, value=test, low=low, high=high, member=score.ensemble.parts)
        steps = self.facts["steps"]
        return Fitted(self.directory, model, best.path.name, score.main, chosen.tune or 0.0, test, low, high, steps)


def worth(size: int) -> float:
    """What so many percent of a metric must differ by on a tune set of `size` examples, to be taken for better."""
    return 100 * BETTER / max(1, size)


def is_better(rung: Rung, tune: float, best: Rung, best_tune: float, size: int) -> bool:
    """Whether a step is taken instead of the best so far, by their scores on a tune set of `size` examples.

    It must be better by `worth`; if it is the same without tuning, from more examples, it must not be worse.
    """
    same = not rung.is_tuned and not best.is_tuned and rung.is_apart is best.is_apart
    if same and rung.examples > best.examples:
        return tune >= best_tune
    return tune > best_tune + worth(size)


def best_of(run: RunDir, size: int) -> Score:
    """The score row that is best on a tune set of `size` examples, at what was chosen there; none with a read-out that
    has learnt nothing. The first one unless another is better by `worth`: few examples would choose by chance."""
    recipe = run.recipe()
    rows = [row for row in (*run.rows(), *run.greedy()) if row.threshold_from in ("tune", "")]
    learnt = [
        row for row in rows if all(member.head or has_readout(recipe, member.epoch) for member in row.ensemble.members)
    ]
    best = max(learnt, key=lambda row: row.tune or 0.0)
    return best if (best.tune or 0.0) > (learnt[0].tune or 0.0) + worth(size) else learnt[0]


def report(run: RunDir, chosen: Score) -> tuple[Score, Any]:
    """The row on test of what was chosen, in this run, and the predictions there; without a pass of the encoder."""
    stored, data = StoredResults(run, task_of(run)), run.recipe().data
    tokenizer = tokenizer_of(run.recipe().backbone.name)
    stored.data = {name: stored.task.dataset(getattr(data, name), tokenizer, data) for name in SPLITS}
    rows, predictions = EnsembleScorer(stored, chosen.ensemble.how).report(chosen.ensemble, chosen.cost)
    return rows[-1], predictions


def put_model(run: Path, target: Path, score: Score) -> None:
    """The reader of a run at `target`: built beside it and renamed, so that what stands there is always whole."""
    new, old = (target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}") for _ in range(2))
    build_reader(run, new, score)
    if target.exists():
        target.rename(old)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _recipe(rung: Rung, directory: Path) -> str:
    opening = f"# bertvision study {directory / 'recipe.toml'} --out {directory / 'again'}"
    return f"{opening}\n#\n# {rung.name}, the best step: {rung.words}\n{toml.write(rung.recipe)}"
