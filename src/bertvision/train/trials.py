"""The trials of a search; Optuna proposes the next ones and prunes those that fall behind."""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertvision.errors import UserError
from bertvision.files import fitting, read_json, write_json
from bertvision.heads import options
from bertvision.heads.space import TRAINING, Choices, Range, fitting_options, head_space
from bertvision.recipe import Recipe, head_spec
from bertvision.runtime import fold
from bertvision.train.bank import unique_names

HEAD = "head"  # the parameter that says which head of the recipe a trial varies
GUIDED = 10  # a proposal that was tried before is asked for anew this often, then drawn blindly
BLIND = 100  # and after so many of those there is nothing new left to try
State = Literal["complete", "pruned", "dropped"]
DIGITS = 3  # that a number drawn from a range keeps: more say nothing, and people read them


@dataclass(frozen=True, slots=True)
class Trial:
    """A head to try. head: its table as in a recipe, named. params: what was drawn for it, by Optuna's names."""

    number: int
    head: dict[str, Any]
    params: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.head["name"])


class Trials:
    """All trials of a search that are finished, in a journal of Optuna's: one line of JSON each.

    build: makes a head of a spec, or raises `Impossible`. What is proposed depends on the finished trials and the seed
    alone, so a search that was killed goes on as if it had not been. The caller has claimed the journal's directory.
    """

    def __init__(self, path: Path, recipe: Recipe, seed: int, build: Callable[[dict[str, Any]], object]) -> None:
        self.heads = dict(zip(unique_names(recipe.heads), recipe.heads))
        self.bank, self.seed, self.build = recipe.bank, seed, build
        values_by_kind: dict[str, dict[str, list[Any]]] = {}  # by kind and key, the values in the recipe
        for head in recipe.heads:
            for key, value in self._all_values(head).items():
                values_by_kind.setdefault(str(head["kind"]), {}).setdefault(key, []).append(value)
        self.spaces = {kind: head_space(kind, recipe.search, values_by_kind[kind]) for kind in values_by_kind}
        self.optuna = load_optuna()
        self.path = path
        self.finished = self._open()

    def __len__(self) -> int:
        return len(self.finished.get_trials(deepcopy=False))

    def ask(self, count: int) -> list[Trial]:
        """The next trials: first the heads of the recipe as they stand. Fewer than `count` once all has been tried."""
        tried = [trial.user_attrs["head"] for trial in self.finished.get_trials(deepcopy=False)]
        seen, first = [_without_name(head) for head in tried], len(tried)
        untried = list(self.heads)[first:]
        memory = self.optuna.create_study(direction="maximize")
        memory.add_trials(self.finished.get_trials())
        seed = fold(self.seed, "search", first) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that something is experimental
            guided = self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # keeps away from what is under way
        blind = self.optuna.samplers.RandomSampler(seed=seed)
        trials: list[Trial] = []
        while len(trials) < count:
            if untried:
                label = untried.pop(0)
                head, params = self.heads[label], self._params(label, self._all_values(self.heads[label]))
            else:
                proposals = (self._propose(memory, sampler) for sampler in [guided] * GUIDED + [blind] * BLIND)
                proposal = next((proposal for proposal in proposals if _without_name(proposal[0]) not in seen), None)
                if proposal is None:
                    break
                head, params = proposal
            number = first + len(trials)
            seen.append(_without_name(head))
            trials.append(Trial(number, {**head, "name": f"{head['kind']}, trial {number}"}, params))
        return trials

    def add(
        self, trial: Trial, state: State, score: float | None, losses: Mapping[int, float], about: Mapping[str, Any]
    ) -> None:
        """Notes a finished trial. score: the main metric on tune, None unless it was trained to the end. losses: on
        tune, by step. about: what else is noted with it."""
        states = self.optuna.trial.TrialState
        kind = str(trial.head["kind"])
        self.finished.add_trial(
            self.optuna.trial.create_trial(
                state=states.COMPLETE if state == "complete" else states.PRUNED,
                value=score,
                params=trial.params,
                distributions={name: self._distribution(kind, name) for name in trial.params},
                intermediate_values={step: -loss for step, loss in losses.items()},  # more is better
                user_attrs={"head": trial.head, "state": state, **about},
            )
        )
        content = self.path.read_bytes()
        write_json(self.note, {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})

    def behind(self, losses: Mapping[int, float]) -> bool:
        """Whether a trial with these losses so far is worse than the median of the trials that were completed. One look
        is too early to say."""
        if len(losses) < 2:
            return False
        running = self.optuna.trial.create_trial(
            state=self.optuna.trial.TrialState.RUNNING,
            intermediate_values={step: -loss for step, loss in losses.items()},
        )
        return self.optuna.pruners.MedianPruner().prune(self.finished, running)

    def rows(self, metric: str) -> list[dict[str, Any]]:
        """All finished trials as plain values, in the order they were tried."""
        return [
            {
                "trial": trial.number,
                **trial.user_attrs,
                "params": trial.params,
                f"tune_{metric}": trial.value,
                "tune_losses": {step: -value for step, value in sorted(trial.intermediate_values.items())},
            }
            for trial in self.finished.get_trials()
        ]

    def _propose(self, memory: Any, sampler: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A head, and what was drawn for it."""
        memory.sampler = sampler
        trial = memory.ask()
        label = trial.suggest_categorical(HEAD, list(self.heads))
        base = self.heads[label]
        kind, spec = str(base["kind"]), head_spec(base)
        drawn = {key: _draw(trial, f"{kind}.{key}", space) for key, space in self.spaces[kind].items()}
        chosen = {key: value for key, value in drawn.items() if key not in TRAINING}
        kept = fitting_options(spec, chosen, self.build)
        training = {key: value for key, value in {**base, **drawn}.items() if key in TRAINING}
        defaults = {name: option.default for name, option in options(kind).items()}
        stated = {key: kept[key] for key in kept if key in spec or kept[key] != defaults[key]}
        return {**spec, **stated, **training}, self._params(label, {**kept, **training})

    def _params(self, label: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a head that lie in the search space, by Optuna's names."""
        kind = str(self.heads[label]["kind"])
        spaces = self.spaces[kind].items()
        searched = [key for key, space in spaces if key in values and space.holds(values[key])]
        return {HEAD: label} | {f"{kind}.{key}": values[key] for key in searched}

    def _all_values(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Every value of a head of the recipe, defaults included."""
        defaults = {name: option.default for name, option in options(str(head["kind"])).items()}
        training = {key: float(head.get(key, getattr(self.bank, key))) for key in TRAINING}
        training["learning_rate"] = training["learning_rate"] or self.bank.learning_rate  # 0 = the bank's
        return defaults | {key: value for key, value in head.items() if key in defaults} | training

    def _distribution(self, kind: str, name: str) -> Any:
        distributions = self.optuna.distributions
        if name == HEAD:
            return distributions.CategoricalDistribution(list(self.heads))
        space = self.spaces[kind][name.removeprefix(f"{kind}.")]
        if isinstance(space, Choices):
            return distributions.CategoricalDistribution(space.values)
        distribution = distributions.IntDistribution if space.whole else distributions.FloatDistribution
        return distribution(space.low, space.high, log=space.log)

    def _open(self) -> Any:
        """The study in the journal, new or as a kill has left it."""
        path, journal = self.path, self.optuna.storages.journal
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._check_journal()
        whole = path.read_bytes().rpartition(b"\n")[0]
        with path.open("r+b") as file:
            file.truncate(len(whole) + 1 if whole else 0)  # the last line may be torn
        for left in path.parent.glob(f"{path.name}.lock*"):  # Optuna's, of a process that was killed
            left.unlink()
        backend = journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
        try:
            storage = self.optuna.storages.JournalStorage(backend)
            options = {"study_name": "search", "direction": "maximize", "load_if_exists": True}
            return self.optuna.create_study(storage=storage, **options)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(str(error)) from None

    def _check_journal(self) -> None:
        """UserError if what was in the journal when the last trial was noted is not there any more."""
        if self.note.is_file():
            noted = read_json(self.note, "note of a journal", self.way_out)
            with fitting(self.note, "note of a journal", self.way_out):
                size, digest = int(noted["bytes"]), str(noted["sha256"])
            if hashlib.sha256(self.path.read_bytes()[:size]).hexdigest() != digest:
                raise self._damaged("its digest does not match")

    def _damaged(self, why: str) -> UserError:
        return UserError(f"{self.path}: damaged ({' '.join(why.split())[:200]}); {self.way_out}")

    @property
    def note(self) -> Path:
        """Size and digest of the journal: Optuna appends to it, so it has no place for its own."""
        return self.path.with_name("journal.json")

    @property
    def way_out(self) -> str:
        return f"delete {self.path.parent} to search again"


def _draw(trial: Any, name: str, space: Choices | Range) -> Any:
    if isinstance(space, Choices):
        return trial.suggest_categorical(name, space.values)
    if space.whole:
        return trial.suggest_int(name, int(space.low), int(space.high), log=space.log)
    drawn = float(f"{trial.suggest_float(name, space.low, space.high, log=space.log):.{DIGITS}g}")
    return min(max(drawn, space.low), space.high)


def _without_name(head: Mapping[str, Any]) -> dict[str, Any]:
    """A head without its name: what makes two trials the same."""
    return {key: value for key, value in head.items() if key != "name"}


def load_optuna() -> Any:
    """The package, told to keep quiet."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise UserError('search needs Optuna; install it with `pip install "bertvision[search]"`') from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
