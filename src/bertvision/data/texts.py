"""The sets of a recipe of texts with labels or scores, and checks that they belong together."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertvision.data import glue
from bertvision.data.sources import Examples, is_text, parts, read_examples
from bertvision.data.splits import nested_strata, share_of, sources_of, split_off
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe


def example_sets(data: DataRecipe, train: Examples, strata: NDArray[np.int64], seed: int) -> dict[str, Examples]:
    """The sets by their names, `also` only where there is one.

    Without a tune set, one is split off `train`, the same share of every stratum. strata: (n,) of the training
    examples. `limit` limits what is split off, too; what `fraction` and `limit` leave has the same share of every
    stratum.
    """
    stay = np.arange(len(strata))
    if data.tune:
        tune = read_examples(data.tune, data)
    else:
        stay, off = split_off(strata, data.tune_share, seed)
        most = max(1, round(data.limit * data.tune_share)) if data.limit else len(off)
        off = off[nested_strata(strata[off], most / len(off), seed)]
        tune = Examples(f"{data.train}, {len(off):,} of its examples", [train.examples[i] for i in off])
    stay = stay[nested_strata(strata[stay], share_of(len(stay), data), seed)]
    return {
        "train": Examples(data.train, [train.examples[i] for i in stay], train.notes),
        "tune": tune,
        "test": read_examples(data.test, data),
        **({"also": read_examples(data.also, data)} if data.also else {}),
    }


def check_sources(data: DataRecipe, labels: Sequence[str] | None) -> None:
    """Refuses sets of a recipe that cannot be learnt from, chosen on or scored on, before anything is read.

    labels: those that are learnt, none for scores, None where they are not known yet.
    """
    for split, source in sources_of(data).items():
        check_fits(source, data, labels, f"data.{split}: ")
    if data.pairs == "apart" and not (is_text(data.train) and texts_in(parts(data.train)[0], data) == 2):
        raise UserError(f"data.pairs: {data.train} has no pairs of texts that could be encoded apart; leave it out")
    for key in ("negatives", "edited"):
        if getattr(data, key) and is_text(data.train):
            raise UserError(f"data.{key}: are made of questions on paragraphs, and these are texts; give 0")


def check_fits(
    source: str, data: DataRecipe, labels: Sequence[str] | None, where: str = "", labelled: bool = True
) -> None:
    """UserError, opened by `where`, unless a source has the texts and labels that data.train has.

    labels: as for `check_sources`; labelled: whether it must come with them.
    """
    if is_text(source) is not is_text(data.train):
        raise UserError(f"{where}{source}: is not of the kind that the heads were trained on ({data.train})")
    if not is_text(source):
        return
    trained = texts_in(parts(data.train)[0], data)
    for part in parts(source):
        if texts_in(part, data) != trained:
            raise UserError(
                f"{where}{part}: has {texts_in(part, data)} texts an example, and {data.train} has {trained}; "
                "name data with as many"
            )
        if not part.startswith(glue.PREFIX):
            continue
        name, split = glue.parse(part)
        its_labels = glue.GLUE[name].labels
        if labels is not None and set(its_labels) != set(labels):
            expected, present = (", ".join(names) or "scores" for names in (labels, its_labels))
            raise UserError(f"{where}{part}: has {present}, and {data.train} has {expected}; name data with the same")
        if labelled and not glue.is_labelled(split):
            raise UserError(
                f"{where}{part}: comes without labels and cannot be scored or learnt from; name a train or dev set "
                f"(`bertvision evaluate RUN --data {part} --submission DIR` predicts it for GLUE)"
            )


def texts_in(part: str, data: DataRecipe) -> int:
    """How many texts an example of a source has; those of a registered source are taken to be as data.text says."""
    return len(glue.GLUE[glue.parse(part)[0]].text) if part.startswith(glue.PREFIX) else len(data.text)


def glue_task(data: DataRecipe, kind: str) -> glue.GlueTask | None:
    """The GLUE task that is learnt, if it is one. kind: "labels" or "score", which must fit it."""
    names = [glue.parse(part)[0] for part in parts(data.train) if part.startswith(glue.PREFIX)]
    if not names:
        return None
    tasks = [glue.GLUE[name] for name in names]
    if any((len(task.text), task.labels) != (len(tasks[0].text), tasks[0].labels) for task in tasks):
        raise UserError(f"data.train: {data.train} joins tasks with different labels or texts")
    fits = "labels" if tasks[0].labels else "score"
    if kind != fits:
        raise UserError(f'task: {names[0]} has {fits if fits == "labels" else "scores"}; use task = "{fits}"')
    return tasks[0]
