"""Fine-tuning: windows batched by length, against a plain transformers `Trainer` on the same, padded to 384.

Same encoder, windows, epochs, batch size, optimiser, schedule. A plain Trainer keeps the encoder's attention dropout,
which no fused kernel knows on a CPU, while our default has none; the line therefore tells, too, how it fares
without it. What is left then is padding, and what a loop costs.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.loading import find_encoder
from bertvision.data.windows import Windows
from bertvision.recipe import FinetuneRecipe
from bertvision.tasks import Spans
from bertvision.train.finetune import finetune
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from side_by_side import Finding, Race, main, squad

RECIPE = FinetuneRecipe(warmup=0.0)
LONGEST = 384


def measure(windows: int, rounds: int) -> list[Finding]:
    backbone = Backbone.load("minilm")
    data = squad(windows, backbone)
    rows = padded_rows(data.windows, backbone.pad)

    def ours() -> None:
        with tempfile.TemporaryDirectory() as directory:
            job = Job(Path(directory), "finetune", 1, "bench", 3600, Journal(quiet=True))
            finetune(backbone, Spans(), data, RECIPE, job)

    plain, fused = plain_model(), plain_model(attention_probs_dropout_prob=0.0)
    race = Race(ours, lambda: plain_trainer(plain, rows), lambda: plain_trainer(fused, rows), rounds=rounds)
    count = len(data.windows)
    rates = [f"{count / race.seconds(way):.1f}" for way in range(3)]
    says = (
        f"{rates[0]} questions per second against {rates[1]} of a Trainer that pads to {LONGEST}; "
        f"{race.ratio(2):.2f} against the {rates[2]} of one without attention dropout; "
        f"{count} windows of {data.windows.lengths.mean():.0f} tokens"
    )
    return [Finding("finetune", race.ratio(1), 2.0, says)]


def padded_rows(windows: Windows, pad: int) -> list[dict[str, torch.Tensor]]:
    """Windows as the question-answering models of transformers take them, one row each."""
    rows = []
    for start, end, (first, last) in zip(windows.starts, windows.starts[1:], windows.targets):
        space = (0, LONGEST - (end - start))
        ids, types = (np.pad(each[start:end].astype(np.int64), space) for each in (windows.ids, windows.types))
        mask = np.arange(LONGEST) < end - start
        rows.append(
            {
                "input_ids": torch.from_numpy(np.where(mask, ids, pad)),
                "token_type_ids": torch.from_numpy(types),
                "attention_mask": torch.from_numpy(mask.astype(np.int64)),
                "start_positions": torch.tensor(first),
                "end_positions": torch.tensor(last),
            }
        )
    return rows


def plain_model(**changes: Any) -> torch.nn.Module:
    from transformers import AutoModelForQuestionAnswering
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForQuestionAnswering.from_pretrained(find_encoder("minilm"), **changes)


def plain_trainer(model: torch.nn.Module, rows: list[dict[str, torch.Tensor]]) -> None:
    """One epoch as the examples of transformers do it."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as directory:
        options = TrainingArguments(
            output_dir=directory,
            num_train_epochs=RECIPE.epochs,
            per_device_train_batch_size=RECIPE.batch_size,
            learning_rate=RECIPE.learning_rate,
            weight_decay=RECIPE.weight_decay,
            max_grad_norm=RECIPE.clip,
            lr_scheduler_type=RECIPE.schedule,
            optim="adamw_torch_fused",
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=options, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main(measure, windows=48)
