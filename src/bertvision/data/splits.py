"""The sets of a recipe: train, tune, test and also; parts of a set. A tune set is split off where none is named."""

import random

import numpy as np
from numpy.typing import NDArray

from bertvision.data.batches import nested_fraction
from bertvision.data.sources import load_articles
from bertvision.data.squad import Articles
from bertvision.errors import UserError
from bertvision.recipe import DataRecipe


def article_sets(data: DataRecipe, seed: int) -> dict[str, tuple[str, Articles]]:
    """{split: (source, articles)}, `also` only where there is one. Without a tune set, one is split off by article;
    `negatives` and `edited` questions are added to train."""
    sources = sources_of(data)
    articles = {split: load_articles(source) for split, source in sources.items()}
    if "tune" not in sources:
        articles["train"], articles["tune"] = split_by_article(articles["train"], data.tune_share, seed)
        sources["tune"] = f"{data.train}, {100 * data.tune_share:g} % of it, by article"
    if data.negatives or data.edited:
        from bertvision.data.augment import add_edited, add_negatives

        for add, ratio in ((add_negatives, data.negatives), (add_edited, data.edited)):
            articles["train"] = add(articles["train"], ratio) if ratio else articles["train"]
    return {split: (sources[split], articles[split]) for split in ("train", "tune", "test", "also") if split in sources}


def sources_of(data: DataRecipe) -> dict[str, str]:
    """{split: source} of those that are named."""
    named = {"train": data.train, "tune": data.tune, "test": data.test, "also": data.also}
    return {split: source for split, source in named.items() if source}


def training_part(count: int, data: DataRecipe, seed: int) -> NDArray[np.int64]:
    """Sorted numbers of the examples that `fraction` and `limit` leave of `count`; less of either is a subset."""
    return nested_fraction(count, share_of(count, data), seed)


def share_of(count: int, data: DataRecipe) -> float:
    """The share of `count` training examples that `fraction` and `limit` leave."""
    return min(data.fraction, data.limit / count) if data.limit and count else data.fraction


def nested_strata(strata: NDArray[np.int64], fraction: float, seed: int) -> NDArray[np.int64]:
    """Sorted numbers of a share of the examples, the same share of every stratum; a smaller one is a subset.

    strata: (n,) the stratum of each. While there are places, every stratum has one.
    """
    count = len(strata)
    if fraction >= 1:
        return np.arange(count)
    order = _by_stratum(strata, np.random.default_rng([seed, 0x5EED]))
    _, first, sizes = np.unique(strata[order], return_index=True, return_counts=True)
    turn = (np.arange(count) - np.repeat(first, sizes)) / np.repeat(sizes, sizes)  # 0 to 1 within each stratum
    kept = max(1, round(fraction * count)) if count else 0
    return np.sort(order[np.argsort(turn, kind="stable")[:kept]])


def split_off(strata: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted numbers of the examples that stay and of those split off: about `share` of every stratum.

    strata: (n,) the stratum of each. Both parts get at least one example, and what stays keeps one of every stratum.
    """
    count = len(strata)
    if count < 2:
        raise UserError("data.train: one example alone cannot be split; name a set for data.tune")
    order = _by_stratum(strata, np.random.default_rng([seed, 0x7E57]))
    steps = np.floor(np.arange(count + 1) * share)
    taken = np.zeros(count, dtype=bool)
    taken[order[np.diff(steps) > 0]] = True  # every (1 / share)-th of them
    for stratum in np.unique(strata[taken]):
        members = np.flatnonzero(strata == stratum)
        if taken[members].all():
            taken[members[0]] = False
    if not taken.any():
        names, sizes = np.unique(strata, return_counts=True)
        taken[order[np.flatnonzero(strata[order] == names[sizes.argmax()])[-1]]] = True
    return np.flatnonzero(~taken), np.flatnonzero(taken)


def _by_stratum(strata: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """All examples stratum by stratum, in random order within each."""
    order = random.permutation(len(strata))
    return order[np.argsort(strata[order], kind="stable")]


def split_by_article(articles: Articles, fraction: float, seed: int) -> tuple[Articles, Articles]:
    """(rest, split): whole articles with about `fraction` of the questions go into `split`, so that no paragraph and no
    topic is on both sides. Both sides keep the file's order and have questions."""
    if not 0 < fraction < 1:
        raise UserError(f"fraction: {fraction} is not between 0 and 1 (both excluded)")
    counts = [sum(len(paragraph["qas"]) for paragraph in article["paragraphs"]) for article in articles]
    candidates = [index for index, count in enumerate(counts) if count]
    if len(candidates) < 2:
        raise UserError("cannot split by article: two articles with questions are needed; give a separate file instead")
    draw = random.Random(seed).random
    candidates.sort(key=lambda _: draw())
    target = fraction * sum(counts)
    taken: set[int] = set()
    total = 0
    for index in candidates:
        if abs(total + counts[index] - target) < abs(total - target):
            taken.add(index)
            total += counts[index]
    smallest = min(candidates, key=lambda index: counts[index])
    if not taken:
        taken.add(smallest)
    elif len(taken) == len(candidates):
        taken.remove(smallest)
    rest = [article for index, article in enumerate(articles) if index not in taken]
    return rest, [articles[index] for index in sorted(taken)]
