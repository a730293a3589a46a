"""The three sets of a recipe: what is learnt from, what is chosen on, what is reported."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data import glue
from bertvision.data.batches import nested_fraction
from bertvision.data.examples import Example, load_examples, split_off
from bertvision.data.source import load_articles, parts
from bertvision.data.squad import split_by_article
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe


def article_sets(data: DataRecipe, seed: int) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """{split: (source, articles)}. Without a tune set, one is split off by article; `negatives` are added to train."""
    sources = {"train": data.train, "tune": data.tune, "test": data.test}
    articles = {split: load_articles(source) for split, source in sources.items() if source}
    if not data.tune:
        articles["train"], articles["tune"] = split_by_article(articles["train"], data.tune_share, seed)
        sources["tune"] = f"{data.train}, {100 * data.tune_share:g} % of it, by article"
    if data.negatives:
        from bertvision.data.negatives import add_negatives

        articles["train"] = add_negatives(articles["train"], data.negatives)
    return {split: (sources[split], articles[split]) for split in ("train", "tune", "test")}


def example_sets(
    data: DataRecipe, train: list[Example], strata: NDArray[np.int64], seed: int
) -> dict[str, tuple[str, list[Example]]]:
    """{split: (source, examples)}. Without a tune set, one is split off `train`, the same share of every stratum.

    strata: (n,) of the training examples. A limit on training limits what is split off for choosing accordingly.
    """
    source = data.tune
    if source:
        tune = load_examples(source, data)
    else:
        stay, off = split_off(strata, data.tune_share, seed)
        most = max(1, round(data.limit * data.tune_share)) if data.limit else len(off)  # no larger than it would be
        off = off[nested_fraction(len(off), most / len(off), seed)]
        tune, train = [train[i] for i in off], [train[i] for i in stay]
        source = f"{data.train}, {len(tune):,} of its examples"
    train = [train[i] for i in training_part(len(train), data, seed)]
    return {
        "train": (data.train, train),
        "tune": (source, tune),
        "test": (data.test, load_examples(data.test, data)),
    }


def training_part(count: int, data: DataRecipe, seed: int) -> NDArray[np.int64]:
    """Sorted numbers of the examples that `fraction` and `limit` leave of `count`; less of either is a subset."""
    share = min(data.fraction, data.limit / count) if data.limit and count else data.fraction
    return nested_fraction(count, share, seed)


def glue_task(data: DataRecipe, kind: str) -> glue.GlueTask | None:
    """The GLUE task that is learnt, if it is one. kind: "labels" or "score", which must fit it."""
    names = [glue.parse(part)[0] for part in parts(data.train) if part.startswith(glue.PREFIX)]
    if not names:
        return None
    tasks = [glue.GLUE[name] for name in names]
    if any((len(one.text), one.labels) != (len(tasks[0].text), tasks[0].labels) for one in tasks):
        raise UserError(f"data.train: {data.train} joins tasks with different labels or texts")
    fits = "labels" if tasks[0].labels else "score"
    if kind != fits:
        raise UserError(f'task: {names[0]} has {fits if fits == "labels" else "scores"}; use task = "{fits}"')
    return tasks[0]
