"""The ladder of `fit`: ordinary recipes from a frozen encoder up to long tuning, and what each is expected to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertvision.auto.look import Looked
from bertvision.errors import UserError
from bertvision.recipe import Recipe, from_table
from bertvision.toml import merged
from bertvision.train.progress import Stages, planned_stages
from bertvision.train.run_dir import RunDir

START = {"spans": "pocket", "labels": "minilm", "score": "minilm", "tokens": "minilm"}  # encoders by task
POCKET = Path(__file__).parents[1] / "serve" / "readers" / "pocket"  # tuned on questions already
MEAN = {"reduce": "mean"}
BANKS: dict[str, list[dict[str, Any]]] = {
    "texts": [
        {"kind": "last", **MEAN},
        {"kind": "pool", **MEAN},
        {"kind": "pool"},
        {"kind": "compress", "size": 64, "skip": True, **MEAN},
    ],
    "tokens": [{"kind": "pool"}, {"kind": "compress", "size": 64, "skip": True}],
}
COMPARE = {"reduce": "compare"}
SEPARATE: dict[str, Any] = {"data": {"pairs": "apart"}, "finetune": {"head": COMPARE}}
PAIR_BANK = [{"kind": "last", **COMPARE}, {"kind": "pool", **COMPARE}]
MIDDLE = 0.67  # of the encoder's depth: from there on layers say more about the meaning of a text than about its words
FIRST = {"spans": 400, "tokens": 1000, "labels": 1000, "score": 1000}  # most examples of the first step, which is
FIRST_WORDS = 20_000  # to be quick: most words of them, but at least
FEWEST = 200  # examples
MORE = 20_000  # examples that linear heads are solved on, at most,
GROWTH = 3  # times as many as in the step before
SEEN = (1500, 5000, 15_000, 50_000, 150_000, 500_000)  # examples that a tuning sees, all epochs together
EPOCHS = 20.0  # most
LARGER = 1.5  # a tuning sees at least this many times as much as the one before
SPARE = 1.15  # a step is begun if this many times its forecast is left


@dataclass(frozen=True)
class Rung:
    """A step: its name, which is that of its directory, and its recipe. examples: that it is trained on. left_out:
    those of train that it is not."""

    name: str
    recipe: Recipe
    examples: int
    left_out: int = 0

    @property
    def words(self) -> str:
        """What it does, for people."""
        tuning, apart = self.recipe.finetune, ", both texts apart" if self.is_apart else ""
        if not tuning.epochs:
            return f"heads on the encoder as it is, {self.examples:,} examples{apart}"
        how = f"adapters of {tuning.adapters}" if tuning.adapters else "all blocks"
        rate = f"rate {tuning.learning_rate:g}, seed {self.recipe.seeds[0]}"
        return f"{how} tuned for {tuning.epochs:g} epochs of {self.examples:,} examples{apart}, {rate}"

    @property
    def is_apart(self) -> bool:
        """Whether both texts of a pair are encoded apart."""
        return self.recipe.data.pairs == "apart"

    @property
    def is_tuned(self) -> bool:
        return self.recipe.finetune.epochs > 0


def ladder(looked: Looked, files: Mapping[str, str], encoder: str, seed: int) -> list[Rung]:
    """All steps, in order. They depend on the data, the encoder and the seed alone."""
    count, encoder = looked.sizes["train"], encoder or START[looked.task]
    base = _base(looked, files, encoder, seed)
    tunings = _tunings(count)
    steps = [*_frozen_steps(looked, _shape(encoder)[0]), *_tuned_steps(looked, base, tunings)]
    usual = _tuned(base, *tunings[min(1, len(tunings) - 1)])
    if "start" not in base["finetune"]:  # which has no adapters to go on with
        adapters = {"finetune": {"train_layers": 0, "adapters": 64, "learning_rate": 1e-3}}
        steps.append(("adapters", merged(usual, adapters)))
    faster = {"finetune": {"learning_rate": 2 * base["finetune"]["learning_rate"]}}
    steps.append(("faster", merged(usual, faster)))
    steps.append(("other-seed", _tuned(base, *tunings[-1]) | {"seeds": [seed + 1]}))
    return [_rung(number, name, base, step, count) for number, (name, step) in enumerate(steps, start=1)]


def _frozen_steps(looked: Looked, layers: int) -> list[tuple[str, dict[str, Any]]]:
    """Names and recipes of the steps with the encoder as it is: few examples, then more; pairs together and apart."""
    count, most = looked.sizes["train"], FIRST[looked.task]
    if looked.task in ("spans", "tokens"):
        return [("frozen", _frozen(min(count, most), looked, layers))]
    words = sum(len(text.split()) for item in looked.sets["train"] for text in item.texts)
    first = min(count, most, max(FEWEST, count * FIRST_WORDS // max(1, words)))
    steps = []
    for limit in _frozen_limits(first, max(first, min(count, MORE))):
        step = _frozen(limit, looked, layers)
        steps += [("frozen", step), *([("frozen-apart", merged(step, _apart(layers)))] if _has_pairs(looked) else [])]
    return steps


def _frozen_limits(first: int, most: int) -> list[int]:
    """Examples of the steps without tuning: from the first number to the last, GROWTH times as many each."""
    limits = [first]
    while limits[-1] < most:
        larger = GROWTH * limits[-1]
        limits.append(larger if larger * LARGER <= most else most)
    return limits


def _tuned_steps(
    looked: Looked, base: Mapping[str, Any], tunings: Sequence[tuple[int, float]]
) -> list[tuple[str, dict[str, Any]]]:
    """Names and recipes of the steps that tune the encoder on more and more; pairs together and apart."""
    steps = []
    for limit, epochs in tunings:
        step = _tuned(base, limit, epochs)
        apart = merged(step, {**SEPARATE, "heads": PAIR_BANK})
        steps += [("tuned", step), *([("tuned-apart", apart)] if _has_pairs(looked) else [])]
    return steps


def _has_pairs(looked: Looked) -> bool:
    return len(looked.data.get("text", ())) == 2


def with_tune(rung: Rung, tune: int) -> Rung | None:
    """The same step on train and tune together, of so many examples; None where it leaves a part of train out.

    Where a threshold is chosen on tune, that has to stay apart.
    """
    recipe, count = rung.recipe, rung.examples + tune
    if recipe.task not in ("labels", "score") or rung.left_out:
        return None
    data = replace(recipe.data, train=f"{recipe.data.train}+{recipe.data.tune}", limit=0)
    title = f"{recipe.title}, with tune"
    return Rung(f"{rung.name}-with-tune", replace(recipe, data=data, title=title), count)


def _tunings(count: int) -> list[tuple[int, float]]:
    """(most examples, epochs) of the tunings for a training set of this size, each larger than the one before."""
    tunings: list[tuple[int, float]] = []
    last = 0.0
    for seen in SEEN:
        epochs = max(1.0, round(min(EPOCHS, seen / count), 1))
        limit = min(seen, count)
        if limit * epochs >= LARGER * last:
            tunings.append((limit, epochs))
            last = limit * epochs
    return tunings


def _base(looked: Looked, files: Mapping[str, str], encoder: str, seed: int) -> dict[str, Any]:
    """What all steps share."""
    per_token = looked.task in ("spans", "tokens")
    rate = float(f"{1e-4 * min(4.0, 384 / _shape(encoder)[1]):.2g}")  # 1e-4 for a width of 384, less for wider ones
    tuning: dict[str, Any] = {"learning_rate": rate, "head_learning_rate": 1e-3, "batch_size": 16}
    tuning["head"] = {"kind": "last"} if per_token else {"kind": "last", **MEAN}
    if encoder == "pocket":
        if looked.task != "spans":
            raise UserError("--encoder pocket: has learnt to answer questions; for other tasks take minilm or marco")
        encoder = "marco"
        tuning |= {"start": str(POCKET), "learning_rate": 5e-5}
    return {
        "task": looked.task,
        "seeds": [seed],
        "backbone": {"name": encoder},
        "data": {**looked.data, **files},
        "finetune": tuning,
        "evaluate": {"ensembles": ["mean"]},
        "heads": BANKS["tokens" if per_token else "texts"],
    }


def _shape(encoder: str) -> tuple[int, int]:
    """Layers and width of an encoder; of one of the hub they may not be known: 0 and 768."""
    from bertvision.heads.catalog import encoder_counts

    shapes = {"minilm": (7, 384), "marco": (13, 384), "pocket": (13, 384)}
    try:
        return shapes.get(encoder) or encoder_counts(encoder)[:2]
    except UserError:
        return 0, 768


def _frozen(limit: int, looked: Looked, layers: int) -> dict[str, Any]:
    """The encoder as it is. For texts linear heads are solved, which takes one pass; others learn from a store.

    The first head is taken unless another is clearly better. Of pairs it reads a layer in the middle: the last ones of
    an encoder of sentences tell little about how two texts in one window relate.
    """
    step: dict[str, Any] = {"data": {"limit": limit}, "finetune": {"epochs": 0}}
    if looked.task in ("spans", "tokens"):
        return step | {"bank": {"states": "stored", "epochs": 10.0, "learning_rate": 2e-3, "batch_size": 8}}
    lowest = round(MIDDLE * max(0, layers - 1))
    mix = {"kind": "pool", "weights": "mean", "lowest": lowest, **MEAN}
    middle = [{"kind": "probe", "layer": lowest, **MEAN}] if layers else []
    heads = [mix, {"kind": "last", **MEAN}]
    return step | {"bank": {"solve": True}, "heads": middle + heads if _has_pairs(looked) else heads + middle}


def _apart(layers: int) -> dict[str, Any]:
    """What of `_frozen` differs where both texts of a pair are encoded apart. The last layer comes first."""
    mix = {"kind": "pool", "weights": "mean", "lowest": round(MIDDLE * max(0, layers - 1)), **COMPARE}
    return {**SEPARATE, "heads": [{"kind": "last", **COMPARE}, mix]}


def _tuned(base: Mapping[str, Any], limit: int, epochs: float) -> dict[str, Any]:
    """Heads learn along: they cost no pass of their own, and nothing depends on a measured choice."""
    size = min(int(base["finetune"]["batch_size"]), max(4, limit // 16))
    return {
        "data": {"limit": limit},
        "finetune": {"epochs": epochs, "batch_size": size},
        "bank": {"feed": "along", "learning_rate": 1e-3},
    }


def _rung(number: int, name: str, base: Mapping[str, Any], step: Mapping[str, Any], count: int) -> Rung:
    """The step of this number, for a training set of `count` examples."""
    recipe = from_table(merged(base, {**step, "title": f"fit: {name}"}), f"step {name}")
    examples = min(count, recipe.data.limit or count)
    return Rung(f"{number:02d}-{name}", recipe, examples, count - examples)


def worthwhile(rungs: Sequence[Rung], scores: Mapping[str, float]) -> list[Rung]:
    """Those of the steps that are yet to be taken where it is not known that pairs are better encoded the other way.

    scores: of the steps that were taken, on tune, by name. Both ways are compared with the encoder as it is; if `apart`
    is better there, they are compared again after tuning.
    """

    def best(tuned: bool, apart: bool) -> float | None:
        own = [rung for rung in rungs if (rung.is_tuned, rung.is_apart) == (tuned, apart)]
        return max((scores[rung.name] for rung in own if rung.name in scores), default=None)

    def is_open(rung: Rung) -> bool:
        frozen, tuned = ([best(stage, apart) for apart in (False, True)] for stage in (False, True))
        together, apart = tuned if rung.is_tuned else frozen
        if together is not None and apart is not None:
            return rung.is_apart is (apart > together)
        if rung.is_tuned and rung.is_apart and frozen[0] is not None and frozen[1] is not None:
            return frozen[1] > frozen[0]
        return True

    return [rung for rung in rungs if rung.name not in scores and is_open(rung)]


def undecided(rungs: Sequence[Rung], scores: Mapping[str, float]) -> Rung | None:
    """The step that decides whether pairs are encoded together or apart: the counterpart of one that was taken."""
    taken = [rung for rung in rungs if rung.name in scores]
    decided = {rung.is_tuned for rung in taken if rung.is_apart}
    seen = {(rung.is_tuned, rung.examples) for rung in taken}
    open_ones = [rung for rung in worthwhile(rungs, scores) if rung.is_apart and rung.is_tuned not in decided]
    return next((rung for rung in open_ones if (rung.is_tuned, rung.examples) in seen), None)


@dataclass
class Clock:
    """What steps take, from what was measured. stages: of all studies, with the speed of each kind of work.

    tokens: of an example of each set, measured in the first step. fixed: seconds of a step beside its stages.
    """

    stages: Stages
    sizes: Mapping[str, int]
    tokens: dict[str, float]
    fixed: float = 0.0

    def seconds(self, rung: Rung, directory: Path) -> float:
        """The forecast of a step; only after one has been measured."""
        sizes = {**self.sizes, "train": rung.examples}
        tokens = {name: round(per * sizes[name]) for name, per in self.tokens.items()}
        stages = planned_stages(RunDir(directory, rung.recipe), tokens)
        work = sum(stage.tokens / self.stages.rate(stage.kind) for stage in stages if not stage.done and stage.tokens)
        return self.fixed + work


def next_rung(rungs: Sequence[Rung], expected: Mapping[str, float], left: float) -> Rung | None:
    """The step to take with `left` seconds: the next one, unless the largest that fits then would not fit any more.

    None: nothing fits.
    """
    costs = [(rung, SPARE * expected[rung.name]) for rung in rungs]
    fitting = [(rung, cost) for rung, cost in costs if cost <= left]
    if not fitting:
        return None
    target, goal = max(fitting, key=lambda pair: pair[1])
    first, cost = fitting[0]
    return first if first is target or cost + goal <= left else target
