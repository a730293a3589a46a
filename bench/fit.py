"""`fit` beside what people would use: logistic regression on embeddings, a plain `Trainer`, SetFit if it is installed.

python bench/fit.py --json fit.jsonl                     # all cases; those in the file already are not run again
python bench/fit.py --json fit.jsonl --task SST-2        # a piece of it; also --per-class 64, --minutes 5, --ways fit
python bench/fit.py --quick                              # whether everything runs: half a minute each, 100 examples
python bench/fit.py --json fit.jsonl --ways ""           # runs nothing, prints the table of what is there

Same encoder, same examples, same minutes, one after the other; each way is scored on the official development set,
with the 95 % interval of a bootstrap over its examples. Of a regression task twice `--per-class` examples are drawn;
0 = all. Also the regression reads no more examples than fit into the minutes. The files of GLUE are those in
BERTVISION_DATA/glue. With --processor-time minutes are those of the processor: for a machine that does other work, too.
"""

import argparse
import functools
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
CASES = {"SST-2": (8, 64, 512, 0), "MRPC": (0,), "CoLA": (0,), "QNLI": (0,), "STS-B": (0,)}  # examples per class
MINUTES = (1.0, 5.0, 15.0)


class Work:
    """Examples to learn from and to be scored on, at most `most` of the latter. labels: none for scores."""

    def __init__(self, task: str, per_class: int, minutes: float, seed: int, most: int = 0) -> None:
        self.task, self.encoder, self.minutes, self.seed = task, "minilm", minutes, seed
        self.labels, self.metric = GLUE[task].labels, GLUE[task].metrics[-1]
        data = DataRecipe(glue=str(Path(os.environ.get("BERTVISION_DATA", "data")) / "glue"))
        whole = read_examples(f"glue:{task}/train", data).examples
        self.test = read_examples(f"glue:{task}/dev", data).examples[: most or None]
        order = np.random.default_rng(seed).permutation(len(whole))
        drawn = [whole[row] for row in order]
        groups = [[example for example in drawn if example.target == label] for label in self.labels] or [drawn, []]
        size = per_class or len(whole)
        self.train = [example for group in groups for example in group[: size if self.labels else 2 * size]]

    def gold(self, examples: list[Example]) -> NDArray[np.float64]:
        if not self.labels:
            return np.array([float(str(example.target)) for example in examples])
        return np.array([self.labels.index(str(example.target)) for example in examples], dtype=np.float64)

    def score(self, said: NDArray[Any]) -> tuple[float, float, float]:
        """The main metric on test, and its 95 % interval."""
        classes = len(self.labels)
        scores: dict[str, Callable[[NDArray[np.float64]], float]] = {
            "accuracy": lambda rows: metrics.accuracy(rows[:, 0], rows[:, 1]),
            "f1": lambda rows: metrics.f1(rows[:, 0], rows[:, 1], classes),
            "matthews": lambda rows: metrics.matthews(rows[:, 0], rows[:, 1], classes),
            "spearman": lambda rows: metrics.spearman(rows[:, 0], rows[:, 1]),
        }
        points = Points(np.stack([self.gold(self.test), said.astype(np.float64)], axis=1), scores)
        return scores[self.metric](points.values), *score_interval(points, self.metric)


def by_fit(work: Work, steps: int | None = None) -> NDArray[Any]:
    """steps: the first ones of fit alone, however long they take."""
    columns = [f"text{column}" for column in range(len(work.train[0].texts))]
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: Path(directory) / f"{name}.jsonl" for name in ("train", "test")}
        for name, examples in (("train", work.train), ("test", work.test)):
            rows = [{**dict(zip(columns, example.texts)), "label": example.target} for example in examples]
            paths[name].write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        options: dict[str, Any] = {"minutes": work.minutes, "steps": steps, "encoder": work.encoder, "seed": work.seed}
        options |= {"test": str(paths["test"]), "out": Path(directory) / "run"}  # test: reported on, never chosen on
        reader = fit(paths["train"], text=columns, label="label", **options).reader()
        texts = [[example.texts[column] for example in work.test] for column in range(len(columns))]
        if not work.labels:
            return np.array(reader.similarity(*texts))
        return np.array([work.labels.index(example["label"]) for example in reader.classify(*texts)])


loaded = functools.cache(Backbone.load)


@torch.no_grad()
def embeddings(work: Work, examples: list[Example]) -> NDArray[np.float32]:
    """(n, H) mean-pooled and normalised; of a pair both, their difference and their product, (n, 4 H)."""
    backbone = loaded(work.encoder)
    parts = []
    for column in range(len(examples[0].texts)):
        texts = [(example.texts[column],) for example in examples]
        windows = make_text_windows(backbone.tokenizer, texts, np.zeros(len(texts), np.int64), LONGEST)
        pooled = torch.empty(len(texts), backbone.width)
        for index in by_length(windows.lengths, 4096):
            states = backbone(collate(windows, index, backbone.pad), "last")
            real = states.mask[:, :, None].float()
            pooled[index] = (states.layers[:, 0] * real).sum(1) / real.sum(1)
        parts.append(torch.nn.functional.normalize(pooled))
    pair = [*parts, (parts[0] - parts[1]).abs(), parts[0] * parts[1]] if len(parts) == 2 else parts
    return torch.cat(pair, dim=1).numpy()


def by_regression(work: Work) -> NDArray[Any]:
    from sklearn.linear_model import LogisticRegression, Ridge

    model = LogisticRegression(max_iter=2000) if work.labels else Ridge()
    began, chosen, embedded = time.perf_counter(), np.random.default_rng(work.seed).permutation(len(work.train)), []
    while sum(map(len, embedded)) < len(chosen) and time.perf_counter() - began < 54 * work.minutes:
        done = sum(map(len, embedded))
        embedded.append(embeddings(work, [work.train[row] for row in chosen[done : done + 500]]))
    gold = work.gold(work.train)[chosen[: sum(map(len, embedded))]]
    return model.fit(np.concatenate(embedded), gold).predict(embeddings(work, work.test))


def by_trainer(work: Work) -> NDArray[Any]:
    """A plain Trainer, its steps as many as the minutes allow by the speed of the first ones, at most 20 epochs."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    encoder = find_encoder(work.encoder)
    tokenizer = AutoTokenizer.from_pretrained(encoder)

    def rows(examples: list[Example]) -> list[dict[str, Any]]:
        texts = [[example.texts[column] for example in examples] for column in range(len(examples[0].texts))]
        encoded = tokenizer(*texts, truncation=True, max_length=LONGEST)
        gold = work.gold(examples).tolist()
        inputs = [{key: values[row] for key, values in encoded.items()} for row in range(len(examples))]
        return [{**example, "labels": int(y) if work.labels else y} for example, y in zip(inputs, gold)]

    def train(steps: int, directory: str) -> tuple[Any, float]:
        torch.manual_seed(work.seed)
        model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=max(1, len(work.labels)))
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
    """Its own defaults but for the number of steps, found as for the Trainer."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from setfit import SetFitModel, Trainer, TrainingArguments
    from sklearn.linear_model import LogisticRegression

    if not work.labels or len(work.train[0].texts) > 1:
        raise ValueError("SetFit labels single texts")
    columns = {
        "text": [example.texts[0] for example in work.train],
        "label": work.gold(work.train).astype(int).tolist(),
    }

    def train(steps: int, directory: str) -> tuple[Any, float]:
        encoder = Transformer(str(find_encoder(work.encoder)))
        body = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension()), Normalize()])
        model = SetFitModel(model_body=body, model_head=LogisticRegression())
        plan = TrainingArguments(
            output_dir=directory, max_steps=steps, seed=work.seed, save_strategy="no", report_to="none"
        )
        began = time.perf_counter()
        Trainer(model, args=plan, train_dataset=Dataset.from_dict(columns)).train()
        return model, time.perf_counter() - began

    with tempfile.TemporaryDirectory() as directory:
        _, seconds = train(5, directory)
        left = 60 * work.minutes - seconds
        pairs = len(work.train) ** 2 // 16  # steps of one epoch, about
        model, _ = train(int(max(5, min(pairs, 0.9 * left / (seconds / 5)))), directory)
        return np.array([int(label) for label in model.predict([example.texts[0] for example in work.test])])


FIRST = {f"fit-{steps}": functools.partial(by_fit, steps=steps) for steps in (1, 2)}
WAYS: dict[str, Callable[[Work], NDArray[Any]]] = FIRST | {
    "fit": by_fit,
    "regression": by_regression,
    "trainer": by_trainer,
    "setfit": by_setfit,
}
KEY = ("task", "per_class", "minutes", "seed", "way")


def measure(work: Work, way: str) -> dict[str, Any]:
    """Score, interval and cost of one way, or why it was not run."""
    wall, cpu = time.time(), time.process_time()
    try:
        value, low, high = work.score(WAYS[way](work))
    except (ImportError, ValueError) as error:
        return {"why": str(error)}
    spent = {"seconds": round(time.time() - wall, 1), "cpu": round(time.process_time() - cpu, 1)}
    return {"metric": work.metric, "value": value, "low": low, "high": high, **spent}


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each case, and the mean rank of every way over the cases that all of `ways` have."""
    cases: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(tuple(row[key] for key in KEY[:-1]), {})[row["way"]] = row
    ways = [way for way in WAYS if any("value" in case.get(way, {}) for case in cases.values())]
    lines = ["| task | per class | minutes | " + " | ".join(ways) + " |", "|---|---|---|" + "---|" * len(ways)]
    ranks: dict[str, list[int]] = {way: [] for way in ways}
    for (task, per_class, minutes, _), case in cases.items():
        done = {way: case[way]["value"] for way in ways if "value" in case.get(way, {})}
        for way, value in done.items():
            ranks[way].append(1 + sum(other > value for other in done.values()))
        cells = [
            f"{v['value']:.1f} ({v['low']:.1f} to {v['high']:.1f})" if w in done else "–"
            for w in ways
            if (v := case.get(w, {})) is not None
        ]
        lines.append(f"| {task} | {per_class or 'all'} | {minutes:g} | " + " | ".join(cells) + " |")
    means = [f"{np.mean(ranks[way]):.2f}" for way in ways]
    return "\n".join([*lines, "| mean rank | | | " + " | ".join(means) + " |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=CASES, help="of all tasks this one")
    parser.add_argument("--per-class", type=int, help="of its sizes this one")
    parser.add_argument("--minutes", type=float, help="instead of 1, 5 and 15")
    parser.add_argument("--seed", type=int, default=1)
    usual = ",".join(way for way in WAYS if way not in FIRST)
    parser.add_argument(
        "--ways", default=usual, help=f"instead of {usual}; also fit-1 and fit-2, its first steps alone"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processor-time", action="store_true", help="minutes of the processor, not of the clock")
    parser.add_argument("--json", type=Path, help="a line for each result; results that it has are not measured again")
    asked = parser.parse_args()
    if asked.processor_time:  # in all ways alike: each asks one of these what the time is
        time.perf_counter = time.monotonic = time.process_time  # type: ignore[assignment]
    rows = (
        [json.loads(line) for line in asked.json.read_text("utf-8").splitlines()]
        if asked.json and asked.json.is_file()
        else []
    )
    measured = {tuple(row[key] for key in KEY) for row in rows}
    tasks = [asked.task] if asked.task else ["SST-2", "STS-B"] if asked.quick else list(CASES)
    minutes = [asked.minutes] if asked.minutes else [0.5] if asked.quick else MINUTES
    for task in tasks:
        sizes = [asked.per_class] if asked.per_class is not None else [16] if asked.quick else CASES[task]
        for case in [(task, size, limit, asked.seed) for size in sizes for limit in minutes]:
            for way in [way for way in asked.ways.split(",") if way and (*case, way) not in measured]:
                result = measure(Work(*case, most=100 if asked.quick else 0), way)
                rows.append(dict(zip(KEY, (*case, way))) | result)
                print(json.dumps(rows[-1]), flush=True)
                if asked.json:
                    with asked.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
