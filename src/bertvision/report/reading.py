"""Directories of runs -> studies to report, with sentences on what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.evaluate.score import Score
from bertvision.recipe import reached
from bertvision.report.rows import Entry, Row, for_run, for_variant, of_another_run, summarise, with_intervals
from bertvision.train.run_contents import Contents
from bertvision.train.run_dir import RunDir


@dataclass(frozen=True)
class Study:
    """A run, finished or not, or several runs as the variants of one study.

    rows: the summary of its scores, with intervals. paper: published results, as `for_run` gives them. missing: one
    sentence for each thing that is not there. variants: the studies within this one; then it has no rows of its own.
    """

    title: str
    contents: Contents
    rows: Sequence[Row] = ()
    paper: Sequence[Entry] = ()
    missing: Sequence[str] = ()
    variants: Mapping[str, "Study"] = field(default_factory=dict)

    @property
    def recipe(self) -> Mapping[str, Any]:
        return self.contents.recipe

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.contents.facts

    @property
    def scores(self) -> list[Score]:
        """All score rows, with the names of variants."""
        if not self.variants:
            return self.contents.scores
        return [replace(score, variant=name) for name, variant in self.variants.items() for score in variant.scores]

    @property
    def all_rows(self) -> list[Row]:
        """Its rows and those of its variants, with the names of variants."""
        variant_rows = [replace(row, variant=name) for name, variant in self.variants.items() for row in variant.rows]
        return [*self.rows, *variant_rows]

    def synthetic(self) -> bool:
        """Whether any of the data was made by a program, as study.json says or the recipe asks for."""
        labels = self.facts.get("data") or {}
        return (
            bool(self.facts.get("synthetic"))
            or any(str(source).startswith("sample:") for source in self.recipe.get("data", {}).values())
            or any(map(_says_synthetic, labels.values() if isinstance(labels, Mapping) else [labels]))
            or any(variant.synthetic() for variant in self.variants.values())
        )

    def source(self, split: str) -> str:
        """Where a set came from, as study.json says, else as the recipe asks for."""
        labels = self.facts.get("data")
        label = labels.get(split) if isinstance(labels, Mapping) else None
        read_from = label.get("source") if isinstance(label, Mapping) else label
        return str(read_from or self.recipe.get("data", {}).get(split) or "")


def read_study(directory: Path) -> Study:
    """The study of a run's directory."""
    contents = RunDir(directory).contents()
    if not contents.is_run:
        why = "it holds none of metrics.json, recipe.toml, study.json" if directory.is_dir() else "no such directory"
        raise UserError(f"{directory}: not the directory of a run: {why}; name one that `bertvision study` has made")
    return study_of(contents, str(contents.recipe.get("title") or directory.resolve().name))


def read_runs(directories: Sequence[Path]) -> Study:
    """One run as it is; several as the variants of one study, by the names of their directories.

    The variants of a run among several are called by its name and theirs.
    """
    distinct: dict[Path, Path] = {}
    for directory in directories:
        distinct.setdefault(directory.resolve(), directory)
    directories = list(distinct.values())
    if len(directories) == 1:
        return read_study(directories[0])
    names, missing = run_names(directories), list[str]()
    variants: dict[str, Study] = {}
    for name, directory in zip(names, directories):
        study = read_study(directory)
        missing += [f"{name}: {sentence}" for sentence in study.missing]
        variants |= {f"{name}, {inner_name}": variant for inner_name, variant in study.variants.items()}
        if not study.variants:
            variants[name] = replace(study, paper=for_variant(study.paper, name, study.recipe))
    return Study(f"Compared: {', '.join(names)}", Contents(Path()), missing=missing, variants=variants)


def run_names(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as make them differ."""
    parts = [directory.resolve().parts for directory in directories]
    ways = (["/".join(part[-length:]) for part in parts] for length in range(1, max(map(len, parts)) + 1))
    return next(names for names in ways if len(set(names)) == len(names))


def study_of(contents: Contents, title: str) -> Study:
    """The study of a run's contents."""
    recipe, missing = contents.recipe, list(contents.problems)
    if contents.facts and not contents.facts.get("finished"):
        missing.append("The study has not finished.")
    paper = [*recipe.get("paper", []), *contents.facts.get("paper", [])]
    if not contents.variants:
        rows = _rows(contents)
        missing += unscored(rows, recipe, contents.facts.get("dropped", []))
        return Study(title, contents, rows, for_run(paper, recipe), missing)
    variants: dict[str, Study] = {}
    claimed: list[Entry] = []
    for name, own_contents in contents.variants.items():
        rows = _rows(own_contents)
        variants[name] = Study(name, own_contents, rows, for_variant(paper, name, own_contents.recipe))
        claimed += variants[name].paper
        if rows:
            absences = [
                *own_contents.problems,
                *unscored(rows, own_contents.recipe, own_contents.facts.get("dropped", [])),
            ]
            missing += [f"{name}: {sentence}" for sentence in absences]
    if absent := [name for name, variant in variants.items() if not variant.rows]:
        missing.append(f"Not scored yet: {_counted('variant', absent)}.")
    left = [of_another_run(entry) for entry in paper if entry not in claimed]
    return Study(title, contents, paper=left, missing=missing, variants=variants)


def _rows(contents: Contents) -> list[Row]:
    return with_intervals(summarise(contents.scores), contents.comparisons, contents.equal_cost)


def unscored(rows: Sequence[Row], recipe: Mapping[str, Any], dropped: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Sentences on the seeds, checkpoints and heads that a recipe asks for and the rows do not have.

    dropped: heads whose training broke off, {"seed", "checkpoint", "member", "why"}.
    """
    if not rows:
        return ["metrics.json has no scores yet: no member has been evaluated."]
    seeds = sorted({seed for row in rows for seed in row.seeds})
    absent = [seed for seed in recipe.get("seeds", []) if seed not in seeds]
    result = [f"Not scored yet: {_counted('seed', absent)} of {len(recipe['seeds'])}."] if absent else []
    tuning = recipe.get("finetune", {})
    epochs_wanted = reached(tuning["epochs"], tuning.get("checkpoints", [])) if "epochs" in tuning else []
    bank = recipe.get("bank", {})
    heads = len(recipe.get("heads", [])) * len(bank.get("fractions") or [1])
    for seed in seeds:
        seed_rows = [row for row in rows if seed in row.seeds]
        epochs = dict.fromkeys(row.epoch for row in seed_rows)
        if missed := [f"{epoch:g}" for epoch in epochs_wanted if epoch not in epochs]:
            result.append(f"Not scored yet: {_counted('checkpoint', missed)} of seed {seed}.")
        for epoch in epochs:
            broken_off = [head for head in dropped if (head.get("seed"), head.get("checkpoint")) == (seed, epoch)]
            checkpoint_rows = [row for row in seed_rows if row.epoch == epoch]
            result += _unscored_heads(
                checkpoint_rows,
                heads if epoch in (bank.get("at") or epochs) else 0,
                broken_off,
                f"checkpoint {epoch:g} of seed {seed}",
            )
    return result


def _unscored_heads(
    rows: Sequence[Row], wanted: int, broken_off: Sequence[Mapping[str, Any]], where: str
) -> Iterator[str]:
    for head in broken_off:
        yield f"Dropped at {where}: {head.get('member')} ({head.get('why')})."
    whole = {row.name for row in rows if row.role == "head" and row.ensemble.members[0].head_epochs is None}
    present = whole | {str(head.get("member")) for head in broken_off}
    if (left := wanted - len(present)) > 0:
        yield f"Not scored yet: {left} of {wanted} heads at {where}."


def _counted(noun: str, names: Sequence[Any]) -> str:
    """`seed 2`, or `seeds 2, 3`."""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"


def _says_synthetic(label: Any) -> bool:
    return bool(label.get("synthetic")) if isinstance(label, Mapping) else "synthetic" in str(label).lower()
