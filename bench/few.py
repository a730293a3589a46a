"""Heads that `fit` solves from few examples, against regression on embeddings, over many draws of examples.

python bench/few.py                                      # SST-2 at 8, 64 and 512 per class: about half a minute
python bench/few.py --task MRPC --per-class 64
python bench/few.py --task STS-B --per-class 64          # of scores 128 examples

Examples are drawn from the first 1,500 of the training set, the following 2,000 are scored; the development set, which
`fit.py` reports on, is not touched. Prints the mean accuracy, or Spearman's correlation, over the draws, their standard
deviation, and the mean difference to the regression with its standard error.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor
from torch.nn.functional import normalize

from bertvision.auto.ladder import MIDDLE
from bertvision.backbone.states import States
from bertvision.data.batches import by_length, collate
from bertvision.data.glue import GLUE, SCALE
from bertvision.data.sources import read_examples
from bertvision.data.windows import make_text_windows
from bertvision.evaluate import metrics
from bertvision.recipe import DataRecipe
from bertvision.tasks import TASKS
from bertvision.tasks.scores import Scale
from bertvision.train.solve import solve_readout
from fit import LONGEST, loaded

DRAWN, SCORED = 1500, 2000
DRAWS = {8: 20, 64: 12, 512: 3}


@torch.no_grad()
def pooled(texts: list[tuple[str, ...]]) -> Tensor:
    """(n, L, H) mean-pooled states of all layers."""
    backbone = loaded("minilm")
    windows = make_text_windows(backbone.tokenizer, texts, np.zeros(len(texts), np.int64), LONGEST)
    means = torch.empty(len(texts), backbone.layers, backbone.width)
    for index in by_length(windows.lengths, 2048):
        states = backbone(collate(windows, index, backbone.pad))
        real = states.mask[:, None, :, None].float()
        means[index] = (states.layers * real).sum(2) / real.sum(2)
    return means


def embedded(parts: list[Tensor]) -> NDArray[np.float32]:
    """What the regression reads: the last layer; of pairs that of both, their difference and their product."""
    last = [normalize(part[:, -1]) for part in parts]
    pair = [*last, (last[0] - last[1]).abs(), last[0] * last[1]] if len(last) == 2 else last
    return torch.cat(pair, dim=1).numpy()


def views_of(texts: list[tuple[str, ...]], parts: list[Tensor]) -> dict[str, Tensor]:
    """What the heads of the first step read, (n, H) each, of pairs apart (n, 4 H + 1). parts: of each text."""
    states = pooled(texts)
    middle = round(MIDDLE * (states.shape[1] - 1))
    views = {"mean of upper layers": states[:, middle:].mean(dim=1), "last layer": states[:, -1]}
    views |= {f"layer {middle}": states[:, middle]}
    if len(parts) == 2:
        both = torch.stack(parts, dim=2)  # (n, L, 2, H)
        compared = States(both, torch.ones(len(both), 2, dtype=torch.bool)).compared().layers[:, :, 0]
        views |= {"apart, last layer": compared[:, -1], "apart, mean of upper layers": compared[:, middle:].mean(dim=1)}
    return views


def accuracy_or_correlation(labels: tuple[str, ...], gold: NDArray, predicted: NDArray) -> float:
    return metrics.accuracy(gold, predicted) if labels else metrics.spearman(gold, predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="SST-2", choices=list(GLUE))
    parser.add_argument("--per-class", type=int, choices=DRAWS)
    asked = parser.parse_args()
    data = DataRecipe(glue=str(Path(os.environ.get("BERTVISION_DATA", "data")) / "glue"))
    examples = read_examples(f"glue:{asked.task}/train", data).examples[: DRAWN + SCORED]
    labels = GLUE[asked.task].labels
    if labels:
        gold = np.array([labels.index(str(one.target)) for one in examples])
    else:
        gold = Scale(*SCALE).to_unit(np.array([float(str(one.target)) for one in examples])).astype(np.float32)
    texts = [one.texts for one in examples]
    parts = [pooled([(each[place],) for each in texts]) for place in range(len(texts[0]))]
    read, views = embedded(parts), views_of(texts, parts)
    task = TASKS["labels"](labels) if labels else TASKS["score"]()
    for size in [asked.per_class] if asked.per_class else DRAWS:
        scores: dict[str, list[float]] = {}
        for seed in range(DRAWS[size]):
            order = np.random.default_rng(seed).permutation(DRAWN)
            groups = [order[gold[order] == number][:size] for number in range(len(labels))] or [order[: 2 * size]]
            drawn = np.concatenate(groups)
            model = LogisticRegression(max_iter=2000) if labels else Ridge()
            predicted = {"regression": model.fit(read[drawn], gold[drawn]).predict(read[DRAWN:])}
            for name, view in views.items():
                readout = torch.nn.Linear(view.shape[1], max(1, len(labels)))
                solve_readout(readout, task, view[drawn], torch.from_numpy(gold[drawn]), seed)
                logits = readout(view[DRAWN:]).detach()
                predicted[name] = logits.argmax(dim=1).numpy() if labels else logits[:, 0].numpy()
            for name, values in predicted.items():
                scores.setdefault(name, []).append(accuracy_or_correlation(labels, gold[DRAWN:], values))
        for name, own in scores.items():
            apart_by = np.subtract(own, scores["regression"])
            error = apart_by.std(ddof=1) / np.sqrt(len(own))
            print(
                f"{asked.task}, {size} per class, {len(own)} draws: {name} {np.mean(own):.1f} "
                f"({np.std(own, ddof=1):.1f}), {apart_by.mean():+.1f} ± {error:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
