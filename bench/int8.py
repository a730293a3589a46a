"""What a coarser store costs in scores: the heads of a run, trained anew from fp32, fp16 and int8 states.

python bench/int8.py RUN [--checkpoint E] [--seed N] [--epochs X] [--json]

The same heads, seed, batches and order; only what the store keeps differs. Everything is scored on the run's test set
from live states, at the threshold chosen on its tune set.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from bertvision.backbone.backbone import Backbone
from bertvision.errors import UserError
from bertvision.evaluate.ensemble import Ensemble, Member
from bertvision.states.layout import Dtype
from bertvision.train.bank import HeadBank, bank_feeds, train_bank
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from bertvision.train.scoring import Setting, predict
from bertvision.train.study import Study

DTYPES: tuple[Dtype, ...] = ("fp32", "fp16", "int8")


def scores(study: Study, seed: int, epoch: float, epochs: float) -> dict[str, dict[str, dict[str, float]]]:
    """{head: {dtype: scores on test}}; heads are trained for `epochs` on the checkpoint of `epoch`."""
    backbone = study.members(seed, epoch).backbone
    banks = {dtype: train(study, backbone, seed, dtype, epochs) for dtype in DTYPES}
    setting = Setting(study.task, study.recipe.evaluate, study.journal)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for dtype, bank in banks.items():
        heads = {Member(name, seed, epoch): head for name, head in bank.items()}
        singles = [*map(Ensemble.of, heads)]
        passes = {
            split: predict(backbone, heads, singles, study.data[split], setting).predictions
            for split in ("tune", "test")
        }
        for one in singles:
            threshold = study.task.choose(passes["tune"][one], study.data["tune"])
            all_scores = study.task.scores(passes["test"][one], study.data["test"], threshold)
            found.setdefault(one.name, {})[dtype] = {key: all_scores[key] for key in study.task.metrics}
    return found


def train(study: Study, backbone: Backbone, seed: int, dtype: Dtype, epochs: float) -> HeadBank:
    shape = {"layers": backbone.layers, "width": backbone.width}
    bank = HeadBank(study.recipe.heads, **shape, task=study.task.name, outputs=study.task.outputs, seed=seed)
    with tempfile.TemporaryDirectory() as directory:
        recipe = dataclasses.replace(
            study.recipe.bank, states="stored", dtype=dtype, epochs=epochs, patience=0, checkpoints=()
        )
        job = Job(Path(directory), "heads", seed, dtype, 3600, study.journal, f"heads on {dtype} states")
        return train_bank(bank, bank_feeds(bank, backbone, recipe, job), study.task, study.data, job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of a finished study")
    parser.add_argument("--checkpoint", type=float, help="epoch of the checkpoint; the last if not given")
    parser.add_argument("--seed", type=int, help="the first if not given")
    parser.add_argument("--epochs", type=float, help="how long the heads learn; as in the run if not given")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    try:
        study = Study.open(given.run)
        study.journal = Journal(quiet=given.json)
        epoch = study.run_dir.epochs[-1] if given.checkpoint is None else given.checkpoint
        seed = study.recipe.seeds[0] if given.seed is None else given.seed
        found = scores(study, seed, epoch, given.epochs or study.recipe.bank.epochs)
    except UserError as error:
        sys.exit(str(error))
    if given.json:
        print(json.dumps(found))
        return
    metrics = study.task.metrics
    print("| head | " + " | ".join(f"{metric} {dtype}" for metric in metrics for dtype in DTYPES) + " |")
    print("|" + " --- |" * (1 + len(metrics) * len(DTYPES)))
    for head, by_dtype in found.items():
        cells = [f"{by_dtype[dtype][metric]:.2f}" for metric in metrics for dtype in DTYPES]
        print(f"| {head} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
