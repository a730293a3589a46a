"""Heads that `fit` solves from few examples, against logistic regression on embeddings, over many draws of examples.

python bench/few.py                                      # SST-2 at 8, 64 and 512 per class: about half a minute
python bench/few.py --task MRPC --per-class 64

Examples are drawn from the first 1,500 of the training set, the following 2,000 are scored; the development set, which
`fit.py` reports on, is not touched. Prints the mean accuracy over the draws, their standard deviation, and the mean
difference to the regression with its standard error.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import normalize

from bertvision.data.batches import by_length, collate
from bertvision.data.glue import GLUE
from bertvision.data.sources import read_examples
from bertvision.data.windows import make_text_windows
from bertvision.recipe import DataRecipe
from bertvision.tasks import TASKS
from bertvision.train.solve import solve_readout
from fit import LONGEST, loaded

DRAWN, SCORED = 1500, 2000
DRAWS = {8: 20, 64: 12, 512: 3}


@torch.no_grad()
def pooled(texts: list[tuple[str, ...]]) -> Tensor:
    """(n, L, H) mean-pooled states of all layers."""
    backbone = loaded("minilm")
    windows = make_text_windows(backbone.tokenizer, texts, np.zeros(len(texts), np.int64), LONGEST)
    found = torch.empty(len(texts), backbone.layers, backbone.width)
    for index in by_length(windows.lengths, 2048):
        states = backbone(collate(windows, index, backbone.pad))
        real = states.mask[:, None, :, None].float()
        found[index] = (states.layers * real).sum(2) / real.sum(2)
    return found


def apart(texts: list[tuple[str, ...]]) -> NDArray[np.float32]:
    """What the regression reads: the last layer; of pairs that of both, their difference and their product."""
    parts = [normalize(pooled([(each[place],) for each in texts])[:, -1]) for place in range(len(texts[0]))]
    pair = [*parts, (parts[0] - parts[1]).abs(), parts[0] * parts[1]] if len(parts) == 2 else parts
    return torch.cat(pair, dim=1).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="SST-2", choices=[name for name, task in GLUE.items() if task.labels])
    parser.add_argument("--per-class", type=int, choices=DRAWS)
    asked = parser.parse_args()
    data = DataRecipe(glue=str(Path(os.environ.get("BERTVISION_DATA", "data")) / "glue"))
    examples = read_examples(f"glue:{asked.task}/train", data).examples[: DRAWN + SCORED]
    labels = GLUE[asked.task].labels
    gold = np.array([labels.index(str(one.target)) for one in examples])
    texts = [one.texts for one in examples]
    states, embedded = pooled(texts), apart(texts)
    middle = round(0.67 * (states.shape[1] - 1))
    views = {"mean of upper layers": states[:, middle:].mean(dim=1), "last layer": states[:, -1]}
    views |= {f"layer {middle}": states[:, middle]}
    task = TASKS["labels"](labels)
    for size in [asked.per_class] if asked.per_class else DRAWS:
        right: dict[str, list[float]] = {}
        for seed in range(DRAWS[size]):
            order = np.random.default_rng(seed).permutation(DRAWN)
            drawn = np.concatenate([order[gold[order] == number][:size] for number in range(len(labels))])
            model = LogisticRegression(max_iter=2000).fit(embedded[drawn], gold[drawn])
            said = {"regression": model.predict(embedded[DRAWN:])}
            for name, view in views.items():
                readout = torch.nn.Linear(view.shape[1], len(labels))
                solve_readout(readout, task, view[drawn], torch.from_numpy(gold[drawn]), seed)
                said[name] = readout(view[DRAWN:]).argmax(dim=1).numpy()
            for name, found in said.items():
                right.setdefault(name, []).append(100 * float(np.mean(found == gold[DRAWN:])))
        for name, values in right.items():
            apart_by = np.subtract(values, right["regression"])
            error = apart_by.std(ddof=1) / np.sqrt(len(values))
            print(
                f"{asked.task}, {size} per class, {len(values)} draws: {name} {np.mean(values):.1f} "
                f"({np.std(values, ddof=1):.1f}), {apart_by.mean():+.1f} ± {error:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
