"""`fit` beside what people would use: logistic regression on embeddings, a plain `Trainer`, SetFit if it is installed.

python bench/fit.py --task SST-2 --per-class 512 --minutes 3 [--ways fit,regression,trainer,setfit] [--json FILE]

Same encoder, same examples, same minutes, one after the other; each way is scored on the official development set,
with the 95 % interval of a bootstrap over its examples. Of a regression task twice `--per-class` examples are drawn;
0 = all. The files of GLUE are those in BERTVISION_DATA/glue.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertvision import Backbone, fit
from bertvision.backbone.loading import find_encoder
from bertvision.data.batches import by_length, collate
from bertvision.data.glue import GLUE
from bertvision.data.sources import read_examples
from bertvision.data.tables import Example
from bertvision.data.windows import make_text_windows
from bertvision.evaluate import metrics
from bertvision.evaluate.bootstrap import Points, score_interval
from bertvision.recipe import DataRecipe

LONGEST = 128  # tokens of a text
EPOCHS = 20  # most that a Trainer makes


class Work:
    """Examples to learn from and to be scored on. labels: none for scores."""

    def __init__(self, task: str, per_class: int, encoder: str, minutes: float, seed: int) -> None:
        self.task, self.encoder, self.minutes, self.seed = task, encoder, minutes, seed
        self.labels, self.metric = GLUE[task].labels, GLUE[task].metrics[-1]
        data = DataRecipe(glue=str(Path(os.environ.get("BERTVISION_DATA", "data")) / "glue"))
        whole = read_examples(f"glue:{task}/train", data).examples
        self.test = read_examples(f"glue:{task}/dev", data).examples
        order = np.random.default_rng(seed).permutation(len(whole))
        drawn = [whole[place] for place in order]
        groups = [[one for one in drawn if one.target == label] for label in self.labels] or [drawn, []]
        size = per_class or len(whole)
        self.train = [one for group in groups for one in group[: size if self.labels else 2 * size]]

    def gold(self, examples: list[Example]) -> NDArray[np.float64]:
        if not self.labels:
            return np.array([float(str(one.target)) for one in examples])
        return np.array([self.labels.index(str(one.target)) for one in examples], dtype=np.float64)

    def score(self, said: NDArray[Any]) -> tuple[float, float, float]:
        """The main metric on test, and its 95 % interval."""
        classes = len(self.labels)
        known: dict[str, Callable[[NDArray[np.float64]], float]] = {
            "accuracy": lambda rows: metrics.accuracy(rows[:, 0], rows[:, 1]),
            "f1": lambda rows: metrics.f1(rows[:, 0], rows[:, 1], classes),
            "matthews": lambda rows: metrics.matthews(rows[:, 0], rows[:, 1], classes),
            "spearman": lambda rows: metrics.spearman(rows[:, 0], rows[:, 1]),
        }
        points = Points(np.stack([self.gold(self.test), said.astype(np.float64)], axis=1), known)
        return known[self.metric](points.values), *score_interval(points, self.metric)


def by_fit(work: Work) -> NDArray[Any]:
    columns = [f"text{place}" for place in range(len(work.train[0].texts))]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "train.jsonl"
        rows = [{**dict(zip(columns, one.texts)), "label": one.target} for one in work.train]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        options = {"minutes": work.minutes, "encoder": work.encoder, "seed": work.seed, "out": Path(directory) / "run"}
        reader = fit(path, text=columns, label="label", **options).reader()
        texts = [[one.texts[place] for one in work.test] for place in range(len(columns))]
        if not work.labels:
            return np.array(reader.similarity(*texts))
        return np.array([work.labels.index(one["label"]) for one in reader.classify(*texts)])


@torch.no_grad()
def embeddings(work: Work, examples: list[Example]) -> NDArray[np.float32]:
    """(n, H) mean-pooled and normalised; of a pair both, their difference and their product, (n, 4 H)."""
    backbone = Backbone.load(work.encoder)
    parts = []
    for place in range(len(examples[0].texts)):
        texts = [(one.texts[place],) for one in examples]
        windows = make_text_windows(backbone.tokenizer, texts, np.zeros(len(texts), np.int64), LONGEST)
        found = torch.empty(len(texts), backbone.width)
        for index in by_length(windows.lengths, 4096):
            states = backbone(collate(windows, index, backbone.pad), "last")
            real = states.mask[:, :, None].float()
            found[index] = (states.layers[:, 0] * real).sum(1) / real.sum(1)
        parts.append(torch.nn.functional.normalize(found))
    pair = [*parts, (parts[0] - parts[1]).abs(), parts[0] * parts[1]] if len(parts) == 2 else parts
    return torch.cat(pair, dim=1).numpy()


def by_regression(work: Work) -> NDArray[Any]:
    from sklearn.linear_model import LogisticRegression, Ridge

    model = LogisticRegression(max_iter=2000) if work.labels else Ridge()
    return model.fit(embeddings(work, work.train), work.gold(work.train)).predict(embeddings(work, work.test))


def by_trainer(work: Work) -> NDArray[Any]:
    """A plain Trainer, its steps as many as the minutes allow by the speed of the first ones, at most 20 epochs."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    place = find_encoder(work.encoder)
    tokenizer = AutoTokenizer.from_pretrained(place)

    def rows(examples: list[Example]) -> list[dict[str, Any]]:
        texts = [[one.texts[place] for one in examples] for place in range(len(examples[0].texts))]
        encoded = tokenizer(*texts, truncation=True, max_length=LONGEST)
        gold = work.gold(examples).tolist()
        found = [{key: values[row] for key, values in encoded.items()} for row in range(len(examples))]
        return [{**one, "labels": int(y) if work.labels else y} for one, y in zip(found, gold)]

    def train(steps: int, directory: str) -> tuple[Any, float]:
        torch.manual_seed(work.seed)
        model = AutoModelForSequenceClassification.from_pretrained(place, num_labels=max(1, len(work.labels)))
        plan: dict[str, Any] = {"max_steps": steps, "learning_rate": 1e-4, "per_device_train_batch_size": 16}
        plan |= {"warmup_steps": steps // 10, "weight_decay": 0.01, "seed": work.seed, "use_cpu": True}
        plan |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no"}
        trainer = Trainer(
            model, TrainingArguments(directory, **plan), train_dataset=rows(work.train), processing_class=tokenizer
        )
        began = time.perf_counter()
        trainer.train()
        return trainer, time.perf_counter() - began

    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        _, seconds = train(5, directory)
        left = 60 * work.minutes - (time.perf_counter() - began)
        most = EPOCHS * len(work.train) // 16 + 1
        trainer, _ = train(int(max(5, min(most, 0.9 * left / (seconds / 5)))), directory)
        logits = trainer.predict(rows(work.test)).predictions
    return logits.argmax(axis=1) if work.labels else logits[:, 0]


def by_setfit(work: Work) -> NDArray[Any]:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    if not work.labels or len(work.train[0].texts) > 1:
        raise ValueError("SetFit labels single texts")
    columns = {"text": [one.texts[0] for one in work.train], "label": work.gold(work.train).astype(int).tolist()}
    model = SetFitModel.from_pretrained(str(find_encoder(work.encoder)))
    Trainer(model, args=TrainingArguments(num_epochs=1), train_dataset=Dataset.from_dict(columns)).train()
    return np.array(model.predict([one.texts[0] for one in work.test]))


WAYS = {"fit": by_fit, "regression": by_regression, "trainer": by_trainer, "setfit": by_setfit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="SST-2", choices=GLUE)
    parser.add_argument("--per-class", type=int, default=512)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ways", default="fit,regression,trainer,setfit")
    parser.add_argument("--json", type=Path, help="append a line for each way to this file")
    asked = parser.parse_args()
    work = Work(asked.task, asked.per_class, asked.encoder, asked.minutes, asked.seed)
    for way in asked.ways.split(","):
        began = time.perf_counter()
        try:
            value, low, high = work.score(WAYS[way](work))
        except (ImportError, ValueError) as error:
            print(f"{way}: not run ({error})")
            continue
        seconds = time.perf_counter() - began
        print(f"{asked.task} {way}: {work.metric} {value:.2f} ({low:.2f} to {high:.2f}), {seconds:.0f} s", flush=True)
        if asked.json:
            row = {"task": asked.task, "per_class": asked.per_class, "minutes": asked.minutes, "seed": asked.seed}
            row |= {"way": way, "metric": work.metric, "value": value, "low": low, "high": high, "seconds": seconds}
            with asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
