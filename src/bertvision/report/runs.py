"""Runs that are reported together."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertvision.report.paper import for_variant
from bertvision.report.reading import Study, read_study


def read_runs(directories: Sequence[Path]) -> Study:
    """One run as it is; several as the variants of one study, by the names of their directories.

    The variants of a run among several go by its name and theirs.
    """
    directories = [one for n, one in enumerate(directories) if one.resolve() not in map(Path.resolve, directories[:n])]
    if len(directories) == 1:
        return read_study(directories[0])
    variants: dict[str, Study] = {}
    missing: list[str] = []
    names = run_names(directories)
    for name, directory in zip(names, directories):
        study = read_study(directory)
        missing += [f"{name}: {sentence}" for sentence in study.missing]
        variants |= {f"{name}, {inner}": one for inner, one in study.variants.items()}
        if not study.variants:
            variants[name] = replace(study, paper=for_variant(study.paper, name, study.recipe))
    scores = [{**row, "variant": name} for name, one in variants.items() for row in one.scores]
    return Study(title=f"Compared: {', '.join(names)}", scores=scores, missing=missing, variants=variants)


def run_names(directories: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell them apart."""
    parts = [directory.resolve().parts for directory in directories]
    lengths = range(1, max(map(len, parts)) + 1)
    ways = (["/".join(part[-length:]) for part in parts] for length in lengths)
    return next(names for names in ways if len(set(names)) == len(names))
