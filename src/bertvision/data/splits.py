"""The sets of a recipe: train, tune, test and also. A tune set is split off where none is named."""

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertvision.data import glue
from bertvision.data.batches import nested_fraction
from bertvision.data.sources import Examples, is_text, load_articles, parts, read_examples
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
    stay = stay[nested_strata(strata[stay], _share(len(stay), data), seed)]
    return {
        "train": Examples(data.train, [train.examples[i] for i in stay], train.notes),
        "tune": tune,
        "test": read_examples(data.test, data),
        **({"also": read_examples(data.also, data)} if data.also else {}),
    }


def training_part(count: int, data: DataRecipe, seed: int) -> NDArray[np.int64]:
    """Sorted numbers of the examples that `fraction` and `limit` leave of `count`; less of either is a subset."""
    return nested_fraction(count, _share(count, data), seed)


def _share(count: int, data: DataRecipe) -> float:
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
        own = np.flatnonzero(strata == stratum)
        if taken[own].all():
            taken[own[0]] = False
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


def check_sources(data: DataRecipe, labels: Sequence[str] | None) -> None:
    """Refuses sets of a recipe that cannot be learnt from, chosen on or scored on, before anything is read.

    labels: those that are learnt, none for scores, None where they are not known yet.
    """
    for split, source in sources_of(data).items():
        check_fits(source, data, labels, f"data.{split}: ")
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
        known = glue.GLUE[name].labels
        if labels is not None and set(known) != set(labels):
            ours, theirs = (", ".join(some) or "scores" for some in (labels, known))
            raise UserError(f"{where}{part}: has {theirs}, and {data.train} has {ours}; name data with the same")
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
    if any((len(one.text), one.labels) != (len(tasks[0].text), tasks[0].labels) for one in tasks):
        raise UserError(f"data.train: {data.train} joins tasks with different labels or texts")
    fits = "labels" if tasks[0].labels else "score"
    if kind != fits:
        raise UserError(f'task: {names[0]} has {fits if fits == "labels" else "scores"}; use task = "{fits}"')
    return tasks[0]
