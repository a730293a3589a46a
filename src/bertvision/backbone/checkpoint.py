"""Trained tensors of an encoder: saved as one small file, loaded over the untouched encoder.

A safetensors file of exactly the tensors that trained. Its header holds the tuning plan, the shape of the encoder and
a fingerprint of the frozen weights, so that it is never loaded into another encoder.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertvision.backbone.anatomy import depth, pooler, width
from bertvision.backbone.plan import Plan, Tuning
from bertvision.backbone.tuning import apply, is_added, plan_of
from bertvision.errors import UserError
from bertvision.files import write_tensors

FORMAT = "bertvision tuning 1"
FILES = ("backbone.safetensors", "encoder.safetensors")  # names in a checkpoint and in a reader
PROBE = 64  # leading numbers of each frozen tensor that enter its fingerprint


def trained_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """Exactly the tensors that train: adapters, LoRA, LayerNorms, unfrozen blocks. Detached, not copied."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def save_tuned(model: PreTrainedModel, tuning: Tuning, file: Path | str) -> None:
    """Writes the tensors that train under `tuning`, which has been applied to `model`."""
    write_tensors(Path(file), *tuned_tensors(model, tuning))


def tuned_tensors(model: PreTrainedModel, tuning: Tuning) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of the file that `save_tuned` writes."""
    state = trained_state(model)
    header = {
        "format": FORMAT,
        "encoder": json.dumps(_shape(model)),
        "tuning": json.dumps(asdict(tuning)),
        "frozen": json.dumps(_fingerprints(model, state)),
    }
    return {name: tensor.contiguous().cpu() for name, tensor in state.items()}, header


def load_tuned(model: PreTrainedModel, file: Path | str) -> Plan:
    """Loads a saved tuning into `model`, in place: inserts its adapters and LoRA, and copies the trained tensors.

    model: the plain encoder, or one already tuned with the same plan (an earlier or later checkpoint of the same
    training), whose trained tensors are replaced. A damaged file, or one of another encoder, changes nothing.
    """
    header, state = _read(Path(file))
    tuning = _check(model, header, state, str(file))
    wanted = {name: tensor.shape for name, tensor in state.items()}
    if _trained_shapes(model) != wanted:
        if any(is_added(name) for name, _ in model.named_parameters()):
            raise UserError(f"{file}: the encoder already has adapters or LoRA of another plan; load a plain one first")
        apply(model, tuning, seed=None)  # the values of all that it adds are in `state`
        if _trained_shapes(model) != wanted:
            raise UserError(f"{file}: its tensors do not fit its own header; save it again")
    target = trained_state(model)
    for name, tensor in state.items():
        target[name].copy_(tensor)
    return plan_of(model, tuning)


def find_tuned(directory: Path | str) -> Path:
    """The file of trained tensors in a checkpoint of a run or in a reader."""
    for name in FILES:
        if (path := Path(directory).expanduser() / name).is_file():
            return path
    raise UserError(f"{directory}: holds no tuned encoder; give a checkpoint, RUN/seed-N/checkpoint-E, or a reader")


def start_from(model: PreTrainedModel, file: Path, tuning: Tuning) -> None:
    """`apply(model, tuning)`, but starting from the tensors of an earlier training with the same plan."""
    earlier = load_tuned(model, file).tuning
    if earlier != tuning:
        theirs, ours = (
            ", ".join(f"{key} = {value}" for key, value in asdict(one).items()) for one in (earlier, tuning)
        )
        raise UserError(f"{file}: was tuned with {theirs}, which must be the same as here: {ours}")


def _trained_shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in trained_state(model).items()}


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; give one that training has saved")
    try:
        with safe_open(file, framework="pt") as opened:
            header = opened.metadata() or {}
            state = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: not a whole safetensors file ({error}); copy or train it again") from None
    if header.get("format") != FORMAT:
        raise UserError(f"{file}: not a tuning of an encoder saved by bertvision; give one that training has saved")
    return header, state


def _check(model: PreTrainedModel, header: Mapping[str, str], state: Mapping[str, Tensor], where: str) -> Tuning:
    """The tuning plan in the header; UserError if the file does not belong to `model`."""
    try:
        encoder, frozen = dict(json.loads(header["encoder"])), dict(json.loads(header["frozen"]))
        tuning = Tuning(**json.loads(header["tuning"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: its header is damaged; copy or train it again") from None
    for key, here in _shape(model).items():
        if encoder.get(key) != here:
            raise UserError(
                f"{where}: trained on an encoder with {key} {encoder.get(key)}, this one has {here}; load that encoder"
            )
    own = _fingerprints(model, state)
    # an encoder loaded in another precision has other bytes: only the same precision can be compared
    if frozen.get("dtype") == own["dtype"] and frozen.get("sha256") != own["sha256"]:
        raise UserError(f"{where}: trained on other weights than this encoder's; load the encoder it was trained on")
    return tuning


def _shape(model: PreTrainedModel) -> dict[str, int | str]:
    kind = model.config.model_type
    return {"type": kind, "width": width(model), "layers": depth(model), "vocabulary": model.config.vocab_size}


def _fingerprints(model: PreTrainedModel, trained: Mapping[str, Tensor]) -> dict[str, str]:
    """Precision of the weights outside `trained`, and a digest of the beginning of each, which is quick to compute."""
    moved = {_plain(name) for name in trained}
    # No head reads the pooler; where a checkpoint lacks one, transformers draws its weights at random.
    unread = {id(parameter) for parameter in (pooler(model) or nn.Identity()).parameters()}
    digest = hashlib.sha256()
    for name, parameter in sorted((_plain(name), parameter) for name, parameter in model.named_parameters()):
        if name not in moved and id(parameter) not in unread:
            beginning = parameter.detach().flatten()[:PROBE].cpu().contiguous()
            digest.update(name.encode())
            digest.update(beginning.view(torch.uint8).numpy().tobytes())
    return {"dtype": str(model.dtype), "sha256": digest.hexdigest()}


def _plain(name: str) -> str:
    """The name of a tensor in the plain encoder: LoRA moves the map it updates one level down."""
    return name.replace(".base_layer.", ".")
