"""Members and ensembles: what makes a prediction, how log-probabilities are blended, greedy selection."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from bertvision.errors import UserError
from bertvision.schema import STRICT, NonNegative, Share, validate

if TYPE_CHECKING:
    from torch import Tensor

How = Literal["max", "mean", "product"]
HOWS: tuple[How, ...] = get_args(How)
Chosen = Literal["", "pair", "best", "greedy", "given"]
BACKBONE = "backbone"  # the display name of the head tuned with the backbone
BEST = "backbone + best head"  # one display name over all seeds and checkpoints, whichever head is best
GREEDY = "greedy ensemble"
MOST = 50  # rounds of greedy selection; it stops by itself long before
T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One head on the states of one checkpoint.

    head: its name in the recipe, "" for the head tuned with the backbone. epoch: of the checkpoint. fraction: the share
    of the training set the head saw. head_epochs: after how many epochs of its training it was kept, None = the end.
    """

    __pydantic_config__ = STRICT
    head: str
    seed: int
    epoch: NonNegative
    fraction: Share = 1.0
    head_epochs: NonNegative | None = None

    @property
    def kind(self) -> Literal["backbone", "head"]:
        return "head" if self.head else "backbone"

    @property
    def is_partial(self) -> bool:
        """Whether the head saw a share of the training set, or was kept before its training ended."""
        return self.fraction < 1 or self.head_epochs is not None

    @property
    def name(self) -> str:
        """The display name within a checkpoint: `pool`, `pool @ 30 %`, `pool, epoch 1`."""
        share = f" @ {100 * self.fraction:g} %" if self.fraction < 1 else ""
        epoch = "" if self.head_epochs is None else f", epoch {self.head_epochs:g}"
        return f"{self.head or BACKBONE}{share}{epoch}"

    @property
    def label(self) -> str:
        """The display name within a run."""
        return f"{self.name} @ epoch {self.epoch:g}, seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = {"head": self.head, "seed": self.seed, "epoch": self.epoch}
        table |= {} if self.fraction == 1 else {"fraction": self.fraction}
        return table | ({} if self.head_epochs is None else {"head_epochs": self.head_epochs})


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Members that decide together. A single member is an ensemble of one.

    weights: one per member, or none for equal weights. how: how probabilities are blended. chosen: "" for one member,
    "pair" for the backbone and a head, "best" for the pair chosen on tune, "greedy" for the result of greedy selection,
    "given" for one made by `bertvision ensemble`.
    """

    __pydantic_config__ = STRICT
    members: tuple[Member, ...]
    weights: tuple[NonNegative, ...] = ()
    how: How = "max"
    chosen: Chosen = ""

    def __post_init__(self) -> None:
        if not self.members:
            raise UserError("members: there is none")
        if self.how not in HOWS:
            raise UserError(f"how: {self.how!r} is none of {', '.join(HOWS)}")
        if self.weights and (len(self.weights) != len(self.members) or not min(self.weights) > 0):
            raise UserError(f"weights: {list(self.weights)} do not fit {len(self.members)} members")

    @classmethod
    def of(cls, member: Member) -> "Ensemble":
        return cls((member,))

    @property
    def is_single(self) -> bool:
        return len(self.members) == 1 and not self.chosen

    @property
    def role(self) -> Literal["backbone", "head", "ensemble"]:
        return self.members[0].kind if self.is_single else "ensemble"

    @property
    def cells(self) -> set[tuple[int, float]]:
        """The (seed, epoch) of its members."""
        return {(member.seed, member.epoch) for member in self.members}

    @property
    def name(self) -> str:
        """The display name."""
        names = {"best": BEST, "greedy": GREEDY, "given": f"ensemble ({self.how})"}
        return names.get(self.chosen, self.parts)

    @property
    def parts(self) -> str:
        """The display names of the members. Checkpoint and seed are added if members differ in them."""
        names = [member.name if len(self.cells) == 1 else member.label for member in self.members]
        how = f", {self.how}" if self.chosen in ("pair", "best") and self.how != "max" else ""
        return " + ".join(names) + how

    def blend(self, logs: Sequence["Tensor"]) -> "Tensor":
        """Log-probabilities of the members, of one shape (...,) -> the ensemble's, see `combine`."""
        return combine(zip(logs, self.weights or [1.0] * len(self.members), strict=True), self.how)

    def to_json(self) -> dict[str, Any]:
        members = [member.to_json() for member in self.members]
        return {"members": members, "weights": list(self.weights), "how": self.how, "chosen": self.chosen}

    @classmethod
    def from_json(cls, table: Any) -> "Ensemble":
        """Reads the result of `to_json`; UserError for anything else."""
        return validate(cls, table, "ensemble")


def combine(members: Iterable[tuple["Tensor", float]], how: How) -> "Tensor":
    """Log-probabilities of one shape (...,), each with its weight -> the ensemble's, fp32 and not normalised.

    max: the highest probability that any member gives; weights do not matter.
    mean: the weighted mean of the probabilities.
    product: the product of the probabilities, each to the power of its weight over the sum of the weights.
    Takes one member at a time, so that no more than two are in memory.
    """
    joined: Tensor | None = None
    total = 0.0
    for logs, weight in members:
        if not weight > 0:
            raise ValueError(f"a member of an ensemble needs a positive weight, not {weight}")
        total += weight
        logs = logs.float()
        term = logs if how == "max" else logs * weight if how == "product" else logs + math.log(weight)
        joined = term if joined is None else getattr(joined, JOIN[how])(term)
    if joined is None:
        raise ValueError("an ensemble needs at least one member")
    return joined - math.log(total) if how == "mean" else joined / total if how == "product" else joined


JOIN: dict[How, str] = {"max": "maximum", "mean": "logaddexp", "product": "add"}  # methods of a tensor


def greedy_selection(
    candidates: Sequence[T], score: Callable[[dict[T, float]], float], *, repeats: bool = True
) -> tuple[dict[T, float], float]:
    """Forward selection with replacement: (weights, which sum to 1; their score).

    Begins with the best single candidate and adds the one that helps most, until none helps. So it is never worse, on
    the set it is chosen on, than the best single. score: weights -> what is maximised. repeats: whether a candidate can
    be added again, which gives it more weight. Of equal candidates the first wins.
    """
    if not candidates:
        raise ValueError("there is nothing to select from")
    chosen: Counter[T] = Counter()
    best = -math.inf
    for _ in range(MOST):
        allowed = [
            candidate
            for candidate in candidates
            if (repeats and chosen != Counter([candidate])) or candidate not in chosen
        ]
        scored = [(score(_shares(chosen + Counter([candidate]))), candidate) for candidate in allowed]
        if not scored:
            break
        best_score, candidate = max(scored, key=lambda pair: pair[0])
        if not best_score > best:
            break
        best = best_score
        chosen[candidate] += 1
    return _shares(chosen), best


def _shares(chosen: Counter[T]) -> dict[T, float]:
    return {candidate: count / chosen.total() for candidate, count in chosen.items()}
