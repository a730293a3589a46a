"""Fine-tuning: `finetune` against a transformers `Trainer`, as a careful user sets it up and as its defaults are.

Same encoder, windows, epochs, batch size, optimiser, schedule. The careful Trainer groups windows by length, pads each
batch to its longest, has no attention dropout (no fused kernel knows it on a CPU, and our default has none) and runs in
the precision of ours. The default one pads all windows to 384 and keeps the encoder's attention dropout, in fp32.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertvision.backbone.backbone import Backbone
from bertvision.backbone.loading import find_encoder
from bertvision.data.windows import Windows
from bertvision.devices import has_bf16
from bertvision.recipe import FinetuneRecipe
from bertvision.tasks import Spans
from bertvision.train.finetune import Checkpoint, finetune
from bertvision.train.loop import Job
from bertvision.train.progress import Journal
from side_by_side import Finding, Race, main, squad

RECIPE = FinetuneRecipe(warmup=0.0)
LONGEST = 384
Row = Mapping[str, Any]


def measure(windows: int, rounds: int, encoder: str = "minilm") -> list[Finding]:
    backbone = Backbone.load(encoder)
    data = squad(windows, backbone)
    rows, count = plain_rows(data.windows), len(data.windows)
    default, careful = plain_model(encoder), plain_model(encoder, attention_probs_dropout_prob=0.0)

    def ours(precision: Any) -> None:
        with tempfile.TemporaryDirectory() as directory:
            job = Job(Path(directory), "finetune", 1, "bench", 3600, Journal(quiet=True))
            end = {RECIPE.epochs: Checkpoint(job.directory / "checkpoint")}
            finetune(backbone, Spans(), data, replace(RECIPE, precision=precision), job, end)

    def trainer(precision: str) -> None:
        plain_trainer(careful, rows, backbone.pad, grouped=True, bf16=precision == "bf16")

    race = Race(lambda: ours("fp32"), lambda: trainer("fp32"), rounds=rounds)
    rates = [f"{count / race.seconds(way):.2f}" for way in range(2)]
    what = f"{count} windows of {data.windows.lengths.mean():.0f} tokens through {encoder}"
    against = "of a Trainer that groups by length, pads each batch and has no attention dropout"
    says = f"{rates[0]} questions per second against {rates[1]} {against}; {what}"
    found = [Finding("finetune", race.ratio(), 1.6, says)]
    if has_bf16():
        padded = lambda: plain_trainer(default, rows, backbone.pad, grouped=False)  # noqa: E731
        race = Race(lambda: ours("bf16"), padded, lambda: trainer("bf16"), rounds=rounds)
        rates = [f"{count / race.seconds(way):.2f}" for way in range(3)]
        says = (
            f"{rates[0]} questions per second in bf16 against {rates[1]} of a default Trainer in fp32 that pads to "
            f"{LONGEST}; {race.ratio(2):.2f} times the {rates[2]} of the careful one in bf16; {what}"
        )
        found.append(Finding("finetune_bf16", race.ratio(), 2.5, says))
    return found


def plain_rows(windows: Windows) -> list[Row]:
    """Windows as lists, as a tokenizer gives them, with their targets."""
    spans = zip(windows.starts, windows.starts[1:], windows.targets)
    return [
        {
            "input_ids": windows.ids[start:end].tolist(),
            "token_type_ids": windows.types[start:end].tolist(),
            "length": int(end - start),
            "start_positions": int(first),
            "end_positions": int(last),
        }
        for start, end, (first, last) in spans
    ]


def padded(rows: Sequence[Row], pad: int, longest: int | None = None) -> dict[str, torch.Tensor]:
    """A batch, padded to its longest row or to `longest`."""
    size = longest or max(row["length"] for row in rows)
    fill = {"input_ids": pad, "token_type_ids": 0}
    batch = {
        key: torch.tensor([row[key] + [value] * (size - row["length"]) for row in rows]) for key, value in fill.items()
    }
    batch["attention_mask"] = torch.tensor([[1] * row["length"] + [0] * (size - row["length"]) for row in rows])
    return batch | {key: torch.tensor([row[key] for row in rows]) for key in ("start_positions", "end_positions")}


def plain_model(encoder: str, **changes: Any) -> torch.nn.Module:
    from transformers import AutoModelForQuestionAnswering
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModelForQuestionAnswering.from_pretrained(find_encoder(encoder), attn_implementation="sdpa", **changes)


def plain_trainer(model: torch.nn.Module, rows: list[Row], pad: int, *, grouped: bool, bf16: bool = False) -> None:
    """One epoch. grouped: windows of like length together, each batch padded to its longest."""
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
            bf16=bf16,
            train_sampling_strategy="group_by_length" if grouped else "random",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        collator = lambda chosen: padded(chosen, pad, None if grouped else LONGEST)  # noqa: E731
        trainer = Trainer(model=model, args=options, train_dataset=rows, data_collator=collator)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


if __name__ == "__main__":
    main(measure, windows=164)
