"""Averages two trainings of one encoder: python recipes/pocket_average.py ENCODER READER RUN/seed-1/checkpoint-1 OUT

OUT becomes a checkpoint with the mean of the weights of both, encoder and span read-out, and the notes of the second.
"""

import sys
from pathlib import Path

import torch

from bertvision import Backbone
from bertvision.backbone.checkpoint import find_tuned, load_tuned, save_tuned, trained_state
from bertvision.files import load_tensors, save_tensors

READOUT = "spans/backbone/"


def average(encoder: str, reader: Path, checkpoint: Path, out: Path) -> None:
    """Writes the mean of a reader and a checkpoint, both with all of the encoder tuned."""
    one, other = Backbone.load(encoder), Backbone.load(encoder)
    load_tuned(one.model, find_tuned(reader))
    tuning = load_tuned(other.model, find_tuned(checkpoint)).tuning
    first, second = trained_state(one.model), trained_state(other.model)
    with torch.no_grad():
        for key, tensor in second.items():
            tensor.add_(first[key]).div_(2)
    readout, _ = load_tensors(reader / "heads.safetensors")
    head, about = load_tensors(checkpoint / "head.safetensors")
    out.mkdir(parents=True, exist_ok=True)
    save_tuned(other.model, tuning, out / "backbone.safetensors")
    save_tensors(out / "head.safetensors", {key: (t + readout[READOUT + key]) / 2 for key, t in head.items()}, about)


if __name__ == "__main__":
    average(sys.argv[1], *(Path(argument) for argument in sys.argv[2:]))
